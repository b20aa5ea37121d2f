"""Refilling: a damaged stretch of a segment is replaced by the records of another replica.

Theory of operation: the stretch lies between two offsets, and a peer whose log is known to be the same is asked for
its records between them (`fill` has how that is known, and what happens to records that the peer lacks too).

The good bytes before the stretch, the peer's records and the good bytes after it make a new file, synced, which takes
the segment's place atomically; the bad bytes go to quarantine first. So the cost of one bad record is one segment
copied, however long the log is, and nothing but bad bytes is ever removed. Readers look up their position again.

A segment is filled only with offsets from its own base up to the next one's: each stretch of a log belongs to one file.
"""

from dataclasses import dataclass

from bascule import limits
from bascule.errors import LogError, PeerLacks
from bascule.log.commitlog import CommitLog
from bascule.log.filecopy import Copy, to_the_end
from bascule.log.fill import Fetch, Fill
from bascule.log.manifest import LASTING_SUFFIX, Manifest, file_checksum, remove_lasting, write_manifest
from bascule.log.scan import Scan, scan_segment
from bascule.log.segment import Segment
from bascule.log.stretch import Stretch, stretch_of


@dataclass(slots=True)
class Found:
    segment: Segment
    """The one that has the file now, also if the refill is interrupted."""


async def refill(log: CommitLog, segment: Segment, fetch: Fetch) -> bool:
    """Heal what is known to be damaged in this segment with a peer's records, as far as it has them. True if it had
    any: the segment was replaced then, and may still lack records. False if the peer cannot help: it has another log,
    or a shorter one. Raises PeerLacks if its log is damaged at the same place, PeerError if it cannot be asked,
    LogError for errors of our own disk."""
    try:
        async with log.segments.changing:
            if segment.retired or not segment.damage:
                return True
            await log.appender.seal(segment)
            log.compaction.changes += 1
            found = Found(segment)
            try:
                await _heal(log, segment, fetch, found)
            finally:
                log.appender.put_back(segment, found.segment)
            return found.segment is not segment
    except OSError as error:
        raise LogError(
            f"{segment.path}: cannot be refilled: {error.strerror or error}; it is tried again; check the disk"
        ) from error


async def _heal(log: CommitLog, segment: Segment, fetch: Fetch, found: Found) -> None:
    """Replaces the segment by one with more records, if the peer can help."""
    if not segment.missing and await segment.file_size() < segment.promised.size:
        # Everything missing at its end is one stretch, wherever readers met it.
        scan = await scan_segment(log.segments.disk, segment.path, segment.base, segment.promised.size)
        segment.damage = {**segment.damage, **dict(scan.bad)}
    stretches = [await stretch_of(log.segments, segment, *edges) for edges in _joined(segment.damage)]
    copy = Copy(log.segments.disk, segment.path)
    await copy.begin(new_folder=not log.segments.has_folder)  # a removed folder is not made again unnoticed
    try:
        fills = await _copied(log, copy, stretches, segment, fetch)
        if not fills:
            await copy.give_up()
            return
        scan = await scan_segment(log.segments.disk, copy.path, segment.base, copy.size)
        for fill in fills:
            await fill.set_aside()
        await log.segments.disk.remove(segment.index_path)
    except BaseException:
        await copy.give_up()
        raise

    manifest = await _manifest_of(log, segment, scan, copy)
    if segment.holes:
        await remove_lasting(log.segments.disk, log.folder, segment.base)

    def replaced() -> None:
        found.segment = scan.segment(log.segments.disk, log.folder)
        if manifest is not None:
            found.segment.has_holes(manifest.end, manifest.records)

    async def replace() -> None:
        await copy.replace(replaced)
        if manifest is not None:
            await write_manifest(log.segments.disk, log.folder, manifest, LASTING_SUFFIX)

    await to_the_end(replace())


async def _manifest_of(log: CommitLog, segment: Segment, scan: Scan, copy: Copy) -> Manifest | None:
    """Of a segment that has all records which a peer with the same log has: what is missing was removed there."""
    following = log.segments.after(segment)
    if scan.bad or following is None or scan.count == following.base - segment.base:
        return None
    checksum = await file_checksum(log.segments.disk, copy.path, copy.size, fresh=False)
    return Manifest(segment.base, following.base, scan.count, copy.size, checksum)


async def _copied(log: CommitLog, copy: Copy, stretches: list[Stretch], segment: Segment, fetch: Fetch) -> list[Fill]:
    """Write the whole segment to the copy, synced, as far as the peer has the records; [] if it cannot help."""
    position, usable = 0, True
    fills: list[Fill] = []
    for stretch in stretches:
        await copy.take(position, stretch.start, durable=stretch.start <= segment.synced.size)
        fills.append(Fill(log.segments, log.quarantine, segment, stretch, copy, fetch))
        usable = await fills[-1].run()
        if not usable:
            break
        position = stretch.end
    if not usable or not any(fill.helped for fill in fills):
        if lacking := next((fill.lacking for fill in fills if fill.lacking), ""):
            raise PeerLacks(lacking)
        return []
    await copy.take(position, segment.promised.size, durable=segment.promised.size <= segment.synced.size)
    if copy.size > limits.MAX_SEGMENT_BYTES:
        raise LogError(f"{segment.path}: would be too large with the missing records")
    await copy.sync()
    return fills


def _joined(damage: dict[int, int]) -> list[tuple[int, int]]:
    """Stretches that touch or overlap are joined: readers from different positions noted them."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(damage.items()):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
