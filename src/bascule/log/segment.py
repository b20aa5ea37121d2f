"""A segment: records back to back in one file, named by a lower bound of its offsets.

Theory of operation: bytes pass three marks. *Appended*: in memory, in `_tail`, waiting for the disk. *Promised*: on
the disk as the sync mode demands; consumers read only these. *Synced*: durable; the same as promised under `group`. A
mark has the length of the file there and its last record, so that a truncation to a mark needs no scan.

`damage` has the bad stretches that readers met, so that each is searched and logged once. `retired` is set when the
file is removed or rewritten: a reader in it must look up its position again. `missing` means that the file was
removed by someone else: all of it is damage.
"""

from bisect import bisect_left, bisect_right
from typing import NamedTuple

from bascule.log.index import (
    ENTRY,
    FileIndex,
    Footer,
    MemoryIndex,
    encode_footer,
    read_some,
)
from bascule.ports import Disk, Promise, Write
from bascule.wire import kernels

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
NAME_DIGITS = 20
CRC_BYTES = 4
_EPOCH_AND_CRC_BYTES = 12


class Mark(NamedTuple):
    """How far a segment goes: its bytes, its exclusive end offset, and its last record's time and epoch."""

    size: int
    end: int
    last_timestamp: int
    last_epoch: int
    last_crc: int = 0
    """Of the last record; 0 if it is not known, because the segment was not scanned."""
    records: int = 0
    """How many; fewer than offsets where some are lost, or were removed by compaction, also where they came from."""


def segment_path(folder: str, base: int) -> str:
    return f"{folder}/{base:0{NAME_DIGITS}}{LOG_SUFFIX}"


def index_path(folder: str, base: int) -> str:
    return f"{folder}/{base:0{NAME_DIGITS}}{INDEX_SUFFIX}"


class Segment:
    __slots__ = (
        "_disk",
        "_folder",
        "_tail",
        "_tail_starts",
        "_taken",
        "appended",
        "base",
        "damage",
        "exists",
        "first_offset",
        "first_timestamp",
        "holes",
        "index",
        "index_verified",
        "missing",
        "promised",
        "records_end",
        "retired",
        "synced",
    )

    def __init__(self, disk: Disk, folder: str, base: int) -> None:
        self._disk = disk
        self._folder = folder
        self.base = base
        self.exists = False
        self.retired = False
        self.missing = False
        self.first_offset = self.first_timestamp = -1
        self.appended = self.promised = self.synced = Mark(0, base, 0, 0)
        self.index: MemoryIndex | FileIndex = MemoryIndex()
        self.index_verified = True
        self.damage: dict[int, int] = {}
        self.holes = 0
        """How many of its offsets are missing, as its manifest says."""
        self.records_end: int | None = None
        """Where its last record ends, if the manifest says that the segment ends later."""
        # None if nothing waits: a log may have ten thousand segments, of which one grows.
        self._tail: list[bytes] | None = None
        self._tail_starts: list[int] | None = None
        self._taken = 0  # how many buffers of the tail the running round writes

    @property
    def folder(self) -> str:
        return self._folder

    @property
    def path(self) -> str:
        return segment_path(self._folder, self.base)

    @property
    def index_path(self) -> str:
        return index_path(self._folder, self.base)

    @classmethod
    def recovered(
        cls,
        disk: Disk,
        folder: str,
        footer: Footer,
        index: MemoryIndex | FileIndex,
        verified: bool,
        last_crc: int = 0,
    ) -> "Segment":
        """A segment whose file is there and holds what `footer` says."""
        segment = cls(disk, folder, footer.base)
        segment.exists = True
        segment.first_offset, segment.first_timestamp = footer.first_offset, footer.first_timestamp
        mark = Mark(footer.size, footer.end, footer.last_timestamp, footer.last_epoch, last_crc, footer.records)
        segment.appended = segment.promised = segment.synced = mark
        segment.index, segment.index_verified = index, verified
        return segment

    def belongs_to(self, disk: Disk) -> None:
        """It was recovered by a `Disk` of another thread."""
        self._disk = disk
        if isinstance(self.index, FileIndex):
            self.index.belongs_to(disk)

    def has_holes(self, end: int, records: int) -> None:
        """Its manifest says where it ends, and how many records it has."""
        assert self.records_end is None, "it has one manifest"
        assert self.appended.end <= end, "no record is past the end"
        self.records_end = self.appended.end
        self.appended = self.promised = self.synced = self.appended._replace(end=end)
        self.holes = end - self.base - records

    @property
    def records(self) -> int:
        """How many it has."""
        return self.appended.records

    @property
    def empty(self) -> bool:
        return self.appended.size == 0

    def begins_at_or_after(self, offset: int) -> bool:
        """Whether no record in it, damaged or not, has a smaller offset."""
        return self.base >= offset or (self.first_offset >= offset and not self.damage)

    @property
    def index_due(self) -> bool:
        """A damaged segment gets no index, so that the next start scans it and finds the damage."""
        return self.synced.size == self.appended.size and not self.damage

    # --- growing ------------------------------------------------------------------------------------------

    def append(self, records: bytes, count: int, end: int, last_timestamp: int) -> None:
        assert isinstance(self.index, MemoryIndex), "a sealed segment does not grow"
        size = self.appended.size
        if size == 0:
            _, self.first_offset, self.first_timestamp = kernels.seek_record(records, 0, len(records), 0, 0)
        self.index.add(records, size)
        if self._tail is None or self._tail_starts is None:
            self._tail, self._tail_starts = [records], [size]
        else:
            self._tail.append(records)
            self._tail_starts.append(size)
        epoch = int.from_bytes(records[-_EPOCH_AND_CRC_BYTES:-CRC_BYTES], "little")
        crc = int.from_bytes(records[-CRC_BYTES:], "little")
        self.appended = Mark(size + len(records), end, last_timestamp, epoch, crc, self.appended.records + count)

    def take(self, new_folder: bool, promise: Promise | None = None) -> Write | None:
        """What waits for the disk, for one round; `finish` follows."""
        if not self._tail:
            return None
        self._taken = len(self._tail)
        return Write(self.path, self.promised.size, self._tail[:], not self.exists, new_folder, promise)

    def finish(self, mark: Mark, synced: bool) -> None:
        """The round that took everything up to `mark` is on the disk."""
        self.exists = True
        self.promised = mark
        if synced:
            self.synced = mark
        if self._tail is not None and self._tail_starts is not None and self._taken < len(self._tail):
            del self._tail[: self._taken]
            del self._tail_starts[: self._taken]
        else:
            self._tail = self._tail_starts = None
        self._taken = 0

    def truncate_to(self, mark: Mark) -> None:
        """Forget everything past `mark`; the caller truncates the file."""
        assert isinstance(self.index, MemoryIndex), "a sealed segment is not truncated in place"
        self.index.truncate(mark.size)
        self._tail, self._tail_starts, self._taken = None, None, 0
        self.appended = mark
        self.promised = min(self.promised, mark)
        self.synced = min(self.synced, mark)
        if mark.size == 0:
            self.first_offset = self.first_timestamp = -1

    def footer(self) -> Footer:
        mark = self.appended
        return Footer(
            self.base,
            self.first_offset,
            mark.end if self.records_end is None else self.records_end,
            mark.size,
            self.first_timestamp,
            mark.last_timestamp,
            mark.last_epoch,
            mark.records,
        )

    def index_write(self) -> Write:
        """The index file of this segment, now that nothing is added any more."""
        assert isinstance(self.index, MemoryIndex), "the index is on the disk already"
        entries = bytes(self.index.entries)
        return Write(self.index_path, 0, [entries, encode_footer(self.footer(), entries)], True, new_folder=False)

    def index_written(self) -> None:
        assert isinstance(self.index, MemoryIndex)
        self.index = FileIndex(self._disk, self.index_path, len(self.index.entries) // ENTRY.size)

    # --- reading ------------------------------------------------------------------------------------------

    async def file_size(self) -> int:
        """Of the file as it is, which may be shorter than it should be."""
        return 0 if self.missing else await self._disk.size(self.path) or 0

    async def read(self, position: int, length: int, fresh: bool = False) -> bytes:
        """Bytes at `position`, perhaps fewer than asked; at least one if the segment and its file go on there. `fresh`:
        not from the page cache, unless the bytes may be there only."""
        if position < self.promised.size or self._tail is None or self._tail_starts is None:
            length = max(min(length, self.promised.size - position), 0)
            if self.missing:
                return b""
            if fresh:
                return await self._disk.read(self.path, position, length, position + length <= self.synced.size)
            return await read_some(self._disk, self.path, position, length)
        number = bisect_right(self._tail_starts, position) - 1
        last = bisect_left(self._tail_starts, position + length, number + 1)
        start = position - self._tail_starts[number]
        if last == number + 1:
            return self._tail[number][start : start + length]
        return b"".join(self._tail[number:last])[start : start + length]
