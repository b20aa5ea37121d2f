"""Times as positions: which records of a log are earlier than a time, and which are not.

A time falls between two records: all up to the one are earlier, all from the other on are not. If offsets are missing
between these two because of damage, the missing records may belong to either side. So damage there is treated as a
reader treats it: a consumer waits while it is healed from other replicas, and gets an error if one that may have the
records cannot be asked. Records that are lost for good belong to neither side. A look-up ignores damage elsewhere: the
reader that starts there handles it.
"""

from typing import NamedTuple

from bascule.log.healing import Healing
from bascule.log.index import TIMESTAMP
from bascule.log.lookup import last_before, seek
from bascule.log.reader import healed_or_lost
from bascule.log.segments import SegmentList


class Boundary(NamedTuple):
    """Where a time divides a log."""

    last_earlier: int | None
    """The offset of the last record before that time, if there is one."""
    first_later: int
    """The offset of the first record at that time or later; the end of the log if there is none."""


async def offset_at_or_after(segments: SegmentList, timestamp: int) -> int:
    """The first record written at that time or later; the log end if there is none. Unavailable if that is not known
    now."""
    return (await _healed_boundary(segments, timestamp)).first_later


async def offset_at_or_before(segments: SegmentList, timestamp: int) -> int | None:
    """The last record written at that time or earlier; None if there is none. Unavailable as above."""
    return (await _healed_boundary(segments, timestamp + 1)).last_earlier


async def end_before(segments: SegmentList, timestamp: int) -> int:
    """The offset after the last record that is known to be earlier: damaged records after it may not be. Never waits
    for other replicas."""
    last = (await _boundary(segments, timestamp)).last_earlier
    return segments.start if last is None else last + 1


async def _healed_boundary(segments: SegmentList, timestamp: int) -> Boundary:
    while True:
        boundary = await _boundary(segments, timestamp)
        if not await _any_healed(segments, boundary):
            return boundary


async def _any_healed(segments: SegmentList, boundary: Boundary) -> bool:
    """Whether records between the two were healed; returns when all that are still missing are lost."""
    start = segments.floor if boundary.last_earlier is None else boundary.last_earlier + 1
    segment = segments.at(start)
    while segment is not None and start < boundary.first_later and segment.base < boundary.first_later:
        following = segments.after(segment)
        if segment.damage and await healed_or_lost(segments, segment) is Healing.HEALED:
            return True
        segment = following
    return False


async def _boundary(segments: SegmentList, timestamp: int) -> Boundary:
    while True:
        boundary = await _find_boundary(segments, timestamp)
        if boundary is not None:
            return boundary


async def _find_boundary(segments: SegmentList, timestamp: int) -> Boundary | None:
    """None if files were replaced or truncated meanwhile: it must be looked up again."""
    if not segments:
        return Boundary(None, segments.end)
    # What is appended from now on comes after all of this.
    segment, position, first_later = segments[-1], segments[-1].appended.size, segments.end
    for each in segments[_first_not_before(segments, timestamp) :]:
        if each.empty or each.appended.last_timestamp < timestamp:
            continue
        found = await seek(segments, each, TIMESTAMP, timestamp)
        if each.retired:
            return None
        if found is not None:
            segment, position, first_later = each, found.position, found.offset
            break
    while True:
        last_earlier = await last_before(segments, segment, position)
        if segment.retired or segment.appended.size < position:
            return None
        before = segments.before(segment)
        if last_earlier is not None or before is None:
            return Boundary(last_earlier, first_later)
        segment, position = before, before.appended.size


def _first_not_before(segments: SegmentList, timestamp: int) -> int:
    """The number of a segment before which all records are earlier: times rise with offsets, and a log may have ten
    thousand segments. An empty one says nothing, so the last one before it that does counts."""
    low, high = 0, len(segments)
    while low < high:
        middle = (low + high) // 2
        known = middle
        while known > low and segments[known].empty:
            known -= 1
        if not segments[known].empty and segments[known].appended.last_timestamp < timestamp:
            low = middle + 1
        else:
            high = known
    return low
