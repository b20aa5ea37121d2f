"""Whether bytes that hold no valid record are a write of which a power loss kept later sectors and lost earlier ones.

A sector is written whole or not at all, and one that was never written reads as zeros, for files only grow. So a write
that was torn lacks whole sectors: zeros up to the end of a sector, from the beginning of a sector or from where the
write began. A flipped bit leaves no such trace. What was synced a power loss does not take, and a log has one write
under way at a time: so if a sector of it is missing, nothing from there on was ever synced, or promised.

Known to be imperfect: a record that holds a whole sector of zeros and has a flipped bit looks the same. A device
that shows old bytes instead of zeros leaves no trace.
"""

from bascule import limits
from bascule.log.chunk import read_fully
from bascule.log.reread import Read, steady
from bascule.wire.record import FRAME_PREFIX_BYTES

_SECTOR = bytes(limits.SECTOR_BYTES)


async def lacks_sectors(read: Read, start: int, end: int) -> bool:
    """Of the bad stretch from `start` to `end`, where a record began and where the next valid one begins."""
    read = steady(read)
    first_end = (start // limits.SECTOR_BYTES + 1) * limits.SECTOR_BYTES
    zeros_end = _zeros_end(end)
    first = await read_fully(read, start, first_end - start) if first_end <= zeros_end else b""
    # The first bytes of a length are zeros by right, as far as they are zeros in the length of the whole stretch.
    if first and not any(first) and any((end - start).to_bytes(FRAME_PREFIX_BYTES, "big")[: len(first)]):
        return True
    step = max(limits.RECOVERY_READ_BYTES // limits.SECTOR_BYTES, 1) * limits.SECTOR_BYTES
    for position in range(first_end, zeros_end, step):
        if _has_empty_sector(await read_fully(read, position, min(step, zeros_end - position))):
            return True
    return False


def _zeros_end(end: int) -> int:
    """The next valid record begins with zeros: the flag, and the first bytes of its length. If no more than these are
    in the last sector that is missing, it is valid all the same."""
    sector_end = -(-end // limits.SECTOR_BYTES) * limits.SECTOR_BYTES
    return sector_end if sector_end - end < FRAME_PREFIX_BYTES else end


def _has_empty_sector(data: bytes) -> bool:
    """`data` begins where a sector does."""
    at = data.find(_SECTOR)
    while at >= 0:
        at = -(-at // limits.SECTOR_BYTES) * limits.SECTOR_BYTES
        if data[at : at + limits.SECTOR_BYTES] == _SECTOR:
            return True
        at = data.find(_SECTOR, at)
    return False
