"""Up to where records of a log are lost: a small file beside its segments.

Damage in the only copy of a log is left out of a new copy of its segment (`recovery`), and the hole does not tell what
it was: compaction leaves holes, too, and copies the segment again. Durable before the damage is left out.
"""

import struct

from bascule.log.checkpoint import read_checkpoint, write_checkpoint
from bascule.ports import Disk

LOST_FILE = "lost"
_FORMAT = struct.Struct("<q")


async def read_lost(disk: Disk, folder: str) -> int:
    """Every lost record has a smaller offset; 0 if none is."""
    data = await read_checkpoint(disk, f"{folder}/{LOST_FILE}")
    return int(_FORMAT.unpack(data)[0]) if data is not None and len(data) == _FORMAT.size else 0


async def write_lost(disk: Disk, folder: str, end: int) -> None:
    await write_checkpoint(disk, f"{folder}/{LOST_FILE}", _FORMAT.pack(end), new_folder=False)
