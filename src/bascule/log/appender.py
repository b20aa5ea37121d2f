"""The append pipeline of a log: records are queued, written and synced by the group commit, and then promised.

Theory of operation: `append` never waits. It queues the records, and its log with the sync scheduler; when a round has
stored them `promised_end` moves up and the owner is told. Until then they are in a segment that waits or in
flight. Under relaxed sync a promised segment may still be unsynced. A sealed segment gets its index once it is synced.

After a write or sync that fails, or an append that is refused, the log takes no writes. Everything not promised is
forgotten at once: `end` goes back to `promised_end`, and those offsets will name other records. The owner is told
once, and appends raise the error, so no record is appended after one that was refused. Reads go on. When the bytes of
the failed write are in quarantine, `resume` begins a new file. The old one is never written again: after a failed sync
nothing is known about the pages it covered, now or later.

A bug ends the writing for good (`fail`): what is in memory is not believed after it, so nothing of it is changed, and
only another start writes to this log again.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from bascule import limits
from bascule.errors import LogError
from bascule.log.endrecord import EndRecord
from bascule.log.failures import lost_error, storage_error
from bascule.log.index import FileIndex
from bascule.log.segment import Mark, Segment
from bascule.log.segments import SegmentList
from bascule.log.start import NEW, LogStart
from bascule.log.sync import Member, SyncScheduler
from bascule.ports import Clock, Write

_log = logging.getLogger("bascule.log")


@dataclass(frozen=True, slots=True)
class LogConfig:
    segment_max_bytes: int
    segment_max_age_ns: int = 0
    """How old a segment's first record may be before the next append starts a new one; 0 = any age."""


class LogOwner(Protocol):
    """Who has the log, and is told what becomes of its records."""

    def on_promised(self, end: int) -> None:
        """Everything below `end` is stored, as the sync mode demands."""

    def log_failed(self, error: LogError) -> None:
        """The log takes no writes, and ends at what it has promised."""

    def assertion_failed(self, error: AssertionError) -> None:
        """Something does not hold in the log that must: it takes no writes until another start. Told once."""


class Appender:
    def __init__(
        self,
        log: Member,
        owner: LogOwner,
        segments: SegmentList,
        scheduler: SyncScheduler,
        record: EndRecord,
        config: LogConfig,
        clock: Clock,
    ) -> None:
        """`log` is what the scheduler knows of this pipeline: its rounds come by way of it."""
        self.failed: LogError | None = None
        self.broken = False
        """It has failed by a bug, and takes no writes until another start."""
        self.last_timestamp = self.last_epoch = 0
        self._segments = segments
        self._scheduler = scheduler
        self._record = record
        self._config = config
        self._clock = clock
        self._log = log
        self._owner = owner
        self._active: Segment | None = None
        self._waiting: list[Segment] = []  # segments with records that wait for the disk, oldest first
        self._waiting_bytes = self._in_flight_bytes = 0
        self._sealed: list[Segment] = []  # segments whose index is not on the disk yet
        self._in_flight: list[tuple[Segment, Mark]] = []
        self._in_flight_indexes: list[Segment] = []
        self._unsynced: list[Segment] = []  # promised by an interval sync that is still to come
        self._in_flight_syncs: list[tuple[Segment, Mark]] = []
        self._flushed: list[asyncio.Future[None]] = []

    def adopt(self, recovered: list[Segment], start: LogStart = NEW) -> None:
        """The recovered records count as promised: they are synced."""
        self._segments.stored, self._segments.floor = start, start.start
        self._segments.end = self._segments.promised_end = start.start
        self._segments.has_folder = bool(recovered) or start != NEW
        for segment in recovered:
            self._segments.add(segment)
        if not recovered:
            self._note_last_record()
            return
        self._active = recovered[-1]
        self._sealed = [segment for segment in recovered[:-1] if not isinstance(segment.index, FileIndex)]
        self._segments.end = self._segments.promised_end = recovered[-1].appended.end
        self._segments.damaged = {segment: None for segment in recovered if segment.damage}
        self._note_last_record()
        if self._sealed:
            self._scheduler.enqueue(self._log)

    def _note_last_record(self) -> None:
        last = self._segments.last_record
        self.last_timestamp, self.last_epoch = last.last_timestamp, last.last_epoch

    # --- appending ----------------------------------------------------------------------------------------

    def append(self, records: bytes, count: int, next_offset: int, last_timestamp: int) -> None:
        """Queue whole records, with offsets from `end` on, the last of which is `next_offset - 1`. LogError if they are
        not taken: the log has failed then, and its owner has been told."""
        if self.failed is not None:
            raise LogError(str(self.failed))
        if (ended := self._segments.waiters.ended) is not None:
            raise LogError(f"{self._segments.folder}: this log is {ended}; nothing can be appended to it")
        if not count:
            return
        try:
            self._queue(records, count, next_offset, last_timestamp)
        except AssertionError:
            raise
        except Exception as error:
            self._refuse(error)
            raise LogError(str(self.failed)) from error

    def _queue(self, records: bytes, count: int, next_offset: int, last_timestamp: int) -> None:
        end = self._segments.end
        if next_offset - count < end:
            raise ValueError(f"{count} records before offset {next_offset}, but the end is {end}")
        self._scheduler.reserve(len(records))
        self._waiting_bytes += len(records)
        segment = self._active
        if segment is None or self._is_full(segment, len(records)):
            segment = self._roll(end)  # and not at the first record: there may be a hole before that
        if not self._waiting or self._waiting[-1] is not segment:
            self._waiting.append(segment)
        segment.append(records, count, next_offset, last_timestamp)
        self._segments.end = next_offset
        self.last_timestamp = last_timestamp
        self.last_epoch = segment.appended.last_epoch
        self._scheduler.enqueue(self._log)

    def configure(self, config: LogConfig) -> None:
        """From the next append on."""
        self._config = config

    def _is_full(self, segment: Segment, more: int) -> bool:
        size = segment.appended.size
        if size == 0:
            return False
        if size >= self._config.segment_max_bytes or size + more > limits.MAX_SEGMENT_BYTES:
            return True
        max_age_ns = self._config.segment_max_age_ns
        return max_age_ns > 0 and self._clock.time_ns() - segment.first_timestamp >= max_age_ns

    def roll(self) -> None:
        """Begin a new segment, if the active one has records."""
        active = self._active
        if active is not None and not active.empty and self.failed is None and self._segments.waiters.ended is None:
            self._roll(self._segments.end)
            self._enqueue_for_indexes()

    def _roll(self, base: int) -> Segment:
        if self._active is not None:
            self._sealed.append(self._active)
        last = self._segments[-1] if self._segments else None
        if last is not None and last.base == base and last.empty and last.exists and not last.damage:
            self._active = last  # it was not removed: its name says where the one before it ended
            return last
        self._active = Segment(self._segments.disk, self._segments.folder, base)
        self._segments.add(self._active)
        return self._active

    # --- rounds: called by the scheduler ------------------------------------------------------------------

    @property
    def _writes(self) -> bool:
        return self.failed is None and self._segments.waiters.ended != "deleted"

    def take(self) -> list[Write]:
        writes: list[Write] = []
        if self._writes:
            # A segment is written once the one before it is durable: after a loss of power there must be no record
            # whose predecessors never reached the disk. Relaxed sync promises no such thing.
            count = len(self._waiting) if self._scheduler.mode.relaxed else 1
            due, self._waiting = self._waiting[:count], self._waiting[count:]
            for segment in due:
                write = segment.take(not self._segments.has_folder, self._record.promise(segment.appended.end))
                if write is not None:
                    writes.append(write)
                    self._in_flight.append((segment, segment.appended))
            self._in_flight_bytes = sum(len(buffer) for write in writes for buffer in write.buffers)
            self._waiting_bytes -= self._in_flight_bytes
            if self._sealed:
                self._take_indexes(writes)
        return writes

    def _take_indexes(self, writes: list[Write]) -> None:
        self._sealed = [segment for segment in self._sealed if not segment.retired]
        due = [segment for segment in self._sealed if segment.index_due]
        writes += [segment.index_write() for segment in due]
        self._in_flight_indexes += due
        self._sealed = [segment for segment in self._sealed if segment not in due]

    def finish(self, errors: list[OSError | None]) -> None:
        if self.broken:
            return
        flights, self._in_flight = self._in_flight, []
        indexes, self._in_flight_indexes = self._in_flight_indexes, []
        self._scheduler.release(self._in_flight_bytes)
        self._in_flight_bytes = 0
        failure = None if self.failed is None else OSError()  # forgotten meanwhile: what was written does not count
        before = promised = self._segments.promised_end
        for (segment, mark), error in zip(flights, errors, strict=False):
            failure = failure or error
            if failure is None:
                segment.finish(mark, synced=not self._scheduler.mode.interval_ns)
                self._segments.has_folder = True
                promised = mark.end
                if segment.synced.size < mark.size and segment not in self._unsynced:
                    self._unsynced.append(segment)
            elif self.failed is None:
                self._fail(segment.path, failure, promised)
        if indexes:
            for segment, error in zip(indexes, errors[len(flights) :], strict=True):
                self._index_stored(segment, error)
        if promised > before:
            self._segments.promised_end = promised
            self._record.rose()
            if self._segments.waiters.ended != "deleted":
                self._owner.on_promised(promised)
        if self._waiting:
            self._scheduler.enqueue(self._log)
        self._enqueue_for_indexes()
        if self._flushed:
            self._tell_flushed()

    def take_unsynced(self) -> list[Write]:
        if not self._writes or self._in_flight_syncs:
            return []  # the log is closing, and syncs these by itself
        self._in_flight_syncs = [(each, each.promised) for each in self._unsynced if not each.retired]
        self._unsynced = []
        return [Write(segment.path, mark.size, []) for segment, mark in self._in_flight_syncs]

    def finish_synced(self, errors: list[OSError | None]) -> None:
        if self.broken:
            return
        flights, self._in_flight_syncs = self._in_flight_syncs, []
        for (segment, mark), error in zip(flights, errors, strict=True):
            if error is None:
                segment.synced = mark
            elif self.failed is None:
                self._fail(segment.path, error, self._segments.promised_end)
        self._enqueue_for_indexes()
        self._tell_flushed()

    async def sync_promised(self, start: int, end: int) -> None:
        """When this returns no power loss takes a promised record of a segment with offsets from `start` up to `end`,
        however relaxed the sync mode is. Raises OSError: the log has failed then."""
        assert self._segments.changing.locked(), "a file could be truncated or replaced meanwhile"
        mode = self._scheduler.mode
        due = [
            (segment, segment.promised)
            for segment in self._segments
            if segment.base < end
            and segment.appended.end > start
            and segment.promised.size
            and not segment.missing
            and (segment.synced.size < segment.promised.size if mode.syncs else mode.relaxed)
        ]
        for first in range(0, len(due), limits.SYNCED_AT_ONCE):
            some = due[first : first + limits.SYNCED_AT_ONCE]
            writes = [Write(segment.path, mark.size, []) for segment, mark in some]
            for (segment, _), error in zip(some, await self._segments.disk.commit(writes, sync=True), strict=True):
                if error is not None:
                    if self.failed is None:
                        self._fail(segment.path, error, self._segments.promised_end)
                    raise error

    def _indexes_due(self) -> bool:
        return self.failed is None and any(segment.index_due for segment in self._sealed)

    def _enqueue_for_indexes(self) -> None:
        if self._sealed and self._indexes_due():
            self._scheduler.enqueue(self._log)

    def _index_stored(self, segment: Segment, error: OSError | None) -> None:
        if error is None:
            segment.index_written()
        else:
            _log.warning("%s: cannot be written (%s); it stays in memory", segment.index_path, error)

    def store_index(self, segment: Segment) -> None:
        """Of a sealed segment that has lost its own."""
        if not (segment.retired or segment in self._sealed):  # it may be gone since its index was made again
            self._sealed.append(segment)
            self._scheduler.enqueue(self._log)

    # --- the end of writing -------------------------------------------------------------------------------

    def _fail(self, path: str, error: OSError, promised_end: int) -> None:
        self._end_writing(storage_error(path, error), promised_end)

    def _refuse(self, error: Exception) -> None:
        """The caller counts its records as appended already, so nothing may be appended after them."""
        folder = self._segments.folder
        if not isinstance(error, LogError):
            _log.error("%s: an append failed unexpectedly", folder, exc_info=error)
        reason = f"{folder}: an append was refused: {error}; records that were not promised are dropped"
        self._end_writing(
            LogError(f"{reason}, nothing that was acked is lost, reads go on"), self._segments.promised_end
        )

    def lose(self, path: str) -> None:
        """A file or folder of this log, or a folder above it, was removed or replaced. Reads go on from open files;
        `CommitLog.reopen` checks whether it is back."""
        if self.failed is None and self._segments.waiters.ended is None:
            self._end_writing(lost_error(path), self._segments.promised_end)

    def _end_writing(self, reason: LogError, promised_end: int) -> None:
        """Everything that is not promised is forgotten, also what is on its way to the disk."""
        self.failed = reason
        self._drop_waiting()
        for segment in self._segments:
            if segment.appended.size > segment.promised.size:
                segment.truncate_to(segment.promised)
        self._segments.end = self._segments.promised_end = promised_end
        self._note_last_record()
        self._tell_flushed()
        _log.error("%s", self.failed)
        self._owner.log_failed(self.failed)

    def fail(self, error: AssertionError) -> None:
        """Something does not hold that must. What is on its way to the disk does not count."""
        folder = self._segments.folder
        self.broken = True
        self.failed = LogError(
            f"{folder}: an assertion failed ({error}); nothing is stored any more, nothing that was acked is lost, "
            "reads go on; start this broker again, and report this"
        )
        self._drop_waiting()
        self._scheduler.release(self._in_flight_bytes)
        self._in_flight_bytes = 0
        self._in_flight, self._in_flight_indexes, self._in_flight_syncs = [], [], []
        self._tell_flushed()

    def _drop_waiting(self) -> None:
        self._scheduler.release(self._waiting_bytes)
        self._waiting_bytes = 0
        self._waiting = []

    def resume(self) -> None:
        """The files hold promised records only: writes are taken again."""
        if self.broken:
            return
        self.failed = None
        self._start_fresh()

    def discard(self) -> None:
        """Of a log that is deleted: nothing that waits is written any more."""
        self._drop_waiting()
        self._sealed = []
        self._active = None
        self._tell_flushed()

    # --- waiting ------------------------------------------------------------------------------------------

    def _tell_flushed(self) -> None:
        waiting, self._flushed = self._flushed, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def _told(self) -> None:
        self._flushed.append(asyncio.get_running_loop().create_future())
        await self._flushed[-1]

    async def flushed(self) -> None:
        """Wait until nothing of this log waits for the disk or is on its way there."""
        while (
            self._waiting or self._in_flight or self._in_flight_indexes or self._in_flight_syncs or self._indexes_due()
        ):
            await self._told()

    # --- files that change --------------------------------------------------------------------------------

    def write_elsewhere(self, segment: Segment) -> None:
        """What comes next goes to another segment."""
        if segment is self._active:
            self._start_fresh()

    def _start_fresh(self) -> None:
        """The next append begins a new segment; the last one there is counts as sealed."""
        self._active = None
        self._sealed = [segment for segment in self._sealed if not segment.retired]
        last = self._segments[-1] if self._segments else None
        if last is not None and not (last.empty or isinstance(last.index, FileIndex) or last in self._sealed):
            self._sealed.append(last)
        self._enqueue_for_indexes()

    async def seal(self, segment: Segment) -> None:
        """When this returns nothing is written to the files of this segment, until `put_back`."""
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
        self._segments.replace(segment, fresh)
        if fresh is not segment:
            self._unsynced = [each for each in self._unsynced if each is not segment]
        if not isinstance(fresh.index, FileIndex):
            self._sealed.append(fresh)
            self._enqueue_for_indexes()
        self._segments.waiters.wake()

    def forget_unsynced(self) -> None:
        """Everything promised was synced by another write (`Truncation`)."""
        self._unsynced = []

    def begin_at(self, start: int) -> None:
        """All files were removed: the log begins and ends there."""
        segments = self._segments
        assert not segments, "a log begins again with nothing"
        segments.end = segments.promised_end = segments.visible_end = start
        self._start_fresh()
        self._note_last_record()

    def truncated(self, end: int) -> None:
        """The files were truncated, here or before: the next append goes to a new file."""
        self._start_fresh()
        segments = self._segments
        segments.end = segments.promised_end = min(segments.end, end)
        segments.visible_end = min(segments.visible_end, segments.end)
        self._note_last_record()
