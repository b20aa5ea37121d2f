"""Merging: adjacent small segments become one, with the same records.

Only segments that take no more records are merged, all of whose records are synced and below the high watermark, and
that are not known to be damaged; never the newest file, which the next start scans. `core.merging` decides which of
them. The records are read, written to a new file, and verified there; then that file takes the place of the others
(`swap`). If one of them turns out to be damaged nothing is merged: the damage is noted, and left to repair.
"""

import logging

from bascule import limits
from bascule.log.appender import Appender
from bascule.log.filecopy import Copy
from bascule.log.index import FileIndex
from bascule.log.manifest import FileChecksum, Manifest
from bascule.log.scan import scan_segment
from bascule.log.segment import Segment
from bascule.log.segments import SegmentList
from bascule.log.swap import Swap
from bascule.ports import Disk

_log = logging.getLogger("bascule.log")


class Merging:
    def __init__(self, segments: SegmentList, appender: Appender, swap: Swap) -> None:
        self._segments = segments
        self._appender = appender
        self._swap = swap

    def mergeable(self) -> list[bool]:
        """Of each segment, whether it may be merged with those beside it that may be, too."""
        segments = self._segments
        newest = next((each for each in reversed(segments) if each.exists), None)
        following = [*segments[1:], None]
        return [self._is_mergeable(each, after, newest) for each, after in zip(segments, following, strict=True)]

    def _is_mergeable(self, segment: Segment, following: Segment | None, newest: Segment | None) -> bool:
        segments = self._segments
        end = segment.appended.end
        return (
            segment is not newest
            and following is not None
            and following.base == end  # else records are missing between the two
            and segments.floor <= segment.base
            and end <= min(segments.visible_end, segments.promised_end)
            and not segment.empty
            and is_whole(segment)
        )

    def _between(self, base: int, end: int) -> list[Segment]:
        """The segments that have these offsets; none if that has changed since they were chosen."""
        segments = self._segments
        numbers = range(segments.number_of(base), segments.number_of(end))
        mergeable = self.mergeable()
        found = segments[numbers.start : numbers.stop]
        if len(found) < 2 or found[0].base != base or found[-1].appended.end != end:
            return []
        return found if all(mergeable[number] for number in numbers) else []

    async def run(self, base: int, end: int) -> int:
        """Merge the segments that have these offsets; how many, 0 if that is not possible. Raises OSError: nothing is
        lost then."""
        segments = self._segments
        assert segments.changing.locked(), "somebody else may change these files"
        await self._swap.remove_left()
        old = self._between(base, end)
        if not old or self._appender.failed is not None or segments.waiters.ended is not None:
            return 0
        size = sum(each.appended.size for each in old)
        room = await segments.disk.room()
        if room is not None and room < size + limits.MERGE_FREE_BYTES:
            _log.debug("%s: small segments are not merged: only %d bytes are free", segments.folder, room)
            return 0
        copy = Copy(segments.disk, old[0].path)
        try:
            await copy.begin()
            checksum = await _copied(segments.disk, old, copy)
            await copy.sync()
            scan = await scan_segment(segments.disk, copy.path, old[0].base, size)
            if scan.bad or copy.size != size or (scan.count and scan.end != _records_end(old)):
                await self._note_damage(old)
                await copy.give_up()
                return 0
            if not all(is_whole(each) for each in old):
                await copy.give_up()  # damage was met meanwhile
                return 0
            fresh = scan.segment(segments.disk, segments.folder)
            manifest = Manifest(fresh.base, old[-1].appended.end, scan.count, size, checksum)
            if manifest.holes:
                fresh.has_holes(manifest.end, manifest.records)
            await self._swap.run(old, fresh, copy, manifest)
        except BaseException:
            if not old[0].retired:
                await copy.give_up()
            raise
        _log.info(
            "%s: %d small segments with offsets %d to %d are one now",
            segments.folder,
            len(old),
            fresh.base,
            manifest.end - 1,
        )
        return len(old)

    async def _note_damage(self, old: list[Segment]) -> None:
        """The copy does not verify: one of the segments is damaged, unless a read was wrong."""
        segments = self._segments
        for segment in old:
            scan = await scan_segment(segments.disk, segment.path, segment.base, segment.promised.size)
            if scan.bad and not segment.retired:
                segment.damage = {**segment.damage, **dict(scan.bad)}
                segments.note_damage(segment)
                _log.error(
                    "%s: %d stretches of it are damaged, and it is not merged; another replica may have the records",
                    segment.path,
                    len(scan.bad),
                )
                if segments.on_damage is not None:
                    await segments.on_damage(segment, False)


def _records_end(old: list[Segment]) -> int:
    last = old[-1]
    return last.appended.end if last.records_end is None else last.records_end


def is_whole(segment: Segment) -> bool:
    """Whether its records can be copied to another file."""
    return (
        segment.exists
        and not segment.missing
        and not segment.damage
        and segment.synced.size == segment.appended.size
        and isinstance(segment.index, FileIndex)
    )


async def _copied(disk: Disk, old: list[Segment], copy: Copy) -> int:
    """Add the records of these segments to the copy; the checksum of all. What is read is verified later."""
    checksum, first = FileChecksum(), 0
    while first < len(old):
        end, nbytes = first, 0
        while end < len(old) and (end == first or nbytes + old[end].appended.size <= limits.MERGE_READ_BYTES):
            nbytes += old[end].appended.size
            end += 1
            if end - first == limits.MERGE_READ_FILES:
                break
        files = [(each.path, each.appended.size) for each in old[first:end]]

        async def read(here: Disk, files: list[tuple[str, int]] = files) -> bytes:
            return b"".join([await here.read(path, 0, size) for path, size in files])

        data = await disk.together(read)
        checksum.add(data)
        await copy.add(data)
        first = end
    return checksum.value
