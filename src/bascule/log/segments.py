"""A partition's segments in order, and the ends of the log.

Positions are exclusive ends, in this order:

start <= visible_end <= promised_end <= end

The appender moves `end` and `promised_end`, the node `visible_end` (the high watermark). Readers at the visible end
are in `waiters`.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import overload

from bascule.log.healing import OnDamage
from bascule.log.segment import Mark, Segment
from bascule.log.start import NEW
from bascule.log.waiters import Waiters
from bascule.ports import Disk


class SegmentList(Sequence[Segment]):
    def __init__(
        self, disk: Disk, folder: str, on_damage: OnDamage | None, store_index: Callable[[Segment], None]
    ) -> None:
        """`store_index` is called for a sealed segment whose index was made again, in memory."""
        self.disk = disk
        self.folder = folder
        self.on_damage = on_damage
        self.store_index = store_index
        self.floor = 0
        """Records below have expired: they are not served, and their segments are removed."""
        self.lost_end = 0
        """Of records that were lost before it was opened (`lost`)."""
        self.stored = NEW
        """What is stored about the start."""
        self.end = self.promised_end = self.visible_end = 0
        self.waiters = Waiters()
        self.damaged: dict[Segment, None] = {}
        """Segments that are known to lack records which another replica may have."""
        self.has_folder = False
        """Its folder was made; if it is missing someone else removed it."""
        self.changing = asyncio.Lock()
        """Held by whatever replaces, truncates or removes existing files."""
        self._segments: list[Segment] = []
        self._bases: list[int] = []

    # --- in order -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._segments)

    @overload
    def __getitem__(self, index: int) -> Segment: ...

    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...

    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self._segments[index]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __reversed__(self) -> Iterator[Segment]:
        return reversed(self._segments)

    def at(self, offset: int) -> Segment | None:
        """The segment that holds this offset if any does; the first one for offsets before it."""
        if not self._segments:
            return None
        return self._segments[max(bisect_right(self._bases, offset) - 1, 0)]

    def number_of(self, offset: int) -> int:
        """Of the first segment with this base, or a later one."""
        return bisect_left(self._bases, offset)

    def after(self, segment: Segment) -> Segment | None:
        number = bisect_right(self._bases, segment.base)
        return self._segments[number] if number < len(self._segments) else None

    def before(self, segment: Segment) -> Segment | None:
        number = bisect_right(self._bases, segment.base - 1) - 1
        return self._segments[number] if number >= 0 else None

    # --- what is in them ----------------------------------------------------------------------------------

    @property
    def start(self) -> int:
        """The oldest record's offset, or where it should be if it cannot be read; `end` if there is none."""
        oldest = next((segment for segment in self._segments if segment.damage or not segment.empty), None)
        if oldest is None:
            return self.end
        return max(self.floor, oldest.first_offset if oldest.first_offset >= 0 else oldest.base)

    @property
    def last_record(self) -> Mark:
        """Where the last record ends. A segment may hold none: it is new, or was truncated to its beginning, or nothing
        in it can be read."""
        stored = self.stored
        expired = Mark(0, stored.end, stored.last_timestamp, stored.last_epoch if stored.end == self.end else 0)
        return next((each.appended for each in reversed(self._segments) if each.first_offset >= 0), expired)

    @property
    def first_timestamp(self) -> int:
        """Of the oldest record; 0 if there is none."""
        return next((each.first_timestamp for each in self._segments if each.first_offset >= 0), 0)

    def bytes_from(self, offset: int) -> int:
        """How many bytes the segments have that hold this offset, or later ones."""
        first = max(bisect_right(self._bases, offset) - 1, 0)
        return sum(each.appended.size for each in self._segments[first:])

    def lacks(self, start: int, end: int) -> bool:
        """Whether records with such offsets are missing between two segments."""
        for segment in self.damaged:
            following = self.after(segment)
            if following is not None and max(start, segment.appended.end) < min(end, following.base):
                return True
        return False

    def is_compacted_below(self, end: int) -> bool:
        """Whether records with such offsets may have been removed by compaction, here or where they came from, and not
        lost."""
        compacted = (each for each in self._segments if each.records < each.appended.end - each.base)
        return any(each.base < end and (each.holes or not each.damage) for each in compacted)

    def note_damage(self, segment: Segment) -> None:
        if segment.damage and not segment.retired:
            self.damaged[segment] = None

    # --- changes ------------------------------------------------------------------------------------------

    def add(self, segment: Segment) -> None:
        assert not self._bases or self._bases[-1] <= segment.base, "segments are in the order of their offsets"
        self._segments.append(segment)
        self._bases.append(segment.base)

    def drop_last(self) -> None:
        segment = self._segments.pop()
        segment.retired = True
        self.damaged.pop(segment, None)
        self._bases.pop()

    def drop_first(self) -> None:
        segment = self._segments.pop(0)
        segment.retired = True
        self.damaged.pop(segment, None)
        self._bases.pop(0)

    def replace(self, segment: Segment, fresh: Segment) -> None:
        """Put `fresh`, which may be the same, in its place."""
        number = self._segments.index(segment)
        assert fresh.base == segment.base, "a segment keeps its first offset"
        if fresh is not segment:
            segment.retired = self.has_folder = True
            self._segments[number] = fresh
        self.damaged.pop(segment, None)
        self.note_damage(fresh)

    def join(self, old: list[Segment], fresh: Segment) -> None:
        """Put `fresh` in the place of these adjacent ones."""
        first = bisect_right(self._bases, old[0].base) - 1
        end = first + len(old)
        assert self._segments[first:end] == old, "they are segments of this log, in its order"
        assert fresh.base == old[0].base, "the first offset stays"
        for segment in old:
            segment.retired = True
            self.damaged.pop(segment, None)
        self._segments[first:end] = [fresh]
        self._bases[first:end] = [fresh.base]

    def drop_all(self) -> None:
        for segment in self._segments:
            segment.retired = True
        self._segments, self._bases = [], []
