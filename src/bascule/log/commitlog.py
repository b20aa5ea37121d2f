"""A partition's log on one broker: segments, appended at the end, promised once they are on the disk.

Three parts: the segments in order and how far they go (`segments`), the append pipeline (`appender`), and truncation.
This file joins them, and opens, closes and deletes a log, and opens it again after a failure. The order of the
positions is in `segments`.

A partition has no files, and no folder, before its first record.
"""

from bascule.errors import LogError
from bascule.log.appender import Appender, LogConfig, LogOwner
from bascule.log.compaction import Compacted, Compaction, Order
from bascule.log.endrecord import EndRecord
from bascule.log.expiry import Expiry
from bascule.log.failures import storage_error
from bascule.log.healing import OnDamage
from bascule.log.merging import Merging
from bascule.log.presence import Presence
from bascule.log.promised import PromisedEnds
from bascule.log.quarantine import Quarantine
from bascule.log.reader import Reader, ReverseReader
from bascule.log.recovery import recover, sync_parents
from bascule.log.removal import remove_folder
from bascule.log.segment import Segment
from bascule.log.segments import SegmentList
from bascule.log.swap import Swap
from bascule.log.sync import SyncScheduler
from bascule.log.tail import CleanEnd, Tail
from bascule.log.timestamps import end_before, offset_at_or_after, offset_at_or_before
from bascule.log.truncation import Truncation
from bascule.log.waiters import Waiters
from bascule.ports import Clock, Disk, Write


class CommitLog:
    def __init__(
        self,
        disk: Disk,
        scheduler: SyncScheduler,
        folder: str,
        config: LogConfig,
        clock: Clock,
        owner: LogOwner,
        replicated: bool = False,
        ends: PromisedEnds | None = None,
        on_damage: OnDamage | None = None,
        new: bool = False,
    ) -> None:
        """Nothing is in it before `open`. Damage of a `replicated` log stays where it is, to be refilled; `on_damage`,
        if there is one, is asked to. What the log promises is put on record in `ends`. A `new` one did not exist before
        this start of the broker."""
        self.record = EndRecord(None, folder) if ends is None else ends.record(folder)
        self.record.new = self.record.new or new
        """What is stored about the end of this log."""
        self.quarantine = Quarantine(disk, clock)
        self.segments = SegmentList(disk, folder, on_damage, self._store_index)
        self.appender = Appender(self, owner, self.segments, scheduler, self.record, config, clock)
        self.presence = Presence(self.segments, self.appender)
        self.committed_end = 0
        """Offsets below were committed or exposed, here or elsewhere, and are not given to other records. It may be
        past the end of a replica that lags, or has lost records."""
        self.begins_anew = False
        """It had begun to, and failed."""
        self._expiry = Expiry(self.segments, self.appender)
        self._swap = swap = Swap(self.segments, self.appender)
        self._merging = Merging(self.segments, self.appender, swap)
        self.compaction = Compaction(self.segments, self.appender, swap)
        self._truncation = Truncation(self.segments, self.appender, self.record, self.quarantine, swap)
        self._scheduler = scheduler
        self._clock = clock
        self._owner = owner
        self._replicated = replicated

    async def open(self) -> None:
        """Recover the folder: what is found counts as promised, for it is synced when this returns. Raises LogError."""
        disk, folder = self.segments.disk, self.folder
        try:
            segments, start, self.segments.lost_end = await recover(
                disk, self._clock, folder, self._replicated, self.record, self._scheduler.mode.relaxed
            )
            for segment in segments:
                segment.belongs_to(disk)
            await sync_parents(disk, folder, segments, self._scheduler.synced_folders)
        except OSError as error:
            raise LogError(f"{folder}: cannot be recovered: {error}; it is tried again; check the disk") from error
        self.committed_end = self.record.exposed
        self.appender.adopt(segments, start)
        self.record.taken_by(self)

    def _store_index(self, segment: Segment) -> None:
        self.appender.store_index(segment)

    # --- what is in it ------------------------------------------------------------------------------------

    @property
    def folder(self) -> str:
        return self.segments.folder

    @property
    def start(self) -> int:
        """The oldest record's offset, or where it should be if it cannot be read; `end` if there is none."""
        return self.segments.start

    @property
    def visible_end(self) -> int:
        """Consumers may see everything below."""
        return self.segments.visible_end

    @property
    def promised_end(self) -> int:
        return self.segments.promised_end

    @property
    def end(self) -> int:
        return self.segments.end

    @property
    def first_timestamp(self) -> int:
        """Of the oldest record that can be read; 0 if there is none."""
        return next((segment.first_timestamp for segment in self.segments if not segment.empty), 0)

    @property
    def last_timestamp(self) -> int:
        return self.appender.last_timestamp

    @property
    def last_epoch(self) -> int:
        return self.appender.last_epoch

    @property
    def tail(self) -> Tail:
        """What this start found out about the end of the log; SURE again once the log is verified."""
        return self.record.tail

    @property
    def failed(self) -> LogError | None:
        """Why it takes no writes."""
        return self.appender.failed

    @property
    def lost_end(self) -> int:
        """Records below were lost from this log before it was opened, if it was the only one; 0 if none was. Damage
        that is met later is not in it."""
        return self.segments.lost_end

    @property
    def damaged(self) -> dict[Segment, None]:
        """Segments that are known to lack records which another replica may have."""
        return self.segments.damaged

    @property
    def waiters(self) -> Waiters:
        return self.segments.waiters

    def set_visible_end(self, hw_end: int) -> None:
        """Consumers may see everything below `hw_end`. It never goes down."""
        if hw_end > self.segments.visible_end:
            self.segments.visible_end = hw_end
            self.set_committed_end(hw_end)
            self.segments.waiters.wake()

    def set_committed_end(self, hw_end: int) -> None:
        """The leader reports that everything below is committed, whether it is here or not."""
        if hw_end > self.committed_end:
            self.committed_end = hw_end
            self.record.changed()

    # --- writing ------------------------------------------------------------------------------------------

    def append(self, records: bytes, count: int, next_offset: int, last_timestamp: int) -> None:
        """Queue whole records, with offsets from `end` on, the last of which is `next_offset - 1`. LogError if they are
        not taken: the log has failed then, and its owner has been told."""
        self.appender.append(records, count, next_offset, last_timestamp)

    def take(self) -> list[Write]:
        return self.appender.take()

    def finish(self, errors: list[OSError | None]) -> None:
        self.appender.finish(errors)

    def take_unsynced(self) -> list[Write]:
        return self.appender.take_unsynced()

    def finish_synced(self, errors: list[OSError | None]) -> None:
        self.appender.finish_synced(errors)

    def fail(self, error: AssertionError) -> None:
        """Something does not hold that must: no writes until another start."""
        if not self.appender.broken:
            self.appender.fail(error)
            self._owner.assertion_failed(error)

    async def flushed(self) -> None:
        """Wait until nothing of this log waits for the disk or is on its way there."""
        await self.appender.flushed()

    def lose(self, path: str) -> None:
        """A file or folder of this log, or a folder above it, was removed or replaced."""
        self.appender.lose(path)

    async def truncate(self, end: int, exposed_too: bool = False) -> None:
        """Move every record from offset `end` on to quarantine: the leader's log does not have them. Records that
        consumers saw are truncated only if an administrator has accepted their loss."""
        self._check_not_broken()
        if end < self.visible_end and not exposed_too:
            raise ValueError(f"{self.folder}: consumers saw records up to {self.visible_end}; not truncated to {end}")
        async with self.segments.changing:
            self.compaction.changes += 1
            if end < self.visible_end or exposed_too:
                await self.compaction.forget()
            await self._truncation.run(end)

    async def begin_anew(self) -> None:
        """Move every record to quarantine: compaction has removed some that only records which another log does not
        have supersede, or has not removed some whose tombstones are gone elsewhere. The log begins and ends at its
        start then. If this fails, or is interrupted, the records that are left must not be kept: it is tried again
        (`begins_anew`), also by the next start."""
        self._check_not_broken()
        self.begins_anew = True
        async with self.segments.changing:
            await self.flushed()
            self.compaction.changes += 1
            await self.compaction.forget()
            if self.segments.has_folder:
                await self._truncation.everything()
            await self._expiry.begin_at(self.segments.floor, self.record)
            await self._truncation.everything_is_removed()
        self.begins_anew = False

    # --- its start ----------------------------------------------------------------------------------------

    def raise_start(self, start: int) -> None:
        """Records below have expired: from now on nobody is served them. `expire` removes them."""
        assert start <= self.end, f"{self.folder}: begins at {start}, but ends at {self.end}"
        self.segments.floor = max(self.segments.floor, start)

    @property
    def expires(self) -> bool:
        """Whether there are segments whose records have all expired, or files of segments that are no more."""
        return self._expiry.is_due() or bool(self._swap.left)

    async def expire(self, start: int | None = None) -> None:
        """Remove the segments whose records have all expired, below `start` if that is given. Raises LogError."""
        try:
            async with self.segments.changing:
                await self._swap.remove_left()  # they may be in the place of what goes now
                await self._expiry.remove(start)
        except OSError as error:
            raise storage_error(self.folder, error) from error

    async def begin_at(self, start: int) -> None:
        """Everything in it has expired: begin again there, with nothing. Raises LogError."""
        try:
            async with self.segments.changing:
                await self.flushed()
                await self.compaction.forget()
                await self._expiry.begin_at(start, self.record)
        except OSError as error:
            raise storage_error(self.folder, error) from error

    # --- small segments -----------------------------------------------------------------------------------

    def mergeable(self) -> list[bool]:
        """Of each segment, whether it may be merged with those beside it that may be, too."""
        return self._merging.mergeable()

    async def merge(self, base: int, end: int) -> int:
        """Merge the segments that have these offsets into one; how many, 0 if that is not possible now. Raises
        LogError."""
        try:
            async with self.segments.changing:
                return 0 if self.compaction.running else await self._merging.run(base, end)
        except OSError as error:
            raise LogError(
                f"{self.folder}: small segments are not merged: {error.strerror or error}; check the disk"
            ) from error

    # --- compaction ---------------------------------------------------------------------------------------

    async def compact(self, order: Order) -> Compacted:
        """One pass over it: of each key only the newest record stays. Raises LogError."""
        try:
            return await self.compaction.run(order)
        except OSError as error:
            raise LogError(f"{self.folder}: not compacted: {error.strerror or error}; check the disk") from error

    # --- close, delete, reopen ----------------------------------------------------------------------------

    async def close(self) -> None:
        """Store what was appended, then refuse more. Readers wake up and learn that it is closed."""
        self.waiters.end("closed")
        await self.flushed()
        try:
            if writes := self.take_unsynced():
                self.finish_synced(await self.segments.disk.commit(writes, sync=True))
                await self.flushed()
        except AssertionError as error:
            self.fail(error)
        self._scheduler.leave(self)

    def clean_end(self) -> CleanEnd | None:
        """Where it ends, now that it is closed; None if its tail is not SURE."""
        if self.failed is not None or (self._replicated and not self.record.sure):
            return None
        # A segment without a record has no file yet: the next start finds the one before it.
        last = next((segment for segment in reversed(self.segments) if segment.exists), None)
        if last is None:  # a folder that is gone looks the same
            return CleanEnd(self.promised_end, self.last_epoch, self.promised_end, 0, 0)
        mark = last.promised
        return CleanEnd(self.promised_end, mark.last_epoch, last.base, mark.size, mark.last_crc)

    async def delete(self) -> None:
        """Remove the folder, durably. Readers wake up and learn that it is deleted."""
        self.waiters.end("deleted")
        async with self.segments.changing:
            self.appender.discard()
            await self.flushed()
            self._scheduler.leave(self)
            self.segments.drop_all()
            await self.record.forget()
            await remove_folder(self.segments.disk, self.folder)

    async def reopen(self, heals: bool = False) -> None:
        """After a failure: move records that were not promised to quarantine, and go on in a new file. Raises
        LogError, also if files are gone, unless it `heals`: other replicas have their records."""
        if self.failed is None:
            return
        self._check_not_broken()
        await self.flushed()
        try:
            async with self.segments.changing:
                await self.presence.find_again(heals)
                await self.record.forget_above(self.promised_end)
                await self._truncation.drop_unpromised()
        except OSError as error:
            raise storage_error(self.folder, error) from error
        self.appender.resume()

    def _check_not_broken(self) -> None:
        if self.appender.broken:
            raise LogError(str(self.failed))

    # --- reading ------------------------------------------------------------------------------------------

    def reader(self, start: int, uncommitted: bool = False, heals: bool = True) -> Reader:
        return Reader(self.segments, start, uncommitted, heals)

    def reverse_reader(self, start: int, oldest: int = 0) -> ReverseReader:
        return ReverseReader(self.segments, start, oldest)

    async def offset_at_or_after(self, timestamp: int) -> int:
        """The first record written at that time or later; `end` if there is none. Waits for damage to be healed that
        may have held it, and raises Unavailable if that takes too long."""
        return await offset_at_or_after(self.segments, timestamp)

    async def offset_at_or_before(self, timestamp: int) -> int | None:
        """The last record written at that time or earlier; None if there is none. Waits as the other does."""
        return await offset_at_or_before(self.segments, timestamp)

    async def end_before(self, timestamp: int) -> int:
        """The offset after the last record that is known to be earlier; does not wait for damage to be healed."""
        return await end_before(self.segments, timestamp)
