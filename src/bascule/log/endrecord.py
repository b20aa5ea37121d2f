"""What is on record about the end of one log: how far it had promised its records, and whether it is sure of that.

Theory of operation: the record begins with what was stored before this start (`known`). While the log is open it speaks
for itself (`Holder`), and what it says is taken over in the background.

What makes a log shorter lawfully (a cut where logs parted, a deletion) lowers its promised end first, synced, so that
an interrupted cut is not taken for damage. Apart from that a promised end only goes up: a log that was found short
stays short on record until it has its records again, or has caught up with a leader that rightly lacks them (`vouch`).
"""

import logging
from collections.abc import Iterable
from typing import Protocol

from bascule.log.cachedends import CachedEnds
from bascule.log.tail import CleanEnd, Known, Tail
from bascule.ports import Promise

_log = logging.getLogger("bascule.log")


class Holder(Protocol):
    """A log, as its record sees it."""

    @property
    def end(self) -> int: ...

    @property
    def promised_end(self) -> int: ...

    @property
    def committed_end(self) -> int: ...

    def clean_end(self) -> CleanEnd | None:
        """Where a clean shutdown leaves it; None if it cannot vouch for its end."""


class Ledger(Protocol):
    """Where the records of all logs are stored."""

    @property
    def was_complete(self) -> bool:
        """Whether the start found everything that had been on record."""

    @property
    def cached(self) -> CachedEnds: ...

    def changed(self, record: "EndRecord") -> None:
        """Its log has promised or shown more: it is asked how much, and that is stored soon."""

    def due(self, record: "EndRecord") -> None:
        """It is not stored as it is, and will be soon."""

    async def store(self) -> None:
        """Everything that was due is durable on return. Raises OSError."""

    async def store_cached(self) -> None:
        """What was noted in the cached ends is there on return, or the next start does not believe them."""

    async def forget(self, folders: Iterable[str]) -> None:
        """These logs are about to be deleted. Durable on return. Raises OSError."""


class EndRecord:
    """What is on record about one log."""

    __slots__ = (
        "_ledger",
        "_verified_end",
        "clean",
        "cutting",
        "exact",
        "folder",
        "holder",
        "named",
        "number",
        "promised",
        "shown",
        "stale",
        "suspect",
        "tail",
        "torn_from",
    )

    def __init__(self, ledger: "Ledger | None", folder: str, number: int = 0) -> None:
        """Without a `ledger` it is kept in memory only."""
        self._ledger = ledger
        self.folder = folder
        self.number = number
        self.named = False
        """In the file, so that the number alone will do."""
        self.promised = self.shown = 0
        self.suspect = False
        self.stale = False
        """The last promises before a power loss may be missing on record, and nobody has vouched for the log since."""
        self.exact = False
        """What is on record is what was promised, up to the last moment before this start."""
        self.clean: CleanEnd | None = None
        self.cutting = False
        self.holder: Holder | None = None
        self.tail = Tail.SURE
        self.torn_from: int | None = None
        """A power loss may have torn a hole here into a write that was not promised: until it is healed, cut off or
        given up nothing from here on goes on record as promised."""
        self._verified_end: int | None = None

    def known(self) -> Known:
        complete = self._ledger is None or self._ledger.was_complete
        exact = self.exact and not self.stale
        return Known(self.promised, self.shown, self.suspect, self.clean, complete, exact)

    def taken_by(self, holder: Holder) -> None:
        """The log is open: from now on it speaks for itself."""
        self.holder, self.clean = holder, None
        self.changed()

    def promise(self, end: int) -> Promise | None:
        """For a write of the log: once it is durable, everything below `end` is promised."""
        return None if self._ledger is None else self._ledger.cached.promise(self.number, end)

    def rose(self) -> None:
        """The log has promised more."""
        self.cutting = False  # a cut that failed and was given up
        if self._verified_end is not None:
            self._check_verified()
        self.changed()

    def changed(self) -> None:
        """The log has promised or shown more."""
        if self._ledger is not None:
            self._ledger.changed(self)

    def take_over(self) -> bool:
        """Take what the log says; whether that is news."""
        holder = self.holder
        if holder is None:
            return False
        promised = self.promised if self.cutting else max(self.promised, self._sure_end(holder))
        shown = max(self.shown, holder.committed_end)
        if (promised, shown) == (self.promised, self.shown):
            return False
        self.promised, self.shown = promised, shown
        return True

    def _sure_end(self, holder: Holder) -> int:
        return holder.promised_end if self.torn_from is None else min(holder.promised_end, self.torn_from)

    @property
    def sure(self) -> bool:
        """Whether everything the log has and had promised is accounted for."""
        return self.tail is Tail.SURE and self.torn_from is None

    def hole_closed(self) -> None:
        """It is healed, or nobody has what is missing: what is behind it counts."""
        if self.torn_from is not None:
            self.torn_from = None
            self.changed()

    async def found(self, promised: int, suspect: bool) -> None:
        """A start found this out about the log, and is about to remove what it has it from. Durable on return."""
        self.promised = max(self.promised, promised)
        self.suspect = self.suspect or suspect
        self._cache(self.promised)
        await self._store()

    def mark_suspect(self) -> None:
        """Whether the log has all that it had promised is not known. On record soon, and until somebody vouches for it:
        a clean shutdown does not."""
        if self.tail is Tail.SURE:
            self.tail = Tail.SUSPECT
        self.suspect = True
        if self._ledger is not None:
            self._ledger.due(self)

    def found_stale(self) -> None:
        """What the log promised in the last moments before this start is not known. On record soon, and until somebody
        vouches for it."""
        self.stale = True
        if self._ledger is not None:
            self._ledger.due(self)

    async def lower(self, end: int) -> None:
        """The log is about to be cut, at `end` or later. Durable on return."""
        self.cutting = True
        if end < self.promised:
            self.promised = end
            await self._store()
        await self.forget_above(end)

    async def forget_above(self, end: int) -> None:
        """The log is about to lose what it never promised, or will not have promised any more."""
        if self._ledger is not None:
            self._cache(end)
            await self._ledger.store_cached()

    def _cache(self, end: int) -> None:
        if self._ledger is not None:
            self._ledger.cached.note(self.number, end)

    def was_cut(self) -> None:
        """It ends where it says."""
        self.cutting = False
        if self.torn_from is not None and self.holder is not None and self.holder.end <= self.torn_from:
            self.torn_from = None
        self.changed()

    def verify(self) -> None:
        """The log has caught up with a leader, or leads: what it lacks, it lacks rightly. That counts once all it has
        now is promised; then it is sure of its end again."""
        if self.tail is not Tail.SURE and self._verified_end is None and self.holder is not None:
            self._verified_end = self.holder.end
            self._check_verified()

    def _check_verified(self) -> None:
        if self._verified_end is None or self.holder is None or self.holder.promised_end < self._verified_end:
            return
        self._verified_end = None
        self.tail = Tail.SURE
        self.promised, self.suspect, self.stale = self.holder.promised_end, False, False
        self._cache(self.promised)
        if self._ledger is not None:
            self._ledger.due(self)

    async def fell_short(self, promised: int) -> None:
        """Something beside the log's own files says that it had promised everything below. Durable on return."""
        end = self.holder.promised_end if self.holder is not None else 0
        _log.error("%s: ends at offset %d, but everything below %d was promised", self.folder, end, promised)
        self.tail = Tail.SHORT
        await self.found(promised, suspect=False)

    def reset(self) -> None:
        """The log begins anew, with nothing."""
        self.promised = self.shown = 0
        self.suspect, self.stale, self.clean = False, False, None
        self._cache(0)

    async def forget(self) -> None:
        """The log is about to be deleted. Durable on return."""
        if self._ledger is not None:
            await self._ledger.forget([self.folder])

    async def _store(self) -> None:
        if self._ledger is not None:
            self._ledger.due(self)
            await self._ledger.store()
