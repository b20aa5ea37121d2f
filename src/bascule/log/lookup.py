"""Finding records by offset or time: the index gives a place to start, verified chunks the answer.

Timestamps strictly increase within a partition, so a time is looked up like an offset. Damage is skipped here:
`timestamps` handles what a consumer may miss by that.
"""

import asyncio
import logging

from bascule import limits
from bascule.errors import LogError
from bascule.log.chunk import Chunk, read_chunk, read_record
from bascule.log.index import POSITION, TIMESTAMP, Entry, FileIndex, entries_intact
from bascule.log.reread import Read
from bascule.log.scan import scan_segment
from bascule.log.segment import Segment
from bascule.log.segments import SegmentList
from bascule.wire import kernels

_log = logging.getLogger("bascule.log")
_READS_A_TURN = 2


def yielding(read: Read) -> Read:
    """The same, for callers that read many times: reads from the page cache never wait, so that other tasks get a turn
    only by yielding."""
    reads = 0

    async def read_in_turn(position: int, length: int, fresh: bool = False) -> bytes:
        nonlocal reads
        reads += 1
        if reads > _READS_A_TURN:
            await asyncio.sleep(0)
        return await read(position, length, fresh)

    return read_in_turn


async def floor_position(segments: SegmentList, segment: Segment, field: int, target: int) -> int:
    """Where to start looking for `target` in this segment."""
    if segment.missing or segment.appended.size <= limits.INDEX_INTERVAL_BYTES:
        return 0  # one read has all of it, and an index none of it
    try:
        await _verify_index(segments, segment)
    except OSError as error:
        if segment.retired:
            return 0
        raise _read_error(segment.index_path, error) from error
    try:
        entry = await segment.index.floor(field, target)
    except OSError:  # the next lookup verifies the index, and makes it again if it is not whole
        segment.index_verified = False
        return 0
    if entry is None or await _stands_there(segment, entry):
        return 0 if entry is None else entry.position
    segment.index_verified = False
    return 0


async def _verify_index(segments: SegmentList, segment: Segment) -> None:
    """Before the first use of an index file: are its entries what was written? If not, scan for them."""
    index = segment.index
    if segment.index_verified or not isinstance(index, FileIndex):
        return
    if await entries_intact(segments.disk, index):
        segment.index_verified = True
        return
    scan = await scan_segment(segments.disk, segment.path, segment.base, segment.promised.size)
    if segment.index is not index:
        return  # another reader was faster
    _log.warning("%s: its entries are damaged; the index is made again from its segment", index.path)
    segment.index, segment.index_verified = scan.index, True
    await segments.disk.remove(index.path)
    segments.store_index(segment)


async def _stands_there(segment: Segment, entry: Entry) -> bool:
    """Whether the record of this index entry is at its position. A bit of the index may flip long after it was
    verified, and a reader would silently skip records; the start of the segment is always a correct position.
    """
    try:
        record = await read_record(segment.read, entry.position, segment.appended.size)
    except OSError as error:
        if segment.retired:
            return False
        raise _read_error(segment.path, error) from error
    return record is not None and (record.first_offset, record.last_timestamp) == (entry.offset, entry.timestamp)


async def read_verified(segment: Segment, position: int, max_bytes: int, size: int) -> Chunk | None:
    """Whole records at or after `position`; damage on the way is logged the first time it is met."""
    known = len(segment.damage)
    read = yielding(segment.read)
    try:
        # Records that wait for the disk are in memory, whatever happened to the file.
        stored = segment.promised.size
        chunk = None
        if position < stored < size:
            chunk = await read_chunk(read, position, max_bytes, stored, segment.base, segment.damage)
            position = stored
        if chunk is None:
            chunk = await read_chunk(read, position, max_bytes, size, segment.base, segment.damage)
        if len(segment.damage) > known:
            await _say_damage(segment, known)
    except OSError as error:
        if segment.retired:
            return None
        raise _read_error(segment.path, error) from error
    return chunk


async def _say_damage(segment: Segment, known: int) -> None:
    """Log the stretches after the first `known`. Not of a file that was truncated or replaced while it was read."""
    found = list(segment.damage.items())[known:]
    for start, end in found:
        if segment.retired or end > segment.appended.size:
            segment.damage.pop(start, None)
    length = await segment.file_size()
    for start, end in found:
        if start in segment.damage:
            _log.error(
                "%s: %d bytes at position %d are damaged and left out; another replica may have them%s",
                segment.path,
                end - start,
                start,
                f" (the file has become shorter: it has {length} bytes)" if length < end else "",
            )


def _read_error(path: str, error: OSError) -> LogError:
    return LogError(f"{path}: reading failed: {error.strerror or error}; check the disk")


async def seek(segments: SegmentList, segment: Segment, field: int, target: int) -> Entry | None:
    """The first record whose offset or timestamp is at least `target`, appended ones included."""
    position = await floor_position(segments, segment, field, target)
    size = segment.appended.size
    while True:
        chunk = await read_verified(segment, position, 2 * limits.INDEX_INTERVAL_BYTES, size)
        if chunk is None:
            return None
        data = chunk.data
        found, offset, timestamp = kernels.seek_record(data, 0, len(data), int(field == TIMESTAMP), target)
        if offset >= 0:
            return Entry(offset, chunk.position + found, timestamp)
        position = chunk.end
        await asyncio.sleep(0)


async def last_before(segments: SegmentList, segment: Segment, position: int) -> int | None:
    """The offset of the last record that ends at or before `position`."""
    start = position
    while start > 0:
        start = at = await floor_position(segments, segment, POSITION, start - 1)
        offset = None
        while at < position:
            chunk = await read_verified(segment, at, 2 * limits.INDEX_INTERVAL_BYTES, position)
            if chunk is None:
                break
            offset, at = chunk.next_offset - 1, chunk.end
            await asyncio.sleep(0)
        if offset is not None:
            return offset
    return None
