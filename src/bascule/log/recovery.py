"""Recovery: the folder of a partition after a stop of any kind, with torn and damaged records handled.

Theory of operation: only the last segment was being written, so only it is scanned; a sealed one is scanned
if its index is missing or has another size than the file. A bad stretch with no valid record after it is a torn tail,
the rest of a write that was never promised, unless there is evidence that it was: it is truncated. With a valid record
after it, it is damage: the stretch is left out of a new copy of the segment, which takes the old one's place. Both go
to quarantine first unless they are all zero. The offsets of a damaged stretch are a hole that this replica alone never
fills: later offsets are in use, and readers skip it.

Evidence is on record (`promised`, `cleanshutdown`) or in the folder: an index of more records than its segment has, an
index without its segment, the file of epochs of a log without segments, the end in the file `start`. A log that ends
before that is SHORT. If it is the only replica its next segment begins after the missing offsets, so that these are
never given to other records. Before evidence is removed from the folder it is put on record (`Unrecorded`). So is it
that a torn tail is about to be truncated: if this start is interrupted, the next one must not take the log for SURE.

A log that had begun to begin anew when the broker stopped (`ANEW_FILE`) has nothing afterwards.

Where other replicas exist damage stays in place, noted in the segment, until `refill` puts a peer's records there: so
the next start finds it again. A segment that ends before the next one begins lacks records too, and is noted the same
way, with a stretch of no bytes at its end; if the first segment is missing an empty one takes its place. (A segment is
named by the end of the one before it, so a hole between segments is always damage.)

A manifest shows that a swap was interrupted (`swap`): it is finished first, or it never began. A lasting one makes the
holes of its segment legal, if it fits: the size, what the index says or a scan finds. One that does not fit shows
damage; it is removed, and what is missing before the next segment counts as lost, like any other records.

Scanned bytes are read from the device, not from the page cache: after a failed sync the page cache has bytes that the
device does not have and never gets, and these must not count as recovered.

A power loss may keep later sectors of a write that was never promised and lose earlier ones. With a valid record after
the hole that looks like damage; but where nothing says that the missing records were promised, nothing behind them
counts as promised either. Where the hole shows that sectors are missing (`tornwrite`), or what is on record is exact,
for the process alone ended, it is certain that nothing from there on was promised: it is a torn tail, and truncated.

Where that is not certain what follows the hole is kept, for it may have been promised in the last moments
(`EndRecord.torn_from`). If another replica has the missing records they are repaired. If all in-sync and eligible
replicas answer that they lack them, a replica that is to lead truncates its log there first (`node.partition.repair`).

Known to be imperfect: where it is not certain, and one of those is away or there is no other replica, offsets that
nobody was told of name nothing from then on.

The records of an atomic batch say how many it has. One at the end of the log that is not whole, and that nothing says
was promised, is truncated like a torn tail: such a batch is there whole or not at all.

Afterwards every segment is valid records back to back, every sealed one has an index, and all of it is
synced. A clean log costs a list, a footer per sealed segment, and one pass of a kernel over the last segment.
"""

import itertools
import logging
import re

from bascule.log.chunk import read_chunk
from bascule.log.endrecord import EndRecord
from bascule.log.filecopy import TEMPORARY_SUFFIX, commit_one, rewrite
from bascule.log.index import read_footer
from bascule.log.lost import LOST_FILE, read_lost, write_lost
from bascule.log.manifest import (
    LASTING_SUFFIX,
    Manifest,
    is_in_place,
    make_lasting,
    manifest_path,
    read_manifest,
    remove_lasting,
    remove_manifest,
)
from bascule.log.quarantine import Quarantine
from bascule.log.scan import Hole, OpenBatch, Scan, scan_segment
from bascule.log.segment import NAME_DIGITS, Segment, index_path, segment_path
from bascule.log.start import NEW, START_FILE, LogStart, read_start
from bascule.log.tail import Known, Tail, judge
from bascule.log.tornwrite import lacks_sectors
from bascule.ports import Clock, Disk, Write

EPOCHS_FILE = "epochs"
"""Beside the segments: the leader epoch history, which the node writes."""
PRODUCERS_FILE = "producers"
"""The same of its idempotent producers."""
COMPACTION_FILE = "compaction"
"""How far the log is compacted."""
ANEW_FILE = "anew"
"""No record of this log is to be kept: their removal has begun (`CommitLog.begin_anew`)."""
_NAME = re.compile(rf"([0-9]{{{NAME_DIGITS}}})\.(log|index|manifest|compacted)")
_SMALL_FILES = (EPOCHS_FILE, PRODUCERS_FILE, START_FILE, COMPACTION_FILE, LOST_FILE)
_log = logging.getLogger("bascule.log")


class Unrecorded(Exception):
    """Something about the end of the log must be on record before the recovery goes on."""

    def __init__(self, end: int, torn: bool) -> None:
        super().__init__(end, torn)
        self.end = end
        self.torn = torn


async def recover(
    disk: Disk, clock: Clock, folder: str, replicated: bool, record: EndRecord, relaxed: bool
) -> tuple[list[Segment], LogStart, int]:
    """The recovered segments of the folder, where the log begins, and up to where records are lost. What is known about
    their end is in `record.tail` then. `relaxed`: what was promised need not be synced."""
    while True:
        known = record.known()

        async def work(here: Disk, known: Known = known) -> tuple[list[Segment], LogStart, int, Tail, int | None]:
            recovery = Recovery(here, Quarantine(here, clock), folder, replicated, known, relaxed)
            return await recovery.run(), recovery.start, recovery.lost_end, recovery.tail, recovery.torn_from

        try:
            segments, start, lost_end, record.tail, record.torn_from = await disk.together(work)
        except Unrecorded as found:
            await record.found(found.end, found.torn)
            continue
        if replicated and record.tail is Tail.SUSPECT and not record.suspect:
            record.mark_suspect()
        if replicated and record.tail is Tail.LIKELY and not record.stale:
            record.found_stale()
        return segments, start, lost_end


class Recovery:
    """The recovery of one partition's folder."""

    def __init__(
        self, disk: Disk, quarantine: Quarantine, folder: str, replicated: bool, known: Known, relaxed: bool
    ) -> None:
        self._disk = disk
        self._quarantine = quarantine
        self._folder = folder
        self._replicated = replicated
        self._known = known
        self._relaxed = relaxed
        self._unsynced: list[Write] = []
        self._indexes: dict[int, None] = {}
        """Of segments that are there, by their bases."""
        self._lasting: dict[int, None] = {}
        """Manifests of segments with holes, by their bases."""
        self._orphans: list[int] = []
        self._evidence = 0
        """Files of this folder show that there were records up to here."""
        self._anew = False
        self._torn = False
        self._repaired = False
        """The last segment was changed."""
        self._removed = False
        """Segments were removed that had expired, or what is left of a swap."""
        self.start = NEW
        self.lost_end = 0
        self.tail = Tail.SURE
        self.torn_from: int | None = None

    async def run(self) -> list[Segment]:
        """The folder's segments, oldest first; the last one may be empty, and has its index in memory."""
        bases = await self._without_expired(await self._sort_files(await self._disk.list(self._folder)))
        if self._anew:
            bases = await self._without_any(bases)
        segments: list[Segment] = []
        if not bases:
            self._check_recorded(self.start.start)
        for number, base in enumerate(bases):
            limit = bases[number + 1] if number + 1 < len(bases) else None
            segment = await self._recover(base, limit)
            if segment.empty and not segment.holes and limit is not None and not self._replicated:
                await self._remove_empty(segment)
            else:
                segments.append(segment)
        for base in self._orphans:
            await self._disk.remove(index_path(self._folder, base))
        if segments and segments[-1].appended.end < self.start.start:
            segments = await self._without_last(segments)
        if self._replicated and segments and segments[0].base > self.start.start:
            segments.insert(0, await self._make_empty(self.start.start))
        self._judge_end(segments)
        end = max(self._known.promised, self._known.exposed)
        if not self._replicated and end > self._end_of(segments):
            if segments and segments[-1].empty and not segments[-1].holes:
                await self._remove_empty(segments.pop())
            segments.append(await self._make_empty(end))
        self._note_gaps(segments)
        await self._make_durable(segments)
        return segments

    def _end_of(self, segments: list[Segment]) -> int:
        return segments[-1].appended.end if segments else self.start.start

    async def _without_expired(self, bases: list[int]) -> list[int]:
        """Segments below the stored start are the rest of a removal that was interrupted, or that a power loss undid in
        part. The last one is read first: its name does not show where it ends."""
        expired = [base for base, following in itertools.pairwise(bases) if following <= self.start.start]
        for base in expired:
            await self._remove_segment(base)
        return bases[len(expired) :]

    async def _without_any(self, bases: list[int]) -> list[int]:
        """They were being moved to quarantine, all of them, when the broker stopped."""
        for base in reversed(bases):
            path = segment_path(self._folder, base)
            await self._quarantine.keep(path, 0, await self._disk.size(path) or 0)
            await self._remove_segment(base)
        await self._disk.sync_folder(self._folder)
        await self._disk.remove(f"{self._folder}/{ANEW_FILE}")
        self._removed = True
        return []

    async def _remove_segment(self, base: int) -> None:
        if base in self._lasting:
            del self._lasting[base]
            await remove_lasting(self._disk, self._folder, base)
        await self._disk.remove(index_path(self._folder, base))
        await self._disk.remove(segment_path(self._folder, base))
        self._indexes.pop(base, None)

    async def _without_last(self, segments: list[Segment]) -> list[Segment]:
        """The last segment ends below the stored start: the one that was removed last came back, and those after it,
        which had expired too, did not. The log begins and ends at its start."""
        for segment in segments:
            self._unsynced = [write for write in self._unsynced if write.path != segment.path]
            await self._remove_segment(segment.base)
        self._removed = True
        return []

    async def _sort_files(self, names: list[str]) -> list[int]:
        """The bases of the segments; handles all other files."""
        if any(name.startswith(START_FILE) for name in names):
            self.start = await read_start(self._disk, self._folder)
            self._evidence = self.start.end
        if any(name.startswith(LOST_FILE) for name in names):
            self.lost_end = await read_lost(self._disk, self._folder)
        bases: list[int] = []
        manifests: list[int] = []
        epochs = False
        for name in names:
            match = _NAME.fullmatch(name)
            path = f"{self._folder}/{name}"
            if match is not None and match[2] == "log":
                bases.append(int(match[1]))
            elif match is not None and match[2] == "manifest":
                manifests.append(int(match[1]))
            elif match is not None and match[2] == "compacted":
                self._lasting[int(match[1])] = None
            elif match is not None:
                self._indexes[int(match[1])] = None
            elif name.endswith(TEMPORARY_SUFFIX):
                level = logging.DEBUG if name.startswith(_SMALL_FILES) else logging.WARNING
                _log.log(level, "%s: a copy that was not finished; removing it, its source is in place", path)
                await self._disk.remove(path)
            elif name == ANEW_FILE:
                self._anew = True
            elif name.startswith(_SMALL_FILES) and not name.startswith(EPOCHS_FILE):
                continue
            elif not name.startswith(EPOCHS_FILE):
                _log.warning("%s: not a file of this log; leaving it alone", path)
            else:
                epochs = True
        for base in manifests:
            bases = await self._finish_swap(base, bases)
        present = dict.fromkeys(bases)
        for base in [base for base in self._indexes if base not in present]:
            del self._indexes[base]
            await self._take_orphan(base, index_path(self._folder, base))
        for base in [base for base in self._lasting if base not in present]:
            await self._take_orphaned_manifest(base)
        if epochs and not bases:
            self._evidence = max(self._evidence, 1)  # written after the first promise, removed before a truncation
        return bases

    async def _finish_swap(self, base: int, bases: list[int]) -> list[int]:
        """A new file was about to take the place of segments. If it has, what is left of them goes; if it has not, they
        are all there. The bases that are left."""
        manifest = await read_manifest(self._disk, self._folder, base)
        named = {**dict.fromkeys(bases), **self._indexes, **self._lasting}
        old = [each for each in named if manifest and base < each < manifest.end]
        there = manifest is not None and base in bases and (old or manifest.holes)
        if manifest is not None and there and await is_in_place(self._disk, self._folder, manifest):
            for each in sorted(old):
                await self._remove_segment(each)
            await self._disk.remove(index_path(self._folder, base))  # of the file that was there before
            self._indexes.pop(base, None)
            await self._disk.sync_folder(self._folder)
            bases = [each for each in bases if each not in old]
            if manifest.holes:
                await make_lasting(self._disk, self._folder, base)
                self._lasting[base] = None
        await remove_manifest(self._disk, self._folder, base)
        self._removed = True
        return bases

    async def _take_orphan(self, base: int, path: str) -> None:
        """An index is written when its segment is synced, and removed before it."""
        found = await read_footer(self._disk, path)
        end = base + 1 if found is None else found[0].end
        self._orphans.append(base)
        if end <= self.start.start:
            return  # it has expired
        self._evidence = max(self._evidence, end)
        _log.error("%s: an index without its segment, which had the offsets %d to %d", path, base, end - 1)

    async def _take_orphaned_manifest(self, base: int) -> None:
        manifest = await read_manifest(self._disk, self._folder, base, LASTING_SUFFIX)
        del self._lasting[base]
        if manifest is not None and manifest.end > self.start.start:
            _log.error(
                "%s: the segment of offsets %d to %d is missing, its manifest is there",
                segment_path(self._folder, base),
                base,
                manifest.end - 1,
            )
        await remove_lasting(self._disk, self._folder, base)
        self._removed = True

    def _check_recorded(self, end: int) -> None:
        """The log ends there. Evidence of a later end must be on record before it is removed."""
        known = self._known
        suspect = self._torn and self._replicated and not (known.suspect or known.exact) and known.clean is None
        if suspect or end < self._evidence > known.promised:
            raise Unrecorded(self._evidence if end < self._evidence else 0, suspect)

    def _judge_end(self, segments: list[Segment]) -> None:
        known = self._known
        end = self._end_of(segments)
        self.tail = judge(known, end, self._torn)
        if self.tail is Tail.SHORT:
            _log.error(
                "%s: ends at offset %d, but everything below %d was promised: offsets %d to %d %s",
                self._folder,
                end,
                known.promised,
                end,
                known.promised - 1,
                "are missing, and this replica is not in sync until it has caught up with the others"
                if self._replicated
                else "are lost, and are not used again; what was left of them is in the folder quarantine",
            )
        elif known.clean is not None and end == known.clean.end and segments:
            last, clean = segments[-1], known.clean
            mark = last.appended
            crcs = (mark.last_crc, clean.last_crc)
            same = (last.base, mark.last_epoch) == (clean.base, clean.last_epoch)
            same = same and (self._repaired or mark.size == clean.size) and (not all(crcs) or crcs[0] == crcs[1])
            if not same:
                self.tail = Tail.SUSPECT
                _log.error(
                    "%s: not the file that the last clean shutdown left, though it ends at the same offset", last.path
                )

    async def _recover(self, base: int, limit: int | None) -> Segment:
        path = segment_path(self._folder, base)
        manifest = await self._manifest_of(base, limit)
        if limit is not None:
            size = await self._disk.size(path) or 0
            sealed = await self._sealed(base, size, limit)
            if sealed is not None and _fits(manifest, size, sealed.appended.end, None):
                return self._with_holes(sealed, manifest)
        index = index_path(self._folder, base)
        if limit is None and base in self._indexes:
            found = await read_footer(self._disk, index)
            self._evidence = max(self._evidence, found[0].end if found else 0)
        await self._disk.evict(path)
        size = await self._disk.size(path) or 0
        scan = await scan_segment(self._disk, path, base, size, limit)
        if limit is None:
            self._torn = scan.torn_at is not None
            scan = await self._look_for_torn_writes(path, scan)
            scan = await self._without_open_batch(path, scan)
            self._check_recorded(scan.end)
        if base in self._indexes:
            await self._disk.remove(index)
        if not _fits(manifest, scan.size, scan.end, -1 if scan.bad else scan.count):
            await self._refuse_manifest(base)
            manifest = None
        self._repaired = bool(scan.bad)
        if scan.bad:  # an evicted file is synced; a repaired one has changed
            scan = await self._repair(path, scan, limit)
            self._unsynced.append(Write(path, scan.size, []))
        return self._with_holes(scan.segment(self._disk, self._folder), manifest)

    # --- legal holes -----------------------------------------------------------------------------------------

    async def _manifest_of(self, base: int, limit: int | None) -> Manifest | None:
        """None if it has none, or one that does not fit."""
        if base not in self._lasting:
            return None
        manifest = await read_manifest(self._disk, self._folder, base, LASTING_SUFFIX)
        if manifest is None or (limit is not None and manifest.end > limit):
            await self._refuse_manifest(base)
            return None
        return manifest

    async def _refuse_manifest(self, base: int) -> None:
        _log.error(
            "%s: does not fit its segment, which is damaged or another file; it is removed, and offsets that are "
            "missing before the next segment count as lost",
            manifest_path(self._folder, base, LASTING_SUFFIX),
        )
        del self._lasting[base]
        await remove_lasting(self._disk, self._folder, base)
        self._removed = True

    def _with_holes(self, segment: Segment, manifest: Manifest | None) -> Segment:
        if manifest is not None:
            segment.has_holes(manifest.end, manifest.records)
        return segment

    async def _look_for_torn_writes(self, path: str, scan: Scan) -> Scan:
        """Of the last segment, for a segment is written when the one before it is synced."""
        known = self._known
        if not known.complete or known.clean is not None:
            return scan
        holes = scan.holes_from(max(known.promised, known.exposed, self._evidence))
        for hole in holes:
            if await self._is_unsynced(path, hole):
                self._torn = True
                self._check_recorded(hole.offset)
                scan = await self._truncate_torn(path, scan, hole)
                break
        if self._replicated and holes and holes[0].offset < scan.end:
            self.torn_from = await self._begin_of_write(path, scan, holes[0])
        return scan

    async def _begin_of_write(self, path: str, scan: Scan, hole: Hole) -> int:
        """The hole's offset, or that of the atomic batch that it is in: no part of that was promised."""
        batch = (await scan_segment(self._disk, path, scan.base, hole.start)).open_batch
        return hole.offset if batch is None or self._was_promised(batch) else batch.offset

    def _was_promised(self, batch: OpenBatch) -> bool:
        return batch.offset < max(self._known.promised, self._known.exposed, self._evidence)

    async def _without_open_batch(self, path: str, scan: Scan) -> Scan:
        """Of the last segment. An atomic batch at its end that is not whole is the rest of a write that was never
        promised; if it was, its last records are damaged, and the others stay."""
        batch = scan.open_batch
        if batch is None or self._was_promised(batch):
            return scan
        self._torn = True
        self._check_recorded(batch.offset)
        copy = await self._quarantine.keep(path, batch.position, scan.size)
        _log.warning(
            "%s: its last records, from offset %d on, are a part of an atomic batch whose write was interrupted: "
            "truncated there; what was left of it is in %s",
            path,
            batch.offset,
            copy,
        )
        await self._disk.truncate(path, batch.position)
        self._unsynced.append(Write(path, batch.position, []))
        if self.torn_from is not None and self.torn_from >= batch.offset:
            self.torn_from = None  # the hole was in this batch, and is gone
        return await scan_segment(self._disk, path, scan.base, batch.position)

    async def _is_unsynced(self, path: str, hole: Hole) -> bool:
        """Whether it is certain that nothing from this hole on was promised."""

        async def read(position: int, length: int, fresh: bool = False) -> bytes:
            return await self._disk.read(path, position, length, fresh)

        return self._known.exact or (not self._relaxed and await lacks_sectors(read, hole.start, hole.end))

    async def _truncate_torn(self, path: str, scan: Scan, hole: Hole) -> Scan:
        copy = await self._quarantine.keep(path, hole.start, scan.size)
        _log.warning(
            "%s: a power loss tore a hole at position %d into a write that was not promised: truncated there, so that "
            "offsets %d to %d are given to other records; what was left behind the hole is in %s",
            path,
            hole.start,
            hole.offset,
            scan.end - 1,
            copy,
        )
        await self._disk.truncate(path, hole.start)
        self._unsynced.append(Write(path, hole.start, []))
        return await scan_segment(self._disk, path, scan.base, hole.start)

    async def _make_empty(self, base: int) -> Segment:
        """For the next record, or one from another replica."""
        segment = Segment(self._disk, self._folder, base)
        await commit_one(self._disk, Write(segment.path, 0, [], create=True), sync=True)
        segment.exists = True
        return segment

    async def _sealed(self, base: int, size: int, limit: int) -> Segment | None:
        path = index_path(self._folder, base)
        found = await read_footer(self._disk, path)
        if found is None:
            _log.warning("%s: missing or not whole; scanning its segment to make it again", path)
            return None
        footer, index = found
        if footer.base != base or footer.size != size or footer.end > limit:
            _log.warning("%s: disagrees with its segment (%d bytes); scanning that to make it again", path, size)
            return None
        return Segment.recovered(self._disk, self._folder, footer, index, verified=False)

    async def _repair(self, path: str, scan: Scan, limit: int | None) -> Scan:
        for start, end in scan.bad:
            stays = self._replicated and end < scan.size
            short = scan.end < self._known.promised
            kind = "damage" if scan.damaged or limit is not None or short else "a torn tail"
            copy = None if stays else await self._quarantine.keep(path, start, end)
            _log.warning(
                "%s: %s, %d bytes at position %d hold no valid record; %s",
                path,
                kind,
                end - start,
                start,
                "another replica may have them" if stays else f"moved to {copy}" if copy else "they are all zero",
            )
        if self._replicated or not scan.damaged:
            size = scan.torn_at
            if size is not None:
                await self._disk.truncate(path, size)
                scan.size, scan.bad, scan.bad_from = size, scan.bad[:-1], scan.bad_from[:-1]
            return scan
        edges = [0, *(edge for stretch in scan.bad for edge in stretch), scan.size]
        ranges = [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]
        await self._note_lost(path, scan, limit)
        await rewrite(self._disk, path, ranges, durable=True)
        size = sum(end - start for start, end in ranges)
        return await scan_segment(self._disk, path, scan.base, size, limit)

    async def _note_lost(self, path: str, scan: Scan, limit: int | None) -> None:
        """What the last stretch held that is about to be left out. Nobody could tell later: compaction leaves holes,
        too."""

        async def read(position: int, length: int, fresh: bool = False) -> bytes:
            return await self._disk.read(path, position, length, fresh)

        lost_end = self.lost_end
        for lost_from, (_, end) in zip(scan.bad_from, scan.bad, strict=True):
            following = await read_chunk(read, end, 1, scan.size, scan.base, {}) if end < scan.size else None
            until = max(scan.end, limit or self._known.promised) if following is None else following.first_offset
            lost_end = max(lost_end, until if until > lost_from else 0)
        if lost_end > self.lost_end:
            self.lost_end = lost_end
            await write_lost(self._disk, self._folder, lost_end)

    async def _remove_empty(self, segment: Segment) -> None:
        _log.warning("%s: holds no record; removing it", segment.path)
        self._unsynced = [write for write in self._unsynced if write.path != segment.path]
        await self._remove_segment(segment.base)
        self._removed = True

    async def _make_durable(self, segments: list[Segment]) -> None:
        """Bytes and folder entries that a killed process wrote may be in the page cache only."""
        if self._unsynced:
            for error in await self._disk.commit(self._unsynced, sync=True):
                if error is not None:
                    raise error
        if segments or self._orphans or self._removed:
            await self._disk.sync_folder(self._folder)

    def _note_gaps(self, segments: list[Segment]) -> None:
        for segment, following in itertools.pairwise(segments):
            if segment.appended.end < following.base:
                if self._replicated:
                    size = segment.appended.size
                    segment.damage[size] = size
                else:
                    self.lost_end = max(self.lost_end, following.base)
                self._say_missing(segment.path, segment.appended.end, following.base)
        if segments and segments[0].base > self.start.start:
            self.lost_end = max(self.lost_end, segments[0].base)
            self._say_missing(segments[0].path, self.start.start, segments[0].base)

    def _say_missing(self, path: str, start: int, end: int) -> None:
        _log.warning(
            "%s: offsets %d to %d are missing%s",
            path,
            start,
            end - 1,
            "; another replica may have them" if self._replicated else ", and are not used again",
        )


def _fits(manifest: Manifest | None, size: int, end: int, count: int | None) -> bool:
    """Whether a segment of this size, whose last record ends there, is the one that the manifest describes. `count` is
    -1 if it has damage, and None if it was not scanned."""
    if manifest is None:
        return True
    return manifest.size == size and end <= manifest.end and count in (None, manifest.records)


async def sync_parents(disk: Disk, folder: str, segments: list[Segment], synced: dict[str, None]) -> None:
    """Of a log with one segment, which the last boot may have made and not synced. Once for all partitions with the
    same parents: this process syncs the folders that it makes."""
    while len(segments) == 1 and folder:
        folder = folder.rpartition("/")[0]
        if folder not in synced:
            await disk.sync_folder(folder)
            synced[folder] = None
