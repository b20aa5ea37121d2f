"""A segment's sparse index: where, roughly, an offset, a position or a time lies in it.

Theory of operation: entries are 24 bytes (`<qqq` offset, position, timestamp), one for the first record of a
segment and then one for the first record after every INDEX_INTERVAL_BYTES. All three fields grow from entry
to entry, so one binary search serves all three. A lookup gives the last entry at or before its target; a
kernel walks on from there.

The active segment's entries are in memory, as one bytearray. When a segment is sealed they are written to
its `.index` file, followed by a footer with what the segment holds and how long it must be. The file can always be
rebuilt: if the footer is missing, wrong or disagrees with the segment, or the CRC of the entries is wrong (checked at
their first use), the segment is scanned and the index made again, with the same answers.
"""

import errno
import struct
from typing import NamedTuple

from bascule import limits
from bascule.log.reread import read_verified
from bascule.ports import Disk
from bascule.wire import kernels

OFFSET, POSITION, TIMESTAMP = 0, 1, 2
"""The fields of an entry, to look up by."""

ENTRY = struct.Struct("<qqq")
_FOOTER = struct.Struct("<8sqqqqqqqqIII")
_MAGIC = b"BSCINDX2"  # a file of the format before, without `records`, is made again
_BLOCK_ENTRIES = 4 * limits.KIB // ENTRY.size
_VERIFY_BYTES = limits.MIB


class Entry(NamedTuple):
    offset: int
    position: int
    timestamp: int


class Footer(NamedTuple):
    """What a sealed segment holds."""

    base: int
    first_offset: int
    end: int
    size: int
    first_timestamp: int
    last_timestamp: int
    last_epoch: int
    records: int


class MemoryIndex:
    """The index of a segment that still grows."""

    __slots__ = ("_since", "entries")

    def __init__(self) -> None:
        self.entries = bytearray()
        self._since = limits.INDEX_INTERVAL_BYTES  # the first record always gets an entry

    def add(self, records: bytes | memoryview, position: int) -> None:
        """These records are at this position of the file, right after the ones before."""
        entries, self._since = kernels.index_records(records, position, self._since, limits.INDEX_INTERVAL_BYTES)
        self.entries += entries

    async def floor(self, field: int, target: int) -> Entry | None:
        return floor_in(self.entries, field, target)

    def truncate(self, position: int) -> None:
        """Forget the entries at and past this position; the next record gets one at once."""
        keep = _count_at_most(self.entries, POSITION, position - 1)
        del self.entries[keep * ENTRY.size :]
        self._since = limits.INDEX_INTERVAL_BYTES


class FileIndex:
    """The index of a sealed segment, read piece by piece."""

    __slots__ = ("_count", "_disk", "path")

    def __init__(self, disk: Disk, path: str, count: int) -> None:
        self._disk = disk
        self.path = path
        self._count = count

    def belongs_to(self, disk: Disk) -> None:
        self._disk = disk

    async def floor(self, field: int, target: int) -> Entry | None:
        low, high = (
            0,
            self._count,
        )  # entries before `low` are at most the target, those from `high` on are past it
        while high - low > _BLOCK_ENTRIES:
            middle = (low + high) // 2
            entry = ENTRY.unpack(await self._read(middle, 1))
            if entry[field] <= target:
                low = middle
            else:
                high = middle
        return floor_in(await self._read(low, high - low), field, target)

    async def _read(self, first: int, count: int) -> bytes:
        """Raises OSError also if the file is shorter than it was."""
        entries = await read_some(self._disk, self.path, first * ENTRY.size, count * ENTRY.size)
        if len(entries) < count * ENTRY.size:
            raise OSError(errno.EIO, "the file is shorter than it was", self.path)
        return entries


async def read_some(disk: Disk, path: str, position: int, length: int) -> bytes:
    """From the page cache if it is there, else from a thread."""
    data = disk.read_cached(path, position, length)
    return await disk.read(path, position, length) if data is None else data


def floor_in(entries: bytes | bytearray, field: int, target: int) -> Entry | None:
    count = _count_at_most(entries, field, target)
    return Entry(*ENTRY.unpack_from(entries, (count - 1) * ENTRY.size)) if count else None


def _count_at_most(entries: bytes | bytearray, field: int, target: int) -> int:
    low, high = 0, len(entries) // ENTRY.size
    while low < high:
        middle = (low + high) // 2
        if ENTRY.unpack_from(entries, middle * ENTRY.size)[field] <= target:
            low = middle + 1
        else:
            high = middle
    return low


def encode_footer(footer: Footer, entries: bytes | bytearray) -> bytes:
    count = len(entries) // ENTRY.size
    packed = _FOOTER.pack(_MAGIC, *footer, count, kernels.crc32c(entries), 0)[:-4]
    return packed + struct.pack("<I", kernels.crc32c(packed))


async def read_footer(disk: Disk, path: str) -> tuple[Footer, FileIndex] | None:
    """What the index file says about its segment; None if there is no whole index file."""
    size = await disk.size(path)
    if size is None or size < _FOOTER.size:
        return None
    found = await read_verified(disk, path, size - _FOOTER.size, _FOOTER.size, _decode_footer)
    if found is None:
        return None
    footer, count, _ = found
    return (footer, FileIndex(disk, path, count)) if size == count * ENTRY.size + _FOOTER.size else None


def _decode_footer(packed: bytes) -> tuple[Footer, int, int] | None:
    """With how many entries stand before it, and their CRC; None if it is none."""
    if len(packed) != _FOOTER.size:
        return None
    magic, *fields, count, entries_crc, crc = _FOOTER.unpack(packed)
    return (Footer(*fields), count, entries_crc) if magic == _MAGIC and crc == kernels.crc32c(packed[:-4]) else None


async def entries_intact(disk: Disk, index: FileIndex) -> bool:
    """Whether the entries are the ones that were written: reads them all, so once per segment and process."""
    try:
        end = (await disk.size(index.path) or 0) - _FOOTER.size
        found = await read_verified(disk, index.path, max(end, 0), _FOOTER.size, _decode_footer)
        return found is not None and (
            await _entries_crc(disk, index.path, end) == found[2]
            or await _entries_crc(disk, index.path, end, fresh=True) == found[2]  # it was read wrongly
        )
    except OSError:
        return False


async def _entries_crc(disk: Disk, path: str, end: int, fresh: bool = False) -> int:
    crc = 0
    for position in range(0, end, _VERIFY_BYTES):
        crc = kernels.crc32c(await disk.read(path, position, min(_VERIFY_BYTES, end - position), fresh), crc)
    return crc
