"""The promised ends: how far every log of a broker had promised its records, on record in one file beside the logs.

Theory of operation: after a crash a log is cut where its valid records end. Whether what was cut off had been promised
the log itself cannot say, so this file does: for each log the end it had promised, and the end below which records were
committed or shown. It is written in the background, at most `PROMISED_ENDS_DELAY_S` and one write behind, and never by
the group commit; while nothing is promised nothing is written. A start compares: a log that ends before its promised
end is damaged.

The file is batches of entries, each batch with its CRC; later entries win. When it has grown to a multiple of what it
must hold, and at every start, it is written anew beside the old one, which it then replaces.

What makes a log shorter lawfully (a cut where logs parted, a deletion) lowers its promised end first, synced, so that
an interrupted cut is not taken for damage. Apart from that a promised end only goes up: a log that was found short
stays short on record until it has its records again, or has caught up with a leader that rightly lacks them.

Beside it the ends are in the page cache as they are (`cachedends`): a process that was killed leaves them exact. After
a power loss they are gone, and each log is *stale* on record until somebody vouches for it: it may have promised more.

Where the file is torn or missing a start knows less, and nothing else is lost. Of each replicated log it finds it
remembers so until somebody vouches for that; a clean shutdown does not. Under `os` the background writes are not
synced, as nothing is; lowering is.

Known to be imperfect: a record that was promised within the last delay before a power loss, and was damaged or cut off
while the broker was down, cannot be told from one that was never promised.
"""

import asyncio
import logging
import struct
from collections.abc import Iterable, Mapping
from typing import Protocol

from bascule import limits
from bascule.log.cachedends import CachedEnds, name_of
from bascule.log.reread import agreed
from bascule.log.tail import CleanEnd, Known, Tail
from bascule.ports import Disk, Promise, Write
from bascule.wire import kernels

FILE = "promised-ends"
_TEMPORARY = FILE + ".tmp"
_BATCH = struct.Struct("<4sII")  # magic, length, CRC of what follows
_MAGIC = b"BSPE"
_ENTRY = struct.Struct("<BBIqq")  # kind, flags, number of the log, promised end, shown end
_UNSURE, _STALE = 1, 2  # flags
_NAME = struct.Struct("<H")
_BEGIN, _LOG, _SET, _DROP = 1, 2, 3, 4
"""The first entry of a file, which says whether it is complete, and its generation; a log with its name; a log by
number; a log is gone."""
_RETRY_S = 1.0
_SLICE = 1000  # entries between two turns of the event loop
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


class EndRecord:
    """What is on record about one log."""

    __slots__ = (
        "_ends",
        "_vouched_end",
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
        "tail",
        "torn_from",
        "unsure",
    )

    def __init__(self, ends: "PromisedEnds | None", folder: str, number: int = 0) -> None:
        """Without `ends` it is kept in memory only."""
        self._ends = ends
        self.folder = folder
        self.number = number
        self.named = False
        """In the file, so that the number alone will do."""
        self.promised = self.shown = 0
        self.unsure = False
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
        self._vouched_end: int | None = None

    def known(self) -> Known:
        complete = self._ends is None or self._ends.was_complete
        exact = self.exact and not self.stale
        return Known(self.promised, self.shown, self.unsure, self.clean, complete, exact)

    def taken_by(self, holder: Holder) -> None:
        """The log is open: from now on it speaks for itself."""
        self.holder, self.clean = holder, None
        self.changed()

    def promise(self, end: int) -> Promise | None:
        """For a write of the log: once it is durable, everything below `end` is promised."""
        return None if self._ends is None else self._ends.cached.promise(self.number, end)

    def rose(self) -> None:
        """The log has promised more."""
        self.cutting = False  # a cut that failed and was given up
        if self._vouched_end is not None:
            self._check_vouched()
        self.changed()

    def changed(self) -> None:
        """The log has promised or shown more."""
        if self._ends is not None:
            self._ends.changed(self)

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

    async def found(self, promised: int, unsure: bool) -> None:
        """A start found this out about the log, and is about to remove what it has it from. Durable on return."""
        self.promised = max(self.promised, promised)
        self.unsure = self.unsure or unsure
        self._cache(self.promised)
        await self._store()

    def doubt(self) -> None:
        """Whether the log has all that it had promised is not known. On record soon, and until somebody vouches for it:
        a clean shutdown does not."""
        if self.tail is Tail.SURE:
            self.tail = Tail.UNSURE
        self.unsure = True
        if self._ends is not None:
            self._ends.due(self)

    def found_stale(self) -> None:
        """What the log promised in the last moments before this start is not known. On record soon, and until somebody
        vouches for it."""
        self.stale = True
        if self._ends is not None:
            self._ends.due(self)

    async def lower(self, end: int) -> None:
        """The log is about to be cut, at `end` or later. Durable on return."""
        self.cutting = True
        if end < self.promised:
            self.promised = end
            await self._store()
        await self.forget_above(end)

    async def forget_above(self, end: int) -> None:
        """The log is about to lose what it never promised, or will not have promised any more."""
        if self._ends is not None:
            self._cache(end)
            await self._ends.store_cached()

    def _cache(self, end: int) -> None:
        if self._ends is not None:
            self._ends.cached.note(self.number, end)

    def was_cut(self) -> None:
        """It ends where it says."""
        self.cutting = False
        if self.torn_from is not None and self.holder is not None and self.holder.end <= self.torn_from:
            self.torn_from = None
        self.changed()

    def vouch(self) -> None:
        """The log has caught up with a leader, or leads: what it lacks, it lacks rightly. That counts once all it has
        now is promised; then it is sure of its end again."""
        if self.tail is not Tail.SURE and self._vouched_end is None and self.holder is not None:
            self._vouched_end = self.holder.end
            self._check_vouched()

    def _check_vouched(self) -> None:
        if self._vouched_end is None or self.holder is None or self.holder.promised_end < self._vouched_end:
            return
        self._vouched_end = None
        self.tail = Tail.SURE
        self.promised, self.unsure, self.stale = self.holder.promised_end, False, False
        self._cache(self.promised)
        if self._ends is not None:
            self._ends.due(self)

    async def fell_short(self, promised: int) -> None:
        """Something beside the log's own files says that it had promised everything below. Durable on return."""
        end = self.holder.promised_end if self.holder is not None else 0
        _log.error("%s: ends at offset %d, but everything below %d was promised", self.folder, end, promised)
        self.tail = Tail.SHORT
        await self.found(promised, unsure=False)

    def reset(self) -> None:
        """The log begins anew, with nothing."""
        self.promised = self.shown = 0
        self.unsure, self.stale, self.clean = False, False, None
        self._cache(0)

    async def forget(self) -> None:
        """The log is about to be deleted. Durable on return."""
        if self._ends is not None:
            await self._ends.forget([self.folder])

    async def _store(self) -> None:
        if self._ends is not None:
            self._ends.due(self)
            await self._ends.store()


class PromisedEnds:
    def __init__(self, disk: Disk, synced: bool = True) -> None:
        """`synced`: whether what is written in the background is synced too."""
        self.was_complete = True
        """Whether the start found everything that had been on record."""
        self.cached = CachedEnds(disk)
        self._cached_before: dict[int, int] = {}
        """As the process before left them, by the names of the logs."""
        self._numbers_before: dict[int, int] = {}
        """Of those that nobody has asked for yet."""
        self._generation = 0
        self._disk = disk
        self._synced = synced
        self._records: dict[str, EndRecord] = {}
        self._next_number = 1
        self._changed: dict[EndRecord, None] = {}  # by their logs, which have not been asked yet
        self._due: dict[EndRecord, None] = {}  # not in the file as they are
        self._dropped: list[int] = []
        self._size: int | None = None  # of the file; None = write it anew
        self._rewrite_at = 0
        self._writing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._said = False
        self._closed = False

    # --- a start ------------------------------------------------------------------------------------------------

    async def load(self, clean: Mapping[str, CleanEnd] | None) -> None:
        """Read what is on record; `clean` is what the last clean shutdown left, and newer. Writes nothing."""
        size = await self._disk.size(FILE)
        content = await self._content(size) if size else b""
        fresh = size is None and clean is None and not await self._disk.list("streams")
        complete, whole = self._decode(content)
        # A clean shutdown speaks for those logs alone that were sure of their ends; what it knew of the others is here.
        self.was_complete = fresh or (complete if clean is None else whole)
        if not self.was_complete:
            _log.warning(
                "%s: missing or damaged: what logs had promised is not known; replicas compare their logs before they "
                "lead",
                FILE,
            )
        await self._take_cached()
        for folder, end in (clean or {}).items():
            record = self.record(folder)
            record.clean, record.promised = end, end.end
            record.unsure = record.stale = False

    async def _take_cached(self) -> None:
        """What the process before had promised up to its end, if that is known."""
        cached = await self.cached.read(self._generation)
        records = list(self._records.values())
        if any(each.promised > cached.get(name_of(each.folder), each.promised) for each in records):
            cached = {}  # a synced end is never ahead: these are not the bytes that were written last
        self._cached_before = cached
        for record in records:
            self._take_one_cached(record)
            record.stale = record.stale or not record.exact

    def _take_one_cached(self, record: EndRecord) -> None:
        end = self._cached_before.get(name_of(record.folder))
        if end is not None:
            record.promised, record.exact = end, True

    async def _content(self, size: int) -> bytes:
        """What is not whole is so twice: else it was read wrongly."""

        async def read(position: int, length: int, fresh: bool = False) -> bytes:
            return await self._disk.read(FILE, position, length, fresh)

        content = await read(0, size)
        return content if _batches_end(content) == size else await agreed(read, 0, size, content)

    async def begin(self) -> None:
        """Put everything known into a new file. From here on logs may be changed."""
        self._generation += 1
        for number, record in enumerate(self._records.values(), 1):
            record.number = number
        self._next_number = len(self._records) + 1
        async with self._writing:
            await self._rewrite()
            await self.cached.begin(self._generation, self._take_numbers())

    def _take_numbers(self) -> dict[int, tuple[int, int]]:
        """Name and end by number, also of logs that are in the page cache and not in the file yet."""
        found = {each.number: (name_of(each.folder), each.promised) for each in self._records.values()}
        known = {name for name, _ in found.values()}
        for name, end in self._cached_before.items():
            if end and name not in known:
                found[self._next_number] = name, end
                self._numbers_before[name] = self._next_number
                self._next_number += 1
        return found

    def record(self, folder: str) -> EndRecord:
        record = self._records.get(folder)
        if record is None:
            name = name_of(folder)
            number = self._numbers_before.pop(name, self._next_number)
            self._next_number = max(self._next_number, number + 1)
            record = self._records[folder] = EndRecord(self, folder, number)
            self._take_one_cached(record)
            self.cached.name(number, name)
        return record

    @property
    def folders(self) -> list[str]:
        """Of the logs on record."""
        return list(self._records)

    # --- while logs grow ----------------------------------------------------------------------------------------

    def changed(self, record: EndRecord) -> None:
        self._changed[record] = None
        if self._timer is None:
            self._wake(limits.PROMISED_ENDS_DELAY_S)

    def due(self, record: EndRecord) -> None:
        self._due[record] = None
        if self._timer is None:
            self._wake(limits.PROMISED_ENDS_DELAY_S)

    async def store_cached(self) -> None:
        """What was noted in the cached ends is there on return, or the next start does not believe them."""
        await self.cached.store()
        if self.cached.failed is not None:
            await self.store()

    async def store(self) -> None:
        """Everything that was due is durable on return. Raises OSError."""
        async with self._writing:
            if self._due or self._dropped or self.cached.failed is not None:  # else whoever wrote before us has done it
                await self._write(sync=True)

    async def forget(self, folders: Iterable[str]) -> None:
        """These logs are about to be deleted. Durable on return. Raises OSError."""
        gone = [record for folder in folders if (record := self._records.pop(folder, None)) is not None]
        for record in gone:
            self._dropped.append(record.number)
            self._changed.pop(record, None)
            self._due.pop(record, None)
            self.cached.note(record.number, 0)
            self._cached_before.pop(name_of(record.folder), None)
            record.holder = None
        if gone:
            await self.store()

    def keep_streams(self, folders: Mapping[str, None]) -> None:
        """Only logs below these folders are still of interest; and the metadata's."""
        for number in self._numbers_before.values():
            self.cached.note(number, 0)
        self._numbers_before = {}
        for folder, record in list(self._records.items()):
            stream = folder.rpartition("/")[0]
            if stream and stream not in folders and record.holder is None:
                del self._records[folder]
                self._dropped.append(record.number)
                self._due.pop(record, None)

    def clean_ends(self, data: bool = True) -> dict[str, CleanEnd]:
        """What a clean shutdown leaves behind: of logs that were not opened, what they were left with before. Without
        `data` of the metadata's log alone."""
        found = {
            folder: record.holder.clean_end() if record.holder is not None else record.clean
            for folder, record in self._records.items()
            if data or "/" not in folder
        }
        return {folder: end for folder, end in found.items() if end is not None}

    async def close(self) -> None:
        """Everything is on record as it is now. Raises OSError."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        async with self._writing:
            await self._write(sync=True)

    # --- writing ------------------------------------------------------------------------------------------------

    def _wake(self, delay_s: float) -> None:
        if not self._closed:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._start)

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        delay_s = limits.PROMISED_ENDS_DELAY_S
        try:
            async with self._writing:
                await self._write(self._synced)
            self._said = False
        except OSError as error:
            delay_s = _RETRY_S
            if not self._said:
                _log.warning("%s: cannot be written (%s); after a crash less is known about the logs", FILE, error)
            self._said = True
        self._timer = self._task = None
        if self._changed or self._due or self._dropped:
            self._wake(delay_s)

    async def _write(self, sync: bool) -> None:
        changed, self._changed = list(self._changed), {}
        for number, record in enumerate(changed):
            if record.take_over():
                self._due[record] = None
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
        if self.cached.failed is not None:
            self.cached.give_up()
            self._generation += 1
            self._size = None
        elif not self._due and not self._dropped:
            return
        if self._size is None or self._size > self._rewrite_at:
            await self._rewrite()
            return
        due, dropped = list(self._due), self._dropped
        self._due, self._dropped = {}, []
        size, self._size = self._size, None  # if this fails the file is not written again, but anew
        try:
            pieces = [_ENTRY.pack(_DROP, 0, number, 0, 0) for number in dropped]
            batch = _batch(pieces + await _encoded(due))
            (error,) = await self._disk.commit([Write(FILE, size, [batch])], sync)
            if error is not None:
                raise error
        except BaseException:
            self._due.update(dict.fromkeys(due))
            self._dropped += dropped
            raise
        self._size = size + len(batch)
        await self.cached.store()

    async def _rewrite(self) -> None:
        due, dropped = self._due, self._dropped
        self._due, self._dropped = {}, []
        self._size = None
        records = [each for each in self._records.values() if each.promised or each.shown or each.unsure]
        for record in self._records.values():
            record.named = False
        try:
            begin = _ENTRY.pack(_BEGIN, not self.was_complete, self._generation, 0, 0)
            batch = _batch([begin, *await _encoded(records)])
            await self._disk.remove(_TEMPORARY)
            (error,) = await self._disk.commit([Write(_TEMPORARY, 0, [batch], create=True)], sync=True)
            if error is not None:
                raise error
            await self._disk.rename(_TEMPORARY, FILE)
            await self._disk.sync_folder("")
        except BaseException:
            self._due.update(due)
            self._dropped += dropped
            raise
        await self.cached.store()
        self._size = len(batch)
        self._rewrite_at = max(limits.PROMISED_ENDS_BYTES, limits.PROMISED_ENDS_GROWTH * len(batch))

    # --- reading ------------------------------------------------------------------------------------------------

    def _decode(self, content: bytes) -> tuple[bool, bool]:
        """Whether it is complete, and whether the file is as it was written. A batch that is not whole at the very end
        is one that was being written."""
        names: dict[int, str] = {}
        complete, whole, position = False, bool(content), 0
        while (found := _batch_at(content, position)) is not None or position < len(content):
            if found is None:
                position = _next_batch(content, position)
                complete, whole = complete and position == len(content), False
                continue
            start, position = found
            complete = self._take_batch(content, start, position, names) or complete
        self._next_number = max(names, default=0) + 1
        return complete, whole

    def _take_batch(self, content: bytes, position: int, end: int, names: dict[int, str]) -> bool:
        """Whether it is the beginning of a file that was complete when it was made."""
        complete = False
        while position < end:
            kind, flags, number, promised, shown = _ENTRY.unpack_from(content, position)
            position += _ENTRY.size
            if kind == _LOG:
                (length,) = _NAME.unpack_from(content, position)
                names[number] = content[position + _NAME.size : position + _NAME.size + length].decode()
                position += _NAME.size + length
            if kind == _BEGIN:
                complete, self._generation = not flags, number
            elif kind == _DROP:
                self._records.pop(names.pop(number, ""), None)
            elif number in names:
                record = self._records.get(names[number])
                if record is None:
                    record = self._records[names[number]] = EndRecord(self, names[number], number)
                record.promised, record.shown = promised, shown
                record.unsure, record.stale = bool(flags & _UNSURE), bool(flags & _STALE)
        return complete


async def _encoded(records: list[EndRecord]) -> list[bytes]:
    """Their entries, made in slices: there may be ten thousand."""
    pieces = []
    for count, record in enumerate(records, 1):
        kind, name = _SET, b""
        if not record.named:
            kind, name = _LOG, record.folder.encode()
            name = _NAME.pack(len(name)) + name
            record.named = True
        flags = _UNSURE * record.unsure | _STALE * record.stale
        pieces.append(_ENTRY.pack(kind, flags, record.number, record.promised, record.shown) + name)
        if count % _SLICE == 0:
            await asyncio.sleep(0)
    return pieces


def _batch(pieces: list[bytes]) -> bytes:
    body = b"".join(pieces)
    return _BATCH.pack(_MAGIC, len(body), kernels.crc32c(body)) + body


def _batch_at(content: bytes, position: int) -> tuple[int, int] | None:
    """Where the whole batch that begins here has its entries, and ends."""
    start = position + _BATCH.size
    if start > len(content):
        return None
    magic, length, crc = _BATCH.unpack_from(content, position)
    if magic != _MAGIC or not length or crc != kernels.crc32c(content[start : start + length]):
        return None
    return (start, start + length) if start + length <= len(content) else None


def _batches_end(content: bytes) -> int:
    """Where the whole batches at the beginning end."""
    position = 0
    while (found := _batch_at(content, position)) is not None:
        position = found[1]
    return position


def _next_batch(content: bytes, position: int) -> int:
    """Where the next whole batch begins; the end if there is none."""
    while (position := content.find(_MAGIC, position + 1)) >= 0:
        if _batch_at(content, position) is not None:
            return position
    return len(content)
