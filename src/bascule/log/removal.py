"""How a segment's files go, in an order that leaves nothing behind that looks like damage."""

import logging

from bascule.log.quarantine import Quarantine
from bascule.log.segment import Segment
from bascule.ports import Disk

DELETED_SUFFIX = ".deleted"
_log = logging.getLogger("bascule.log")


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
