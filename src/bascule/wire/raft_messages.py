"""The values of Raft: entries, snapshots, memberships, and the messages between servers. They have no behaviour beyond
set arithmetic; `wire.raft` encodes them, `core.raft` decides, `log.raftlog` stores.

A server is an id and an *incarnation*: a token that it draws and stores when it starts without any stored state,
whether it founds a cluster or joins one. A membership names both. So a server that lost its state is a new server: it
may have given votes, or confirmed entries, that it no longer knows of. It takes part again only when the membership
names its new incarnation.

A cluster has an id, drawn when it is founded, that every membership of it carries: servers of two clusters ignore each
other, even if they have the same names.
"""

from dataclasses import dataclass
from enum import IntEnum

from bascule.wire.subjects import usable_token


class EntryKind(IntEnum):
    COMMAND = 0
    MEMBERSHIP = 1
    """`data` is an encoded Membership; it is in force from the moment it is in the log."""
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
    """What must be stored before any message is sent that depends on it. `commit` may lag behind: the leader sends it
    again."""

    term: int = 0
    vote: str = ""
    commit: int = 0
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class Membership:
    """Voters decide; learners receive everything and decide nothing."""

    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    incarnations: tuple[tuple[str, str], ...] = ()
    """(server, incarnation) of those whose incarnation is not empty."""
    cluster: str = ""
    """The id of the cluster; the same in all its memberships."""

    def __str__(self) -> str:
        learners = f" learners={','.join(map(self._named, self.learners))}" if self.learners else ""
        return f"voters={','.join(map(self._named, self.voters))}{learners}"

    @property
    def everyone(self) -> tuple[str, ...]:
        return self.voters + self.learners

    @property
    def quorum(self) -> int:
        return len(self.voters) // 2 + 1

    @property
    def well_formed(self) -> bool:
        """Names are there once and can stand in subjects, and only members have incarnations."""
        everyone = self.everyone
        named = [server for server, _ in self.incarnations]
        tokens = [*everyone, *(incarnation for _, incarnation in self.incarnations)]
        return (
            len(set(everyone)) == len(everyone)
            and len(set(named)) == len(named)
            and set(named) <= set(everyone)
            and all(usable_token(server) for server in everyone)
            and (not self.cluster or usable_token(self.cluster))
            and all(token and token.isprintable() and not token.isspace() and " " not in token for token in tokens)
        )

    def incarnation_of(self, server: str) -> str:
        return dict(self.incarnations).get(server, "")

    def is_voter(self, server: str, incarnation: str) -> bool:
        return server in self.voters and self.incarnation_of(server) == incarnation

    def with_voter(self, server: str, incarnation: str | None = None) -> "Membership":
        """A learner keeps the incarnation it was added with unless another is named."""
        base = self.without(server)
        known = self.incarnation_of(server) if incarnation is None else incarnation
        incarnations = base._with_incarnation(server, known)
        return Membership(_sorted(base.voters, server), base.learners, incarnations, self.cluster)

    def with_learner(self, server: str, incarnation: str | None = None) -> "Membership":
        base = self.without(server)
        known = self.incarnation_of(server) if incarnation is None else incarnation
        incarnations = base._with_incarnation(server, known)
        return Membership(base.voters, _sorted(base.learners, server), incarnations, self.cluster)

    def without(self, server: str) -> "Membership":
        return Membership(
            tuple(item for item in self.voters if item != server),
            tuple(item for item in self.learners if item != server),
            tuple(pair for pair in self.incarnations if pair[0] != server),
            self.cluster,
        )

    def may_become(self, other: "Membership") -> bool:
        """Whether one entry may bring the other into force after this. With one voter more or less, quorums of the two
        always overlap, so that they may be in force side by side. A voter in another incarnation is another voter.

        One voter may become three at once: the only quorum of the old set is that voter, who stores the entry before
        anybody sees it and counts by it from then on (docs/decisions/raft-membership-and-incarnations.md). Three to
        five at once would not be safe: two of the old three could decide without any of the others knowing.
        """
        mine = {(server, self.incarnation_of(server)) for server in self.voters}
        others = {(server, other.incarnation_of(server)) for server in other.voters}
        from_one_to_three = len(mine) == 1 and len(others) == 3 and mine < others
        return self.cluster == other.cluster and (len(mine ^ others) <= 1 or from_one_to_three)

    def _with_incarnation(self, server: str, incarnation: str) -> tuple[tuple[str, str], ...]:
        return tuple(sorted((*self.incarnations, (server, incarnation)))) if incarnation else self.incarnations

    def _named(self, server: str) -> str:
        incarnation = self.incarnation_of(server)
        return f"{server}/{incarnation}" if incarnation else server


def _sorted(servers: tuple[str, ...], one_more: str) -> tuple[str, ...]:
    return tuple(sorted((*servers, one_more)))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after everything up to `index`, with the membership then in force."""

    index: int
    term: int
    membership: Membership
    data: bytes = b""


# --- between peers: each carries the sender's term --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    source: str
    target: str
    term: int


@dataclass(frozen=True, slots=True)
class VoteRequest(Message):
    last_index: int
    last_term: int
    incarnation: str = ""
    """Of the target, as the candidate's membership has it: another incarnation has no vote in this election."""
    pre: bool = False
    """A pre-vote: asked before the term is raised, so that a partitioned server does not disturb the leader when it is
    back."""
    transfer: bool = False
    """The leader itself asked for this election (TimeoutNow): its lease does not count."""


@dataclass(frozen=True, slots=True)
class VoteReply(Message):
    granted: bool
    pre: bool = False


@dataclass(frozen=True, slots=True)
class AppendRequest(Message):
    """The entries that follow `prev_index`, without a gap."""

    prev_index: int
    prev_term: int
    commit: int
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class AppendReply(Message):
    match: int
    """Accepted: everything up to here is stored. Rejected: where the follower's log may agree (an upper bound)."""
    rejected: bool = False
    hint_term: int = 0
    """Of the follower's entry at `match`."""
    prev_index: int = 0
    """Of the request that was rejected, so that a stale rejection is recognised."""
    incarnation: str = ""
    """Of the sender: what an earlier incarnation had stored says nothing about this one."""


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    commit: int
    commit_term: int
    """The term of the entry at `commit`: only a follower that has this entry may commit everything up to it."""
    round: int
    """The reply confirms leadership for the reads that wait for this round."""


@dataclass(frozen=True, slots=True)
class HeartbeatReply(Message):
    round: int
    incarnation: str = ""


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
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class TimeoutNow(Message):
    """Campaign at once: the sender hands its leadership over."""
