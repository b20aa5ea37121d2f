"""The cursors in one partition of the stream `__cursors`, as its leader finds them.

The newest record of a cursor has its value. Where it is, an index tells (`core.cursors.offsets`), which belongs to one
leadership and is made while cursors are fetched: from the newest record backwards, in slices, only as far as somebody
needs it. So a cursor that was set lately is found at once, and the whole log is read once at most, for cursors that
were never set, or long ago. Records that are stored meanwhile are taken in before each answer: nothing that is
committed is missed.

The key of a record does not prove which cursor it is (`core.cursors.keys`), nor does a hash prove the key. So the
record itself is read. If it is another cursor's, and where the index had no room, the log is searched.

A look-up takes a while, and meanwhile the cursor may be set anew and compaction remove the record that is looked for.
So what comes of a search, or of an index that grew under it, counts if the cursor was not set meanwhile; else it is
looked up again.

Records that are damaged here, and that no other replica has, may have been the newest of any cursor. A cursor whose
newest readable record is before them, or that has none, is not known: whoever asks for it is told so.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from bascule import limits
from bascule.core.cursors.keys import CursorName, CursorValue
from bascule.core.cursors.offsets import Budget, NewestOffsets
from bascule.errors import CorruptError, Unavailable
from bascule.log.commitlog import CommitLog
from bascule.log.reader import ReverseReader
from bascule.wire.kernels import decode_records

Note = Callable[[bytes, int], None]


class Found(NamedTuple):
    value: CursorValue | None
    at: int
    """The offset of its record."""


NOTHING = Found(None, -1)


class _Sought:
    """A look-up under way."""

    __slots__ = ("anew",)

    def __init__(self) -> None:
        self.anew = False
        """Another record of the key was taken in since it began."""


class CursorLog:
    def __init__(self, log: CommitLog, budget: Budget) -> None:
        self._log = log
        self._newest = NewestOffsets(budget)
        self._end = log.visible_end
        """Records from `_end` on are not in the index yet."""
        self._lost_end = log.lost_end
        """Records below may be lost to damage; 0 if none is."""
        self._older: ReverseReader | None = log.reverse_reader(self._end - 1) if self._end else None
        """Gives the records below those in the index; None if all are in it."""
        self._cached: dict[bytes, tuple[CursorName, CursorValue]] = {}
        """Values by key, the one used last at the end."""
        self._indexing = asyncio.Lock()
        self._sought: dict[bytes, list[_Sought]] = {}
        """Look-ups under way, by key."""

    def release(self) -> None:
        """This leadership is over."""
        self._newest.clear()
        self._older = None

    async def find(self, cursor: CursorName) -> CursorValue | None:
        """The value of a cursor that is committed now, or later; None if it was never set."""
        await self.catch_up()
        key = cursor.key
        known = self._cached.pop(key, None)
        if known is not None and known[0] == cursor:
            self._cached[key] = known
            return known[1]
        with self._seeking(key) as sought:
            while True:
                sought.anew, newest = False, self._newest.get(key)
                found = await self._look_up(cursor, key)
                if found.at == newest:
                    break  # nothing newer had been committed when it was asked for
                await self.catch_up()
                if not sought.anew:
                    break
        self._check_known(cursor, found.at)
        if found.value is not None and not sought.anew:
            self._cached[key] = (cursor, found.value)
            if len(self._cached) > limits.CACHED_CURSORS:
                del self._cached[next(iter(self._cached))]
        return found.value

    @contextmanager
    def _seeking(self, key: bytes) -> Iterator[_Sought]:
        sought = _Sought()
        self._sought.setdefault(key, []).append(sought)
        try:
            yield sought
        finally:
            self._sought[key].remove(sought)
            if not self._sought[key]:
                del self._sought[key]

    async def catch_up(self) -> None:
        """Take in what was committed since the last time. Of records that compaction had removed by then, later ones
        are committed: these are taken in, too."""
        while self._end < (wanted := self._log.visible_end):
            if await self._take_in_to(wanted):
                return

    async def _take_in_to(self, wanted: int) -> bool:
        """Whether there was a record at each offset."""
        async with self._indexing:
            first, count = self._end, 0
            reader = self._log.reader(first)
            while self._end < wanted and (records := await reader.read(limits.CURSOR_SCAN_BYTES, wanted)):
                if reader.skipped:
                    self._lost_below(decode_records(records, 0, len(records), 1)[1][0][0])
                    reader.skipped = False
                self._take_in(records, self._newer)
                self._end = reader.next_offset
                count += reader.count
                await asyncio.sleep(0)
            self._end = max(self._end, reader.next_offset)
            if reader.skipped:
                self._lost_below(self._end)
            if self._end < wanted:
                raise Unavailable("the log of the cursors cannot be read to its end now; try again")
            return count >= wanted - first

    @property
    def lag(self) -> int:
        return self._log.visible_end - self._end

    def _newer(self, key: bytes, offset: int) -> None:
        self._newest.newer(key, offset)
        self._cached.pop(key, None)
        for sought in self._sought.get(key, ()):
            sought.anew = True

    def _take_in(self, records: bytes, note: Note) -> None:
        for record in decode_records(records, 0, len(records), len(records))[1]:
            note(record[1], record[0])

    def _lost_below(self, end: int) -> None:
        if end > self._lost_end:
            self._lost_end = end
            self._cached.clear()

    def _check_known(self, cursor: CursorName, at: int) -> None:
        """Its newest record that can be read is at this offset, -1 if there is none."""
        if self._lost_end > max(at, 0):
            raise CorruptError(
                f"cursor {cursor.cursor_id} of {cursor.stream}/{cursor.partition} is not known: records of "
                f"{self._log.folder} below offset {self._lost_end} are damaged, no replica has them, and its last "
                "value may be among them; set it again"
            )

    async def _look_up(self, cursor: CursorName, key: bytes) -> Found:
        while True:
            # The end may move on meanwhile. What is stored by then is newer than what was to be found.
            at = self._newest.get(key)
            if at is not None:
                value = await self._value_at(at)
                found = None if value is None else cursor.found_in(value)
                if found is None:
                    return await self._search(cursor, key, at + 1 if value is None else at)
                return Found(found, at)
            if self._older is None:
                return NOTHING if self._newest.complete else await self._search(cursor, key, self._end)
            await self._index_older()

    async def _index_older(self) -> None:
        async with self._indexing:
            older = self._older
            if older is None:
                return
            records = await older.read(limits.CURSOR_SCAN_BYTES)
            self._lost_below(older.lost_end)
            if records is None:
                self._older = None
            else:
                self._take_in(records, self._newest.older)
            await asyncio.sleep(0)

    async def _value_at(self, offset: int) -> bytes | None:
        records = await self._log.reader(offset).read(1, offset + 1)
        found = decode_records(records, 0, len(records), 1)[1] if records else []
        return found[0][2] if found and found[0][0] == offset else None

    async def _search(self, cursor: CursorName, key: bytes, below: int) -> Found:
        """Newest first, through the log. Slow, and rarely needed."""
        reader = self._log.reverse_reader(below - 1)
        while below > 0 and (records := await reader.read(limits.CURSOR_SCAN_BYTES)):
            self._lost_below(reader.lost_end)
            for record in decode_records(records, 0, len(records), len(records))[1]:
                if record[1] == key and (value := cursor.found_in(record[2])) is not None:
                    return Found(value, record[0])
            await asyncio.sleep(0)
        self._lost_below(reader.lost_end)
        return NOTHING
