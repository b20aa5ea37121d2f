"""Finding records by offset or time: the index gives a place to start, verified chunks the answer.

Timestamps strictly increase within a partition, so a time is looked up like an offset.
"""

import logging
from typing import TYPE_CHECKING

from bascule import limits
from bascule.errors import LogError
from bascule.log.chunk import Chunk, read_chunk, read_record
from bascule.log.index import POSITION, TIMESTAMP, Entry
from bascule.log.segment import Segment
from bascule.wire import kernels

if TYPE_CHECKING:
    from bascule.log.commitlog import CommitLog

_log = logging.getLogger("bascule.log")
_STEP_BYTES = 2 * limits.INDEX_INTERVAL_BYTES


async def floor_position(log: "CommitLog", segment: Segment, field: int, target: int) -> int:
    """Where to start looking for `target` in this segment."""
    try:
        await log.verify_index(segment)
        entry = await segment.index.floor(field, target)
    except OSError as error:
        if segment.retired:
            return 0
        raise _read_error(segment.index_path, error) from error
    if entry is None or await _stands_there(segment, entry):
        return 0 if entry is None else entry.position
    segment.index_verified = False
    return 0


async def _stands_there(segment: Segment, entry: Entry) -> bool:
    """Whether the record the index speaks of is where it says. A bit of the index may flip long after it was
    verified, and a reader led astray would leave records out without a word; the start of the segment is never wrong.
    """
    try:
        record = await read_record(segment.read, entry.position, segment.appended.size)
    except OSError as error:
        if segment.retired:
            return False
        raise _read_error(segment.path, error) from error
    return record is not None and (record.first_offset, record.last_timestamp) == (entry.offset, entry.timestamp)


async def read_verified(segment: Segment, position: int, max_bytes: int, size: int) -> Chunk | None:
    """Whole records at or after `position`; damage on the way is said, the first time anybody meets it."""
    known = len(segment.damage)
    try:
        chunk = await read_chunk(segment.read, position, max_bytes, size, segment.base, segment.damage)
    except OSError as error:
        if segment.retired:
            return None
        raise _read_error(segment.path, error) from error
    if len(segment.damage) > known:
        for start, end in list(segment.damage.items())[known:]:
            _log.error(
                "%s: %d bytes at position %d are damaged and left out; another replica may have them",
                segment.path,
                end - start,
                start,
            )
    return chunk


def _read_error(path: str, error: OSError) -> LogError:
    return LogError(f"{path}: reading failed: {error.strerror or error}; check the disk")


async def seek(log: "CommitLog", segment: Segment, field: int, target: int) -> Entry | None:
    """The first record whose offset or timestamp is at least `target`, appended ones included."""
    position = await floor_position(log, segment, field, target)
    size = segment.appended.size
    while True:
        chunk = await read_verified(segment, position, _STEP_BYTES, size)
        if chunk is None:
            return None
        data = chunk.data
        found, offset, timestamp = kernels.seek_record(data, 0, len(data), int(field == TIMESTAMP), target)
        if offset >= 0:
            return Entry(offset, chunk.position + found, timestamp)
        position = chunk.end


async def offset_at_or_after(log: "CommitLog", timestamp: int) -> int:
    """The first record written at that time or later; the log's end if there is none."""
    for segment in list(log.segments):
        if not segment.empty and segment.appended.last_timestamp >= timestamp:
            found = await seek(log, segment, TIMESTAMP, timestamp)
            if found is not None:
                return found.offset
    return log.end


async def offset_at_or_before(log: "CommitLog", timestamp: int) -> int | None:
    """The last record written at that time or earlier; None if there is none."""
    for segment in reversed(list(log.segments)):
        if segment.empty or segment.first_timestamp > timestamp:
            continue
        found = await seek(log, segment, TIMESTAMP, timestamp + 1)
        position = segment.appended.size if found is None else found.position
        offset = await _last_before(log, segment, position)
        if offset is not None:
            return offset
    return None


async def _last_before(log: "CommitLog", segment: Segment, position: int) -> int | None:
    """The offset of the last record that ends at or before `position`."""
    start = position
    while start > 0:
        start = at = await floor_position(log, segment, POSITION, start - 1)
        offset = None
        while at < position:
            chunk = await read_verified(segment, at, _STEP_BYTES, position)
            if chunk is None:
                break
            offset, at = chunk.next_offset - 1, chunk.end
        if offset is not None:
            return offset
    return None
