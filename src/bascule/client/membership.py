"""A member of a consumer group, as a machine without I/O: what it asks next, and which partitions are its own.

`next` says what to do now, `step` takes what came of it; one action is under way at a time. The rules:

- A member joins once, and then asks the coordinator for its partitions again and again: that is its heartbeat. A
  heartbeat counts from when it was sent.
- A refused heartbeat shows that the group has changed: its coordinator and its epoch are asked for, and the heartbeat
  is sent again. A coordinator that does not answer is reported once it has been silent for the coordinator's timeout;
  the cluster names another one when a majority of the members agree.
- A member without a heartbeat for the consumer's timeout may have been removed: it has no partitions any more, until a
  heartbeat is answered. One that was removed joins again.
- A group has to be unknown twice before that is believed: the first broker asked may be behind.

A member whose answer to a join was lost is a member, and may not join again: it leaves first. Not so with an id that
its user chose, for another process may have it: it waits until that one has left or expired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bascule import limits
from bascule.client.parts import Name

# --- what it does ----------------------------------------------------------------------------------------------------


class Join(NamedTuple):
    pass


class Leave(NamedTuple):
    pass


class Heartbeat(NamedTuple):
    coordinator: str
    epoch: int


class Describe(NamedTuple):
    """Ask any broker who coordinates the group, and at which epoch."""


class Report(NamedTuple):
    coordinator: str
    epoch: int


class Wait(NamedTuple):
    until: float


Action = Join | Leave | Heartbeat | Describe | Report | Wait

# --- what came of it -------------------------------------------------------------------------------------------------


class Joined(NamedTuple):
    coordinator: str
    epoch: int
    consumer_timeout_s: float
    coordinator_timeout_s: float


class Assigned(NamedTuple):
    epoch: int
    partitions: frozenset[Name]


class Described(NamedTuple):
    coordinator: str
    epoch: int


class Done(NamedTuple):
    """It left, or reported."""


class Refused(NamedTuple):
    """The coordinator is another one, or the epoch is."""


class AlreadyMember(NamedTuple):
    pass


class NoMember(NamedTuple):
    pass


class NoGroup(NamedTuple):
    pass


class Unreachable(NamedTuple):
    """Nobody answered in time."""


Outcome = Joined | Assigned | Described | Done | Refused | AlreadyMember | NoMember | NoGroup | Unreachable


class Change(NamedTuple):
    """In this order: the member has lost partitions, and got others."""

    revoked: frozenset[Name]
    assigned: frozenset[Name]


NOTHING: frozenset[Name] = frozenset()
NO_CHANGE = Change(NOTHING, NOTHING)


@dataclass(slots=True)
class Membership:
    chosen_id: bool
    """Its user chose its id."""
    held: frozenset[Name] = NOTHING
    coordinator: str = ""
    epoch: int = 0
    is_member: bool = False
    heard_at: float = 0.0
    """When the last heartbeat was sent that was answered."""
    _consumer_timeout_s: float = limits.CLIENT_GROUP_TIMEOUT_S
    _coordinator_timeout_s: float = limits.CLIENT_GROUP_TIMEOUT_S
    _silent_since: float | None = None
    """When the first heartbeat was sent that this coordinator has left without an answer."""
    _stale: bool = False
    """Somebody has to say who coordinates the group."""
    _ghost: bool = False
    """The group has a member of this id, which is nobody's but ours."""
    _unknown: int = 0
    _due: float = 0.0
    _pause_s: float = limits.CLIENT_RETRY_MIN_S

    # --- what next ------------------------------------------------------------------------------------------

    def next(self, now: float) -> Action:
        if now < self._due:
            return Wait(self._due)
        if self._ghost:
            return Leave()
        if not self.is_member:
            return Join()
        if self._silent_since is not None and now - self._silent_since >= self._coordinator_timeout_s:
            return Report(self.coordinator, self.epoch)
        if self._stale or not self.coordinator:
            return Describe()
        return Heartbeat(self.coordinator, self.epoch)

    def hurry(self) -> None:
        """Something has shown that the group may have changed: the next action is due now."""
        self._due = 0.0

    @property
    def interval_s(self) -> float:
        return min(limits.CLIENT_GROUP_SHARE * self._consumer_timeout_s, limits.CLIENT_GROUP_HEARTBEAT_S)

    def expires_at(self) -> float:
        """Unless a heartbeat is answered before."""
        return self.heard_at + self._consumer_timeout_s

    # --- what came of it ------------------------------------------------------------------------------------

    def step(self, action: Action, outcome: Outcome, sent_at: float, now: float) -> Change:
        match outcome:
            case Joined():
                self._joined(outcome, sent_at)
            case Assigned():
                return self._assigned(outcome, sent_at)
            case Described():
                self._described(outcome)
            case Done():
                self._done(action, now)
            case Refused():
                self._silent_since = None
                self._look_again(now)
            case AlreadyMember():
                self._ghost = not self.chosen_id
                self._pause(now)
            case NoMember():
                return self._removed(now)
            case NoGroup():
                return self._no_group(action, now)
            case Unreachable():
                if isinstance(action, Heartbeat) and self._silent_since is None:
                    self._silent_since = sent_at
                self._stale = self.is_member
                self._pause(now)
        return self.tick(now)

    def tick(self, now: float) -> Change:
        """Time has passed."""
        if self.held and now >= self.expires_at():
            return self._hold(NOTHING)
        return NO_CHANGE

    def _joined(self, joined: Joined, sent_at: float) -> None:
        assert not self.is_member, "a member joins once"
        self.is_member, self._ghost, self._stale = True, False, False
        self.coordinator, self.epoch = joined.coordinator, joined.epoch
        self._consumer_timeout_s = joined.consumer_timeout_s
        self._coordinator_timeout_s = joined.coordinator_timeout_s
        self.heard_at, self._silent_since = sent_at, None
        self._go_on()

    def _assigned(self, given: Assigned, sent_at: float) -> Change:
        assert self.is_member, "only a member is assigned partitions"
        self.epoch = given.epoch
        self.heard_at, self._silent_since = sent_at, None
        self._stale, self._unknown = False, 0
        self._go_on()
        self._due = sent_at + self.interval_s
        return self._hold(given.partitions)

    def _described(self, described: Described) -> None:
        if described.coordinator != self.coordinator:
            self._silent_since = None  # it gets its time, too
        is_news = described != (self.coordinator, self.epoch)
        self.coordinator, self.epoch = described
        self._stale, self._unknown = False, 0
        if is_news:
            self._due = 0.0

    def _done(self, action: Action, now: float) -> None:
        if isinstance(action, Leave):
            self.is_member = self._ghost = False
            self._go_on()
        else:
            self._silent_since = now  # the others are given as long to report it
            self._stale = True
            self._pause(now)

    def _removed(self, now: float) -> Change:
        self._ghost = False
        if not self.is_member:
            self._go_on()
            return NO_CHANGE
        self.is_member = False
        self._go_on()
        return self._hold(NOTHING)

    def _no_group(self, action: Action, now: float) -> Change:
        self._unknown += 1
        if isinstance(action, Heartbeat | Leave) or self._unknown >= limits.CLIENT_GROUP_UNKNOWN_TIMES:
            self._unknown = 0
            return self._removed(now)
        self._pause(now)
        return self.tick(now)

    def _look_again(self, now: float) -> None:
        """At once; and after a pause, if what is found is what was refused."""
        self._stale = True
        self._pause(now)
        if self._pause_s <= 2 * limits.CLIENT_RETRY_MIN_S:
            self._due = 0.0

    def _pause(self, now: float) -> None:
        self._due = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, limits.CLIENT_RETRY_MAX_S)

    def _go_on(self) -> None:
        self._due, self._pause_s = 0.0, limits.CLIENT_RETRY_MIN_S

    def _hold(self, partitions: frozenset[Name]) -> Change:
        before, self.held = self.held, partitions
        return Change(before - partitions, partitions - before)


def by_stream(names: Sequence[Name] | frozenset[Name]) -> Mapping[str, list[int]]:
    """As users see partitions."""
    found: dict[str, list[int]] = {}
    for stream, partition in sorted(names):
        found.setdefault(stream, []).append(partition)
    return found
