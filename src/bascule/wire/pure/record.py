"""Records in a log or on the wire: checked, found, sought, turned around, indexed, decoded."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from bascule.limits import MAX_RECORD_BYTES, MIN_RECORD_PAYLOAD_BYTES, RECORD_TRAILER_BYTES
from bascule.wire.pure.envelope import crc32c
from bascule.wire.pure.protobuf import (
    Buffer,
    MalformedError,
    read_bytes,
    read_message,
    read_varint,
    signed32,
    signed64,
    window,
)

_PREFIX = struct.Struct(">BI")
_BATCH = struct.Struct("<BBBHH")
_PREFIX_BYTES = 5
_TRAILER = b"\x82\x7d\x0c"
_WHOLE, _INCOMPLETE, _BAD = 0, 1, 2
_MAX_OFFSET = (1 << 63) - 2  # there is a next one
_STRINGS = frozenset((0x2A, 0x3A, 0x42, 0x52, 0x5A))

Decoded = tuple[int, bytes, bytes, int, str, int, str, str, dict[str, bytes]]
"""Offset, key, value, timestamp, stream, partition, subject, reply subject, headers."""
_BROKERS_OWN = (b"subject", b"reply")


class _Head(NamedTuple):
    offset: int
    timestamp: int
    end: int


def _head(data: bytes, position: int) -> _Head | int:
    """Offset, timestamp and end of the record at `position`, no checksum done; else why there is none."""
    if len(data) - position < _PREFIX_BYTES:
        return _INCOMPLETE
    flag, length = _PREFIX.unpack_from(data, position)
    if flag or not MIN_RECORD_PAYLOAD_BYTES <= length <= MAX_RECORD_BYTES:
        return _BAD
    start = position + _PREFIX_BYTES
    end = start + length
    if end > len(data):
        return _INCOMPLETE
    trailer = end - RECORD_TRAILER_BYTES
    if data[start] != 0x08 or data[trailer : trailer + 3] != _TRAILER:
        return _BAD
    try:
        number, position = read_varint(data, start + 1, trailer)
    except MalformedError:
        return _BAD
    if number > _MAX_OFFSET:
        return _BAD
    return _Head(number, _timestamp(data, position, trailer), end)


def _timestamp(data: bytes, position: int, trailer: int) -> int:
    """The timestamp in its place after offset, key and value; 0 if it is not there."""
    try:
        for tag in (0x12, 0x1A):
            if data[position] == tag:
                _, position = read_bytes(data, position + 1, trailer)
        if position >= trailer or data[position] != 0x20:
            return 0
        return signed64(read_varint(data, position + 1, trailer)[0])
    except MalformedError:
        return 0


def record_fields(buffer: Buffer, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    """(offset, timestamp, content of field 2001) of whole records. That field stands right after the timestamp; its
    content is empty if there is none."""
    data = window(buffer, start, end)
    for position, head in _heads(data):
        trailer = head.end - RECORD_TRAILER_BYTES
        yield head.offset, head.timestamp, _producer(data, position + _PREFIX_BYTES + 1, trailer)


def _producer(data: bytes, position: int, trailer: int) -> bytes:
    try:
        _, position = read_varint(data, position, trailer)
        for tag in (0x12, 0x1A):
            if data[position] == tag:
                _, position = read_bytes(data, position + 1, trailer)
        if position >= trailer or data[position] != 0x20:
            return b""
        _, position = read_varint(data, position + 1, trailer)
        if trailer - position < 3 or data[position : position + 2] != b"\x8a\x7d":
            return b""
        return read_bytes(data, position + 2, trailer)[0]
    except MalformedError:
        return b""


class KeyedRecord(NamedTuple):
    """A record, as far as compaction is concerned."""

    position: int
    end: int
    offset: int
    timestamp: int
    key: bytes
    has_value: bool

    def header_names(self, data: bytes) -> list[str]:
        return list(_decode(data[self.position + _PREFIX_BYTES : self.end])[8])


def keyed_records(data: bytes) -> Iterator[KeyedRecord]:
    """Of whole records."""
    for position, head in _heads(data):
        trailer = head.end - RECORD_TRAILER_BYTES
        key, has_value = b"", False
        try:
            _, at = read_varint(data, position + _PREFIX_BYTES + 1, trailer)
            if at < trailer and data[at] == 0x12:
                key, at = read_bytes(data, at + 1, trailer)
            has_value = at < trailer and data[at] == 0x1A
        except MalformedError:
            pass
        yield KeyedRecord(position, head.end, head.offset, head.timestamp, key, has_value)


def _valid(data: bytes, position: int, head: _Head) -> bool:
    covered = memoryview(data)[position + _PREFIX_BYTES : head.end - 4]
    return crc32c(covered) == int.from_bytes(data[head.end - 4 : head.end], "little")


def scan_records(buffer: Buffer, start: int, end: int, min_offset: int) -> tuple[int, int, int, int, int, int, int]:
    """(position, count, first offset, next offset, last timestamp, last epoch, status)."""
    data = window(buffer, start, end)
    position = count = timestamp = epoch = 0
    first_offset, next_offset = -1, min_offset
    status = _WHOLE
    while position < len(data):
        head = _head(data, position)
        if isinstance(head, int):
            status = head
            break
        if head.offset < next_offset or not _valid(data, position, head):
            status = _BAD
            break
        if count == 0:
            first_offset = head.offset
        count += 1
        next_offset, timestamp, position = head.offset + 1, head.timestamp, head.end
        epoch = int.from_bytes(data[position - 12 : position - 4], "little")
    return start + position, count, first_offset, next_offset, timestamp, epoch, status


def record_at(data: bytes, position: int, min_offset: int) -> tuple[int, int, int]:
    """(status, offset, where it ends) of the record at `position`."""
    head = _head(data, position)
    if isinstance(head, int):
        return head, -1, position
    if head.offset < min_offset or not _valid(data, position, head):
        return _BAD, -1, position
    return _WHOLE, head.offset, head.end


def find_record(buffer: Buffer, start: int, end: int, min_offset: int) -> int:
    """Where the first valid record at or after `start` begins, else -1."""
    data = window(buffer, start, end)
    tag = data.find(b"\x08", _PREFIX_BYTES)  # rarer than the zero byte of the flag, above all in zero-filled tails
    while tag >= 0:
        position = tag - _PREFIX_BYTES
        if data[position] == 0:
            head = _head(data, position)
            if isinstance(head, _Head) and head.offset >= min_offset and _valid(data, position, head):
                return start + position
        tag = data.find(b"\x08", tag + 1)
    return -1


def seek_record(buffer: Buffer, start: int, end: int, field: int, target: int) -> tuple[int, int, int]:
    """(position, offset, timestamp) of the first record at or past the target offset (0) or timestamp (1)."""
    data = window(buffer, start, end)
    position = 0
    while position < len(data):
        head = _head(data, position)
        if isinstance(head, int):
            break
        if (head.timestamp if field else head.offset) >= target:
            return start + position, head.offset, head.timestamp
        position = head.end
    return start + position, -1, -1


def _heads(data: bytes) -> list[tuple[int, _Head]]:
    """Position and head of every record of a buffer that holds whole records only."""
    heads = []
    position = 0
    while position < len(data):
        head = _head(data, position)
        if isinstance(head, int):
            raise ValueError(f"no whole record at byte {position}")
        heads.append((position, head))
        position = head.end
    return heads


def reverse_records(buffer: Buffer, start: int, end: int) -> bytes:
    """The same records, the last one first."""
    data = window(buffer, start, end)
    return b"".join(data[position : head.end] for position, head in reversed(_heads(data)))


def index_records(records: Buffer, position: int, since: int, interval: int) -> tuple[bytes, int]:
    """(index entries, bytes since the last one)."""
    entries = []
    for at, head in _heads(bytes(records)):
        if since >= interval:
            entries.append(struct.pack("<qqq", head.offset, position + at, head.timestamp))
            since = 0
        since += head.end - at
    return b"".join(entries), since


def decode_records(
    buffer: Buffer, start: int, end: int, limit: int, user_only: bool = False
) -> tuple[int, list[Decoded]]:
    """(position, at most `limit` Messages), from any server that speaks the protocol. Of headers those of users alone,
    if asked for: without `subject` and `reply`, which the broker writes."""
    data = window(buffer, start, end)
    position = 0
    records: list[Decoded] = []
    while len(records) < limit and len(data) - position >= _PREFIX_BYTES:
        flag, length = _PREFIX.unpack_from(data, position)
        if flag:
            raise ValueError(f"a message with flag byte {flag}: it is compressed, which was not asked for")
        after = position + _PREFIX_BYTES + length
        if after > len(data):
            break
        records.append(_decode(data[position + _PREFIX_BYTES : after], user_only))
        position = after
    return start + position, records


def _decode(payload: bytes, user_only: bool = False) -> Decoded:
    numbers, contents, entries = read_message(payload, _STRINGS, 0x4A)
    return (
        signed64(numbers.get(0x08, 0)),
        contents.get(0x12, b""),
        contents.get(0x1A, b""),
        signed64(numbers.get(0x20, 0)),
        contents.get(0x2A, b"").decode(),
        signed32(numbers.get(0x30, 0)),
        contents.get(0x3A, b"").decode(),
        contents.get(0x42, b"").decode(),
        {name.decode(): value for name, value in entries if not user_only or name not in _BROKERS_OWN},
    )


def _batch_place(data: bytes, position: int, head: _Head) -> tuple[int, int] | None:
    """The place of the record in its atomic batch, and how many records that has; None if it is in none."""
    trailer = head.end - RECORD_TRAILER_BYTES
    try:
        _, position = read_varint(data, position + _PREFIX_BYTES + 1, trailer)
        for tag in (0x12, 0x1A):
            if position < trailer and data[position] == tag:
                _, position = read_bytes(data, position + 1, trailer)
        if position >= trailer or data[position] != 0x20:
            return None
        _, position = read_varint(data, position + 1, trailer)
        if trailer - position >= 3 and data[position : position + 2] == b"\x8a\x7d":
            _, position = read_bytes(data, position + 2, trailer)
    except MalformedError:
        return None
    if trailer - position < _BATCH.size or data[position : position + 3] != b"\x92\x7d\x04":
        return None
    *_, index, count = _BATCH.unpack_from(data, position)
    return (index, count) if index < count and head.offset >= index else None


def open_batch(buffer: Buffer, start: int, end: int) -> tuple[int, int, int]:
    """(position, first offset, missing) of the atomic batch that these records end in the middle of; (end, -1, 0) if
    there is none."""
    data = window(buffer, start, end)
    position, nothing = 0, (end, -1, 0)
    found = nothing
    while position < len(data):
        head = _head(data, position)
        if isinstance(head, int):
            break
        place = _batch_place(data, position, head)
        if place is None or place[0] + 1 == place[1]:
            found = nothing
        else:
            first, missing = head.offset - place[0], place[1] - place[0] - 1
            found = (found[0] if first == found[1] else start + position, first, missing)
        position = head.end
    return found
