"""How a segment's files go, in an order that leaves nothing behind that looks like damage."""

import logging
from collections.abc import Sequence

from bascule.log.index import OFFSET
from bascule.log.lookup import SegmentList, seek
from bascule.log.promised import EndRecord
from bascule.log.quarantine import Quarantine
from bascule.log.refill import end_before
from bascule.log.segment import Segment
from bascule.ports import Disk

DELETED_SUFFIX = ".deleted"
_log = logging.getLogger("bascule.log")


async def lower_record(log: SegmentList, segments: Sequence[Segment], record: EndRecord, end: int) -> None:
    """A cut at `end` is about to be made. What is on record about the log's end is durable on return."""
    if await _takes_promised(log, segments, end):
        record.doubt()
        await record.found(0, unsure=True)
    await record.lower(_least_end(segments, end))


async def _takes_promised(log: SegmentList, segments: Sequence[Segment], end: int) -> bool:
    """Whether a cut at `end` takes damage along that may have held records below it."""
    if not segments or end >= segments[-1].appended.end or not any(segment.damage for segment in segments):
        return False
    last = next((each for each in reversed(segments) if not each.begins_at_or_after(end)), None)
    if last is None or last.appended.end <= end:
        return end > (0 if last is None else last.appended.end)
    position = await cut_position(log, last, end)
    return position in last.damage and await end_before(last, position) < end


def _least_end(segments: Sequence[Segment], end: int) -> int:
    """Where a cut at `end` leaves a log at least: there may be a hole before it."""
    last = next((each for each in reversed(segments) if not each.begins_at_or_after(end)), None)
    if last is None:
        return 0
    return last.appended.end if last.appended.end <= end else last.base


async def cut_position(log: SegmentList, segment: Segment, end: int) -> int | None:
    """Where in its file the records from offset `end` on begin, with a damaged stretch right before them: at the end of
    a log nobody could say what it held. None if there is no such record."""
    found = await seek(log, segment, OFFSET, end)
    if found is None:
        return None
    return next((start for start, after in segment.damage.items() if after == found.position), found.position)


async def set_aside(disk: Disk, quarantine: Quarantine, segment: Segment, position: int) -> bool:
    """Keep what stands in the file from here on; whether anything does."""
    size = await disk.size(segment.path) or 0
    if size <= position:
        return False
    copy = await quarantine.keep(segment.path, position, size)
    if copy is not None:
        _log.warning("%s: %d bytes past position %d set aside as %s", segment.path, size - position, position, copy)
    return True


async def remove_index(disk: Disk, segment: Segment) -> None:
    """Durably, before the segment is cut: an index that speaks of more than there is, is evidence of damage."""
    await disk.remove(segment.index_path)
    await _sync_folder(disk, segment)


async def remove_files(disk: Disk, segment: Segment) -> None:
    await disk.remove(segment.index_path)
    await disk.remove(segment.path)
    await _sync_folder(disk, segment)


async def _sync_folder(disk: Disk, segment: Segment) -> None:
    try:
        await disk.sync_folder(segment.path.rpartition("/")[0])
    except FileNotFoundError:
        pass  # the first file of all, and it was never made


async def remove_folder(disk: Disk, folder: str) -> None:
    """Durably, and under another name first: a start that finds half of the files would take it for damage."""
    parent, gone = folder.rpartition("/")[0], folder + DELETED_SUFFIX
    try:
        await disk.rename(folder, gone)
        await disk.sync_folder(parent)
    except FileNotFoundError:
        return  # there never was a record
    await disk.remove(gone)
    await disk.sync_folder(parent)
