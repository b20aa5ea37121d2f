"""A damaged stretch of a segment: the bytes between two good records, and the offsets that were there."""

from typing import NamedTuple

from bascule import limits
from bascule.log.chunk import Chunk, read_chunk, read_record
from bascule.log.lookup import yielding
from bascule.log.segment import Segment
from bascule.log.segments import SegmentList


class Stretch(NamedTuple):
    """A damaged part of a segment, in bytes, and the offsets its records can have had."""

    start: int
    end: int
    first_offset: int
    end_offset: int
    follows: Chunk | None
    """The first good record after it, wherever that is; None if it is the last of the log."""
    epoch: int
    """Of the record after it, 0 if there is none: a peer with a record of this epoch here has the missing ones."""


async def stretch_of(segments: SegmentList, segment: Segment, start: int, end: int) -> Stretch:
    first = await end_before(segment, start)
    following = segments.after(segment)
    follows = await first_after(segment, end)
    if follows is not None:
        return Stretch(start, end, first, follows.first_offset, follows, follows.last_epoch)
    if following is None:
        return Stretch(start, end, first, segment.promised.end, None, 0)
    limit = following.base
    while following is not None and follows is None:
        follows = await first_after(following, 0)
        following = segments.after(following)
    return Stretch(start, end, first, limit, follows, follows.last_epoch if follows is not None else 0)


async def end_before(segment: Segment, limit: int) -> int:
    """The offset after the last good record before this position."""
    position, offset = 0, segment.base
    read = yielding(segment.read)
    while position < limit:
        chunk = await read_chunk(read, position, limits.RECOVERY_READ_BYTES, limit, segment.base, {})
        if chunk is None:
            break
        position, offset = chunk.end, chunk.next_offset
    return offset


async def first_after(segment: Segment, position: int) -> Chunk | None:
    """The first good record at or after this position."""
    size = segment.appended.size
    chunk = await read_chunk(yielding(segment.read), position, 1, size, segment.base, {})
    return None if chunk is None else await read_record(segment.read, chunk.position, size)
