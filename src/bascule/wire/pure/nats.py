"""The NATS protocol as a client reads it, and the packed batches the rest of the broker reads."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from bascule.errors import NatsProtocolError
from bascule.wire.pure.protobuf import Buffer, window

_ENTRY = struct.Struct("<HHI")
_CONTROLS = frozenset((b"INFO", b"PING", b"PONG", b"+OK", b"-ERR"))
_MAX_DIGITS = 18
_MAX_SUBJECT = 0xFFFF

Delivery = tuple[int, int, bytes]
"""Subscription id, message count, batch."""
Control = tuple[bytes, bytes]


def split_nats(
    buffer: Buffer, start: int, end: int, max_line: int, max_payload: int
) -> tuple[int, int, list[Delivery], list[Control]]:
    """Whole items of buffer[start:end]: (consumed, needed, batches per sid, controls)."""
    data = window(buffer, start, end)
    batches: dict[int, list[bytes]] = {}
    controls: list[Control] = []
    position = needed = 0
    while position < len(data):
        newline = data.find(b"\n", position)
        if newline < 0:
            if len(data) - position > max_line:
                raise NatsProtocolError(f"the NATS server sent a control line of more than {max_line} bytes")
            break
        verb, argument = _verb(data[position:newline].removesuffix(b"\r"))
        if verb in _CONTROLS:
            controls.append((verb, argument))
            position = newline + 1
            continue
        sid, subject, reply, skip, length = _message_line(verb, argument, max_payload)
        after = newline + 1 + length + 2
        if after > len(data):
            needed = after - position
            break
        if data[after - 2 : after] != b"\r\n":
            raise NatsProtocolError("the NATS server sent a payload that does not end where its length says")
        head = _ENTRY.pack(len(subject), len(reply), length - skip)
        batches.setdefault(sid, []).append(head + subject + reply + data[newline + 1 + skip : after - 2])
        position = after
    packed = [(sid, len(entries), b"".join(entries)) for sid, entries in batches.items()]
    return start + position, needed, packed, controls


def _verb(line: bytes) -> tuple[bytes, bytes]:
    """The verb in upper case, and the rest of the line without the blanks around it."""
    for index, byte in enumerate(line):
        if byte in b" \t":
            return line[:index].upper(), line[index:].strip(b" \t")
    return line.upper(), b""


def _message_line(verb: bytes, argument: bytes, max_payload: int) -> tuple[int, bytes, bytes, int, int]:
    """Sid, subject, reply, length of the NATS headers, and length with them, of a MSG or HMSG line."""
    numbers = {b"MSG": 1, b"HMSG": 2}.get(verb)
    if numbers is None:
        raise NatsProtocolError(f"the NATS server sent an unknown verb: {verb[:32]!r}")
    arguments = [item for item in argument.replace(b"\t", b" ").split(b" ") if item]
    if len(arguments) not in (numbers + 2, numbers + 3):
        raise NatsProtocolError(f"the NATS server sent a {verb.decode()} line with {len(arguments)} arguments")
    subject, sid = arguments[0], _number(arguments[1])
    reply = arguments[2] if len(arguments) == numbers + 3 else b""
    length = _number(arguments[-1])
    skip = _number(arguments[-2]) if numbers == 2 else 0
    if length > max_payload:
        raise NatsProtocolError(f"the NATS server sent a payload of {length} bytes; at most {max_payload} are allowed")
    if skip > length:
        raise NatsProtocolError("the NATS server sent headers longer than their message")
    if len(subject) > _MAX_SUBJECT or len(reply) > _MAX_SUBJECT:
        raise NatsProtocolError(f"the NATS server sent a subject of more than {_MAX_SUBJECT} bytes")
    return sid, subject, reply, skip, length


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > _MAX_DIGITS:
        raise NatsProtocolError(f"the NATS server sent {text[:32]!r} where a number belongs")
    return int(text)


def messages(batch: Buffer) -> Iterator[tuple[bytes, bytes, bytes]]:
    """(subject, reply, payload) of each message of a packed batch."""
    data = bytes(batch)
    position = 0
    while position < len(data):
        if len(data) - position < _ENTRY.size:
            raise ValueError("a packed batch ends inside an entry")
        subject_length, reply_length, payload_length = _ENTRY.unpack_from(data, position)
        position += _ENTRY.size
        subject = data[position : position + subject_length]
        position += subject_length
        reply = data[position : position + reply_length]
        position += reply_length
        payload = data[position : position + payload_length]
        position += payload_length
        if position > len(data):
            raise ValueError("a packed batch ends inside an entry")
        yield subject, reply, payload
