"""A partition's log on one broker: segments, appended at the end, promised once they are on the disk.

Theory of operation: `append` never waits. It queues the records and enlists with the sync scheduler; when a
round has stored them `promised_end` moves up and `on_promised` is told. `visible_end` is what consumers may
see; the node sets it (the high watermark) and the readers that wait wake up. Positions are exclusive ends, in
this order:

start <= visible_end <= promised_end <= end

A write or sync that fails, or an append that is refused, ends the log's writing: everything not promised is
forgotten at once (`end` falls back to `promised_end`, so its offsets will name other records), `on_failed` is
told once and appends raise the error. So whoever appends never stands ahead of its log without being told, and
nothing is taken behind what was refused. Reads go on. `reopen` sets aside what the failed write may have left
in the file and writes on in a fresh file: a failed sync says nothing about the pages it covered, now or later,
so the old file is never written again.

A partition has no files, and no folder, before its first record.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from bascule import limits
from bascule.errors import LogError
from bascule.log.failures import lost_error, storage_error
from bascule.log.index import FileIndex
from bascule.log.lookup import offset_at_or_after, offset_at_or_before
from bascule.log.presence import Presence
from bascule.log.promised import EndRecord, PromisedEnds
from bascule.log.quarantine import Quarantine
from bascule.log.reader import OnDamage, Reader, ReverseReader
from bascule.log.recovery import recover, rewrite, scan_segment, sync_parents
from bascule.log.removal import cut_position, lower_record, remove_files, remove_folder, remove_index, set_aside
from bascule.log.segment import Mark, Segment
from bascule.log.sync import SyncScheduler
from bascule.log.tail import CleanEnd, Tail
from bascule.log.waiters import Waiters
from bascule.ports import Clock, Disk, Write

_log = logging.getLogger("bascule.log")


@dataclass(frozen=True, slots=True)
class LogConfig:
    segment_max_bytes: int
    segment_max_age_ns: int = 0
    """How old a segment's first record may be before the next append starts a new one; 0 = any age."""


class CommitLog:
    def __init__(
        self,
        disk: Disk,
        scheduler: SyncScheduler,
        folder: str,
        config: LogConfig,
        clock: Clock,
        on_promised: Callable[[int], None],
        on_failed: Callable[[LogError], None],
        on_damage: OnDamage | None,
    ) -> None:
        self.folder, self.config = folder, config
        self.failed: LogError | None = None
        self.end = self.promised_end = self.visible_end = 0
        self.last_timestamp = self.last_epoch = 0
        self.segments: list[Segment] = []
        self.waiters = Waiters()
        self.damaged: dict[Segment, None] = {}
        """Segments that are known to lack records which another replica may have."""
        self.has_folder = False
        """Its folder is on the disk; if it is not any more somebody else took it away."""
        self.presence = Presence(self)
        self.committed_end = 0
        """Everything below was committed or shown, here or elsewhere, and is not given to other records. It may be past
        the end of a replica that is behind, or has lost something."""
        self.on_damage = on_damage
        self.record = EndRecord(None, folder)
        """What is stored about the end of this log."""
        self.changing = asyncio.Lock()
        """Held by whoever replaces, cuts or removes files that are there."""
        self._disk = disk
        self._scheduler = scheduler
        self._clock = clock
        self._on_promised = on_promised
        self._on_failed = on_failed
        self._quarantine = Quarantine(disk, clock)
        self._bases: list[int] = []
        self._active: Segment | None = None
        self._waiting: list[Segment] = []  # segments with records that wait for the disk, oldest first
        self._waiting_bytes = self._in_flight_bytes = 0
        self._sealed: list[Segment] = []  # segments whose index is not on the disk yet
        self._in_flight: list[tuple[Segment, Mark]] = []
        self._in_flight_indexes: list[Segment] = []
        self._unsynced: list[Segment] = []  # promised by an interval sync that is still to come
        self._in_flight_syncs: list[tuple[Segment, Mark]] = []
        self._settled: list[asyncio.Future[None]] = []
        self._replicated = False

    @classmethod
    async def open(
        cls,
        disk: Disk,
        scheduler: SyncScheduler,
        folder: str,
        config: LogConfig,
        clock: Clock,
        on_promised: Callable[[int], None],
        on_failed: Callable[[LogError], None],
        replicated: bool = False,
        ends: PromisedEnds | None = None,
        on_damage: OnDamage | None = None,
    ) -> "CommitLog":
        """Recover the folder: what is found counts as promised, for it is synced when this returns. Damage of a
        `replicated` one stays where it is, to be refilled; `on_damage`, if there is one, is asked to. What the log
        promises is put on record in `ends`."""
        log = cls(disk, scheduler, folder, config, clock, on_promised, on_failed, on_damage)
        log._replicated = replicated
        if ends is not None:
            log.record = ends.record(folder)
        try:
            segments = await recover(disk, clock, folder, replicated, log.record)
            for segment in segments:
                segment.belongs_to(disk)
            await sync_parents(disk, folder, segments, scheduler.synced_folders)
        except OSError as error:
            raise LogError(f"{folder}: cannot be recovered: {error}; it is tried again; check the disk") from error
        log._adopt(segments)
        log.committed_end = log.record.shown
        log.record.taken_by(log)
        return log

    def _adopt(self, segments: list[Segment]) -> None:
        for segment in segments:
            self._add(segment)
        if not segments:
            return
        self._active = segments[-1]
        self.has_folder = True
        self._sealed = [segment for segment in segments[:-1] if not isinstance(segment.index, FileIndex)]
        self.end = self.promised_end = segments[-1].appended.end
        self.damaged = {segment: None for segment in segments if segment.damage}
        self._note_last_record()
        if self._sealed:
            self._scheduler.enlist(self)

    def _note_last_record(self) -> None:
        """The time and the epoch of the last record there is. A segment may hold none: it is new, or was cut back to
        its beginning, or nothing in it can be read."""
        holders = (segment.appended for segment in reversed(self.segments) if segment.first_offset >= 0)
        last = next(holders, Mark(0, 0, 0, 0))
        self.last_timestamp, self.last_epoch = last.last_timestamp, last.last_epoch

    # --- what is in it ------------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        """The oldest record's offset, or where it should be if it cannot be read; `end` if there is none."""
        oldest = next((segment for segment in self.segments if segment.damage or not segment.empty), None)
        return self.end if oldest is None else oldest.first_offset if oldest.first_offset >= 0 else oldest.base

    @property
    def tail(self) -> Tail:
        """What this start found out about the end of the log; SURE again once somebody vouches for it."""
        return self.record.tail

    @property
    def oldest_timestamp(self) -> int:
        """Of the oldest record; 0 if there is none."""
        return next((segment.first_timestamp for segment in self.segments if segment.first_offset >= 0), 0)

    @property
    def size_bytes(self) -> int:
        return sum(segment.appended.size for segment in self.segments)

    def segment_at(self, offset: int) -> Segment | None:
        """The segment that holds this offset if any does; the first one for offsets before it."""
        if not self.segments:
            return None
        return self.segments[max(bisect_right(self._bases, offset) - 1, 0)]

    def segment_after(self, segment: Segment) -> Segment | None:
        number = bisect_right(self._bases, segment.base)
        return self.segments[number] if number < len(self.segments) else None

    def segment_before(self, segment: Segment) -> Segment | None:
        number = bisect_right(self._bases, segment.base - 1) - 1
        return self.segments[number] if number >= 0 else None

    def set_visible_end(self, hw_end: int) -> None:
        """Consumers may see everything below `hw_end`. It never goes down."""
        if hw_end > self.visible_end:
            self.visible_end = hw_end
            self.set_committed_end(hw_end)
            self.waiters.wake()

    def set_committed_end(self, hw_end: int) -> None:
        """A leader says that everything below is committed, whether it is here or not."""
        if hw_end > self.committed_end:
            self.committed_end = hw_end
            self.record.changed()

    # --- appending ----------------------------------------------------------------------------------------

    def append(self, records: bytes, count: int, next_offset: int, last_timestamp: int) -> None:
        """Queue whole records, with offsets from `end` on, the last of which is `next_offset - 1`. LogError if they are
        not taken: the log has failed then, and `on_failed` has been told."""
        if self.failed is not None:
            raise LogError(str(self.failed))
        if self.waiters.ended is not None:
            raise LogError(f"{self.folder}: this log is {self.waiters.ended}; nothing can be appended to it")
        if not count:
            return
        try:
            self._queue(records, count, next_offset, last_timestamp)
        except Exception as error:
            self._refuse(error)
            raise LogError(str(self.failed)) from error

    def _queue(self, records: bytes, count: int, next_offset: int, last_timestamp: int) -> None:
        if next_offset - count < self.end:
            raise ValueError(f"{count} records before offset {next_offset}, but the end is {self.end}")
        self._scheduler.reserve(len(records))
        self._waiting_bytes += len(records)
        segment = self._active
        if segment is None or self._is_full(segment, len(records)):
            segment = self._roll(self.end)  # and not at the first record: there may be a hole before that
        if not self._waiting or self._waiting[-1] is not segment:
            self._waiting.append(segment)
        segment.append(records, next_offset, last_timestamp)
        self.end = next_offset
        self.last_timestamp = last_timestamp
        self.last_epoch = segment.appended.last_epoch
        self._scheduler.enlist(self)

    def _is_full(self, segment: Segment, more: int) -> bool:
        size = segment.appended.size
        if size == 0:
            return False
        if size >= self.config.segment_max_bytes or size + more > limits.MAX_SEGMENT_BYTES:
            return True
        max_age_ns = self.config.segment_max_age_ns
        return max_age_ns > 0 and self._clock.time_ns() - segment.first_timestamp >= max_age_ns

    def _roll(self, base: int) -> Segment:
        if self._active is not None:
            self._sealed.append(self._active)
        self._active = Segment(self._disk, self.folder, base)
        self._add(self._active)
        return self._active

    def _add(self, segment: Segment) -> None:
        self.segments.append(segment)
        self._bases.append(segment.base)

    def _forget_last(self) -> None:
        segment = self.segments.pop()
        segment.retired = True
        self.damaged.pop(segment, None)
        self._bases.pop()

    # --- rounds: called by the scheduler ------------------------------------------------------------------

    def take(self) -> list[Write]:
        writes: list[Write] = []
        if self.failed is None and self.waiters.ended != "deleted":
            # A segment is written once the one before it is durable: after a loss of power there must be no record
            # whose predecessors never reached the disk. Relaxed sync promises no such thing.
            count = len(self._waiting) if self._scheduler.mode.relaxed else 1
            due, self._waiting = self._waiting[:count], self._waiting[count:]
            for segment in due:
                write = segment.take(not self.has_folder, self.record.promise(segment.appended.end))
                if write is not None:
                    writes.append(write)
                    self._in_flight.append((segment, segment.appended))
            self._in_flight_bytes = sum(len(buffer) for write in writes for buffer in write.buffers)
            self._waiting_bytes -= self._in_flight_bytes
            if self._sealed:
                self._take_indexes(writes)
        return writes

    def _take_indexes(self, writes: list[Write]) -> None:
        due = [segment for segment in self._sealed if segment.index_due]
        writes += [segment.index_write() for segment in due]
        self._in_flight_indexes += due
        self._sealed = [segment for segment in self._sealed if segment not in due]

    def settle(self, errors: list[OSError | None]) -> None:
        flights, self._in_flight = self._in_flight, []
        indexes, self._in_flight_indexes = self._in_flight_indexes, []
        self._scheduler.release(self._in_flight_bytes)
        self._in_flight_bytes = 0
        failure = None if self.failed is None else OSError()  # forgotten meanwhile: what was written does not count
        before = promised = self.promised_end
        for (segment, mark), error in zip(flights, errors, strict=False):
            failure = failure or error
            if failure is None:
                segment.settle(mark, synced=not self._scheduler.mode.interval_ns)
                self.has_folder = True
                promised = mark.end
                if segment.synced.size < mark.size and segment not in self._unsynced:
                    self._unsynced.append(segment)
            elif self.failed is None:
                self._fail(segment.path, failure, promised)
        if indexes:
            for segment, error in zip(indexes, errors[len(flights) :], strict=True):
                self._index_stored(segment, error)
        if promised > before:
            self.promised_end = promised
            self.record.rose()
            if self.waiters.ended != "deleted":
                self._on_promised(promised)
        if self._waiting:
            self._scheduler.enlist(self)
        self._enlist_for_indexes()
        if self._settled:
            self._tell_settled()

    def take_unsynced(self) -> list[Write]:
        if self.failed is None and self.waiters.ended != "deleted":
            self._in_flight_syncs = [(segment, segment.promised) for segment in self._unsynced]
            self._unsynced = []
        return [Write(segment.path, mark.size, []) for segment, mark in self._in_flight_syncs]

    def settle_synced(self, errors: list[OSError | None]) -> None:
        flights, self._in_flight_syncs = self._in_flight_syncs, []
        for (segment, mark), error in zip(flights, errors, strict=True):
            if error is None:
                segment.synced = mark
            elif self.failed is None:
                self._fail(segment.path, error, self.promised_end)
        self._enlist_for_indexes()
        self._tell_settled()

    def _indexes_due(self) -> bool:
        return self.failed is None and any(segment.index_due for segment in self._sealed)

    def _enlist_for_indexes(self) -> None:
        if self._sealed and self._indexes_due():
            self._scheduler.enlist(self)

    def _index_stored(self, segment: Segment, error: OSError | None) -> None:
        if error is None:
            segment.index_written()
        else:
            _log.warning("%s: cannot be written (%s); it stays in memory", segment.index_path, error)

    def _fail(self, path: str, error: OSError, promised_end: int) -> None:
        self._end_writing(storage_error(path, error), promised_end)

    def _refuse(self, error: Exception) -> None:
        """Whoever appended has moved on already: nothing may follow what was not taken."""
        if not isinstance(error, LogError):
            _log.error("%s: an append failed unexpectedly", self.folder, exc_info=error)
        reason = f"{self.folder}: records were not taken: {error}; what had not been promised is given up"
        self._end_writing(LogError(f"{reason}, nothing that was acked is lost, reads go on"), self.promised_end)

    def lose(self, path: str) -> None:
        """This path, of a file or a folder of this log or around it, leads nowhere or elsewhere. Reads go on from what
        is open; `reopen` looks whether it is back."""
        if self.failed is None and self.waiters.ended is None:
            self._end_writing(lost_error(path), self.promised_end)

    def _end_writing(self, reason: LogError, promised_end: int) -> None:
        """Everything that is not promised is forgotten, also what is on its way to the disk."""
        self.failed = reason
        self._scheduler.release(self._waiting_bytes)
        self._waiting_bytes = 0
        self._waiting = []
        for segment in self.segments:
            if segment.appended.size > segment.promised.size:
                segment.cut_to(segment.promised)
        self.end = self.promised_end = promised_end
        self._note_last_record()
        self._tell_settled()
        _log.error("%s", self.failed)
        self._on_failed(self.failed)

    def _tell_settled(self) -> None:
        waiting, self._settled = self._settled, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _told(self) -> None:
        self._settled.append(asyncio.get_running_loop().create_future())
        await self._settled[-1]

    async def settled(self) -> None:
        """Wait until nothing of this log waits for the disk or is on its way there."""
        while (
            self._waiting or self._in_flight or self._in_flight_indexes or self._in_flight_syncs or self._indexes_due()
        ):
            await self._told()

    # --- the ends of a log --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Store what was appended, then refuse more. Readers wake up and learn that it is closed."""
        self.waiters.end("closed")
        await self.settled()
        if writes := self.take_unsynced():
            self.settle_synced(await self._disk.commit(writes, sync=True))
            await self.settled()
        self._scheduler.leave(self)

    def clean_end(self) -> CleanEnd | None:
        """Where it ends, now that it is closed; None if it is not sure of that, or has nothing."""
        if self.failed is not None or not self.segments or (self._replicated and not self.record.sure):
            return None
        last = self.segments[-1]
        mark = last.promised
        return CleanEnd(self.promised_end, mark.last_epoch, last.base, mark.size, mark.last_crc)

    async def delete(self) -> None:
        """Remove the folder, durably. Readers wake up and learn that it is deleted."""
        self.waiters.end("deleted")
        async with self.changing:
            await self._delete()

    async def _delete(self) -> None:
        self._scheduler.release(self._waiting_bytes)
        self._waiting_bytes = 0
        self._waiting, self._sealed = [], []
        self._tell_settled()
        await self.settled()
        self._scheduler.leave(self)
        for segment in self.segments:
            segment.retired = True
        self.segments, self._bases, self._active = [], [], None
        await self.record.forget()
        await remove_folder(self._disk, self.folder)

    async def reopen(self, heals: bool = False) -> None:
        """After a failure: set aside what was not promised, and write on in a fresh file. Raises LogError, also if
        files are gone, unless other replicas have what was in them: then it `heals`."""
        if self.failed is None:
            return
        await self.settled()
        try:
            async with self.changing:
                await self.presence.find_again(heals)
                await self.record.forget_above(self.promised_end)
                await self._drop_unpromised()
        except OSError as error:
            raise storage_error(self.folder, error) from error
        self.failed = None
        self._start_fresh()

    async def _drop_unpromised(self) -> None:
        while self.segments and self.segments[-1].promised.size == 0:
            await set_aside(self._disk, self._quarantine, self.segments[-1], 0)
            await remove_files(self._disk, self.segments[-1])
            self._forget_last()
        for segment in self.segments:
            if segment.synced.size < segment.promised.size and not segment.missing:
                # Relaxed: promised, but the pages may be lost. The file may be too short, which is damage by now.
                size = min(segment.promised.size, await segment.file_size())
                await rewrite(self._disk, segment.path, [(0, size)], durable=False)
                segment.synced = segment.promised
        self._unsynced = []
        if self.segments:
            segment = self.segments[-1]
            if await set_aside(self._disk, self._quarantine, segment, segment.promised.size):
                await self._disk.truncate(segment.path, segment.promised.size)

    def _start_fresh(self) -> None:
        """The next append begins a new segment; the last one there is counts as sealed."""
        self._active = None
        self._sealed = [segment for segment in self._sealed if not segment.retired]
        last = self.segments[-1] if self.segments else None
        if last is not None and not isinstance(last.index, FileIndex) and last not in self._sealed:
            self._sealed.append(last)
        self._enlist_for_indexes()

    async def truncate(self, end: int, shown_too: bool = False) -> None:
        """Cut every record from offset `end` on, aside: they are another leader's past, not ours. What consumers saw is
        cut only if an administrator has given it up."""
        if end < self.visible_end and not shown_too:
            raise ValueError(f"{self.folder}: consumers saw records up to {self.visible_end}; cannot cut at {end}")
        async with self.changing:
            await self.settled()
            await lower_record(self, self.segments, self.record, end)
            await self._truncate(end)
            self.record.was_cut()

    async def _truncate(self, end: int) -> None:
        while self.segments and self.segments[-1].begins_at_or_after(end):
            segment = self.segments[-1]
            await self.seal(segment)
            await set_aside(self._disk, self._quarantine, segment, 0)
            await remove_index(self._disk, segment)
            await self._disk.remove(segment.path)
            self._forget_last()
            self._ends_at(segment.base)  # now: should the disk fail before the rest, it has ended there all the same
            await remove_files(self._disk, segment)
        if self.segments and self.segments[-1].appended.end > end:
            await self._cut(self.segments[-1], end)
        # There may be a hole before it; whoever has the records of that sends them again.
        self._ends_at(min(end, self.segments[-1].appended.end if self.segments else 0))

    def _ends_at(self, end: int) -> None:
        self._start_fresh()
        self.end = self.promised_end = min(self.end, end)
        self.visible_end = min(self.visible_end, self.end)
        self._note_last_record()

    async def _cut(self, segment: Segment, end: int) -> None:
        position = await cut_position(self, segment, end)
        if position is None:
            return
        await self.seal(segment)  # an index that comes later would speak of what is cut
        await set_aside(self._disk, self._quarantine, segment, position)
        await remove_index(self._disk, segment)
        await self._disk.truncate(segment.path, position)
        scan = await scan_segment(self._disk, segment.path, segment.base, position)
        self._forget_last()
        self._add(scan.segment(self._disk, self.folder))
        self.note_damage(self.segments[-1])

    # --- what a refill needs ------------------------------------------------------------------------------

    def note_damage(self, segment: Segment) -> None:
        if segment.damage and not segment.retired:
            self.damaged[segment] = None

    def lacks(self, start: int, end: int) -> bool:
        """Whether whole stretches between two segments are missing that have such offsets."""
        for segment in self.damaged:
            following = self.segment_after(segment)
            if following is not None and max(start, segment.appended.end) < min(end, following.base):
                return True
        return False

    def write_elsewhere(self, segment: Segment) -> None:
        """What comes next goes to another segment."""
        if segment is self._active:
            self._start_fresh()

    async def seal(self, segment: Segment) -> None:
        """Nothing is written to the files of this segment any more when this returns, until `put_back`."""
        self.write_elsewhere(segment)
        while (
            segment in self._waiting
            or segment in self._in_flight_indexes
            or any(each is segment for each, _ in (*self._in_flight, *self._in_flight_syncs))
        ):
            await self._told()
        self._sealed = [each for each in self._sealed if each is not segment]

    def put_back(self, segment: Segment, fresh: Segment) -> None:
        """In place of `segment`, which may be the same."""
        number = self.segments.index(segment)
        if fresh is not segment:
            segment.retired = self.has_folder = True
            self.segments[number] = fresh
            self._unsynced = [each for each in self._unsynced if each is not segment]
        self.damaged.pop(segment, None)
        self.note_damage(fresh)
        if not isinstance(fresh.index, FileIndex):
            self._sealed.append(fresh)
            self._enlist_for_indexes()
        self.waiters.wake()

    @property
    def disk(self) -> Disk:
        return self._disk

    async def set_aside(self, segment: Segment, start: int, end: int) -> str | None:
        return None if segment.missing else await self._quarantine.keep(segment.path, start, end)

    # --- reading ------------------------------------------------------------------------------------------

    def reader(self, start: int, uncommitted: bool = False, heals: bool = True) -> Reader:
        return Reader(self, start, uncommitted, heals)

    def reverse_reader(self, start: int, oldest: int = 0) -> ReverseReader:
        return ReverseReader(self, start, oldest)

    async def offset_at_or_after(self, timestamp: int) -> int:
        """The first record written at that time or later; `end` if there is none."""
        return await offset_at_or_after(self, timestamp)

    async def offset_at_or_before(self, timestamp: int) -> int | None:
        """The last record written at that time or earlier; None if there is none."""
        return await offset_at_or_before(self, timestamp)

    def store_index(self, segment: Segment) -> None:
        """Of a sealed segment that has lost its own."""
        self._sealed.append(segment)
        self._scheduler.enlist(self)
