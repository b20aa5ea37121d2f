"""One Raft server as a pure machine, after "In search of an understandable consensus algorithm", Ongaro's thesis and
etcd's raft.

It may know its own log and what messages say; it has no clock (the driver ticks), no disk and no network. Inputs:
`step` a peer's message, `tick`, `propose`, `read`, `transfer`. Output: `ready()` says what to persist, send and apply,
in that order; `advance()` says it was done. Nothing a peer could rely on leaves before the bytes it depends on are
persisted: messages are part of the same Ready as the entries and the hard state they follow from, and a leader counts
its own copy of an entry only when it is persisted.

Beyond the paper's core: pre-vote (a server that was partitioned does not disturb on return), check-quorum (a leader
without answers of a quorum steps down) with the matching lease (followers of a live leader ignore elections),
read-index reads, pipelined appends with fast backtrack, snapshots in chunks, learners, membership changes of one voter
(or from one voter to three) only after a commit in the own term, leadership transfer, and incarnations: a server that
lost its state starts with `HardState(incarnation=<a fresh token>)`, and neither votes nor campaigns nor counts until
the membership names it so.

Known to be imperfect: the log since the last snapshot is held in memory, the driver compacts it; a server that is
removed is not informed here, and asks for votes in vain (the controller informs it: `Administration.tell_removed`).
"""

from collections.abc import Callable

from bascule import limits
from bascule.core.raft.election import Election
from bascule.core.raft.following import Following
from bascule.core.raft.leading import Leadership
from bascule.core.raft.log import RaftLog
from bascule.core.raft.progress import Progress
from bascule.core.raft.ready import Ready
from bascule.core.raft.state import RaftConfig, Role, State
from bascule.errors import Unavailable
from bascule.wire.raft_messages import (
    AppendReply,
    AppendRequest,
    Entry,
    HardState,
    Heartbeat,
    HeartbeatReply,
    Membership,
    Message,
    Snapshot,
    SnapshotReply,
    SnapshotRequest,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)

__all__ = ["NotLeaderError", "Raft", "RaftConfig", "Role"]

_FROM_LEADER = AppendRequest | Heartbeat | SnapshotRequest | TimeoutNow


class NotLeaderError(Unavailable):
    """Only the leader can do this."""


class Raft:
    def __init__(
        self,
        config: RaftConfig,
        hard_state: HardState,
        snapshot: Snapshot,
        entries: list[Entry],
        random: Callable[[int, int], int],
    ) -> None:
        """`random(low, high)` draws an integer, both ends included."""
        self.config = config
        self.id = config.id
        self._state = State(config, hard_state, snapshot, entries, random)
        self._election = Election(self._state)
        self._following = Following(self._state)
        self._leadership: Leadership | None = None
        self._persisted = hard_state
        self._served_reads: list[tuple[int, int]] = []
        self._lost_reads: list[int] = []
        self._under_way: Ready | None = None

    # --- questions ----------------------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        return self._state.role

    @property
    def is_leader(self) -> bool:
        return self._state.role is Role.LEADER

    @property
    def leader(self) -> str:
        """Whom it follows; empty if it knows of none."""
        return self._state.leader

    @property
    def term(self) -> int:
        return self._state.term

    @property
    def hard_state(self) -> HardState:
        return self._state.hard_state

    @property
    def log(self) -> RaftLog:
        return self._state.log

    @property
    def membership(self) -> Membership:
        """In force here: the newest in the log, committed or not."""
        return self._state.membership

    @property
    def is_voter(self) -> bool:
        """A member with a vote, in its present incarnation: one that lost its state is none."""
        return self._state.is_voter

    @property
    def progress(self) -> dict[str, Progress]:
        """What a leader knows of the others; empty elsewhere."""
        return self._leadership.progress if self._leadership else {}

    @property
    def transferee(self) -> str:
        return self._leadership.transferee if self._leadership else ""

    @property
    def committed_in_own_term(self) -> bool:
        """Only then may a leader change the membership, and only then are its reads served."""
        return self._leadership is not None and self._leadership.committed_in_own_term

    def caught_up(self, server: str) -> bool:
        """Whether this leader knows that server to have everything committed: the moment to make a learner a voter."""
        return self._leadership is not None and self._leadership.caught_up(server)

    # --- inputs -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        state = self._state
        state.elapsed += 1
        if self._leadership is not None:
            self._leadership.tick()
        elif state.may_campaign and (state.elapsed >= state.timeout or state.membership.voters == (state.id,)):
            self._election.campaign()
        elif state.elapsed >= state.timeout:
            state.leader = ""  # also for a learner or a removed server, which may not campaign
        self._update_leadership()

    def bound_messages(self, most_bytes: int) -> None:
        """The network takes messages of this size and no larger ones, from now on."""
        self._state.max_message_bytes = most_bytes

    def found(self, membership: Membership) -> None:
        """The driver has stored this as the first membership of a new cluster."""
        self._state.log.found(membership)

    def campaign(self) -> None:
        """Do not wait for the timeout."""
        self._election.campaign()
        self._update_leadership()

    def propose(self, data: bytes) -> int:
        """The index the command gets; it is committed when it comes back in a Ready with the present term, or never."""
        return self.propose_many([data])

    def propose_many(self, commands: list[bytes]) -> int:
        """The index of the first; the others follow it, and one append carries them all."""
        return self._as_leader().propose(commands)

    def propose_membership(self, membership: Membership) -> int:
        index = self._as_leader().propose_membership(membership)
        self._update_leadership()
        return index

    def read(self, context: int) -> None:
        """Ask for a point to read at: a Ready answers once a quorum has confirmed this leader, or says it is lost."""
        self._as_leader().read(context)

    def transfer(self, target: str) -> None:
        """Hand leadership to this voter as soon as it has everything. Given up after an election timeout."""
        self._as_leader().transfer(target)

    def step(self, message: Message) -> None:
        """A peer's message. One for another server, or out of time, changes nothing."""
        state = self._state
        if message.target != self.id or message.source == self.id:
            return
        if message.term > state.term + limits.RAFT_TERM_LEAP:
            return
        if message.term > state.term and not self._newer_term(message):
            return
        if message.term < state.term:
            self._older_term(message)
        elif isinstance(message, _FROM_LEADER):
            self._from_leader(message)
        else:
            self._from_peer(message)
        self._update_leadership()

    # --- outputs ------------------------------------------------------------------------------------------------

    def ready(self) -> Ready:
        """What there is to do; false if nothing. The next one is due after `advance`."""
        assert self._under_way is None, "the Ready before was not advanced"
        state, log, leadership = self._state, self._state.log, self._leadership
        if leadership is not None:
            leadership.flush()
        start = max(log.applied, log.pending_snapshot.index if log.pending_snapshot else 0)
        end = min(log.commit, start + limits.RAFT_APPLY_ENTRIES)
        ready = Ready(
            snapshot=log.pending_snapshot,
            entries=log.slice(log.stable + 1, log.last_index + 1),
            messages=state.outbox,
            committed=log.slice(start + 1, end + 1),
            reads=self._served_reads,
            lost_reads=self._lost_reads,
        )
        state.outbox, self._served_reads, self._lost_reads = [], [], []
        if leadership is not None:
            ready.reads += leadership.take_served_reads()
        if self._must_persist_hard_state(ready):
            ready.hard_state = state.hard_state
        if ready:
            self._under_way = ready
        return ready

    def advance(self, ready: Ready) -> None:
        """The driver has persisted, sent and applied what that Ready said. The log may have changed meanwhile."""
        assert ready is self._under_way, "this is not the Ready under way"
        self._under_way = None
        log = self._state.log
        if ready.hard_state is not None:
            self._persisted = ready.hard_state
        if log.pending_snapshot is ready.snapshot:
            log.pending_snapshot = None
        if ready.snapshot is not None:
            log.applied = max(log.applied, ready.snapshot.index)
        if ready.entries:
            log.persisted(ready.entries[-1].index, ready.entries[-1].term)
        if ready.committed:
            log.applied = max(log.applied, ready.committed[-1].index)
        if self._leadership is not None and ready.entries:
            self._leadership.persisted()
        self._update_leadership()

    def compact(self, index: int, data: bytes) -> Snapshot:
        """The driver took this state at `index`, which is applied: a snapshot of it. When the driver has persisted that
        it calls `compacted`."""
        log, term = self._state.log, self._state.log.term_at(index)
        assert term is not None, f"a snapshot of {index}: that entry is not there"
        assert log.snapshot.index <= index <= log.applied, f"a snapshot of {index}, applied is {log.applied}"
        return Snapshot(index, term, log.membership_at(index), data)

    def compacted(self, snapshot: Snapshot) -> None:
        """Entries that the snapshot covers leave memory, but for a tail that saves a slow follower a snapshot."""
        keep_from = snapshot.index + 1 - self.config.trailing_entries
        pinned = self._leadership.pinned_from() if self._leadership else None
        if pinned is not None:
            keep_from = min(keep_from, max(pinned, snapshot.index + 1 - limits.RAFT_PINNED_ENTRIES))
        self._state.log.compact(snapshot, keep_from)

    # --- inside -------------------------------------------------------------------------------------------------

    def _as_leader(self) -> Leadership:
        if self._leadership is None:
            raise NotLeaderError(f"this server is not the leader{f', {self.leader} is' if self.leader else ''}")
        return self._leadership

    def _must_persist_hard_state(self, ready: Ready) -> bool:
        """A commit index alone is not worth a sync: it goes along with the next thing that is."""
        now, stored = self._state.hard_state, self._persisted
        if (now.term, now.vote, now.incarnation) != (stored.term, stored.vote, stored.incarnation):
            return True
        return ready.must_persist and now.commit != stored.commit

    def _newer_term(self, message: Message) -> bool:
        """False if the message is to be ignored."""
        state = self._state
        if isinstance(message, VoteRequest):
            if state.hears_leader and not message.transfer:
                return False
            if message.pre:
                return True
        if isinstance(message, VoteReply) and message.pre and message.granted:
            return True
        state.follow(message.term, message.source if isinstance(message, _FROM_LEADER) else "")
        return True

    def _older_term(self, message: Message) -> None:
        """Send the present term to an old leader or a candidate, so that it steps down."""
        state = self._state
        if isinstance(message, _FROM_LEADER):
            state.send(AppendReply(self.id, message.source, state.term, 0, True, incarnation=state.incarnation))
        elif isinstance(message, VoteRequest):
            state.send(VoteReply(self.id, message.source, state.term, granted=False, pre=message.pre))

    def _from_leader(self, message: Message) -> None:
        state = self._state
        if state.role is Role.LEADER:
            return  # one leader a term: this is no message of our cluster
        if isinstance(message, TimeoutNow):
            if state.role is Role.FOLLOWER and state.leader == message.source:
                self._election.campaign(transfer=True)
            return
        if state.role is not Role.FOLLOWER or state.leader != message.source:
            state.follow(state.term, message.source)
        state.elapsed = 0
        match message:
            case AppendRequest():
                self._following.on_append(message)
            case Heartbeat():
                self._following.on_heartbeat(message)
            case SnapshotRequest():
                self._following.on_snapshot(message)

    def _from_peer(self, message: Message) -> None:
        leadership = self._leadership
        match message:
            case VoteRequest():
                self._election.on_request(message)
            case VoteReply():
                self._election.on_reply(message)
            case AppendReply() if leadership:
                leadership.on_append_reply(message)
            case HeartbeatReply() if leadership:
                leadership.on_heartbeat_reply(message)
            case SnapshotReply() if leadership:
                leadership.on_snapshot_reply(message)

    def _update_leadership(self) -> None:
        """After every input: a leadership that ended leaves nothing behind, one that was won begins."""
        state, leadership = self._state, self._leadership
        if leadership is not None and (state.role is not Role.LEADER or leadership.term != state.term):
            self._lost_reads += leadership.open_reads
            self._served_reads += leadership.take_served_reads()
            self._leadership = None
        if state.role is Role.LEADER and self._leadership is None:
            self._following.forget_snapshot()
            self._leadership = Leadership(state)
