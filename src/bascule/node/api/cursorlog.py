"""The cursors in one partition of the stream `__cursors`, as its leader finds them.

The newest record of a cursor has its value. Where it is, an index tells (`core.cursors.offsets`), which belongs to one
leadership and is made while cursors are fetched: from the newest record backwards, in slices, only as far as somebody
needs it. So a cursor that was set lately is found at once, and the whole log is read once at most, for cursors that
were never set, or long ago. Records that are stored meanwhile are taken in before each answer: nothing that is
committed is missed.

The key of a record does not prove which cursor it is (`core.cursors.keys`), nor does a hash prove the key. So the
record itself is read. If it is another cursor's, and where the index had no room, the log is searched.
"""

import asyncio
from collections.abc import Callable

from bascule import limits
from bascule.core.cursors.keys import CursorName
from bascule.core.cursors.offsets import Budget, NewestOffsets
from bascule.errors import Unavailable
from bascule.log.commitlog import CommitLog
from bascule.log.reader import ReverseReader
from bascule.wire.kernels import decode_records

Note = Callable[[bytes, int], None]


class CursorLog:
    def __init__(self, log: CommitLog, budget: Budget) -> None:
        self._log = log
        self._newest = NewestOffsets(budget)
        self._end = log.visible_end
        """Records from `_end` on are not in the index yet."""
        self._older: ReverseReader | None = log.reverse_reader(self._end - 1) if self._end else None
        """Gives the records below those in the index; None if all are in it."""
        self._cached: dict[bytes, tuple[CursorName, int]] = {}
        """Values by key, the one used last at the end."""
        self._indexing = asyncio.Lock()

    def release(self) -> None:
        """This leadership is over."""
        self._newest.clear()
        self._older = None

    async def find(self, cursor: CursorName) -> int | None:
        """The offset of a cursor that is committed now, or later; None if it was never set."""
        await self.catch_up()
        key = cursor.key
        known = self._cached.pop(key, None)
        if known is not None and known[0] == cursor:
            self._cached[key] = known
            return known[1]
        end = self._end
        offset = await self._look_up(cursor, key)
        if offset is not None and self._end == end:  # else it may have been set anew meanwhile
            self._cached[key] = (cursor, offset)
            if len(self._cached) > limits.CACHED_CURSORS:
                del self._cached[next(iter(self._cached))]
        return offset

    async def catch_up(self) -> None:
        """Take in what was committed since the last time."""
        wanted = self._log.visible_end
        if self._end >= wanted:
            return
        async with self._indexing:
            reader = self._log.reader(self._end)
            while self._end < wanted and (records := await reader.read(limits.CURSOR_SCAN_BYTES, wanted)):
                self._take_in(records, self._newer)
                self._end = reader.next_offset
                await asyncio.sleep(0)
            self._end = max(self._end, reader.next_offset)
            if self._end < wanted:
                raise Unavailable("the log of the cursors cannot be read to its end now; try again")

    @property
    def lag(self) -> int:
        return self._log.visible_end - self._end

    def _newer(self, key: bytes, offset: int) -> None:
        self._newest.newer(key, offset)
        self._cached.pop(key, None)

    def _take_in(self, records: bytes, note: Note) -> None:
        for record in decode_records(records, 0, len(records), len(records))[1]:
            note(record[1], record[0])

    async def _look_up(self, cursor: CursorName, key: bytes) -> int | None:
        while True:
            # The end may move on meanwhile. What is stored by then is newer than what was to be found.
            at = self._newest.get(key)
            if at is not None:
                value = await self._value_at(at)
                found = None if value is None else cursor.offset_in(value)
                return found if found is not None else await self._search(cursor, key, at)
            if self._older is None:
                return None if self._newest.complete else await self._search(cursor, key, self._end)
            await self._index_older()

    async def _index_older(self) -> None:
        async with self._indexing:
            older = self._older
            if older is None:
                return
            records = await older.read(limits.CURSOR_SCAN_BYTES)
            if records is None:
                self._older = None
            else:
                self._take_in(records, self._newest.older)
            await asyncio.sleep(0)

    async def _value_at(self, offset: int) -> bytes | None:
        records = await self._log.reader(offset).read(1, offset + 1)
        found = decode_records(records, 0, len(records), 1)[1] if records else []
        return found[0][2] if found and found[0][0] == offset else None

    async def _search(self, cursor: CursorName, key: bytes, below: int) -> int | None:
        """Newest first, through the log. Slow, and rarely needed."""
        reader = self._log.reverse_reader(below - 1)
        while below > 0 and (records := await reader.read(limits.CURSOR_SCAN_BYTES)):
            for record in decode_records(records, 0, len(records), len(records))[1]:
                if record[1] == key and (offset := cursor.offset_in(record[2])) is not None:
                    return offset
            await asyncio.sleep(0)
        return None
