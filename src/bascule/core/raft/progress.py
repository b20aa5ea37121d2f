"""What a leader knows about one follower, and what it may send it now.

Three stages, as in etcd's raft: *probe* (one request at a time until the logs agree), *replicate* (a window of requests
in flight, advancing as if all arrive), *snapshot* (chunks, one in flight). The snapshot under way is pinned here: a
newer one taken meanwhile must not start the transfer anew, or a slow follower would never finish. A follower that takes
no chunk for `RAFT_SNAPSHOT_STALL_TICKS` loses the pin.
"""

from collections import deque
from enum import Enum

from bascule import limits
from bascule.wire.raft_messages import Snapshot


class Stage(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    def __init__(self, next_index: int, incarnation: str) -> None:
        self.incarnation = incarnation
        """Of the follower; replies of another incarnation are ignored."""
        self.match = 0
        self.next = next_index
        self.stage = Stage.PROBE
        self.active = True
        """Heard from since the last quorum check."""
        self.round = 0
        """The newest round of heartbeats it answered."""
        self.commit_sent = 0
        self.verify = False
        """Ask whether sent entries have arrived: the loss of the last request of a burst would not be noticed."""
        self.snapshot: Snapshot | None = None
        self.snapshot_offset = 0
        self._stalled_ticks = 0
        self._paused = False
        self._inflight: deque[int] = deque()
        self._at_heartbeat = (-1, 0, 0)

    def __str__(self) -> str:
        offset = f" offset={self.snapshot_offset}" if self.stage is Stage.SNAPSHOT else ""
        return f"{self.stage.value} match={self.match} next={self.next}{offset}{' paused' if self.paused else ''}"

    @property
    def paused(self) -> bool:
        if self.stage is Stage.REPLICATE:
            return len(self._inflight) >= limits.RAFT_INFLIGHT_APPENDS
        return self._paused

    def sent(self, last_index: int, commit: int) -> None:
        """A request ending with this index has gone out."""
        self.commit_sent = commit
        self.verify = False
        if self.stage is Stage.REPLICATE:
            if last_index >= self.next:
                self._inflight.append(last_index)
            self.next = last_index + 1
        else:
            self._paused = True

    def accepted(self, match: int, base_index: int) -> bool:
        """True if that is news. `base_index`: the leader has every entry after it."""
        while self._inflight and self._inflight[0] <= match:
            self._inflight.popleft()
        news = match > self.match
        self.match = max(self.match, match)
        self.next = max(self.next, self.match + 1)
        if self.stage is Stage.SNAPSHOT and self.snapshot is not None:
            if self.match < min(self.snapshot.index, base_index):
                return news
            self._become(Stage.PROBE)
        if self.stage is Stage.PROBE:
            self.next = self.match + 1
            if self.match >= base_index:
                self._become(Stage.REPLICATE)
        return news

    def rejected(self, prev_index: int, hint: int) -> None:
        """`hint` is the last index at which the logs may agree. Rejections of old requests are ignored.

        If a follower rejects a request right after the entries it had confirmed, its file has lost its end: these are
        sent again. If the rejection was only late, the next reply corrects that; a match that is too low is safe.
        """
        if self.stage is Stage.REPLICATE and prev_index >= self.match:
            self._become(Stage.PROBE)
            self.next = self.match + 1
        elif self.stage is Stage.PROBE and prev_index == self.next - 1:
            if prev_index == self.match:
                self.match = min(self.match, hint)
            self.next = max(self.match + 1, min(prev_index, hint + 1))
            self._paused = False

    def heard(self) -> None:
        """The first reply after a silence: requests are sent again at once."""
        if not self.active and self.stage is not Stage.REPLICATE:
            self._paused = False
        self.active = True

    def heartbeat_answered(self, round_number: int) -> None:
        """It is alive. If its position is unchanged since the last answer, a request was lost, and is sent again."""
        if round_number <= self.round:
            return
        self.round = round_number
        position = (self.match, self.next if self.stage is Stage.PROBE else 0, self.snapshot_offset)
        no_news = position == self._at_heartbeat
        self._at_heartbeat = position
        if self.stage is Stage.REPLICATE:
            self.verify = no_news and self.match < self.next - 1
        elif no_news:
            self._paused = False

    def begin_snapshot(self, snapshot: Snapshot) -> None:
        self._become(Stage.SNAPSHOT)
        self.snapshot = snapshot
        self.snapshot_offset = 0

    def chunk_received(self, index: int, received: int) -> None:
        """Forward, or back to the beginning if the follower has dropped its chunks. Anything else is a copy of an
        earlier reply: sending a chunk for each of those would never end."""
        if self.snapshot is None or index != self.snapshot.index:
            return
        if received > self.snapshot_offset or (not received and self.snapshot_offset):
            self.snapshot_offset = min(received, len(self.snapshot.data))
            self._stalled_ticks = 0
            self._paused = False

    def tick(self) -> None:
        """A stalled snapshot is given up, so that it does not hold memory for a server that is gone."""
        if self.stage is Stage.SNAPSHOT:
            self._stalled_ticks += 1
            if self._stalled_ticks >= limits.RAFT_SNAPSHOT_STALL_TICKS:
                self._become(Stage.PROBE)
                self.next = self.match + 1
                self._paused = True

    def _become(self, stage: Stage) -> None:
        self.stage = stage
        self.snapshot = None
        self.verify = False
        self._stalled_ticks = 0
        self._paused = False
        self._inflight.clear()
        self._at_heartbeat = (-1, 0, 0)
