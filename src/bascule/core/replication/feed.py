"""The leading side of replication: requests from, and responses to, one broker that follows partitions we lead.

It knows the ends, epochs and high watermarks of the partitions led here, the requests of the follower, and the clock
readings of its events; it touches no socket and reads no log. Its driver passes the follower's positions to the leaders
of partitions, reads from logs, and sends.

Rules:
- A request has the positions of the follower. From then on new records are sent without being asked for: when they are
  appended, before they are synced here. A new high watermark is sent with the next records, or alone a little later.
  After records nothing is sent until a request confirms them, which a follower sends when it has synced them; records
  that come meanwhile are sent in one response.
- New records are buffered until then, within bounds; others that the follower lacks are read from the log.
- Responses are numbered. A follower that misses one sends a full request, and gets everything after its end again. A
  number is used also if its response is not sent.
- Requests are counted too: while none is missing, positions that are not named are unchanged. A leader that misses one
  skips a response number, so that the follower sends a full request.
- Only the newest session of the follower counts, and in it requests newer than all before. An earlier session is
  accepted again only after the newest was silent for long: that was a copy of its folder, started by mistake.
- A request with many partitions is handled in slices; later requests wait for that, and are dropped, as if lost, if
  too many wait.
- A response has records of every partition with news, at least one record each, and begins where the last one stopped,
  so that no partition starves.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from bascule.core.metadata.streams import Key
from bascule.core.partition.epochs import EpochHistory
from bascule.core.replication.progress import BufferUse, Progress, divergence
from bascule.limits import (
    FEED_PARTITION_BYTES,
    FEED_PAST_SESSIONS,
    FEED_RESPONSE_BYTES,
    FEED_SLICE,
    FEED_WAITING_REQUESTS,
)
from bascule.wire.replication import Answer, FetchRequest, Kind, Position

IDLE_RESPONSE_S = 1.0
"""After this long without a response an empty one is sent, so that the follower knows that we are alive."""
WATERMARK_ALONE_S = 0.005
"""A new high watermark alone waits this long for records to travel with."""
SILENCE_S = 10.0
"""Requests of an earlier session are accepted when the newest one has sent none for so long: late requests of a dead
session have arrived long before. Nothing is buffered for a follower that is silent for so long."""


class LedPartition(Protocol):
    """A partition that this broker leads, as it is now."""

    @property
    def epoch(self) -> int: ...

    @property
    def epochs(self) -> EpochHistory: ...

    @property
    def hw_end(self) -> int: ...

    @property
    def log_start(self) -> int:
        """Everything below has expired."""

    @property
    def end(self) -> int: ...

    @property
    def records_end(self) -> int:
        """The log end for a follower: the last offsets may be lost for good, and are never sent."""


class LedPartitions(Protocol):
    """What is led here, and nothing else."""

    def led(self, key: Key) -> LedPartition | None: ...


class Timer(Enum):
    IDLE = "idle"
    WATERMARK = "watermark"


# --- events --------------------------------------------------------------------------------------------------------


class Started(NamedTuple):
    now: float


class Asked(NamedTuple):
    """A request of a member of the cluster, well-formed, and for this session of ours."""

    request: FetchRequest
    heard_at: int
    """In ns, by the clock that the lag of followers is measured with."""
    now: float


class TakeMore(NamedTuple):
    """What a TakeSoon asked for."""

    now: float


class Began(NamedTuple):
    """This broker leads a partition from now on."""

    key: Key


class Appended(NamedTuple):
    """A partition led here has more records, of its leader's epoch."""

    key: Key
    records: bytes
    first_offset: int
    next_offset: int


class Advanced(NamedTuple):
    """A partition led here has a higher watermark, or records that could not be read before."""

    key: Key


class AppendFailed(NamedTuple):
    """The last records of a partition led here could not be stored."""

    key: Key


class Due(NamedTuple):
    """What a SendSoon asked for."""

    now: float


class Elapsed(NamedTuple):
    timer: Timer
    now: float


class WasRead(NamedTuple):
    """What a Read gave: whole records of one epoch, or none."""

    records: bytes
    end: int
    """The offset after the last of them."""
    epoch: int
    read_end: int
    """The position of the reader: past `end` if the next records cannot be read."""
    cursor: object


@dataclass(frozen=True, slots=True)
class ReadFailed:
    pass


Event = Began | Appended | Asked | Advanced | Due | Elapsed | TakeMore | WasRead | ReadFailed | AppendFailed | Started


# --- effects -------------------------------------------------------------------------------------------------------


class Fetched(NamedTuple):
    """For the leader of this partition: the follower has everything below `end`, and promises everything below
    `promised_end`."""

    key: Key
    end: int
    promised_end: int
    heard_at: int


class DiskFailing(NamedTuple):
    """For the leader of this partition: the follower's disk takes no writes."""

    key: Key
    promised_end: int
    heard_at: int


@dataclass(frozen=True, slots=True)
class SendSoon:
    """Say Due at the end of this turn of the event loop, or before."""


@dataclass(frozen=True, slots=True)
class TakeSoon:
    """Say TakeMore in the next turn of the event loop."""


class Send(NamedTuple):
    """A response."""

    session: int
    """Of the follower."""
    request_id: int
    number: int
    answers: list[Answer]


class Read(NamedTuple):
    """Read about `max_bytes` from here on, at least one record if there is one; then say WasRead or ReadFailed. Records
    of one epoch only: a follower notes where each begins."""

    key: Key
    offset: int
    max_bytes: int
    cursor: object


class SetTimer(NamedTuple):
    """Say Elapsed after this long. A timer is set only when it is not running."""

    timer: Timer
    delay_s: float


class StopTimer(NamedTuple):
    timer: Timer


Effect = Fetched | DiskFailing | SendSoon | TakeSoon | Send | Read | SetTimer | StopTimer

_SEND_SOON, _TAKE_SOON = SendSoon(), TakeSoon()


@dataclass(slots=True)
class _Response:
    """A response under construction."""

    answers: list[Answer]
    keys: list[Key]
    """With news, in the order they are answered; those before `next` have been."""
    next: int
    room: int
    has_records: bool = False


class Feed:
    def __init__(self, partitions: LedPartitions) -> None:
        self._partitions = partitions
        self._progress: dict[Key, Progress] = {}
        self._use = BufferUse()
        self._to_tell: dict[Key, None] = {}
        """Partitions to be answered, the next one first."""
        self._records_wait = False
        """Some of them with records."""
        self._unread: dict[Key, None] = {}
        """Partitions with records that could not be read."""
        self._at_once: list[Answer] = []
        # Requests of the follower.
        self._session = 0
        self._past_sessions: dict[int, int] = {}
        """With the last request of each."""
        self._requests: deque[tuple[FetchRequest, int]] = deque()
        """With the time they came; of the first one `_next_position` is the next to be taken."""
        self._next_position = 0
        self._request_id = self._full_id = self._reports = 0
        self._missed = False
        """A report was lost, and no full request has come since."""
        self.heard_at = 0
        """When the last request came that has been handled, by the clock that the lag of followers is measured with."""
        # Responses to it.
        self._number = self._taken = self._awaited = 0
        """Of the last response sent, of the last one that arrived, and of the last one with records."""
        self._response: _Response | None = None
        self._reading: tuple[Key, Progress] | None = None
        """A Read is out. It may outlive its response."""
        self._soon = self._taking = self._watermark_waits = False
        self._sent_at = self._asked_at = 0.0

    @property
    def buffered_bytes(self) -> int:
        return self._use.nbytes

    @property
    def missed(self) -> bool:
        return self._missed

    def knows(self, key: Key, epoch: int) -> bool:
        """Whether the position of the follower in this epoch is known."""
        progress = self._progress.get(key)
        return progress is not None and not self._missed and progress.position.leader_epoch == epoch

    def step(self, event: Event) -> list[Effect]:
        """Events of every batch have a method of their own, too: `appended`, `asked`, `advanced` and `due`."""
        match event:
            case Appended(key, records, first_offset, next_offset):
                return self.appended(key, records, first_offset, next_offset)
            case Asked(request, heard_at, now):
                return self.asked(request, heard_at, now)
            case Advanced(key):
                return self.advanced(key)
            case Due(now):
                return self.due(now)
            case Elapsed(Timer.WATERMARK, _):
                self._watermark_waits = False
                return self._send_soon() if self._to_tell and self._taken >= self._awaited else []
            case Elapsed(_, now):
                return self._check_idle(now)
            case TakeMore(now):
                return self._take_some(now)
            case WasRead():
                return self._was_read(event)
            case ReadFailed():
                self._reading = self._response = None
                return self._consider()
            case AppendFailed(key):
                if progress := self._progress.get(key):
                    progress.drop_buffer()
                return []
            case Began(key):
                return self._began(key)
            case Started(now):
                self._sent_at = self._asked_at = now
                return [SetTimer(Timer.IDLE, IDLE_RESPONSE_S)]

    # --- to tell ------------------------------------------------------------------------------------------------

    def _began(self, key: Key) -> list[Effect]:
        """It was led before in this epoch, and closed for a pause: a follower without news is to report once more."""
        led = self._partitions.led(key)
        if led is None or not self.knows(key, led.epoch):
            return []
        self._forget(key)
        self._at_once.append(Answer(*key, Kind.REFUSED, led.epoch, 0, 0, 0, 0, 0, 0, b""))
        return self._consider()

    def appended(self, key: Key, records: bytes, first_offset: int, next_offset: int) -> list[Effect]:
        progress = self._progress.get(key)
        if progress is None:
            return []
        progress.buffer(records, first_offset, next_offset)
        self._to_tell[key] = None
        self._records_wait = True
        return self._consider()

    def advanced(self, key: Key) -> list[Effect]:
        progress, led = self._progress.get(key), self._partitions.led(key)
        if progress is None or led is None:
            return []
        self._to_tell[key] = None
        if led.records_end > progress.end:
            self._records_wait = True
        return self._consider()

    def _consider(self) -> list[Effect]:
        """Send now, or a little later, or not yet."""
        if self._taken < self._awaited:
            return []
        if self._records_wait or self._at_once:
            return self._send_soon()
        if self._to_tell and not self._watermark_waits:
            self._watermark_waits = True
            return [SetTimer(Timer.WATERMARK, WATERMARK_ALONE_S)]
        return []

    def _send_soon(self) -> list[Effect]:
        if self._soon:
            return []
        self._soon = True
        return [_SEND_SOON]

    # --- being asked -----------------------------------------------------------------------------------------

    def asked(self, request: FetchRequest, heard_at: int, now: float) -> list[Effect]:
        if request.full or len(self._requests) >= FEED_WAITING_REQUESTS:
            # A full request replaces those that wait; if too many wait they are dropped, as if lost.
            while len(self._requests) > 1:
                self._requests.pop()
        self._requests.append((request, heard_at))
        return [] if self._taking else self._take_some(now)

    def _take_some(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        self._taking = False
        room = FEED_SLICE
        while self._requests and room > 0:
            request, heard_at = self._requests[0]
            if self._next_position or self._begins(request, now, effects):
                some = request.positions[self._next_position : self._next_position + room]
                for position in some:
                    self._place(position, heard_at, effects)
                room -= 1 + len(some)
                self._next_position += len(some)
                if self._next_position < len(request.positions):
                    break
                self.heard_at = heard_at
            self._requests.popleft()
            self._next_position = 0
        if self._requests:
            self._taking = True
            effects.append(_TAKE_SOON)
        effects += self._consider()
        return effects

    def _begins(self, request: FetchRequest, now: float, effects: list[Effect]) -> bool:
        """Whether this request counts: it is neither late nor a copy."""
        if request.session != self._session:
            if self._is_over(request, now):
                return False  # late, of a session that ended: records it promised may be lost
            self._begin(request.session)
        elif request.request_id <= self._request_id:
            return False  # late, or a copy
        self._request_id, self._asked_at = request.request_id, now
        if request.full:
            self._start_over()
        else:
            if self._taken < request.taken <= self._number:
                self._taken = request.taken
            if (request.full_id, request.report) != (self._full_id, self._reports + 1):
                effects += self._miss()
        self._full_id, self._reports = request.full_id, request.report
        return True

    def _miss(self) -> list[Effect]:
        """A report was lost. The skipped number looks like a lost response to the follower: it sends a full request."""
        if self._missed:
            return []
        self._missed = True
        self._number += 1
        return self._send_soon()

    def _is_over(self, request: FetchRequest, now: float) -> bool:
        last = self._past_sessions.get(request.session)
        return last is not None and (request.request_id <= last or now < self._asked_at + SILENCE_S)

    def _begin(self, session: int) -> None:
        """The follower has restarted."""
        self._past_sessions.pop(session, None)
        if self._session:
            self._past_sessions[self._session] = self._request_id
        while len(self._past_sessions) > FEED_PAST_SESSIONS:
            del self._past_sessions[next(iter(self._past_sessions))]
        self._session = session
        self._request_id = 0
        self._start_over()

    def _start_over(self) -> None:
        """The follower takes no earlier response any more, and the next one is number 1."""
        self._progress, self._use = {}, BufferUse()
        self._to_tell, self._at_once, self._records_wait = {}, [], False
        self._unread, self._missed = {}, False
        self._number = self._taken = self._awaited = 0
        self._response = None

    def _place(self, position: Position, heard_at: int, effects: list[Effect]) -> None:
        key, asked = (position.stream_index, position.partition), (position.end, position.last_epoch)
        led = self._partitions.led(key)
        if led is None or led.epoch != position.leader_epoch:
            self._at_once.append(Answer(*key, Kind.REFUSED, position.leader_epoch, 0, 0, *asked, 0, 0, b""))
            self._forget(key)
            return
        if position.failing:
            self._forget(key)
            effects.append(DiskFailing(key, position.promised_end, heard_at))
            return
        log_end = led.end
        parted = divergence(position, led.epochs, led.log_start, log_end)
        if parted is not None:
            self._at_once.append(Answer(*key, Kind.DIVERGED, led.epoch, led.hw_end, log_end, *asked, *parted, b""))
            self._forget(key)
            return
        progress = self._progress.get(key)
        if progress is not None and progress.continues(position):
            progress.position = position
        else:
            self._forget(key)
            progress = self._progress[key] = Progress(position, self._use)
        records_end = led.records_end
        end, promised_end = (log_end if each >= records_end else each for each in (position.end, position.promised_end))
        effects.append(Fetched(key, end, promised_end, heard_at))
        if records_end > progress.end:
            self._records_wait = True
            self._to_tell[key] = None
        elif led.hw_end > progress.told_hw:
            self._to_tell[key] = None

    def _forget(self, key: Key) -> None:
        if progress := self._progress.pop(key, None):
            progress.drop_buffer()

    def _check_idle(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        left_s = self._sent_at + IDLE_RESPONSE_S - now
        if left_s <= 0:
            left_s = IDLE_RESPONSE_S
            if self._taken >= self._awaited:
                # Records that could not be read before may have been healed by now.
                unread, self._unread = self._unread, {}
                self._to_tell.update((key, None) for key in unread if self._lacks_records(key))
                effects += self._send_soon()
        if now - self._asked_at >= SILENCE_S:
            # It was silent for long: when it is back its records are read from the log.
            for progress in self._progress.values():
                if progress.buffered:
                    progress.drop_buffer()
        effects.append(SetTimer(Timer.IDLE, left_s))
        return effects

    def _lacks_records(self, key: Key) -> bool:
        progress, led = self._progress.get(key), self._partitions.led(key)
        return progress is not None and led is not None and led.records_end > progress.end

    # --- responding ------------------------------------------------------------------------------------------

    def due(self, now: float) -> list[Effect]:
        """The number of the response is used from here on: if it is not sent, the follower misses it and sends a full
        request."""
        self._soon = False
        if self._reading is not None or (self._taken < self._awaited and not self._missed):
            return []  # records were sent meanwhile, and are not confirmed yet
        effects: list[Effect] = []
        self._sent_at = now
        if self._watermark_waits:
            self._watermark_waits = False
            effects.append(StopTimer(Timer.WATERMARK))
        self._number += 1
        self._response = _Response(self._at_once, list(self._to_tell), 0, FEED_RESPONSE_BYTES)
        self._at_once, self._to_tell, self._records_wait = [], {}, False
        return self._respond(self._response, effects)

    def _respond(self, response: _Response, effects: list[Effect]) -> list[Effect]:
        """Go on with it, up to the first partition that must be read, or to its end."""
        keys = response.keys
        while response.next < len(keys):
            if response.room <= 0:
                # The rest comes first next time.
                self._to_tell = {**dict.fromkeys(keys[response.next :]), **self._to_tell}
                self._records_wait = True
                break
            key = keys[response.next]
            response.next += 1
            progress, led = self._progress.get(key), self._partitions.led(key)
            if progress is None or led is None or progress.position.leader_epoch != led.epoch:
                continue  # refused meanwhile, or of an earlier epoch of ours
            asked = (progress.end, progress.last_epoch)
            if progress.buffered:
                self._answer(response, key, progress, led, asked, progress.take_buffer(led.epoch))
            elif led.records_end > progress.end:
                self._reading = key, progress
                max_bytes = min(response.room, FEED_PARTITION_BYTES)
                effects.append(Read(key, progress.end, max_bytes, progress.cursor))
                return effects
            else:
                self._answer(response, key, progress, led, asked, b"")
        return self._finish(response, effects)

    def _was_read(self, read: WasRead) -> list[Effect]:
        assert self._reading is not None, "a WasRead follows a Read"
        (key, progress), self._reading = self._reading, None
        response = self._response
        if response is None:
            return self._consider()  # a full request came meanwhile: the follower would not take this
        led = self._partitions.led(key)
        if led is not None and led.epoch == progress.position.leader_epoch and self._progress.get(key) is progress:
            asked = (progress.end, progress.last_epoch)
            progress.cursor, progress.read_end = read.cursor, read.read_end
            if read.records:
                assert read.end > progress.end, "records that are read follow those that were sent"
                progress.set_end(read.end, read.epoch)
            self._answer(response, key, progress, led, asked, read.records)
        return self._respond(response, [])

    def _answer(
        self,
        response: _Response,
        key: Key,
        progress: Progress,
        led: LedPartition,
        asked: tuple[int, int],
        records: bytes,
    ) -> None:
        log_end, records_end = led.end, led.records_end
        if records and log_end > progress.end and progress.read_end < log_end:
            self._to_tell[key] = None
            self._records_wait = True
        elif records_end > progress.end:
            self._unread[key] = None
        hw_end = progress.told_hw = led.hw_end
        response.answers.append(Answer(*key, Kind.DATA, led.epoch, hw_end, records_end, *asked, 0, 0, records))
        if records:
            response.room -= len(records)
            response.has_records = True

    def _finish(self, response: _Response, effects: list[Effect]) -> list[Effect]:
        self._response = None
        if response.has_records:
            assert self._taken >= self._awaited or self._missed, "records wait until those before them were taken"
            self._awaited = self._number
        assert self._taken <= self._number, "a response is taken after it was sent"
        effects.append(Send(self._session, self._request_id, self._number, response.answers))
        effects += self._consider()
        return effects
