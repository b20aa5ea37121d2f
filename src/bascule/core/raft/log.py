"""The Raft log in memory: everything after the last snapshot, and how far it is persisted, committed and applied."""

from bascule.core.raft.messages import Entry, Snapshot


class RaftLog:
    def __init__(self, snapshot: Snapshot, entries: list[Entry], commit: int) -> None:
        self.snapshot = snapshot
        self._entries = list(entries)
        for position, entry in enumerate(self._entries):
            assert entry.index == snapshot.index + 1 + position, f"entry {entry.index} is out of place"
        self.stable = self.last_index
        """Persisted up to here."""
        self.commit = max(snapshot.index, min(commit, self.last_index))
        self.applied = snapshot.index
        self.pending_snapshot: Snapshot | None = None
        """Received and not yet persisted."""

    @property
    def first_index(self) -> int:
        return self.snapshot.index + 1

    @property
    def last_index(self) -> int:
        return self.snapshot.index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.snapshot.term

    def term_at(self, index: int) -> int | None:
        """None if the entry is gone (compacted) or not there yet."""
        if index == self.snapshot.index:
            return self.snapshot.term
        if self.snapshot.index < index <= self.last_index:
            return self._entries[index - self.first_index].term
        return None

    def slice(self, start: int, end: int, max_bytes: int | None = None) -> list[Entry]:
        """Entries of [start, end), at least one if there is one, about `max_bytes` at most."""
        entries = self._entries[start - self.first_index : end - self.first_index]
        if max_bytes is None:
            return entries
        size = 0
        for position, entry in enumerate(entries):
            size += len(entry.data) + 32
            if size > max_bytes and position:
                return entries[:position]
        return entries

    def append(self, entries: list[Entry]) -> None:
        """Takes the place of whatever conflicts with it; never of anything committed."""
        if not entries:
            return
        first = entries[0].index
        assert self.commit < first <= self.last_index + 1, f"entry {first} over committed {self.commit}"
        del self._entries[first - self.first_index :]
        self._entries += entries
        self.stable = min(self.stable, first - 1)

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a candidate with that log has everything this one may have committed."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def matches(self, index: int, term: int) -> bool:
        return self.term_at(index) == term

    def first_conflict(self, entries: tuple[Entry, ...]) -> int | None:
        """The index from which on these entries are new or different here."""
        for entry in entries:
            if not self.matches(entry.index, entry.term):
                return entry.index
        return None

    def probe(self, index: int, term: int) -> int:
        """The largest index up to `index` whose term is at most `term`: nothing after it can agree."""
        index = min(index, self.last_index)
        while index > self.snapshot.index and (self.term_at(index) or 0) > term:
            index -= 1
        return index

    def compact(self, snapshot: Snapshot) -> None:
        """The driver has persisted this snapshot of applied state: the entries it covers may go."""
        assert snapshot.index <= self.applied
        if snapshot.index <= self.snapshot.index:
            return
        self._entries = self._entries[snapshot.index - self.snapshot.index :]
        self.snapshot = snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """Everything here is replaced by a snapshot from the leader."""
        self._entries = []
        self.snapshot = snapshot
        self.pending_snapshot = snapshot
        self.stable = self.commit = self.applied = snapshot.index
