"""How the last life ended: a mark in the data folder says that it stopped in good order, with everything synced.

The mark is taken away at the start, before anything is written. Without it the last life may have ended in a power
loss. Under `group` that changes nothing, for what was promised was synced. Under relaxed sync what was promised may be
gone; and under `os` nothing is ever synced, so that there no life leaves the mark.
"""

from bascule.log.sync import SyncMode
from bascule.ports import Disk, Write

FILE = "stopped"


async def take(disk: Disk) -> bool:
    """Whether the mark was there. It is not any more."""
    if await disk.size(FILE) is None:
        return False
    await disk.remove(FILE)
    await disk.sync_folder("")
    return True


async def leave(disk: Disk, mode: SyncMode) -> None:
    """Everything is synced, and nothing will be written any more."""
    if not mode.interval_ns:
        return
    await disk.remove(FILE)
    (error,) = await disk.commit([Write(FILE, 0, [], create=True)], sync=True)
    if error is not None:
        raise error
    await disk.sync_folder("")
