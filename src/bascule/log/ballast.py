"""Room on the disk that is kept for a start: a file of zeros, given up when a start finds no byte free.

A start writes a little before anything else (what logs had promised goes to a new file), and a broker that cannot start
cannot serve reads either. Nobody else writes at that time, so what is given up is there for whoever needs it. The
metadata's log has room of its own (`CommandLog`).
"""

import errno
import logging
from collections.abc import Awaitable, Callable

from bascule import limits
from bascule.ports import Disk, Write

FILE = "reserve"
_log = logging.getLogger("bascule.log")


async def keep(disk: Disk) -> None:
    """As much as there is room for. Never an error: without it all is well until the disk is full."""
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
        _log.debug("%s: no room is kept for the next start: %s", FILE, error)


async def with_room(disk: Disk, work: Callable[[], Awaitable[None]]) -> None:
    """Do this, and if the disk is full give up what is kept and do it again. Raises OSError."""
    try:
        await work()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or await disk.size(FILE) is None:
            raise
        _log.warning("the disk is full: what was kept for this start is given up; free space on the disk")
        await disk.remove(FILE)
        await work()
