"""The promised ends: how far every log of a broker had promised its records, on record in one file beside the logs.

Theory of operation: after a crash a log is truncated where its valid records end. The log itself does not show whether
the removed records had been promised. This file does: it has the promised end of each log, and the end below which
records were committed or exposed. It is written in the background, at most `PROMISED_ENDS_DELAY_S` and one write
behind, and never by the group commit; while nothing is promised nothing is written. A start compares: a log that ends
before its promised end is damaged.

The record of one log, and when its end goes down, is in `endrecord`; the bytes of the file are in `endsfile`. Entries
are appended, later ones win. When the file has grown to a multiple of what it must hold, and at every start, it is
written again beside the old one, which it then replaces.

The current ends are also in the page cache (`cachedends`): exact after a killed process, gone after a power loss. Then
each log is *stale* on record until it is verified: it may have promised more.

If the file is torn or missing a start knows less, and nothing else is lost. Each replicated log is suspect on record
until it is verified, one without any file too; a clean shutdown does not change that. Only where the data folder has
neither streams nor metadata the file is missing by right. A log that began after this start is *new*: of it everything
is known. Under `os` the background writes are not
synced; lowering an end is.

An assertion that fails where the file is written ends the process: logs would go on to promise, and the next start
would take lost records for ones that were never promised.

Known to be imperfect: a record that was promised within the last delay before a power loss, and was damaged or
truncated while the broker was down, looks like one that was never promised.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from bascule import limits
from bascule.log import endsfile
from bascule.log.cachedends import CachedEnds, name_of
from bascule.log.endrecord import EndRecord
from bascule.log.endsfile import Contents, Stored
from bascule.log.filecopy import commit_one
from bascule.log.reread import agreed
from bascule.log.tail import CleanEnd
from bascule.ports import Disk, Write

FILE = "promised-ends"
_TEMPORARY = FILE + ".tmp"
_RETRY_S = 1.0
_SLICE = 1000  # entries between two turns of the event loop
_log = logging.getLogger("bascule.log")


class PromisedEnds:
    def __init__(self, disk: Disk, on_fatal: Callable[[str], None], synced: bool = True) -> None:
        """`on_fatal` ends the process. `synced`: whether what is written in the background is synced too."""
        self.was_complete = True
        """Whether the start found everything that had been on record."""
        self.cached = CachedEnds(disk)
        self._fresh = False
        """Nothing was ever promised in this data folder."""
        self._cached_before: dict[int, int] = {}
        """As the last boot left them, by the names of the logs."""
        self._numbers_before: dict[int, int] = {}
        """The numbers of those whose log was not opened yet, by name."""
        self._generation = 0
        self._disk = disk
        self._synced = synced
        self._records: dict[str, EndRecord] = {}
        self._next_number = 1
        self._changed: dict[EndRecord, None] = {}  # their logs have new ends, which are not read yet
        self._due: dict[EndRecord, None] = {}  # not in the file as they are
        self._dropped: list[int] = []
        self._size: int | None = None  # of the file; None = write it again
        self._rewrite_at = 0
        self._writing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._said = False
        self._closed = False
        self._on_fatal = on_fatal
        self._ended = False

    # --- a start ------------------------------------------------------------------------------------------------

    async def load(self, clean: Mapping[str, CleanEnd] | None) -> None:
        """Read the file; `clean` is from the last clean shutdown, and newer. Writes nothing."""
        size = await self._disk.size(FILE)
        content = await self._content(size) if size else b""
        others = [*await self._disk.list("streams"), *await self._disk.list("raft")]
        self._fresh = size is None and clean is None and not others
        found = endsfile.decode(content)
        self._take(found)
        # A clean shutdown has the ends of those logs only that were sure; what is known of the others is here.
        self.was_complete = self._fresh or (found.complete if clean is None else found.whole)
        if not self.was_complete:
            _log.warning(
                "%s: missing or damaged: the promised ends of logs are not known; replicas compare their logs before "
                "they lead",
                FILE,
            )
        await self._take_cached()
        for folder, end in (clean or {}).items():
            record = self.record(folder)
            record.clean, record.promised = end, end.end
            record.suspect = record.stale = False

    def _take(self, found: Contents) -> None:
        self._generation, self._next_number = found.generation, found.next_number
        for folder, stored in found.logs.items():
            record = self._records[folder] = EndRecord(self, folder, stored.number)
            record.promised, record.exposed = stored.promised, stored.exposed
            record.suspect, record.stale = stored.suspect, stored.stale

    async def _take_cached(self) -> None:
        """The promised ends of the last boot, if they are known."""
        cached = await self.cached.read(self._generation)
        records = list(self._records.values())
        if any(each.promised > cached.get(name_of(each.folder), each.promised) for each in records):
            cached = {}  # a synced end is never ahead: these are not the last bytes written
        self._cached_before = cached
        for record in records:
            self._take_one_cached(record)
            record.stale = record.stale or not record.exact

    def _take_one_cached(self, record: EndRecord) -> None:
        end = self._cached_before.get(name_of(record.folder))
        if end is not None:
            record.promised, record.exact = end, True

    async def _content(self, size: int) -> bytes:
        """A file that is not whole is read again: the first read may have been wrong."""

        async def read(position: int, length: int, fresh: bool = False) -> bytes:
            return await self._disk.read(FILE, position, length, fresh)

        content = await read(0, size)
        return content if endsfile.whole_batches_end(content) == size else await agreed(read, 0, size, content)

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
            if name not in known:
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
            record.new = self._fresh
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
        """Noted ends are in the file of cached ends on return, or the next start ignores that file."""
        with self._working():
            await self.cached.store()
        if self.cached.failed is not None:
            await self.store()

    async def store(self) -> None:
        """Everything that was due is durable on return. Raises OSError."""
        async with self._writing:
            if self._due or self._dropped or self.cached.failed is not None:  # else another write has stored it
                await self._write(sync=True)

    async def forget(self, folders: Iterable[str]) -> None:
        """These logs are about to be deleted. Durable on return. Raises OSError."""
        gone = [record for folder in folders if (record := self._records.pop(folder, None)) is not None]
        for record in gone:
            self._dropped.append(record.number)
            self._changed.pop(record, None)
            self._due.pop(record, None)
            self.cached.drop(record.number)
            self._cached_before.pop(name_of(record.folder), None)
            record.holder = None
        if gone:
            await self.store()

    def keep_streams(self, folders: Mapping[str, None]) -> None:
        """Drop the records of all other logs, but for that of the metadata."""
        for number in self._numbers_before.values():
            self.cached.drop(number)
        self._numbers_before = {}
        for folder, record in list(self._records.items()):
            stream = folder.rpartition("/")[0]
            if stream and stream not in folders and record.holder is None:
                del self._records[folder]
                self._dropped.append(record.number)
                self._due.pop(record, None)

    def clean_ends(self, data: bool = True) -> dict[str, CleanEnd]:
        """The ends for a clean shutdown: those of logs that were not opened are from the one before. Without `data` the
        end of the log of the metadata alone."""
        found = {
            folder: record.holder.clean_end() if record.holder is not None else record.clean
            for folder, record in self._records.items()
            if data or "/" not in folder
        }
        return {folder: end for folder, end in found.items() if end is not None}

    async def close(self) -> None:
        """Store the present ends. Raises OSError."""
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
        if not (self._closed or self._ended):
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._start)

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        delay_s = limits.PROMISED_ENDS_DELAY_S
        try:
            async with self._writing:
                await self._write(self._synced)
            self._said = False
        except Exception as error:  # any but those of the disk are bugs; the file is still to be written
            delay_s = _RETRY_S
            if not (self._said or self._ended):
                ours = None if isinstance(error, OSError) else error
                text = "%s: cannot be written (%s); after a crash less is known about the logs"
                _log.warning(text, FILE, error, exc_info=ours)
            self._said = True
        self._timer = self._task = None
        if self._changed or self._due or self._dropped:
            self._wake(delay_s)

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Around what writes: nothing does after a failed assertion. Raises OSError then."""
        refusal = f"{FILE}: not written after a failed assertion"
        if self._ended:
            raise OSError(errno.EIO, refusal)
        try:
            yield
        except AssertionError as error:
            self._end(error)
            raise OSError(errno.EIO, refusal) from error

    def _end(self, error: AssertionError) -> None:
        self._ended = True
        _log.error("%s: an assertion failed, and this broker ends: report this", FILE, exc_info=error)
        self._on_fatal(f"{FILE} is not written any more: {error!r}; start the broker again, and report this")

    async def _write(self, sync: bool) -> None:
        with self._working():
            await self._write_due(sync)

    async def _write_due(self, sync: bool) -> None:
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
            await self._rewrite()
        elif self._due or self._dropped:
            if self._size is None or self._size > self._rewrite_at:
                await self._rewrite()
            else:
                await self._append(self._size, sync)
        self._note_empty(changed)
        await self.cached.store()

    def _note_empty(self, logs: list[EndRecord]) -> None:
        """After a killed process it is known of a log without records, too, that it has promised nothing. What is on
        record about it was written before: a log that is *stale* must not look as if its end were exact."""
        for record in logs:
            if record.holder is not None and not record.holder.end and not record.promised and "/" in record.folder:
                self.cached.note(record.number, 0)

    async def _append(self, size: int, sync: bool) -> None:
        due, dropped = list(self._due), self._dropped
        self._due, self._dropped = {}, []
        self._size = None  # if this fails the whole file is written again
        try:
            batch = endsfile.encode_batch([*map(endsfile.encode_drop, dropped), *await _encoded(due)])
            await commit_one(self._disk, Write(FILE, size, [batch]), sync)
        except BaseException:
            self._due.update(dict.fromkeys(due))
            self._dropped += dropped
            raise
        self._size = size + len(batch)

    async def _rewrite(self) -> None:
        due, dropped = self._due, self._dropped
        self._due, self._dropped = {}, []
        self._size = None
        records = [
            each for each in self._records.values() if each.promised or each.exposed or each.suspect or each.stale
        ]
        for record in self._records.values():
            record.named = False
        try:
            begin = endsfile.encode_begin(self.was_complete, self._generation)
            batch = endsfile.encode_batch([begin, *await _encoded(records)])
            await self._disk.remove(_TEMPORARY)
            await commit_one(self._disk, Write(_TEMPORARY, 0, [batch], create=True), sync=True)
            await self._disk.rename(_TEMPORARY, FILE)
            await self._disk.sync_folder("")
        except BaseException:
            self._due.update(due)
            self._dropped += dropped
            raise
        self._size = len(batch)
        self._rewrite_at = max(limits.PROMISED_ENDS_BYTES, limits.PROMISED_ENDS_GROWTH * len(batch))


async def _encoded(records: list[EndRecord]) -> list[bytes]:
    """Their entries, made in slices: there may be ten thousand."""
    entries = []
    for count, record in enumerate(records, 1):
        stored = Stored(record.number, record.promised, record.exposed, record.suspect, record.stale)
        entries.append(endsfile.encode_log(stored, None if record.named else record.folder))
        record.named = True
        if count % _SLICE == 0:
            await asyncio.sleep(0)
    return entries
