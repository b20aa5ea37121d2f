"""Disk space reserved for a start: a file of zeros, which a start removes if the disk is full.

A start first writes a little (the promised ends go to a new file), and a broker that cannot start cannot serve reads
either. Nothing else is written at that time, so the freed space is available to the start. The log of the metadata has
a reserve of its own (`CommandLog`).
"""

import errno
import logging
from collections.abc import Awaitable, Callable

from bascule import limits
from bascule.ports import Disk, Write

FILE = "reserve"
_log = logging.getLogger("bascule.log")


async def keep(disk: Disk) -> None:
    """Reserve as much as fits. Never an error: the reserve matters only when the disk is full."""
    try:
        if await disk.size(FILE) is not None:
            return
        size = limits.START_RESERVE_BYTES
        while size >= limits.START_RESERVE_BYTES // 16:
            (error,) = await disk.commit([Write(FILE, 0, [bytes(size)], create=True)], sync=True)
            if error is None:
                return
            await disk.remove(FILE)
            size //= 2
    except OSError as error:
        _log.debug("%s: no disk space is reserved for the next start: %s", FILE, error)


async def with_room(disk: Disk, work: Callable[[], Awaitable[None]]) -> None:
    """Do this; if the disk is full remove the reserve and do it again. Raises OSError."""
    try:
        await work()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or await disk.size(FILE) is None:
            raise
        _log.warning("the disk is full: the space reserved for this start is used; free space on the disk")
        await disk.remove(FILE)
        await work()
