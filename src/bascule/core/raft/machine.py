"""One Raft server as a pure machine, after "In search of an understandable consensus algorithm" and etcd's raft.

It may know its own log and what messages say; it has no clock (the driver ticks), no disk and no network. Inputs: `step` a
peer's message, `tick`, `propose`, `read`, `transfer`. Output: `ready()` says what to persist, send and apply, in that order;
`advance()` says it was done. Nothing a peer could rely on leaves before the bytes it depends on are persisted:
messages are part of the same Ready as the entries and the hard state they follow from, and a leader counts its own copy
of an entry only when it is persisted.

Beyond the paper's core: pre-vote (a server that was cut off does not disturb on return), check-quorum (a leader that
hears no majority steps down) with the matching lease (followers that hear a leader ignore elections), read-index
reads, pipelined appends with fast backtrack, snapshots in chunks, learners, one-server membership changes only after a
commit in the own term, and leadership transfer.

Known to be imperfect: the log since the last snapshot is held in memory; the driver compacts it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from bascule.core.raft.log import RaftLog
from bascule.core.raft.membership import decode_membership, encode_membership
from bascule.core.raft.messages import (
    AppendReply,
    AppendRequest,
    Entry,
    EntryKind,
    HardState,
    Membership,
    Message,
    Ready,
    Snapshot,
    SnapshotReply,
    SnapshotRequest,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from bascule.core.raft.progress import Progress, Stage
from bascule.errors import Unavailable


class Role(Enum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class NotLeaderError(Unavailable):
    """Only the leader can do this."""


@dataclass(frozen=True, slots=True)
class RaftConfig:
    id: str
    election_ticks: int = 10
    """A follower waits between this and twice this many ticks before it campaigns."""
    heartbeat_ticks: int = 2
    max_append_bytes: int = 256 * 1024
    snapshot_chunk_bytes: int = 256 * 1024


class Raft:
    def __init__(
        self,
        config: RaftConfig,
        hard_state: HardState,
        snapshot: Snapshot,
        entries: list[Entry],
        random: Callable[[int, int], int],
        *,
        amnesiac: bool = False,
    ) -> None:
        self.config = config
        self.id = config.id
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.log = RaftLog(snapshot, entries, hard_state.commit)
        self.membership = snapshot.membership
        self.role = Role.FOLLOWER
        self.leader = ""
        self.amnesiac = amnesiac
        """Its state was lost: it may have voted before and must not vote again until made a voter anew."""
        self.progress: dict[str, Progress] = {}
        self.transferee = ""
        self._random = random
        self._elapsed = 0
        self._timeout = 0
        self._votes: dict[str, bool] = {}
        self._messages: list[Message] = []
        self._persisted = hard_state
        self._round = 0
        self._reads: list[tuple[int, int, int]] = []
        self._reads_before_commit: list[int] = []
        self._served_reads: list[tuple[int, int]] = []
        self._membership_index = 0
        self._incoming: Snapshot | None = None
        self._reset_timeout()

    # --- questions ---------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def may_campaign(self) -> bool:
        return self.id in self.membership.voters and not self.amnesiac

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.log.commit)

    @property
    def committed_in_own_term(self) -> bool:
        return self.log.term_at(self.log.commit) == self.term

    # --- inputs ------------------------------------------------------------------------------------

    def tick(self) -> None:
        self._elapsed += 1
        if self.role is Role.LEADER:
            self._leader_tick()
        elif self.may_campaign and (self._elapsed >= self._timeout or len(self.membership.voters) == 1):
            self.campaign()

    def campaign(self, *, transfer: bool = False) -> None:
        if not self.may_campaign or self.role is Role.LEADER:
            return
        if transfer or len(self.membership.voters) == 1:
            self._become_candidate(transfer)
        else:
            self._become_pre_candidate()

    def propose(self, data: bytes) -> int:
        """The index the command gets; it is committed when it comes back in a Ready, or never."""
        return self._propose(EntryKind.COMMAND, data)

    def propose_membership(self, membership: Membership) -> int:
        if not self.is_leader or not self.committed_in_own_term:
            raise NotLeaderError("membership changes need a leader that has committed in its own term")
        if self._membership_index > self.log.applied:
            raise Unavailable("another membership change is under way")
        if not self.membership.differs_by_one_voter(membership) or not membership.voters:
            raise Unavailable("a membership change may add or remove one voter at a time")
        index = self._propose(EntryKind.MEMBERSHIP, encode_membership(membership))
        self._membership_index = index
        return index

    def read(self, context: int) -> None:
        """Ask for a point to read at: answered in a Ready once a majority has confirmed this leader."""
        if not self.is_leader:
            raise NotLeaderError("reads are confirmed by the leader")
        if not self.committed_in_own_term:
            self._reads_before_commit.append(context)
            return
        self._round += 1
        self._reads.append((context, self.log.commit, self._round))
        self._broadcast_heartbeat()
        self._confirm_reads()

    def transfer(self, target: str) -> None:
        """Hand leadership to this voter as soon as it has everything."""
        if not self.is_leader or target == self.id or target not in self.membership.voters:
            return
        self.transferee = target
        self._elapsed = 0
        self._try_transfer()

    def step(self, message: Message) -> None:
        assert message.target == self.id, f"{self.id} got a message for {message.target}"
        if message.term > self.term and not self._newer_term(message):
            return
        if message.term < self.term:
            self._older_term(message)
            return
        match message:
            case VoteRequest():
                self._on_vote_request(message)
            case VoteReply():
                self._on_vote_reply(message)
            case AppendRequest():
                self._on_append(message)
            case AppendReply():
                self._on_append_reply(message)
            case SnapshotRequest():
                self._on_snapshot(message)
            case SnapshotReply():
                self._on_snapshot_reply(message)
            case TimeoutNow():
                self.campaign(transfer=True)

    # --- outputs -----------------------------------------------------------------------------------

    def ready(self) -> Ready:
        log = self.log
        ready = Ready(
            hard_state=self.hard_state if self.hard_state != self._persisted else None,
            snapshot=log.pending_snapshot,
            entries=log.slice(log.stable + 1, log.last_index + 1),
            messages=self._messages,
            committed=log.slice(log.applied + 1, min(log.commit, log.stable) + 1),
            reads=self._served_reads,
        )
        self._messages = []
        self._served_reads = []
        return ready

    def advance(self, ready: Ready) -> None:
        """The driver has persisted, sent and applied what that Ready said."""
        if ready.hard_state is not None:
            self._persisted = ready.hard_state
        if ready.snapshot is not None and self.log.pending_snapshot is ready.snapshot:
            self.log.pending_snapshot = None
        if ready.entries and self.log.matches(ready.entries[-1].index, ready.entries[-1].term):
            self.log.stable = max(self.log.stable, ready.entries[-1].index)
        for entry in ready.committed:
            self.log.applied = entry.index
            if entry.kind is EntryKind.MEMBERSHIP:
                self._apply_membership(decode_membership(entry.data))
        if self.is_leader and ready.entries:
            self._maybe_commit()

    def compact(self, index: int, data: bytes) -> Snapshot:
        """The driver took this state at `index` (applied): a snapshot of it, which replaces the entries up to there once
        the driver has persisted it and calls `compacted`."""
        term = self.log.term_at(index)
        assert term is not None
        return Snapshot(index, term, self.membership, data)

    def compacted(self, snapshot: Snapshot) -> None:
        self.log.compact(snapshot)

    # --- terms -------------------------------------------------------------------------------------

    def _newer_term(self, message: Message) -> bool:
        """False if the message is to be ignored."""
        if isinstance(message, VoteRequest):
            leased = bool(self.leader) and self._elapsed < self.config.election_ticks
            if leased and not message.transfer:
                return False
            if message.pre:
                return True
        if isinstance(message, VoteReply) and message.pre and message.granted:
            return True
        from_leader = isinstance(message, AppendRequest | SnapshotRequest)
        self._become_follower(message.term, message.source if from_leader else "")
        return True

    def _older_term(self, message: Message) -> None:
        """Tell a sender that time has moved on, so that it stops: a leader cut off, or a pre-candidate."""
        if isinstance(message, AppendRequest | SnapshotRequest):
            self._send(AppendReply(self.id, message.source, self.term, match=0, rejected=True))
        elif isinstance(message, VoteRequest) and message.pre:
            self._send(VoteReply(self.id, message.source, self.term, granted=False, pre=True))

    def _become_follower(self, term: int, leader: str) -> None:
        if term > self.term:
            self.term = term
            self.vote = ""
        self.role = Role.FOLLOWER
        self.leader = leader
        self._forget_leadership()
        self._reset_timeout()

    def _forget_leadership(self) -> None:
        self.progress = {}
        self.transferee = ""
        self._votes = {}
        self._reads = []
        self._reads_before_commit = []
        self._incoming = None

    def _reset_timeout(self) -> None:
        self._elapsed = 0
        self._timeout = self._random(self.config.election_ticks, 2 * self.config.election_ticks - 1)

    # --- elections ---------------------------------------------------------------------------------

    def _become_pre_candidate(self) -> None:
        self.role = Role.PRE_CANDIDATE
        self.leader = ""
        self._forget_leadership()
        self._reset_timeout()
        self._ask_for_votes(self.term + 1, pre=True, transfer=False)

    def _become_candidate(self, transfer: bool) -> None:
        self.role = Role.CANDIDATE
        self.leader = ""
        self._forget_leadership()
        self.term += 1
        self.vote = self.id
        self._reset_timeout()
        self._ask_for_votes(self.term, pre=False, transfer=transfer)

    def _ask_for_votes(self, term: int, *, pre: bool, transfer: bool) -> None:
        self._votes = {self.id: True}
        for voter in self.membership.voters:
            if voter != self.id:
                request = VoteRequest(
                    self.id, voter, term, self.log.last_index, self.log.last_term, pre=pre, transfer=transfer
                )
                self._send(request)
        self._count_votes()

    def _on_vote_request(self, message: VoteRequest) -> None:
        free = self.vote == message.source or (not self.vote and not self.leader)
        could = free or (message.pre and message.term > self.term)
        granted = could and not self.amnesiac and self.log.is_up_to_date(message.last_index, message.last_term)
        term = message.term if granted else self.term
        if granted and not message.pre:
            self.vote = message.source
            self._elapsed = 0
        self._send(VoteReply(self.id, message.source, term, granted=granted, pre=message.pre))

    def _on_vote_reply(self, message: VoteReply) -> None:
        expected = Role.PRE_CANDIDATE if message.pre else Role.CANDIDATE
        if self.role is not expected:
            return
        self._votes.setdefault(message.source, message.granted)
        self._count_votes()

    def _count_votes(self) -> None:
        voters = self.membership.voters
        granted = sum(self._votes.get(voter, False) for voter in voters)
        refused = sum(not self._votes.get(voter, True) for voter in voters)
        if granted >= self.membership.quorum:
            if self.role is Role.PRE_CANDIDATE:
                self._become_candidate(transfer=False)
            else:
                self._become_leader()
        elif refused >= self.membership.quorum:
            self._become_follower(self.term, "")

    def _become_leader(self) -> None:
        self.role = Role.LEADER
        self.leader = self.id
        self._forget_leadership()
        self._reset_timeout()
        self.progress = {
            server: Progress(self.log.last_index + 1) for server in self.membership.everyone if server != self.id
        }
        pending = [
            entry.index
            for entry in self.log.slice(self.log.applied + 1, self.log.last_index + 1)
            if entry.kind is EntryKind.MEMBERSHIP
        ]
        self._membership_index = pending[-1] if pending else 0
        self._propose(EntryKind.NOOP, b"")

    # --- leading -----------------------------------------------------------------------------------

    def _leader_tick(self) -> None:
        if self._elapsed % self.config.heartbeat_ticks == 0:
            self._broadcast_heartbeat()
        if self._elapsed >= self.config.election_ticks:
            self._elapsed = 0
            self.transferee = ""
            alive = 1 + sum(
                progress.active for server, progress in self.progress.items() if server in self.membership.voters
            )
            for progress in self.progress.values():
                progress.active = False
            if alive < self.membership.quorum and self.id in self.membership.voters:
                self._become_follower(self.term, "")

    def _propose(self, kind: EntryKind, data: bytes) -> int:
        if not self.is_leader:
            raise NotLeaderError("this server is not the leader")
        if self.transferee:
            raise NotLeaderError("leadership is being handed over")
        index = self.log.last_index + 1
        self.log.append([Entry(index, self.term, kind, data)])
        for server in self.progress:
            self._send_append(server)
        self._maybe_commit()
        return index

    def _send_append(self, server: str, *, even_if_empty: bool = False) -> None:
        progress = self.progress[server]
        if progress.paused:
            return
        prev_index = progress.next - 1
        prev_term = self.log.term_at(prev_index)
        if prev_term is None or progress.stage is Stage.SNAPSHOT:
            self._send_snapshot(server)
            return
        entries = tuple(self.log.slice(progress.next, self.log.last_index + 1, self.config.max_append_bytes))
        if not entries and not even_if_empty:
            return
        self._send(
            AppendRequest(self.id, server, self.term, prev_index, prev_term, self.log.commit, entries, self._round)
        )
        progress.sent(prev_index + len(entries))

    def _send_snapshot(self, server: str) -> None:
        progress = self.progress[server]
        snapshot = self.log.snapshot
        progress.begin_snapshot(snapshot.index)
        offset = progress.snapshot_offset
        chunk = snapshot.data[offset : offset + self.config.snapshot_chunk_bytes]
        part = replace(snapshot, data=chunk)
        self._send(SnapshotRequest(self.id, server, self.term, part, offset, len(snapshot.data)))
        progress.sent(0)

    def _broadcast_heartbeat(self) -> None:
        for server, progress in self.progress.items():
            prev_term = self.log.term_at(progress.match)
            self._send(
                AppendRequest(
                    self.id,
                    server,
                    self.term,
                    prev_index=progress.match if prev_term is not None else 0,
                    prev_term=prev_term or 0,
                    commit=min(progress.match, self.log.commit),
                    round=self._round,
                )
            )

    def _on_append_reply(self, message: AppendReply) -> None:
        progress = self.progress.get(message.source)
        if progress is None:
            return
        progress.active = True
        if message.rejected:
            next_index = self.log.probe(message.match, message.hint_term) + 1
            if progress.rejected(message.prev_index, next_index):
                self._send_append(message.source, even_if_empty=True)
            return
        progress.round = max(progress.round, message.round)
        progress.heartbeat_answered()
        if progress.accepted(message.match) and self._maybe_commit():
            for server in self.progress:
                self._send_append(server, even_if_empty=True)
        elif progress.match < self.log.last_index:
            self._send_append(message.source, even_if_empty=True)
        self._confirm_reads()
        self._try_transfer()

    def _maybe_commit(self) -> bool:
        """An entry of the own term that a majority has persisted is committed, and everything before it with it."""
        ends = sorted(
            (self.log.stable if voter == self.id else self.progress[voter].match for voter in self.membership.voters),
            reverse=True,
        )
        reached = ends[self.membership.quorum - 1]
        if reached <= self.log.commit or self.log.term_at(reached) != self.term:
            return False
        self.log.commit = reached
        waiting, self._reads_before_commit = self._reads_before_commit, []
        for context in waiting:
            self.read(context)
        return True

    def _confirm_reads(self) -> None:
        while self._reads:
            context, index, number = self._reads[0]
            confirmed = sum(
                voter == self.id or self.progress[voter].round >= number for voter in self.membership.voters
            )
            if confirmed < self.membership.quorum:
                return
            self._reads.pop(0)
            self._served_reads.append((context, index))

    def _try_transfer(self) -> None:
        progress = self.progress.get(self.transferee)
        if progress is None:
            return
        if progress.match == self.log.last_index:
            self._send(TimeoutNow(self.id, self.transferee, self.term))
        else:
            self._send_append(self.transferee)

    def _on_snapshot_reply(self, message: SnapshotReply) -> None:
        progress = self.progress.get(message.source)
        if progress is None or progress.stage is not Stage.SNAPSHOT:
            return
        progress.active = True
        if message.index != self.log.snapshot.index:
            progress.begin_snapshot(self.log.snapshot.index)
            progress.snapshot_received(0)
        else:
            progress.snapshot_received(message.received)
        if self.progress[message.source].snapshot_offset < len(self.log.snapshot.data) or not message.received:
            self._send_append(message.source)

    # --- following ---------------------------------------------------------------------------------

    def _on_append(self, message: AppendRequest) -> None:
        if self.role is not Role.FOLLOWER or self.leader != message.source:
            self._become_follower(message.term, message.source)
        self._elapsed = 0
        log = self.log
        if message.prev_index < log.commit:
            # Everything committed agrees by definition; only what lies beyond it is news.
            match_index = log.commit
            entries = tuple(entry for entry in message.entries if entry.index > log.commit)
            if entries and entries[0].index != log.commit + 1:
                entries = ()
        elif log.matches(message.prev_index, message.prev_term):
            match_index = message.prev_index
            entries = message.entries
        else:
            self._reject_append(message)
            return
        conflict = log.first_conflict(entries)
        if conflict is not None:
            log.append([entry for entry in entries if entry.index >= conflict])
        if entries:
            match_index = entries[-1].index
        log.commit = max(log.commit, min(message.commit, match_index))
        self._send(AppendReply(self.id, message.source, self.term, match=match_index, round=message.round))

    def _reject_append(self, message: AppendRequest) -> None:
        """Say where the logs may agree, skipping a whole term at a time."""
        hint = self.log.probe(min(message.prev_index, self.log.last_index), message.prev_term)
        self._send(
            AppendReply(
                self.id,
                message.source,
                self.term,
                match=hint,
                rejected=True,
                hint_term=self.log.term_at(hint) or 0,
                prev_index=message.prev_index,
                round=message.round,
            )
        )

    def _on_snapshot(self, message: SnapshotRequest) -> None:
        if self.role is not Role.FOLLOWER or self.leader != message.source:
            self._become_follower(message.term, message.source)
        self._elapsed = 0
        part = message.snapshot
        if part.index <= self.log.commit:
            self._send(AppendReply(self.id, message.source, self.term, match=self.log.commit))
            return
        have = self._incoming
        if have is None or (have.index, have.term) != (part.index, part.term):
            have = replace(part, data=b"")
        if message.offset == len(have.data):
            have = replace(have, data=have.data + part.data)
        self._incoming = have
        if len(have.data) < message.total:
            self._send(SnapshotReply(self.id, message.source, self.term, have.index, len(have.data)))
            return
        self._incoming = None
        self.log.restore(have)
        self._apply_membership(have.membership)
        self._send(AppendReply(self.id, message.source, self.term, match=have.index))

    # --- membership --------------------------------------------------------------------------------

    def _apply_membership(self, membership: Membership) -> None:
        self.membership = membership
        if self.id in membership.voters:
            self.amnesiac = False
        if not self.is_leader:
            return
        for server in membership.everyone:
            if server != self.id and server not in self.progress:
                self.progress[server] = Progress(self.log.last_index + 1)
                self._send_append(server, even_if_empty=True)
        for server in [item for item in self.progress if item not in membership.everyone]:
            del self.progress[server]
        if self.transferee not in membership.voters:
            self.transferee = ""
        if self.id not in membership.voters:
            self._become_follower(self.term, "")
        else:
            self._maybe_commit()

    def _send(self, message: Message) -> None:
        self._messages.append(message)
