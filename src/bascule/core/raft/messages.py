"""What Raft peers say to each other, and what a machine asks of its driver."""

from dataclasses import dataclass, field
from enum import IntEnum


class EntryKind(IntEnum):
    COMMAND = 0
    MEMBERSHIP = 1
    """`data` is an encoded Membership; it takes effect when it is applied."""
    NOOP = 2
    """A new leader's first entry: nothing of an older term counts as committed before it."""


@dataclass(frozen=True, slots=True)
class Entry:
    index: int
    term: int
    kind: EntryKind = EntryKind.COMMAND
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class HardState:
    """What must survive a crash before anything is said that depends on it."""

    term: int = 0
    vote: str = ""
    commit: int = 0


@dataclass(frozen=True, slots=True)
class Membership:
    """Voters decide; learners receive everything and decide nothing."""

    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()

    @property
    def everyone(self) -> tuple[str, ...]:
        return self.voters + self.learners

    @property
    def quorum(self) -> int:
        return len(self.voters) // 2 + 1

    def with_voter(self, server: str) -> "Membership":
        learners = tuple(item for item in self.learners if item != server)
        return Membership(tuple(sorted({*self.voters, server})), learners)

    def with_learner(self, server: str) -> "Membership":
        voters = tuple(item for item in self.voters if item != server)
        return Membership(voters, tuple(sorted({*self.learners, server})))

    def without(self, server: str) -> "Membership":
        return Membership(
            tuple(item for item in self.voters if item != server),
            tuple(item for item in self.learners if item != server),
        )

    def differs_by_one_voter(self, other: "Membership") -> bool:
        """Quorums of two such sets always overlap, so they may be in force side by side."""
        return len(set(self.voters) ^ set(other.voters)) <= 1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after everything up to `index`, with the membership then in force."""

    index: int
    term: int
    membership: Membership
    data: bytes = b""


# --- between peers: each carries the sender's term -------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    source: str
    target: str
    term: int


@dataclass(frozen=True, slots=True)
class VoteRequest(Message):
    last_index: int
    last_term: int
    pre: bool = False
    """Would you vote for me? Asked before the term is raised, so that a server cut off disturbs nobody on return."""
    transfer: bool = False
    """The leader itself asked for this election: its lease does not count."""


@dataclass(frozen=True, slots=True)
class VoteReply(Message):
    granted: bool
    pre: bool = False


@dataclass(frozen=True, slots=True)
class AppendRequest(Message):
    """Also the heartbeat, with no entries."""

    prev_index: int
    prev_term: int
    commit: int
    entries: tuple[Entry, ...] = ()
    round: int = 0
    """Which round of heartbeats: a reply to it confirms leadership for the reads that wait for it."""


@dataclass(frozen=True, slots=True)
class AppendReply(Message):
    match: int
    """Accepted: everything up to here is stored. Rejected: where the follower's log may agree (an upper bound)."""
    rejected: bool = False
    hint_term: int = 0
    prev_index: int = 0
    """Of the request that was rejected, so that a stale rejection is recognised."""
    round: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotRequest(Message):
    """One chunk of a snapshot; `total` bytes altogether."""

    snapshot: Snapshot
    offset: int
    total: int


@dataclass(frozen=True, slots=True)
class SnapshotReply(Message):
    index: int
    received: int
    """Bytes so far: the next chunk begins here."""


@dataclass(frozen=True, slots=True)
class TimeoutNow(Message):
    """Campaign at once: the sender hands its leadership over."""


@dataclass(slots=True)
class Ready:
    """What the driver must do now, in this order: persist, then send, then apply, then call `advance`."""

    hard_state: HardState | None = None
    snapshot: Snapshot | None = None
    entries: list[Entry] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    committed: list[Entry] = field(default_factory=list)
    reads: list[tuple[int, int]] = field(default_factory=list)
    """(context, index): a read that waited may be served once `index` is applied."""

    def __bool__(self) -> bool:
        return bool(self.hard_state or self.snapshot or self.entries or self.messages or self.committed or self.reads)
