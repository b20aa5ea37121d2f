"""Protobuf as bytes: a reader that accepts exactly what upb accepts, and the few writers the kernels need.

upb is the judge because it is what Bascule parses with off the hot path: a message must not be an envelope
for one and opaque bytes for the other. What that means beyond the format's textbook, each point tried
against the library: tags and lengths take at most five bytes, a tag fits in 32 bits; field number 0 is an
error, though not inside a group that is skipped, and so are wire types 6 and 7; other varints take at most
ten bytes, and bits past the 64th are dropped; groups nest at most 100 deep, and a map entry is one level;
every occurrence of a string field must be UTF-8, also one that a later occurrence replaces. One difference
is meant: upb drops a map entry that holds an unknown field, here (as in Go) the entry stays.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

Buffer = bytes | bytearray | memoryview

MAX_DEPTH = 100
VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)
_MASK64 = (1 << 64) - 1


class MalformedError(ValueError):
    """Not the protobuf message it should be. The kernels turn it into a decision, it never ends a batch."""


class Message(NamedTuple):
    """A parsed message, by tag (field number and wire type in one)."""

    numbers: dict[int, int]
    contents: dict[int, bytes]
    entries: list[tuple[bytes, bytes]]


def window(buffer: Buffer, start: int, end: int) -> bytes:
    """buffer[start:end] as bytes, and never a range the buffer does not have."""
    view = memoryview(buffer)
    if not 0 <= start <= end <= view.nbytes:
        raise ValueError(f"range {start}..{end} is outside a buffer of {view.nbytes} bytes")
    return bytes(view[start:end])


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """An unsigned 64-bit value and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= end:
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, position
    raise MalformedError("a varint does not end")


def read_short(data: bytes, position: int, end: int) -> tuple[int, int]:
    """A tag or a length: at most five bytes and 32 bits."""
    value = 0
    for shift in range(0, 35, 7):
        if position >= end:
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 32:
                break
            return value, position
    raise MalformedError("a tag or length does not end, or has more than 32 bits")


def read_bytes(data: bytes, position: int, end: int) -> tuple[bytes, int]:
    """A length and that many bytes."""
    length, position = read_short(data, position, end)
    if length > end - position:
        raise MalformedError("a field runs past the end of its message")
    return data[position : position + length], position + length


def _skip_group(data: bytes, position: int, end: int, number: int, depth: int) -> int:
    """The position after the end of the group `number`, whose start tag was just read."""
    open_groups = [number]
    while open_groups:
        if len(open_groups) > depth:
            raise MalformedError("groups nest too deeply")
        tag, position = read_short(data, position, end)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == GROUP:
            open_groups.append(number)
        elif wire_type == END_GROUP:
            if open_groups.pop() != number:
                raise MalformedError("a group ends as another one")
        elif wire_type == VARINT:
            _, position = read_varint(data, position, end)
        elif wire_type == BYTES:
            _, position = read_bytes(data, position, end)
        else:
            position = _skip_fixed(position, end, wire_type)
    return position


def _skip_fixed(position: int, end: int, wire_type: int) -> int:
    if wire_type not in (FIXED64, FIXED32):
        raise MalformedError("a wire type that does not exist")
    position += 8 if wire_type == FIXED64 else 4
    if position > end:
        raise MalformedError("a field runs past the end of its message")
    return position


def fields(data: bytes, depth: int = MAX_DEPTH) -> Iterator[tuple[int, int | bytes]]:
    """(tag, value) of each varint and length-delimited field in wire order; all else is checked and skipped.

    A known field with an unexpected wire type has another tag: callers that compare whole tags pass over it.
    """
    position, end = 0, len(data)
    while position < end:
        tag, position = read_short(data, position, end)
        wire_type = tag & 7
        if tag < 8:
            raise MalformedError("field number 0")
        if wire_type == VARINT:
            number, position = read_varint(data, position, end)
            yield tag, number
        elif wire_type == BYTES:
            content, position = read_bytes(data, position, end)
            yield tag, content
        elif wire_type == GROUP:
            position = _skip_group(data, position, end, tag >> 3, depth)
        else:
            position = _skip_fixed(position, end, wire_type)


def read_message(data: bytes, strings: frozenset[int], entries: int = 0, depth: int = MAX_DEPTH) -> Message:
    """The last value of each field; strings are checked, fields with the tag `entries` are map entries."""
    numbers: dict[int, int] = {}
    contents: dict[int, bytes] = {}
    pairs: list[tuple[bytes, bytes]] = []
    for tag, value in fields(data, depth):
        if isinstance(value, int):
            numbers[tag] = value
        elif tag == entries:
            pairs.append(read_entry(value))
        else:
            if tag in strings:
                check_utf8(value)
            contents[tag] = value
    return Message(numbers, contents, pairs)


def read_entry(data: bytes) -> tuple[bytes, bytes]:
    """Key (checked) and value of a map<string, bytes> entry; a missing one is empty."""
    key = value = b""
    for tag, content in fields(data, MAX_DEPTH - 1):
        if not isinstance(content, bytes):
            continue
        if tag == 0x0A:
            check_utf8(content)
            key = content
        elif tag == 0x12:
            value = content
    return key, value


def check_utf8(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError:
        raise MalformedError("a string is not UTF-8") from None


def repair(data: bytes) -> bytes:
    """The same bytes if they are UTF-8, else with U+FFFD for each bad part."""
    return data.decode("utf-8", "replace").encode()


def signed64(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def signed32(value: int) -> int:
    """int32 and enum fields keep the low 32 bits."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def varint(value: int) -> bytes:
    """A negative number takes ten bytes, as int64 and int32 fields do."""
    value &= _MASK64
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number_field(tag: int, value: int) -> bytes:
    return bytes((tag,)) + varint(value)


def bytes_field(tag: int, value: bytes) -> bytes:
    return bytes((tag,)) + varint(len(value)) + value


def map_entry(key: bytes, value: bytes) -> bytes:
    """The content of a map entry, both fields written even if empty."""
    return bytes_field(0x0A, key) + bytes_field(0x12, value)


def frame(payload: bytes) -> bytes:
    """A gRPC length-prefixed message, not compressed."""
    return struct.pack(">BI", 0, len(payload)) + payload
