"""The state of a Raft server in any role: its term, vote, log and leader, and the ticks since its last message.

The rest of the machine works on this: `election`, `following` and `leading` each have what only that role needs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from bascule import limits
from bascule.core.raft.log import RaftLog
from bascule.wire.raft_messages import Entry, HardState, Membership, Message, Snapshot


class Role(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class RaftConfig:
    id: str
    election_ticks: int = 10
    """A follower waits between this and twice this many ticks before it campaigns."""
    heartbeat_ticks: int = 2
    max_append_bytes: int = field(default_factory=lambda: limits.RAFT_APPEND_BYTES)
    snapshot_chunk_bytes: int = field(default_factory=lambda: limits.RAFT_SNAPSHOT_CHUNK_BYTES)
    trailing_entries: int = field(default_factory=lambda: limits.RAFT_TRAILING_ENTRIES)


class State:
    def __init__(
        self,
        config: RaftConfig,
        hard_state: HardState,
        snapshot: Snapshot,
        entries: list[Entry],
        random: Callable[[int, int], int],
    ) -> None:
        self.config = config
        self.id = config.id
        self.incarnation = hard_state.incarnation
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.log = RaftLog(snapshot, entries, hard_state.commit)
        self.role = Role.FOLLOWER
        self.leader = ""
        self.elapsed = 0
        """Ticks since a message of a leader, its vote or the begin of its campaign."""
        self.timeout = 0
        self.needed = False
        """No voter by its own log, but a candidate whose log is behind its own asked for its vote."""
        self.outbox: list[Message] = []
        self.max_message_bytes = 0
        """The largest message of the network; 0 if that is not known."""
        self._random = random
        self.reset_timeout()

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.log.commit, self.incarnation)

    @property
    def membership(self) -> Membership:
        return self.log.membership

    @property
    def is_voter(self) -> bool:
        """In this incarnation. A server that lost its state is not a voter because its id was one."""
        return self.membership.is_voter(self.id, self.incarnation)

    @property
    def may_campaign(self) -> bool:
        """Also one that an uncommitted membership leaves out (thesis, 4.2.2), and one that is a voter by a membership
        it does not have yet: theirs may be the only logs that can win. They do not count their own vote, and hand over
        when they have committed."""
        if self.is_voter or self.needed:
            return True
        log = self.log
        if log.membership_index <= log.commit:
            return False
        return log.membership_at(log.membership_index - 1).is_voter(self.id, self.incarnation)

    @property
    def hears_leader(self) -> bool:
        """The lease: for an election timeout after the leader's last message this server takes part in no election. A
        leader has its own lease; it steps down without answers of a quorum."""
        return self.role is Role.LEADER or (bool(self.leader) and self.elapsed < self.config.election_ticks)

    def follow(self, term: int, leader: str) -> None:
        """Follower of this leader, or of nobody yet."""
        assert term >= self.term, f"from term {self.term} back to {term}"
        if term > self.term:
            self.term = term
            self.vote = ""
        self.role = Role.FOLLOWER
        self.leader = leader
        self.needed = self.needed and not leader
        self.reset_timeout()

    def reset_timeout(self) -> None:
        self.elapsed = 0
        self.timeout = self._random(self.config.election_ticks, 2 * self.config.election_ticks - 1)

    def send(self, message: Message) -> None:
        """Bounded: while the disk is stalled peers go on sending requests; they repeat those without a reply."""
        if len(self.outbox) < limits.RAFT_OUTBOX_MESSAGES:
            self.outbox.append(message)

    def fitting(self, most_bytes: int) -> int:
        """As many bytes of entries, or of a snapshot, as there is room for in one message."""
        bound = self.max_message_bytes
        return min(most_bytes, bound // limits.RAFT_PAYLOAD_SHARE) if bound else most_bytes
