"""Following: taking entries, heartbeats and snapshots from the leader of the present term.

Entries that a reply confirms are stored: the driver sends it only after it has persisted the same Ready. Requests may
come twice or out of order; each has its previous index and term, so taking one again changes nothing.
"""

from dataclasses import replace

from bascule.core.raft.state import State
from bascule.wire.raft_messages import (
    AppendReply,
    AppendRequest,
    Heartbeat,
    HeartbeatReply,
    Snapshot,
    SnapshotReply,
    SnapshotRequest,
)


class Following:
    def __init__(self, state: State) -> None:
        self._state = state
        self._incoming: Snapshot | None = None
        """The head of the snapshot under way, without its data."""
        self._chunks: list[bytes] = []
        self._received = 0
        self._from: tuple[str, int] = ("", 0)

    def on_append(self, message: AppendRequest) -> None:
        state, log = self._state, self._state.log
        if message.prev_index < log.commit:
            # Committed entries agree with every later leader; only later ones are new.
            match = log.commit
            entries = tuple(entry for entry in message.entries if entry.index > log.commit)
        elif log.matches(message.prev_index, message.prev_term):
            match = message.prev_index
            entries = message.entries
        else:
            self._reject(message)
            return
        log.merge(entries)
        match += len(entries)
        log.commit_to(min(message.commit, match))
        state.send(AppendReply(state.id, message.source, state.term, match, incarnation=state.incarnation))

    def on_heartbeat(self, message: Heartbeat) -> None:
        state = self._state
        if state.log.matches(message.commit, message.commit_term):
            state.log.commit_to(message.commit)
        state.send(HeartbeatReply(state.id, message.source, state.term, message.round, state.incarnation))

    def on_snapshot(self, message: SnapshotRequest) -> None:
        state, log, part = self._state, self._state.log, message.snapshot
        if part.index <= log.commit or log.matches(part.index, part.term):
            # Nothing in it is new; later entries of the log stay.
            log.commit_to(part.index)
            self.forget_snapshot()
            state.send(AppendReply(state.id, message.source, state.term, log.commit, incarnation=state.incarnation))
            return
        if self._incoming and self._from == (message.source, message.term) and part.index < self._incoming.index:
            return  # a late chunk of one that the leader has given up
        self._take_chunk(message)
        if self._received < message.total:
            state.send(
                SnapshotReply(state.id, message.source, state.term, part.index, self._received, state.incarnation)
            )
            return
        log.restore(replace(part, data=b"".join(self._chunks)))
        self.forget_snapshot()
        state.send(AppendReply(state.id, message.source, state.term, part.index, incarnation=state.incarnation))

    def forget_snapshot(self) -> None:
        self._incoming, self._chunks, self._received = None, [], 0

    def _take_chunk(self, message: SnapshotRequest) -> None:
        """Chunks of one leader's snapshot, in order; two leaders may write the same state in different bytes."""
        head, sender = replace(message.snapshot, data=b""), (message.source, message.term)
        if head != self._incoming or sender != self._from:
            self.forget_snapshot()
            self._incoming, self._from = head, sender
        if message.offset == self._received:
            self._chunks.append(message.snapshot.data)
            self._received += len(message.snapshot.data)

    def _reject(self, message: AppendRequest) -> None:
        """Say where the logs may agree, skipping a whole term at a time."""
        state, log = self._state, self._state.log
        hint = log.last_up_to(message.prev_index, message.prev_term)
        state.send(
            AppendReply(
                state.id,
                message.source,
                state.term,
                match=hint,
                rejected=True,
                hint_term=log.term_at(hint) or 0,
                prev_index=message.prev_index,
                incarnation=state.incarnation,
            )
        )
