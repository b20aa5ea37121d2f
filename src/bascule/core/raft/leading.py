"""Leading, for one term: what every follower has, what it gets next, what is committed, and which reads may be served.

Inputs change what is known; `flush`, called once per Ready, looks at each follower and sends what it lacks. So a burst
of proposals is one request, and there is one place that decides what is sent.

Rules: an entry counts as stored here when the driver has persisted it, elsewhere when the follower said so in its
present incarnation. Only entries of the own term are committed by counting; older ones with them. A read is served
at the commit index of the moment it came, once a quorum has answered a heartbeat sent after that, and never before the
first commit of the own term. A leader that a new membership leaves out leads until that membership is committed,
without counting itself, and hands over.
"""

from dataclasses import replace

from bascule import limits
from bascule.core.raft.progress import Progress, Stage
from bascule.core.raft.state import Role, State
from bascule.errors import FailedPrecondition, ResourceExhausted, Unavailable
from bascule.wire.raft import encode_membership
from bascule.wire.raft_messages import (
    AppendReply,
    AppendRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    Membership,
    SnapshotReply,
    SnapshotRequest,
    TimeoutNow,
)


class Leadership:
    def __init__(self, state: State) -> None:
        self._state = state
        self.term = state.term
        self.progress: dict[str, Progress] = {}
        self.transferee = ""
        self._served_reads: list[tuple[int, int]] = []
        self._transfer_ticks = 0
        self._hand_over_due = False
        self._heartbeat_due = True
        self._ticks = 0
        self._round = 0
        self._reads: list[tuple[int, int, int]] = []  # (context, commit index when it came, round that confirms it)
        self._early_reads: list[int] = []
        self._meet_members()
        self._append([Entry(state.log.last_index + 1, state.term, EntryKind.NOOP)])

    @property
    def committed_in_own_term(self) -> bool:
        log = self._state.log
        return log.term_at(log.commit) == self.term

    @property
    def open_reads(self) -> list[int]:
        return [*self._early_reads, *(context for context, _, _ in self._reads)]

    def take_served_reads(self) -> list[tuple[int, int]]:
        served, self._served_reads = self._served_reads, []
        return served

    # --- what the driver asks for -------------------------------------------------------------------------------

    def propose(self, commands: list[bytes]) -> int:
        """The index of the first; the others follow it."""
        log = self._state.log
        if self.transferee:
            raise Unavailable(f"leadership is being handed over to {self.transferee}; ask again")
        if log.last_index - log.commit + len(commands) > limits.RAFT_UNCOMMITTED_ENTRIES:
            raise Unavailable("too many commands wait for a majority of the cluster; ask again later")
        bound, largest = self._state.max_message_bytes, max(map(len, commands), default=0)
        if bound and largest + limits.RAFT_HEAD_BYTES > bound:
            raise ResourceExhausted(
                f"a change of the metadata of {largest} bytes does not fit into a message of NATS (max_payload "
                f"{bound}): ask for less at a time, such as fewer partitions, or let NATS take larger ones"
            )
        first = log.last_index + 1
        self._append(
            [Entry(index, self.term, EntryKind.COMMAND, data) for index, data in enumerate(commands, start=first)]
        )
        return first

    def propose_membership(self, membership: Membership) -> int:
        log = self._state.log
        if not self.committed_in_own_term:
            raise Unavailable("membership changes wait until the new leader has committed in its own term; ask again")
        if log.membership_index > log.commit:
            raise Unavailable("another membership change is under way; ask again")
        if self.transferee:
            raise Unavailable(f"leadership is being handed over to {self.transferee}; ask again")
        if not membership.voters or not membership.well_formed or len(membership.everyone) > limits.RAFT_MAX_SERVERS:
            raise FailedPrecondition(f"{membership} is no membership: one voter at least, no name twice or with blanks")
        if not log.membership.may_become(membership):
            raise FailedPrecondition(
                "a membership change may add or remove one voter at a time, or make three of one, within one cluster"
            )
        own = (self._state.id, self._state.incarnation)
        if own[0] in membership.everyone and own != (own[0], membership.incarnation_of(own[0])):
            raise FailedPrecondition("a leader cannot take another incarnation: let another server lead first")
        index = log.last_index + 1
        self._append([Entry(index, self.term, EntryKind.MEMBERSHIP, encode_membership(membership))])
        self._meet_members()
        self._commit()
        return index

    def read(self, context: int) -> None:
        if len(self._reads) + len(self._early_reads) >= limits.RAFT_PENDING_READS:
            raise Unavailable("too many reads wait for a majority of the cluster; ask again later")
        if not self.committed_in_own_term:
            self._early_reads.append(context)
            return
        # The next flush sends this round: every read until then shares it.
        self._reads.append((context, self._state.log.commit, self._round + 1))
        self._heartbeat_due = True
        self._confirm_reads()

    def transfer(self, target: str) -> None:
        if target != self._state.id and target in self._state.membership.voters and target != self.transferee:
            self.transferee = target
            self._transfer_ticks = 0
            self._hand_over_due = True

    def caught_up(self, server: str) -> bool:
        """Whether it has everything committed, and answers: the moment to make a learner a voter."""
        progress = self.progress.get(server)
        return progress is not None and progress.active and progress.match >= self._state.log.commit

    def persisted(self) -> None:
        self._commit()

    def pinned_from(self) -> int | None:
        """The first entry that followers under way with a snapshot will need after it."""
        pinned = [progress.snapshot.index + 1 for progress in self.progress.values() if progress.snapshot is not None]
        return min(pinned, default=None)

    # --- time ---------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        config = self._state.config
        self._ticks += 1
        if self._ticks % config.heartbeat_ticks == 0:
            self._heartbeat_due = self._hand_over_due = True
        if self.transferee:
            self._transfer_ticks += 1
            if self._transfer_ticks >= config.election_ticks:
                self.transferee = ""
        for progress in self.progress.values():
            progress.tick()
        if self._ticks % config.election_ticks == 0:
            self._check_quorum()

    def _check_quorum(self) -> None:
        """A leader without answers of a quorum may have a successor already: it steps down."""
        state = self._state
        heard = {server for server, progress in self.progress.items() if progress.active}
        for progress in self.progress.values():
            progress.active = False
        voters = state.membership.voters
        if sum(voter == state.id or voter in heard for voter in voters) < state.membership.quorum:
            state.follow(state.term, "")

    # --- what followers say -------------------------------------------------------------------------------------

    def on_append_reply(self, message: AppendReply) -> None:
        progress = self._heard(message.source, message.incarnation)
        if progress is None:
            return
        log = self._state.log
        if message.rejected:
            progress.rejected(message.prev_index, log.last_up_to(message.match, message.hint_term))
        elif message.match <= log.last_index and progress.accepted(message.match, log.base_index):
            self._hand_over_due = True
            self._commit()

    def on_heartbeat_reply(self, message: HeartbeatReply) -> None:
        progress = self._heard(message.source, message.incarnation)
        if progress is not None and message.round <= self._round:
            progress.heartbeat_answered(message.round)
            self._confirm_reads()

    def on_snapshot_reply(self, message: SnapshotReply) -> None:
        progress = self._heard(message.source, message.incarnation)
        if progress is not None:
            progress.chunk_received(message.index, message.received)

    def _heard(self, server: str, incarnation: str) -> Progress | None:
        progress = self.progress.get(server)
        if progress is None or progress.incarnation != incarnation:
            return None
        progress.heard()
        return progress

    # --- what follows from it -----------------------------------------------------------------------------------

    def _append(self, entries: list[Entry]) -> None:
        self._state.log.append(entries)

    def _meet_members(self) -> None:
        """One Progress for every other member, a new one for a new incarnation."""
        state, membership = self._state, self._state.membership
        known, self.progress = self.progress, {}
        for server in membership.everyone:
            if server == state.id:
                continue
            incarnation = membership.incarnation_of(server)
            progress = known.get(server)
            if progress is None or progress.incarnation != incarnation:
                progress = Progress(state.log.last_index + 1, incarnation)
            self.progress[server] = progress
        if self.transferee not in membership.voters:
            self.transferee = ""

    def _commit(self) -> None:
        """An entry of the own term that a quorum has stored is committed, and everything before it with it."""
        log, membership = self._state.log, self._state.membership
        ends = sorted(map(self._stored_end, membership.voters), reverse=True)
        reached = ends[membership.quorum - 1]
        if reached <= log.commit or log.term_at(reached) != self.term:
            return
        log.commit_to(reached)
        early, self._early_reads = self._early_reads, []
        for context in early:
            self.read(context)
        if log.membership_index <= log.commit and not self._state.is_voter:
            self._leave()

    def _stored_end(self, voter: str) -> int:
        return self._state.log.stable if voter == self._state.id else self.progress[voter].match

    def _leave(self) -> None:
        """The membership without this leader is committed: the voter with the longest log takes over at once. It may
        name an earlier incarnation of this server, which is nobody."""
        state = self._state
        others = [voter for voter in state.membership.voters if voter in self.progress]
        self.flush()
        if others:
            successor = max(others, key=lambda voter: self.progress[voter].match)
            state.send(TimeoutNow(state.id, successor, state.term))
        state.follow(state.term, "")

    def _confirm_reads(self) -> None:
        membership = self._state.membership
        rounds = sorted(map(self._answered_round, membership.voters), reverse=True)
        confirmed = rounds[membership.quorum - 1]
        served = [(context, index) for context, index, needed in self._reads if needed <= confirmed]
        self._served_reads += served
        del self._reads[: len(served)]

    def _answered_round(self, voter: str) -> int:
        return self._round + 1 if voter == self._state.id else self.progress[voter].round

    # --- sending ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send every follower what it lacks."""
        if self._state.role is not Role.LEADER:
            return
        if self._heartbeat_due:
            self._heartbeat_due = False
            self._send_heartbeats()
        for server, progress in self.progress.items():
            while self._send_next(server, progress):
                pass
        self._hand_over()

    def _send_heartbeats(self) -> None:
        state, log = self._state, self._state.log
        self._round += 1
        commit_term = log.term_at(log.commit)
        assert commit_term is not None
        for server in self.progress:
            state.send(Heartbeat(state.id, server, self.term, log.commit, commit_term, self._round))

    def _send_next(self, server: str, progress: Progress) -> bool:
        """True if there may be more to send."""
        if progress.paused and not progress.verify:
            return False
        state, log = self._state, self._state.log
        prev_index = progress.next - 1
        prev_term = log.term_at(prev_index)
        if progress.stage is Stage.SNAPSHOT or prev_term is None:
            self._send_chunk(server, progress)
            return False
        entries = () if progress.verify else log.batch(progress.next, state.fitting(state.config.max_append_bytes))
        replicating = progress.stage is Stage.REPLICATE
        if replicating and not entries and not progress.verify and progress.commit_sent >= log.commit:
            return False
        state.send(AppendRequest(state.id, server, self.term, prev_index, prev_term, log.commit, entries))
        progress.sent(prev_index + len(entries), log.commit)
        return replicating

    def _send_chunk(self, server: str, progress: Progress) -> None:
        state = self._state
        if progress.snapshot is None:
            progress.begin_snapshot(state.log.snapshot)
        snapshot, offset = progress.snapshot, progress.snapshot_offset
        assert snapshot is not None
        end = offset + state.fitting(state.config.snapshot_chunk_bytes)
        part = replace(snapshot, data=snapshot.data[offset:end])
        state.send(SnapshotRequest(state.id, server, self.term, part, offset, len(snapshot.data)))
        progress.sent(snapshot.index, progress.commit_sent)

    def _hand_over(self) -> None:
        """Tell the chosen successor to campaign, once it has everything; again with each heartbeat until it does."""
        progress = self.progress.get(self.transferee)
        if self._hand_over_due and progress is not None and progress.match == self._state.log.last_index:
            self._hand_over_due = False
            self._state.send(TimeoutNow(self._state.id, self.transferee, self.term))
