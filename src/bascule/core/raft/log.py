"""The Raft log in memory: the entries since a little before the last snapshot, the memberships they carry, and how far
they are persisted, committed and applied.

A membership is in force from the moment its entry is in the log, committed or not, and until the entry is removed
(Ongaro's thesis, 4.1). So which servers a quorum is counted from never depends on how much of the log was applied, or
on a commit index that is not persisted at once.

Entries that a snapshot covers stay for a while (`base` is the last one gone), because a follower a little behind is
better helped by entries than by a snapshot. Terms never go down along the log: look-ups by term are binary searches.
"""

from bisect import bisect_right

from bascule.wire.raft import decode_membership
from bascule.wire.raft_messages import Entry, EntryKind, Membership, Snapshot

_ENTRY_OVERHEAD_BYTES = 16


class RaftLog:
    def __init__(self, snapshot: Snapshot, entries: list[Entry], commit: int) -> None:
        self.snapshot = snapshot
        self.base_index = snapshot.index
        self._base_term = snapshot.term
        self._entries: list[Entry] = []
        self._memberships = [(snapshot.index, snapshot.membership)]
        self.commit = self.applied = self.stable = snapshot.index
        self.pending_snapshot: Snapshot | None = None
        """Received and not yet persisted."""
        self.append(entries)
        self.stable = self.last_index
        """Persisted up to here."""
        self.commit = max(snapshot.index, min(commit, self.last_index))

    @property
    def last_index(self) -> int:
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self._base_term

    @property
    def membership(self) -> Membership:
        """In force now."""
        return self._memberships[-1][1]

    @property
    def membership_index(self) -> int:
        """Of the entry that brought it."""
        return self._memberships[-1][0]

    def membership_at(self, index: int) -> Membership:
        return [membership for at, membership in self._memberships if at <= index][-1]

    def term_at(self, index: int) -> int | None:
        """None if the entry is gone (compacted) or not there yet."""
        if index == self.base_index:
            return self._base_term
        if self.base_index < index <= self.last_index:
            return self._entries[index - self.base_index - 1].term
        return None

    def matches(self, index: int, term: int) -> bool:
        return self.term_at(index) == term

    def slice(self, start: int, end: int) -> list[Entry]:
        """Entries of [start, end)."""
        return self._entries[start - self.base_index - 1 : end - self.base_index - 1]

    def batch(self, start: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries from `start` on of about `max_bytes`, one at least if there is one."""
        position = first = start - self.base_index - 1
        entries = self._entries
        size = 0
        while position < len(entries):
            size += len(entries[position].data) + _ENTRY_OVERHEAD_BYTES
            if size > max_bytes and position > first:
                break
            position += 1
        return tuple(entries[first:position])

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a candidate with that log has everything that may be committed as far as this one knows."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def last_up_to(self, index: int, term: int) -> int:
        """The largest index up to `index` whose term is at most `term`: nothing after it can agree with a log that has
        `term` at `index`."""
        index = min(index, self.last_index)
        if index <= self.base_index:
            return self.base_index
        return self.base_index + bisect_right(self._entries, term, 0, index - self.base_index, key=_term)

    # --- changes ------------------------------------------------------------------------------------------------

    def found(self, membership: Membership) -> None:
        """Of a new cluster: the membership before the first entry."""
        assert not self.last_index, "this server has a log already"
        assert not self.membership.everyone, "this server is in a cluster already"
        self.snapshot = Snapshot(0, 0, membership)
        self._memberships = [(0, membership)]

    def append(self, entries: list[Entry]) -> None:
        """They take the place of whatever conflicts with them; never of anything committed."""
        if not entries:
            return
        first = entries[0].index
        assert self.commit < first <= self.last_index + 1, f"entry {first} over committed {self.commit}"
        assert entries[-1].index == first + len(entries) - 1, f"a gap between entries {first} and {entries[-1].index}"
        del self._entries[first - self.base_index - 1 :]
        self._entries += entries
        self.stable = min(self.stable, first - 1)
        while self._memberships[-1][0] >= first:
            self._memberships.pop()
        for entry in entries:
            if entry.kind is EntryKind.MEMBERSHIP:
                self._memberships.append((entry.index, decode_membership(entry.data)))

    def merge(self, entries: tuple[Entry, ...]) -> None:
        """From the leader, following an entry both have: only what is new or different here is taken. A late copy of
        an old request must not truncate what came after it."""
        for position, entry in enumerate(entries):
            if not self.matches(entry.index, entry.term):
                self.append(list(entries[position:]))
                return

    def commit_to(self, index: int) -> None:
        assert index <= self.last_index, f"committed {index}, but the log ends at {self.last_index}"
        self.commit = max(self.commit, index)

    def compact(self, snapshot: Snapshot, keep_from: int) -> None:
        """The driver has persisted this snapshot of applied state: the entries it covers may go, those before
        `keep_from` do."""
        if snapshot.index <= self.snapshot.index:
            return
        assert snapshot.index <= self.applied, f"a snapshot of {snapshot.index}, applied is {self.applied}"
        base = min(keep_from - 1, snapshot.index)
        if base > self.base_index:
            base_term = self.term_at(base)
            assert base_term is not None
            del self._entries[: base - self.base_index]
            self.base_index, self._base_term = base, base_term
        self.snapshot = snapshot
        later = [item for item in self._memberships if item[0] > snapshot.index]
        self._memberships = [(snapshot.index, snapshot.membership), *later]

    def restore(self, snapshot: Snapshot) -> None:
        """Everything here is replaced by a snapshot from the leader. It is applied when the driver says so."""
        assert snapshot.index > self.commit, f"a snapshot of {snapshot.index} under committed {self.commit}"
        self._entries = []
        self.snapshot = self.pending_snapshot = snapshot
        self.base_index, self._base_term = snapshot.index, snapshot.term
        self._memberships = [(snapshot.index, snapshot.membership)]
        self.stable = self.commit = snapshot.index

    def persisted(self, index: int, term: int) -> None:
        """The driver has stored everything up to this entry. If it was replaced meanwhile, that says nothing."""
        if index > self.stable and self.matches(index, term):
            self.stable = index


def _term(entry: Entry) -> int:
    return entry.term
