"""Chunks: whole records out of a segment, each one verified, with damage skipped.

Theory of operation: a chunk is read, and one kernel call verifies every record in it. A record that the
chunk's end truncates is left for the next read; one that is larger than the chunk makes the read grow to its length,
once. At a bad record the search for the next good one begins. If the bad record's own length leads to the end
of the file or to a valid record, that is where it ends: its value may hold the bytes of other records, which
must not be taken for records of the log. Only if the length itself is damaged are the bytes searched one by one; a
match counts only if a second record follows it, or the end of the file, for the same reason. A file that ends before
the size it should have is damaged from its last whole record on. Bytes that do not verify are read again before they
count as damaged, and the end of damage is taken from bytes that two reads agree on (`reread`). Every turn of every loop
here reads further or asks for more than the one before.

Known to be imperfect: if the length of a record is damaged and its value holds two valid records back to back, these
are taken for records of the log; so is a record in the value of one that is torn exactly at its end.
"""

from dataclasses import dataclass

from bascule import limits
from bascule.log.reread import Read, agreed, steady
from bascule.wire import kernels
from bascule.wire.record import FRAME_PREFIX_BYTES

TRAILER_TAG = b"\x82\x7d\x0c"
_MIN_READ_BYTES = 4 * limits.KIB
_MAX_WHOLE_BYTES = FRAME_PREFIX_BYTES + limits.MAX_RECORD_BYTES
_INCOMPLETE = 1


@dataclass(slots=True)
class Chunk:
    """Whole valid records back to back at `position`."""

    position: int
    data: bytes
    count: int
    first_offset: int
    next_offset: int
    last_timestamp: int
    last_epoch: int

    @property
    def end(self) -> int:
        return self.position + len(self.data)

    def before(self, limit: int) -> "Chunk | None":
        """Its records with an offset below `limit`, of which there may be none."""
        if self.next_offset <= limit:
            return self
        split = kernels.seek_record(self.data, 0, len(self.data), 0, limit)[0]
        return self._part(self.position, self.data[:split])

    def since(self, offset: int) -> "Chunk | None":
        """Its records from `offset` on, of which there may be none."""
        if self.first_offset >= offset:
            return self
        split = kernels.seek_record(self.data, 0, len(self.data), 0, offset)[0]
        return self._part(self.position + split, self.data[split:])

    def first_record(self) -> "Chunk | None":
        return self._part(self.position, self.data[: _record_bytes(self.data)])

    def _part(self, position: int, data: bytes) -> "Chunk | None":
        _, count, first, following, timestamp, epoch, _ = kernels.scan_records(data, 0, len(data), 0)
        return Chunk(position, data, count, first, following, timestamp, epoch) if count else None


async def read_chunk(
    read: Read, position: int, max_bytes: int, size: int, min_offset: int, damage: dict[int, int]
) -> Chunk | None:
    """The first valid records at or after `position`, about `max_bytes` of them; None if none is left before `size`.

    Skipped bytes are noted in `damage`: where they begin -> where they end.
    """
    length = first_length = max(max_bytes, _MIN_READ_BYTES)
    while position < size:
        asked = min(length, size - position)
        data = await read(position, asked)
        chunk, needed = _whole_records(data, position, min_offset, asked, size - position)
        known = damage.get(position, position)
        if chunk is None and not needed and known == position:
            data = await agreed(read, position, asked, data)
            chunk, needed = _whole_records(data, position, min_offset, asked, size - position)
        if chunk is not None:
            # The length that made the read grow may have been read wrongly: then there is more than one record.
            return chunk if len(chunk.data) <= first_length else chunk.first_record()
        if needed:
            length = needed
            continue
        if known == position:
            known = await next_record(steady(read), position, size, min_offset) if data else size
            if len(damage) < limits.MAX_DAMAGE_NOTES:
                damage[position] = known
        position = known
    return None


def _whole_records(data: bytes, position: int, min_offset: int, asked: int, left: int) -> tuple[Chunk | None, int]:
    """The valid records that the data begins with; and, if there is none because more should be `asked` for, of what is
    `left`, how much that is, else 0."""
    good, count, first, following, timestamp, epoch, status = kernels.scan_records(data, 0, len(data), min_offset)
    if count:
        records = data if good == len(data) else data[:good]
        return Chunk(position, records, count, first, following, timestamp, epoch), 0
    needed = _record_bytes(data) if status == _INCOMPLETE else 0
    return None, needed if asked < needed <= left else 0  # and not `len(data) <`: a file too short never gives more


async def next_record(read: Read, position: int, size: int, min_offset: int) -> int:
    """Where the first trustworthy record after the bad one at `position` begins; `size` if there is none."""
    own_end = await _own_end(read, position, size)
    if own_end == size or (own_end > 0 and await _record_end(read, own_end, size, min_offset) is not None):
        return own_end
    start = position + 1
    while start < size:
        window = await read_fully(read, start, min(limits.RESYNC_BYTES + _MAX_WHOLE_BYTES, size - start))
        if not window:
            return size
        last = start + len(window) == size
        judged = len(window) if last else min(limits.RESYNC_BYTES, len(window))
        at = kernels.find_record(window, 0, len(window), min_offset)
        while 0 <= at < judged:
            if await _is_followed(read, start + at, size, min_offset):
                return start + at
            at = kernels.find_record(window, at + 1, len(window), min_offset)
        start += judged
    return size


async def _is_followed(read: Read, position: int, size: int, min_offset: int) -> bool:
    end = await _record_end(read, position, size, min_offset)
    return end is not None and (end == size or await _record_end(read, end, size, min_offset) is not None)


async def _own_end(read: Read, position: int, size: int) -> int:
    """Where the record at `position` ends by its length, if a trailer is there; else 0."""
    length = _record_bytes(await read_fully(read, position, min(FRAME_PREFIX_BYTES, size - position)))
    end = position + length
    if not FRAME_PREFIX_BYTES + limits.MIN_RECORD_PAYLOAD_BYTES <= length <= _MAX_WHOLE_BYTES or end > size:
        return 0
    tag = await read_fully(read, end - limits.RECORD_TRAILER_BYTES, len(TRAILER_TAG))
    return end if tag == TRAILER_TAG else 0


async def _record_end(read: Read, position: int, size: int, min_offset: int) -> int | None:
    """Where the record at `position` ends, if it is valid."""
    record = await _record_at(read, position, size, min_offset)
    return None if record is None else record.end


async def read_record(read: Read, position: int, size: int) -> Chunk | None:
    """The one record at `position`, if it is valid."""
    return await _record_at(read, position, size, 0) or await _record_at(steady(read), position, size, 0)


async def _record_at(read: Read, position: int, size: int, min_offset: int) -> Chunk | None:
    if not 0 <= position < size:
        return None
    length = _record_bytes(await read_fully(read, position, min(FRAME_PREFIX_BYTES, size - position)))
    if not 0 < length <= min(size - position, _MAX_WHOLE_BYTES):
        return None
    data = await read_fully(read, position, length)
    good, count, first, following, timestamp, epoch, _ = kernels.scan_records(data, 0, len(data), min_offset)
    return Chunk(position, data, count, first, following, timestamp, epoch) if good == length else None


async def read_fully(read: Read, position: int, length: int) -> bytes:
    data = await read(position, length)
    while len(data) < length:
        more = await read(position + len(data), length - len(data))
        if not more:
            break
        data += more
    return data


def _record_bytes(data: bytes) -> int:
    """The whole length of the record that begins here, as its prefix says; 0 if there is no whole prefix."""
    if len(data) < FRAME_PREFIX_BYTES:
        return 0
    return FRAME_PREFIX_BYTES + int.from_bytes(data[1:FRAME_PREFIX_BYTES], "big")
