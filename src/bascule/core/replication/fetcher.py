"""The following side of replication: requests to, and responses from, one broker that leads partitions we follow.

It knows which partitions are followed, the numbers of requests and responses, and the clock readings of its events; it
touches no socket and no log. Its driver fills in the position of each partition when a request is sent, and passes
answers to the partitions.

Rules:
- After a first request the leader sends new records without being asked, so a request is a report: it names the
  partitions whose position changed, and the last response that was taken. It is sent as soon as the sync of an append
  is done, so that a publisher who waits for all replicas never waits for a poll.
- A follower with nothing to report sends an empty report about once a second: positions it does not name are unchanged.
  Reports are counted from the last full request on, so that the leader notices a lost one.
- A full request names everything. It is sent when something was lost (a response or a part is missing, or none came for
  long), when a partition is followed or its log was truncated, and, to be safe, from time to time. Responses that the
  leader sent before it had this request are not taken any more: a response has the number of the newest request.
- Responses are taken in the order of their numbers, each once, all parts in order.
- A request is for one session of the leader. Another session is accepted only if it answers the newest request; then a
  full request follows.
- Partitions that the leader refused (it does not lead yet: the metadata reaches brokers one after the other), or whose
  records could not be taken, are requested again after a pause that grows until something is taken.

The shape follows Kafka's incremental fetch sessions (KIP-227), except that the leader sends and the follower reports.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from bascule.core.metadata.streams import Key
from bascule.wire.replication import Answer, FetchPart, Kind, decode_response

SILENCE_S = 1.5
"""A leader responds within a second even without news: after this long something was lost."""
RETRY_S = 0.1
"""Between two tries while NATS is away."""
IDLE_REPORT_S = 0.8
"""A follower without a change for so long sends an empty report after the next response of its leader, which measures
its lag by the last report. Less than the second after which a leader without news responds. If a third of the allowed
lag is less, it sends one that often, without waiting for a response."""
IDLE_FULL_S = 60.0
"""An idle follower sends a full request this often. Nothing depends on it: lost messages are noticed."""
REFUSED_FIRST_S = 0.01
REFUSED_MAX_S = 0.5
"""The pause before partitions that were refused, or whose records were not taken, are requested again."""


class Timer(Enum):
    SILENCE = "silence"
    """Check for the last response of the leader."""
    RETRY = "retry"
    """Repeat a request that was refused, not taken or not sent."""


# --- events --------------------------------------------------------------------------------------------------------


class Started(NamedTuple):
    now: float


class Followed(NamedTuple):
    key: Key


class Unfollowed(NamedTuple):
    key: Key


class Changed(NamedTuple):
    """The position of a partition changed: it is reported to the leader."""

    key: Key


@dataclass(frozen=True, slots=True)
class StartOver:
    """A log was truncated: a full request follows."""


class Gather(NamedTuple):
    """While partitions are added and removed over several turns of the event loop, no full request is sent: there is
    one for all of them at the end. Reports go on meanwhile."""

    gathering: bool


class Due(NamedTuple):
    """What a SendSoon asked for. `request_id` is larger than any before, to whatever leader."""

    now: float
    request_id: int


@dataclass(frozen=True, slots=True)
class Unsent:
    """The last request was not sent: NATS is not connected."""


class Elapsed(NamedTuple):
    timer: Timer
    now: float


class Received(NamedTuple):
    """One part of a response, well-formed; the machine checks its session and request."""

    part: FetchPart
    now: float


class Delivered(NamedTuple):
    """The result of a Deliver."""

    request_id: int
    quiet: bool
    accepted: bool
    """At least one partition took its answer."""
    rejected: bool
    """At least one did not take the records that came."""
    now: float


Event = Received | Delivered | Changed | Due | Elapsed | Followed | Unfollowed | StartOver | Gather | Unsent | Started


# --- effects -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendSoon:
    """Say Due at the end of this turn of the event loop, or before."""


class Send(NamedTuple):
    """A request, with the positions of these partitions."""

    leader_session: int
    request_id: int
    full_id: int
    report: int
    taken: int
    full: bool
    keys: Iterable[Key]


class Deliver(NamedTuple):
    """Hand these answers to their partitions, all of them followed; then say Delivered."""

    answers: list[Answer]
    request_id: int
    """Of the newest request that the leader knew."""
    quiet: bool
    """The response brought no records."""


class SetTimer(NamedTuple):
    """Say Elapsed after this long. A timer is set only when it is not running."""

    timer: Timer
    delay_s: float


Effect = SendSoon | Send | Deliver | SetTimer

_SEND_SOON = SendSoon()


class Fetcher:
    def __init__(self, session: int, timeout_s: float, idle_s: float) -> None:
        """Without a response for `timeout_s` something was lost; after `idle_s` without a report it sends one."""
        self._session = session
        self._leader_session = 0
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._followed: dict[Key, None] = {}
        self._changed: dict[Key, None] = {}
        self._refused: dict[Key, None] = {}
        self._full = True
        """The next request names everything."""
        self._gathering = False
        self._soon = self._retrying = False
        self._full_id = self._request_id = self._reports = 0
        self._taken = 0
        """The number of the last response taken; of the next one these parts are here."""
        self._pieces: list[bytes | memoryview] = []
        self._full_at = self._heard_at = self._sent_at = 0.0
        self._pause_s = REFUSED_FIRST_S

    def step(self, event: Event) -> list[Effect]:
        """Events of every batch have a method of their own, too: `received`, `delivered`, `changed` and `due`."""
        match event:
            case Received(part, now):
                return self.received(part, now)
            case Delivered(request_id, quiet, accepted, rejected, now):
                return self.delivered(request_id, quiet, accepted, rejected, now)
            case Changed(key):
                return self.changed(key)
            case Due(now, request_id):
                return self.due(now, request_id)
            case Elapsed(Timer.SILENCE, now):
                return self._check_silence(now)
            case Elapsed(_, _):
                return self._ask_again()
            case Followed(key):
                self._followed[key] = None
                return self._start_over()
            case Unfollowed(key):
                del self._followed[key]
                self._changed.pop(key, None)
                self._full = True
                return []
            case StartOver():
                return self._start_over()
            case Gather(gathering):
                self._gathering = gathering
                return self._send_soon() if self._full and not gathering else []
            case Unsent():
                self._full = True
                return self._ask_again_in(min(RETRY_S, self._timeout_s))
            case Started(now):
                self._full_at = self._heard_at = self._sent_at = now
                return [SetTimer(Timer.SILENCE, min(self._timeout_s, self._idle_s))]

    # --- asking ----------------------------------------------------------------------------------------------

    def _send_soon(self) -> list[Effect]:
        if self._soon:
            return []
        self._soon = True
        return [_SEND_SOON]

    def _start_over(self) -> list[Effect]:
        self._full = True
        return [] if self._gathering else self._send_soon()

    def changed(self, key: Key) -> list[Effect]:
        assert key in self._followed, "only what is followed is reported"
        self._changed[key] = None
        return self._send_soon()

    def due(self, now: float, request_id: int) -> list[Effect]:
        assert request_id > self._request_id, "requests are numbered in the order they leave"
        self._soon = False
        full = self._full or bool(self._changed and now - self._full_at > self._timeout_s)
        full = full and not self._gathering
        keys: Iterable[Key] = list(self._followed) if full else self._changed
        self._changed = {}
        self._request_id, self._sent_at = request_id, now
        self._reports += 1
        if full:
            self._full, self._pieces, self._taken, self._reports = False, [], 0, 0
            self._full_id, self._full_at = request_id, now
        return [Send(self._leader_session, request_id, self._full_id, self._reports, self._taken, full, keys)]

    def _check_silence(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        left_s = self._heard_at + self._timeout_s - now
        if left_s <= 0:
            left_s = self._timeout_s
            effects += self._start_over()
        if self._idle_s < IDLE_REPORT_S:
            left_s = min(left_s, self._idle_s)
            if now - self._sent_at >= self._idle_s:
                effects += self._send_soon()
        effects.append(SetTimer(Timer.SILENCE, left_s))
        return effects

    def _ask_again_in(self, pause_s: float) -> list[Effect]:
        if self._retrying:
            return []
        self._retrying = True
        return [SetTimer(Timer.RETRY, pause_s)]

    def _ask_again(self) -> list[Effect]:
        self._retrying = False
        refused, self._refused = self._refused, {}
        self._changed.update((key, None) for key in refused if key in self._followed)
        return self._send_soon() if self._changed or self._full else []

    # --- answers ---------------------------------------------------------------------------------------------

    def received(self, given: FetchPart, now: float) -> list[Effect]:
        """Raises PeerError for a response that is complete and cannot be decoded. It counts as taken, so that it is not
        requested again and again."""
        session, leader_session, request_id, number, part, parts, piece = given
        if session != self._session or not 0 < self._full_id <= request_id <= self._request_id:
            return []
        if leader_session != self._leader_session:
            if request_id != self._request_id:
                return []
            self._leader_session = leader_session
            return self._start_over()
        self._heard_at = now
        if number <= self._taken or (number == self._taken + 1 and part < len(self._pieces)):
            return []  # twice
        if number != self._taken + 1 or part != len(self._pieces):
            return self._start_over()
        self._pieces.append(piece)
        if len(self._pieces) < parts:
            return []
        pieces, self._pieces = self._pieces, []
        self._taken = number
        return self._take(decode_response(piece if parts == 1 else b"".join(pieces)), request_id, now)

    def _take(self, answers: list[Answer], request_id: int, now: float) -> list[Effect]:
        # One partition without records (its leader cannot read those that we lack) must not stop the idle reports.
        quiet = True
        effects: list[Effect] = []
        delivered: list[Answer] = []
        for answer in answers:
            key = answer[:2]
            if answer.records:
                quiet = False
            if key not in self._followed:
                effects += self._send_soon()  # there is no sync to wait for before we say that it was taken
            elif answer.kind is Kind.REFUSED:
                self._refused[key] = None
            else:
                delivered.append(answer)
        if delivered:
            effects.append(Deliver(delivered, request_id, quiet))
            return effects
        return effects + self._took(request_id, quiet, not answers, now)

    def delivered(self, request_id: int, quiet: bool, accepted: bool, rejected: bool, now: float) -> list[Effect]:
        if accepted:
            self._pause_s = REFUSED_FIRST_S
        self._full = self._full or rejected
        return self._took(request_id, quiet, False, now)

    def _took(self, request_id: int, quiet: bool, empty: bool, now: float) -> list[Effect]:
        """What follows when all answers of a response have been taken."""
        effects: list[Effect] = []
        if self._refused or self._full:
            effects += self._ask_again_in(self._pause_s)
            self._pause_s = min(self._pause_s * 2, REFUSED_MAX_S)
        if (quiet and now - self._full_at > IDLE_FULL_S) or (empty and request_id < self._request_id):
            effects += self._start_over()
        elif quiet and now - self._sent_at >= self._idle_s:
            effects += self._send_soon()
        return effects
