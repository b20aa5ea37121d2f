"""Removal of a segment's files, in an order that never looks like damage to an interrupted start."""

import logging

from bascule.log.quarantine import Quarantine
from bascule.log.segment import Segment
from bascule.ports import Disk

DELETED_SUFFIX = ".deleted"
_log = logging.getLogger("bascule.log")


async def set_aside(disk: Disk, quarantine: Quarantine, segment: Segment, position: int) -> bool:
    """Copy the bytes of the file from here on to quarantine; whether there are any."""
    size = await disk.size(segment.path) or 0
    if size <= position:
        return False
    copy = await quarantine.keep(segment.path, position, size)
    if copy is not None:
        _log.warning("%s: %d bytes past position %d moved to %s", segment.path, size - position, position, copy)
    return True


async def remove_index(disk: Disk, segment: Segment) -> None:
    """Durably, before the segment is truncated: an index of more records than the segment has shows damage."""
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
        pass  # the folder was never made


async def remove_folder(disk: Disk, folder: str) -> None:
    """Durably, and renamed first: a start would take half of the files for damage."""
    parent, gone = folder.rpartition("/")[0], folder + DELETED_SUFFIX
    try:
        await disk.rename(folder, gone)
        await disk.sync_folder(parent)
    except FileNotFoundError:
        return  # there never was a record
    await disk.remove(gone)
    await disk.sync_folder(parent)
