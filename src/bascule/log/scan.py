"""A pass over a segment file: every record verified, bad stretches noted.

What does not verify is read again before it counts as bad (`chunk`, `reread`).
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from bascule import limits
from bascule.log.chunk import Chunk, read_chunk
from bascule.log.index import Footer, MemoryIndex
from bascule.log.segment import CRC_BYTES, Segment
from bascule.ports import Disk
from bascule.wire import kernels


class Hole(NamedTuple):
    """A bad stretch with a valid record after it, and the first offset that a record in it can have had."""

    offset: int
    start: int
    end: int


class OpenBatch(NamedTuple):
    """An atomic batch whose last records are not there: its first offset, and where its first record is."""

    offset: int
    position: int


@dataclass(slots=True)
class Scan:
    """What a pass over a segment file found, and its position while it runs."""

    base: int
    size: int
    end: int
    first_offset: int = -1
    first_timestamp: int = -1
    last_timestamp: int = 0
    last_epoch: int = 0
    last_crc: int = 0
    count: int = 0
    position: int = 0
    index: MemoryIndex = field(default_factory=MemoryIndex)
    open_batch: OpenBatch | None = None
    """At the end of what was scanned."""
    bad: list[tuple[int, int]] = field(default_factory=list)
    """Stretches that hold no valid record, as (start, end)."""
    bad_from: list[int] = field(default_factory=list)
    """Of each, the lowest offset that a record in it can have had."""

    @property
    def torn_at(self) -> int | None:
        """Where the bad stretch begins that ends the file."""
        return self.bad[-1][0] if self.bad and self.bad[-1][1] == self.size else None

    @property
    def damaged(self) -> bool:
        """Whether a valid record follows a bad stretch."""
        return bool(self.bad) and self.torn_at != self.bad[0][0]

    def footer(self) -> Footer:
        return Footer(
            self.base,
            self.first_offset,
            self.end,
            self.size,
            self.first_timestamp,
            self.last_timestamp,
            self.last_epoch,
            self.count,
        )

    def segment(self, disk: Disk, folder: str) -> Segment:
        """The file as it was found, damage and all."""
        segment = Segment.recovered(disk, folder, self.footer(), self.index, verified=True, last_crc=self.last_crc)
        segment.damage = dict(self.bad)
        return segment

    def add_bad(self, end: int) -> None:
        self.bad.append((self.position, end))
        self.bad_from.append(self.end)

    def holes_from(self, offset: int) -> list[Hole]:
        """The stretches that have a valid record after them, and held nothing below `offset`."""
        holes = (Hole(first, *edges) for edges, first in zip(self.bad, self.bad_from, strict=True))
        return [hole for hole in holes if hole.end < self.size and hole.offset >= offset]

    def add(self, chunk: Chunk) -> None:
        if chunk.position > self.position:
            self.add_bad(chunk.position)
        if self.first_offset < 0:
            data = chunk.data
            _, self.first_offset, self.first_timestamp = kernels.seek_record(data, 0, len(data), 0, 0)
        self.index.add(chunk.data, chunk.position)
        self.count += chunk.count
        self.end, self.position = chunk.next_offset, chunk.end
        self.last_timestamp, self.last_epoch = chunk.last_timestamp, chunk.last_epoch
        self.last_crc = int.from_bytes(chunk.data[-CRC_BYTES:], "little")
        position, offset, _ = kernels.open_batch(chunk.data, 0, len(chunk.data))
        if offset < 0:
            self.open_batch = None
        elif self.open_batch is None or self.open_batch.offset != offset:
            self.open_batch = OpenBatch(offset, chunk.position + position)


async def scan_segment(
    disk: Disk,
    path: str,
    base: int,
    size: int,
    limit: int | None = None,
    read_bytes: int | None = None,
) -> Scan:
    """Verify every record of the file. From offset `limit` on everything counts as bad: the next file has it."""

    async def read(position: int, length: int, fresh: bool = False) -> bytes:
        return await disk.read(path, position, length, fresh)

    piece = read_bytes or limits.RECOVERY_READ_BYTES
    scan = Scan(base, size, end=base)
    while scan.position < size:
        chunk = await read_chunk(read, scan.position, piece, size, scan.end, {})
        beyond = chunk is not None and limit is not None and chunk.next_offset > limit
        if chunk is not None and limit is not None and beyond:
            chunk = chunk.before(limit)
        if chunk is not None:
            scan.add(chunk)
        if chunk is None or beyond:
            break
    if scan.position < size:
        scan.add_bad(size)
    return scan
