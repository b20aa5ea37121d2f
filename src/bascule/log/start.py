"""Where a log begins: a small file beside its segments, durable before any of them is removed.

It says what a start could not know any more once the first segments are gone: where the log begins, and, of a log whose
records have all expired, where it ended, in which epoch and when. A log that ends before that is short; a truncation
lowers it first. The partition's start in the metadata may be higher:
then segments are still to be removed.
"""

import struct
from typing import NamedTuple

from bascule.log.checkpoint import read_checkpoint, write_checkpoint
from bascule.ports import Disk

START_FILE = "start"
_FORMAT = struct.Struct("<qqqqq")


class LogStart(NamedTuple):
    start: int = 0
    end: int = 0
    """Of the log, when this was written."""
    last_epoch: int = 0
    last_timestamp: int = 0
    first_timestamp: int = 0
    """When the first record of all was written; 0 if that is not known."""


NEW = LogStart()


async def read_start(disk: Disk, folder: str) -> LogStart:
    data = await read_checkpoint(disk, f"{folder}/{START_FILE}")
    return LogStart(*_FORMAT.unpack(data)) if data is not None and len(data) == _FORMAT.size else NEW


async def lower_end(disk: Disk, folder: str, start: LogStart, end: int) -> LogStart:
    """The log is about to be truncated, to `end` or later: that it ended later once is no evidence of damage then.
    Durable on return."""
    lower = max(start.start, end)
    if start.end > lower:
        start = start._replace(end=lower, last_epoch=0)
        await write_start(disk, folder, start, new_folder=False)
    return start


async def write_start(disk: Disk, folder: str, start: LogStart, new_folder: bool) -> None:
    """Durable on return. Without `new_folder` the folder must be there."""
    await write_checkpoint(disk, f"{folder}/{START_FILE}", _FORMAT.pack(*start), new_folder)
