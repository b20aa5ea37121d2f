"""What a leader knows about one follower, and how fast it may talk to it.

Three states, as in etcd's raft: *probe* (one request at a time until the logs agree), *replicate* (a window of requests in
flight, optimistically advancing), *snapshot* (chunks, one in flight).
"""

from collections import deque
from enum import Enum

MAX_INFLIGHT_APPENDS = 64


class Stage(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    def __init__(self, next_index: int) -> None:
        self.match = 0
        self.next = next_index
        self.stage = Stage.PROBE
        self.active = True
        """Heard from since the last quorum check."""
        self.round = 0
        """The newest round of heartbeats it answered."""
        self.snapshot_index = 0
        self.snapshot_offset = 0
        self._paused = False
        self._inflight: deque[int] = deque()

    def __str__(self) -> str:
        return f"{self.stage.value} match={self.match} next={self.next}{' paused' if self.paused else ''}"

    @property
    def paused(self) -> bool:
        if self.stage is Stage.REPLICATE:
            return len(self._inflight) >= MAX_INFLIGHT_APPENDS
        return self._paused

    def sent(self, last_index: int) -> None:
        """A request ending with this index has gone out."""
        if self.stage is Stage.REPLICATE:
            self.next = last_index + 1
            self._inflight.append(last_index)
        else:
            self._paused = True

    def accepted(self, match: int) -> bool:
        """True if that is news."""
        while self._inflight and self._inflight[0] <= match:
            self._inflight.popleft()
        news = match > self.match
        self.match = max(self.match, match)
        self.next = max(self.next, match + 1)
        if self.stage is Stage.PROBE or (self.stage is Stage.SNAPSHOT and self.match >= self.snapshot_index):
            self._become(Stage.REPLICATE)
            self.next = self.match + 1
        return news

    def rejected(self, prev_index: int, next_index: int) -> bool:
        """False if that rejection is of a request long overtaken."""
        if self.stage is Stage.REPLICATE:
            if prev_index <= self.match:
                return False
            self._become(Stage.PROBE)
            self.next = self.match + 1
            return True
        if self.next - 1 != prev_index:
            return False
        self.next = max(self.match + 1, min(prev_index, next_index))
        self._paused = False
        return True

    def begin_snapshot(self, index: int) -> None:
        if self.stage is not Stage.SNAPSHOT or self.snapshot_index != index:
            self._become(Stage.SNAPSHOT)
            self.snapshot_index = index
            self.snapshot_offset = 0

    def snapshot_received(self, offset: int) -> None:
        self.snapshot_offset = offset
        self._paused = False

    def heartbeat_answered(self) -> None:
        """It lives: a lost request may be tried again."""
        self.active = True
        self._paused = False
        if self.stage is Stage.REPLICATE and len(self._inflight) >= MAX_INFLIGHT_APPENDS:
            self._inflight.popleft()

    def _become(self, stage: Stage) -> None:
        self.stage = stage
        self._paused = False
        self._inflight.clear()
