"""What is on record about the end of one log: how far it had promised its records, and whether it is sure of that.

Theory of operation: the record begins with what was stored before this start (`known`). While the log is open its own
ends count (`RecordedLog`), and are copied to the record in the background.

A truncation or a deletion lowers the promised end first, synced, so that an interrupted one is not taken for damage.
Apart from that a promised end only goes up: a log that was found short stays short on record until it has its records
again, or has caught up with a leader that does not have them either (`verify`).
"""

import logging
from collections.abc import Iterable
from typing import Protocol

from bascule.log.cachedends import CachedEnds
from bascule.log.tail import CleanEnd, Known, Tail
from bascule.ports import Promise

_log = logging.getLogger("bascule.log")


class RecordedLog(Protocol):
    """A log, as its record sees it."""

    @property
    def end(self) -> int: ...

    @property
    def promised_end(self) -> int: ...

    @property
    def committed_end(self) -> int: ...

    def clean_end(self) -> CleanEnd | None:
        """Where a clean shutdown leaves it; None if its end is not sure."""


class EndsStore(Protocol):
    """Where the records of all logs are stored."""

    @property
    def was_complete(self) -> bool:
        """Whether the start found everything that had been on record."""

    @property
    def cached(self) -> CachedEnds: ...

    def changed(self, record: "EndRecord") -> None:
        """Its log has promised or exposed more: the new ends are read from the log and stored soon."""

    def due(self, record: "EndRecord") -> None:
        """It has changed, and is stored soon."""

    async def store(self) -> None:
        """Everything that was due is durable on return. Raises OSError."""

    async def store_cached(self) -> None:
        """Noted ends are in the file of cached ends on return, or the next start ignores that file."""

    async def forget(self, folders: Iterable[str]) -> None:
        """These logs are about to be deleted. Durable on return. Raises OSError."""


class EndRecord:
    """What is on record about one log."""

    __slots__ = (
        "_ends",
        "_verified_end",
        "clean",
        "exact",
        "exposed",
        "folder",
        "holder",
        "named",
        "new",
        "number",
        "promised",
        "stale",
        "suspect",
        "tail",
        "torn_from",
        "truncating",
    )

    def __init__(self, store: "EndsStore | None", folder: str, number: int = 0) -> None:
        """Without a `store` it is kept in memory only."""
        self._ends = store
        self.folder = folder
        self.number = number
        self.named = False
        """The file has the folder of this number."""
        self.promised = self.exposed = 0
        self.new = False
        """It did not exist before this start: nothing was ever promised, though nothing is on record."""
        self.suspect = False
        self.stale = False
        """The last promises before a power loss may not be on record, and the log was not verified since."""
        self.exact = False
        """The promised end on record is exact: it has every promise before this start."""
        self.clean: CleanEnd | None = None
        self.truncating = False
        self.holder: RecordedLog | None = None
        self.tail = Tail.SURE
        self.torn_from: int | None = None
        """A power loss may have torn a hole here into a write that was not promised: until it is healed, truncated or
        found on no replica, nothing from here on is recorded as promised."""
        self._verified_end: int | None = None

    def known(self) -> Known:
        complete = self._ends is None or self._ends.was_complete or self.new
        exact = (self.exact or self.new) and not self.stale
        return Known(self.promised, self.exposed, self.suspect, self.clean, complete, exact)

    def taken_by(self, holder: RecordedLog) -> None:
        """The log is open: from now on its own ends count."""
        self.holder, self.clean, self.new = holder, None, False
        self.changed()

    def released(self) -> None:
        """The log is closed in good order: what it says last is known when it is opened again."""
        if self.holder is not None:
            self.take_over()
            self.clean, self.holder = self.holder.clean_end(), None
            self._verified_end = None

    def promise(self, end: int) -> Promise | None:
        """For a write of the log: once it is durable, everything below `end` is promised."""
        return None if self._ends is None else self._ends.cached.promise(self.number, end)

    def rose(self) -> None:
        """The log has promised more."""
        self.truncating = False  # a truncation that failed
        if self._verified_end is not None:
            self._check_verified()
        self.changed()

    def changed(self) -> None:
        """The log has promised or exposed more."""
        if self._ends is not None:
            self._ends.changed(self)

    def take_over(self) -> bool:
        """Copy the ends of the log; whether they changed."""
        holder = self.holder
        if holder is None:
            return False
        promised = self.promised if self.truncating else max(self.promised, self._sure_end(holder))
        exposed = max(self.exposed, holder.committed_end)
        if (promised, exposed) == (self.promised, self.exposed):
            return False
        self.promised, self.exposed = promised, exposed
        return True

    def _sure_end(self, holder: RecordedLog) -> int:
        return holder.promised_end if self.torn_from is None else min(holder.promised_end, self.torn_from)

    @property
    def sure(self) -> bool:
        """Whether nothing that the log had promised can be missing, and everything in it counts as promised."""
        return self.tail is Tail.SURE and self.torn_from is None

    def hole_closed(self) -> None:
        """The hole is healed, or no replica has the missing records: the records behind it count as promised."""
        if self.torn_from is not None:
            self.torn_from = None
            self.changed()

    async def found(self, promised: int, suspect: bool) -> None:
        """A start found this in the files of the log, and is about to remove them. Durable on return."""
        self.promised = max(self.promised, promised)
        self.suspect = self.suspect or suspect
        self._cache(self.promised)
        await self._store()

    def mark_suspect(self) -> None:
        """The log may lack records that it had promised. On record soon, and until the log is verified: a clean
        shutdown does not change that."""
        if self.tail is Tail.SURE:
            self.tail = Tail.SUSPECT
        self.suspect = True
        if self._ends is not None:
            self._ends.due(self)

    def found_stale(self) -> None:
        """The last promises of the log before this start are not known. On record soon, and until the log is
        verified."""
        self.stale = True
        if self._ends is not None:
            self._ends.due(self)

    async def lower(self, end: int) -> None:
        """The log is about to be truncated, to `end` or later. Durable on return."""
        self.truncating = True
        if end < self.promised:
            self.promised = end
            await self._store()
        await self.forget_above(end)

    async def forget_above(self, end: int) -> None:
        """Records from `end` on are about to be removed: they were not promised, or the promise was lowered."""
        if self._ends is not None:
            self._cache(end)
            await self._ends.store_cached()

    def _cache(self, end: int) -> None:
        if self._ends is not None:
            self._ends.cached.note(self.number, end)

    def truncated(self) -> None:
        """The truncation is over: the ends of the log count again."""
        self.truncating = False
        if self.torn_from is not None and self.holder is not None and self.holder.end <= self.torn_from:
            self.torn_from = None
        self.changed()

    def verify(self) -> None:
        """The log has caught up with a leader, or leads: it lacks nothing that was committed. Its tail is SURE again
        once everything it has now is promised."""
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
        if self._ends is not None:
            self._ends.due(self)

    async def fell_short(self, promised: int) -> None:
        """Another file shows that the log had promised everything below. Durable on return."""
        end = self.holder.promised_end if self.holder is not None else 0
        _log.error("%s: ends at offset %d, but everything below %d was promised", self.folder, end, promised)
        self.tail = Tail.SHORT
        await self.found(promised, suspect=False)

    def reset(self) -> None:
        """The log begins again, empty."""
        self.promised = self.exposed = 0
        self.suspect, self.stale, self.clean = False, False, None
        self._cache(0)

    async def forget(self) -> None:
        """The log is about to be deleted. Durable on return."""
        if self._ends is not None:
            await self._ends.forget([self.folder])

    async def _store(self) -> None:
        if self._ends is not None:
            self._ends.due(self)
            await self._ends.store()
