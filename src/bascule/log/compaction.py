"""Compaction: of each key only the newest record stays.

Theory of operation: a pass reads the log from where the last one came to up to the high watermark, and notes the
newest offset of each key, as far as the map of keys has room. Then it reads the segments from the start of the log on,
and those that have something to lose are copied without it. The copy of one segment, or of several adjacent ones that
are small by then, takes their place (`swap`), with a manifest that makes its holes legal. What does not fit into the
map is done by the next pass.

Only whole segments that take no more records are compacted: their records are synced, below the high watermark and
below what their owner bounds (holds, the minimum lag). From the first on that is not so, or is damaged, everything
stays as it is. So does the segment that has the last record of the log, for its end must not depend on a manifest.

A tombstone goes in a later pass than the records that it deletes, so that whoever has read one of these has time to
read the tombstone too: when the records before it have been gone for as long as the owner wants, a pass from the start
of the log on takes it, if its map has it as the newest of its key, and it meets no older record of that key. Whatever
brought one back, it goes first, and each swap is durable before the next one. Where others have a log of the same
records it goes only below an end that all of these are cleared to: of every tombstone below no older record of its key
is left in any of them. How far this one is cleared is stored after the swaps that make it true, and never lowered but
by `begin_again`.

Under relaxed sync the records whose keys were noted are synced before an older one goes: otherwise a power loss could
take the one that stays.

How far the log is compacted is stored. That is no more than a place to go on from: without it the next pass begins at
the start of the log.

What is read is verified. If a segment turns out to be damaged the pass ends there, and repair has its turn.

Meanwhile the front of the log may expire: a pass goes on without it. Small segments are not merged during a pass, which
would find them replaced.
"""

import asyncio
import itertools
import logging
import struct
from collections.abc import Callable, Coroutine
from functools import partial
from typing import NamedTuple

from bascule import limits
from bascule.log.appender import Appender
from bascule.log.checkpoint import read_checkpoint, write_checkpoint
from bascule.log.chunk import Chunk, read_chunk
from bascule.log.filecopy import TEMPORARY_SUFFIX, Copy
from bascule.log.manifest import FileChecksum, Manifest
from bascule.log.merging import is_whole
from bascule.log.recovery import COMPACTION_FILE
from bascule.log.scan import Scan, scan_segment
from bascule.log.segment import Segment
from bascule.log.segments import SegmentList
from bascule.log.swap import Swap
from bascule.ports import Disk
from bascule.wire import kernels
from bascule.wire.kernels import KeyMap

_FORMAT = struct.Struct("<qqqqqqq")
NO_TOMBSTONES = -1
NO_END = (1 << 63) - 1
_log = logging.getLogger("bascule.log")


class Progress(NamedTuple):
    """How far a log is compacted."""

    clean_end: int = 0
    """The next pass notes the keys from here on."""
    alone_until: int = NO_TOMBSTONES
    """There are tombstones, and the records before those that were written until then were gone at `alone_at`; -1:
    there are none."""
    alone_at: int = 0
    cleared_end: int = 0
    """Of every tombstone below no older record of its key is in this log, but for the last records of leader epochs."""
    epoch: int = 0
    """What `cleared_end` means to others holds since this command (`core.metadata.tombstones`)."""
    alone_end: int = 0
    """At `alone_at` the records before the tombstones below were gone in the logs of all replicas; 0: that is not
    known."""
    gone_end: int = 0
    """Tombstones below are gone, or stay for a record that always stays."""


class Protected(NamedTuple):
    """Offsets of records that stay, whatever their keys: ascending i64, little-endian."""

    producers: bytes = b""
    """For a while."""
    epoch_ends: bytes = b""
    """In the logs of all replicas, for good."""


class Order(NamedTuple):
    """What one pass may do, as the owner of the log decides."""

    bound: Callable[[], int]
    """Nothing at or above is touched; it is asked again before each swap."""
    until: int
    """Segments whose last record is younger stay."""
    protected: Callable[[], Protected | None]
    """Of the records that may be compacted at that moment; None if that is not known yet."""
    tombstones_until: int
    """Tombstones that are younger stay."""
    tombstones_end: int
    """And so do those that are not below."""
    tombstones_go: Callable[[], bool]
    """Whether they may still go; it is asked again before each swap."""
    now: int
    notes_tombstones: bool
    """Those that stay wait from now on, instead of those that waited before."""
    noted_end: int
    """Below, they wait in the logs of all replicas (`Progress.alone_end`)."""
    joins: Callable[[list[Segment], Segment, int, int, int], bool]
    """Whether one file may have what is left of these segments and of that one, so many bytes altogether, so many
    records of them and so many of that one."""
    from_start: bool
    """The keys are noted from the start of the log on."""
    secret: bytes
    map_bytes: int


class Compacted(NamedTuple):
    """What a pass did."""

    segments: int = 0
    """Old ones, which are gone."""
    records: int = 0
    nbytes: int = 0
    tombstones: int = 0
    keys: int = 0
    ended: bool = False
    """Everything that may be compacted now is."""
    too_early: bool = False
    """It is not known yet what is protected: nothing was done."""


class _Slice(NamedTuple):
    """A part of a segment, without what goes."""

    position: int
    nbytes: int
    records: bytes
    staying: int
    removed: int
    tombstones: int
    waiting: int
    held: int
    """The first tombstone that the log is not cleared to; -1: none."""


class _Unreadable(Exception):
    pass


class Compaction:
    def __init__(self, segments: SegmentList, appender: Appender, swap: Swap) -> None:
        self._segments = segments
        self._appender = appender
        self._swap = swap
        self.progress: Progress | None = None
        """None before it was read."""
        self.running = False
        """A pass is under way: nothing else takes the place of segments, but for repair and truncation."""
        self.left_bytes = 0
        """Of the pass under way: what is still to be read."""
        self.changes = 0
        """Truncations, repairs and the like, of the log. A pass ends with the next one: it knows keys of records that
        are gone, and could remove older ones; or it does not know of older ones that have come back."""

    # --- what may be compacted ---------------------------------------------------------------------------------

    def compactable(self, bound: int, until: int) -> list[Segment]:
        """The segments from the first one on that may be compacted."""
        segments = self._segments
        newest = next((each for each in reversed(segments) if each.exists), None)
        last = next((each for each in reversed(segments) if not each.empty), None)
        bound = min(bound, segments.visible_end, segments.promised_end)
        found: list[Segment] = []
        for segment, following in itertools.pairwise(segments):
            if (
                segment is newest
                or segment is last
                or following.base != segment.appended.end
                or segment.appended.end > bound
                or segment.appended.last_timestamp > until
                or not is_whole(segment)
            ):
                break
            found.append(segment)
        return found

    # --- how far it is compacted -------------------------------------------------------------------------------

    async def load(self) -> Progress:
        if self.progress is None:
            segments = self._segments
            path = f"{segments.folder}/{COMPACTION_FILE}"
            data = await segments.disk.together(lambda here: read_checkpoint(here, path))
            progress = Progress(*_FORMAT.unpack(data)) if data is not None and len(data) == _FORMAT.size else Progress()
            if self.progress is None:
                self.progress = progress if progress.clean_end <= segments.promised_end else Progress()
        return self.progress

    async def _store(self, progress: Progress) -> None:
        segments = self._segments
        assert segments.changing.locked(), "records could come back meanwhile"
        await write_checkpoint(
            segments.disk, f"{segments.folder}/{COMPACTION_FILE}", _FORMAT.pack(*progress), new_folder=False
        )
        self.progress = progress

    async def begin_again(self, cleared_end: int, epoch: int) -> None:
        """The next pass notes all keys. Of tombstones nothing is known but how far the log is cleared. Raises
        OSError."""
        async with self._segments.changing:
            self.changes += 1  # a pass under way ends, and does not store how far it came
            await self._store(Progress(cleared_end=cleared_end, epoch=epoch))

    async def tombstones_wait(self, end: int, now: int) -> None:
        """From now on those below, in the logs of all replicas. Raises OSError."""
        async with self._segments.changing:
            if self.progress is not None:
                await self._store(self.progress._replace(alone_end=end, alone_at=now))

    async def forget(self) -> None:
        """Records may have come back, or the log begins again. Durable on return. Raises OSError."""
        segments = self._segments
        assert segments.changing.locked(), "a pass could store how far it came"
        self.progress = Progress()
        for name in await segments.disk.list(segments.folder):  # an empty log may have this file and no other
            if name.startswith(COMPACTION_FILE):
                await segments.disk.remove(f"{segments.folder}/{name}")

    # --- a pass ------------------------------------------------------------------------------------------------

    async def run(self, order: Order) -> Compacted:
        """One pass. Raises OSError: nothing is lost then."""
        assert not self.running, "two passes would replace the same segments"
        self.running = True
        try:
            async with self._segments.changing:
                pass  # a merge that has begun is over
            return await self._run(order, await self.load())
        finally:
            self.running = False
            self.left_bytes = 0

    async def _run(self, order: Order, progress: Progress) -> Compacted:
        segments = self._segments
        changes = self.changes
        protected = order.protected()  # of what is visible now, and what may be compacted is no more than that
        if protected is None:
            return Compacted(too_early=True)
        old = self.compactable(order.bound(), order.until)
        if not old or self._appender.failed is not None:
            return Compacted(ended=True)
        self.left_bytes = sum(each.appended.size for each in old)
        ends = [(each.appended.end, each.appended.last_timestamp) for each in old]
        try:
            start = 0 if order.from_start else progress.clean_end
            keys, mapped_end = await self._map(order, start)
            async with segments.changing:
                await self._appender.sync_promised(start, mapped_end)
            pass_ = _Pass(segments, self._appender, self._swap, order, keys, protected, lambda: self.changes == changes)
            whole = await pass_.run(old, self._passed)
            done = pass_.done._replace(keys=len(keys), ended=mapped_end >= old[-1].appended.end)
            if not whole:
                return done._replace(ended=True)  # until the next round
            end = min(mapped_end, old[-1].appended.end)
            until = max((timestamp for at, timestamp in ends if at <= end), default=NO_TOMBSTONES)
            reached = progress._replace(clean_end=end, cleared_end=_cleared_end(progress, start, end, pass_.held))
            if order.notes_tombstones and pass_.waiting:
                reached = reached._replace(alone_until=until, alone_at=order.now, alone_end=order.noted_end)
            elif order.from_start:
                reached = reached._replace(alone_until=NO_TOMBSTONES, alone_at=0, alone_end=0)
            if done.ended and NO_END > order.tombstones_end > reached.gone_end:
                reached = reached._replace(gone_end=order.tombstones_end)
            async with segments.changing:
                if self.changes == changes and reached != progress:
                    await self._store(reached)
            return done
        except OSError:
            if self.changes == changes:
                raise
            return Compacted(ended=True)  # a file that it was reading is gone
        except _Unreadable as error:
            _log.warning("%s: %s; the log is compacted up to there", segments.folder, error)
            return Compacted(ended=True)

    def _passed(self, nbytes: int) -> None:
        self.left_bytes -= nbytes

    async def _map(self, order: Order, start: int) -> tuple[KeyMap, int]:
        """The newest records of keys from this offset on, and up to which offset it knows them all."""
        segments = self._segments
        end = min(segments.visible_end, segments.promised_end)
        first = segments.at(start)
        reads = [] if first is None else [each for each in segments if first.base <= each.base < end]
        most = sum(max(min(each.appended.end, end) - each.base, 0) for each in reads) + 1
        keys = KeyMap(order.secret, min(order.map_bytes, 2 * most * limits.KEY_SLOT_BYTES))
        for segment in reads:
            position, size = 0, segment.promised.size
            while position < size:
                began = position
                work = partial(
                    _add_keys, segment=segment, position=position, size=size, keys=keys, start=start, end=end
                )
                began_s = _clock_s()
                try:
                    position, full_at = await segments.disk.together(work)
                except (_Unreadable, OSError):
                    if not _is_expired(segments, segment):
                        raise
                    break
                await _rest(position - began, began_s)
                if full_at is not None:
                    return keys, full_at
        return keys, end


def _cleared_end(progress: Progress, start: int, end: int, held: int) -> int:
    """After a pass that knows the keys from `start` to `end`, and has removed what they supersede. What an earlier one
    left, because something held it, this one has removed only if it knows all keys."""
    if start > 0 and progress.cleared_end < progress.clean_end:
        return progress.cleared_end
    return max(progress.cleared_end, end if held < 0 else min(end, held))


def _is_expired(segments: SegmentList, segment: Segment) -> bool:
    """Its file may be gone. Whatever its keys are, older records of them are gone, too."""
    return segment.appended.end <= segments.floor


def _clock_s() -> float:
    return asyncio.get_running_loop().time()


async def _rest(nbytes: int, began_s: float) -> None:
    """After a slice. On a machine that has no time for it a slice takes long: then half of the time is left to others,
    and it takes longer still."""
    await asyncio.sleep(max(nbytes / limits.COMPACT_BYTES_A_SECOND, _clock_s() - began_s))


async def _add_keys(
    disk: Disk, segment: Segment, position: int, size: int, keys: KeyMap, start: int, end: int
) -> tuple[int, int | None]:
    """In a thread: the next slice, without offsets below `start`. Where it ends, and the offset from which on the map
    has no room, or `end`."""
    began = position
    while position < size and position - began < limits.COMPACT_SLICE_BYTES:
        chunk = await _read(disk, segment, position, size)
        position = chunk.end
        wanted = chunk.since(start)
        if wanted is not None:
            data = wanted.data
            at = keys.add(data, 0, len(data), end)
            if at < len(data):
                return wanted.position + at, kernels.seek_record(data, at, len(data), 0, 0)[1]
    return position, None


async def _read(disk: Disk, segment: Segment, position: int, size: int) -> Chunk:
    async def read(position: int, length: int, fresh: bool = False) -> bytes:
        return await disk.read(segment.path, position, length, fresh)

    chunk = await read_chunk(read, position, limits.COMPACT_READ_BYTES, size, segment.base, {})
    if segment.retired or chunk is None or chunk.position != position:
        raise _Unreadable(f"{segment.path} is damaged at position {position}, or was replaced")
    return chunk


class _Pass:
    """Over the segments, with a map of keys."""

    def __init__(
        self,
        segments: SegmentList,
        appender: Appender,
        swap: Swap,
        order: Order,
        keys: KeyMap,
        protected: Protected,
        counts: Callable[[], bool],
    ) -> None:
        """`counts`: whether the log has all records whose keys are known."""
        self._segments = segments
        self._appender = appender
        self._swap = swap
        self._order = order
        self._keys = keys
        self._protected = protected
        self._counts = counts
        self.done = Compacted()
        self.waiting = 0
        """Tombstones that stay, as the newest of their keys."""
        self.held = -1
        """The first tombstone of a key of which an older record stays, for a while; -1: none."""

    async def run(self, old: list[Segment], passed: Callable[[int], None]) -> bool:
        """Whether all of them are as they should be now."""
        group: list[Segment] = []
        left = count = 0
        worth = False
        for segment in old:
            try:
                staying_bytes, staying, gone = await self._look(segment)
            except (_Unreadable, OSError):
                if not _is_expired(self._segments, segment):
                    raise
                passed(segment.appended.size)
                continue
            if group and not (
                group[0].base >= self._segments.floor
                and self._order.joins(group, segment, left + staying_bytes, count, staying)
            ):
                if worth and not await self._rewrite_left(group):
                    return False
                group, left, count, worth = [], 0, 0, False
            group.append(segment)
            left += staying_bytes
            count += staying
            # A file without a record is worth it as soon as it has a neighbour: there may be one for each segment ever.
            worth = worth or gone > 0 or (len(group) > 1 and any(each.empty for each in group[-2:]))
            passed(segment.appended.size)
        return not worth or await self._rewrite_left(group)

    async def _look(self, segment: Segment) -> tuple[int, int, int]:
        """How many bytes and records of it stay, and how many records go."""
        position = left = staying = gone = 0
        while position < segment.appended.size:
            part = await self._slice(segment, position)
            position = part.position
            left += part.nbytes
            staying += part.staying
            gone += part.removed
            self.waiting += part.waiting
            if self.held < 0:
                self.held = part.held
        return left, staying, gone

    async def _slice(self, segment: Segment, position: int) -> _Slice:
        began_s = _clock_s()
        part = await self._segments.disk.together(
            _filtered(segment, position, self._keys, self._protected, self._order)
        )
        await _rest(part.position - position, began_s)
        return part

    async def _rewrite_left(self, group: list[Segment]) -> bool:
        """Those that have not expired by then, and none of these is passed over: a tombstone may go after that."""
        while left := [each for each in group if not _is_expired(self._segments, each)]:
            try:
                done = await self._rewrite(left)
            except (_Unreadable, OSError):
                if not any(_is_expired(self._segments, each) for each in left):
                    raise
            else:
                if done or not any(_is_expired(self._segments, each) for each in left):
                    return done
            group = left
        return True

    async def _rewrite(self, old: list[Segment]) -> bool:
        segments = self._segments
        size = sum(each.appended.size for each in old)
        room = await segments.disk.room()
        if room is not None and room < size + limits.COMPACT_FREE_BYTES:
            _log.warning("%s: not compacted: only %d bytes are free on the disk", segments.folder, room)
            return False
        copy = Copy(segments.disk, old[0].path, ".compacted" + TEMPORARY_SUFFIX)
        fresh: Segment | None = None
        try:
            await copy.begin()
            tombstones = await self._copy(old, copy)
            await copy.sync()
            scan = await self._scan(copy, old[0].base)
            async with segments.changing:
                if scan.bad or not await self._may_swap(old) or (tombstones and not self._order.tombstones_go()):
                    await copy.give_up()
                    return False
                checksum = await self._checksum(copy)
                manifest = Manifest(old[0].base, old[-1].appended.end, scan.count, copy.size, checksum)
                fresh = scan.segment(segments.disk, segments.folder)
                fresh.has_holes(manifest.end, manifest.records)
                records = sum(each.records for each in old) - scan.count
                await self._swap.run(old, fresh, copy, manifest)
        except BaseException:
            if fresh is None or fresh not in segments:
                await copy.give_up()
            raise
        done = self.done
        self.done = done._replace(
            segments=done.segments + len(old),
            records=done.records + records,
            nbytes=done.nbytes + size - copy.size,
            tombstones=done.tombstones + tombstones,
        )
        _log.info(
            "%s: offsets %d to %d are compacted: removed %d records, %d bytes instead of %d",
            segments.folder,
            manifest.base,
            manifest.end - 1,
            records,
            copy.size,
            size,
        )
        return True

    async def _copy(self, old: list[Segment], copy: Copy) -> int:
        """What stays of them; how many tombstones do not."""
        tombstones = unsynced = 0
        for segment in old:
            position = 0
            while position < segment.appended.size:
                part = await self._slice(segment, position)
                position = part.position
                tombstones += part.tombstones
                if part.records:
                    await copy.add(part.records)
                unsynced += len(part.records)
                if unsynced >= limits.COMPACT_SYNC_BYTES:
                    await copy.sync()
                    unsynced = 0
        return tombstones

    async def _may_swap(self, old: list[Segment]) -> bool:
        await self._swap.remove_left()
        bound = min(self._order.bound(), self._segments.visible_end)
        return (
            self._appender.failed is None
            and self._counts()
            and self._segments.waiters.ended is None
            and old[-1].appended.end <= bound
            and all(is_whole(each) and not each.retired for each in old)
        )

    async def _scan(self, copy: Copy, base: int) -> Scan:
        """In small pieces: large ones stay with the allocator, once for each thread."""

        async def work(here: Disk) -> Scan:
            return await scan_segment(here, copy.path, base, copy.size, read_bytes=limits.COMPACT_READ_BYTES)

        began_s = _clock_s()
        scan = await self._segments.disk.together(work)
        await _rest(0, began_s)
        return scan

    async def _checksum(self, copy: Copy) -> int:
        async def work(here: Disk) -> int:
            checksum = FileChecksum()
            for position in range(0, copy.size, limits.COMPACT_READ_BYTES):
                length = min(limits.COMPACT_READ_BYTES, copy.size - position)
                checksum.add(await here.read(copy.path, position, length))
            return checksum.value

        return await self._segments.disk.together(work)


def _filtered(
    segment: Segment, position: int, keys: KeyMap, protected: Protected, order: Order
) -> Callable[[Disk], Coroutine[object, object, _Slice]]:
    """In a thread: the next slice."""
    until, end = order.tombstones_until, order.tombstones_end

    async def work(here: Disk) -> _Slice:
        at, size = position, segment.appended.size
        pieces: list[bytes] = []
        remaining = removed = tombstones = waiting = 0
        held = -1
        while at < size and at - position < limits.COMPACT_SLICE_BYTES:
            chunk = await _read(here, segment, at, size)
            data = chunk.data
            left, stay, superseded, dead, staying = keys.compact(
                data, 0, len(data), protected.producers, until, end, protected.epoch_ends
            )
            held = keys.held if held < 0 else held
            pieces.append(left)
            remaining += stay
            removed += superseded + dead
            tombstones += dead
            waiting += staying
            at = chunk.end
        records = b"".join(pieces)
        return _Slice(at, len(records), records, remaining, removed, tombstones, waiting, held)

    return work
