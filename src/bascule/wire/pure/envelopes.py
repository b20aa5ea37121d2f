"""A column of NATS payloads as the columns of the Messages in them, and rows as payloads."""

from __future__ import annotations

import struct

from bascule.wire.pure.accept import MESSAGE_STRINGS
from bascule.wire.pure.columns import ends_of, texts_of, validity_of
from bascule.wire.pure.envelope import CRC_HEADER_BYTES, HEADER_BYTES, MAGIC, content, crc32c, header
from bascule.wire.pure.protobuf import Buffer, MalformedError, read_message, signed32
from bascule.wire.pure.rows import messages, texts

_PLAIN, _MESSAGE, _OTHER, _DAMAGED = range(4)
_PUBLISH = 0
_HEADERS = 0x4A
_MOST = 0x7FFFFFFF


def envelope_columns(count: int, ends: Buffer, payloads: Buffer) -> tuple[bytes, ...]:
    """A column of payloads, as Arrow has it, into the buffers of columns; see `wire.columns` for their form."""
    if not 0 <= count <= _MOST:
        raise ValueError("these are no rows")
    rows = [_row(each) for each in texts(bytes(ends), bytes(payloads), count)]
    headers = [list(row.headers.items()) for row in rows]
    entries = [entry for row in headers for entry in row]
    return (
        bytes(row.status for row in rows),
        bytes(row.type for row in rows),
        bytes(row.checked for row in rows),
        struct.pack(f"<{count}i", *(row.policy for row in rows)),
        *texts_of([row.key for row in rows]),
        validity_of([row.key != b"" for row in rows]),
        *texts_of([row.value for row in rows]),
        validity_of([row.status != _DAMAGED for row in rows]),
        ends_of(map(len, headers)),
        *texts_of([name for name, _ in entries]),
        *texts_of([value for _, value in entries]),
        *texts_of([row.inbox for row in rows]),
        *texts_of([row.correlation for row in rows]),
    )


class _Row:
    def __init__(self, status: int, type: int = 0, checked: int = 0, value: bytes = b"") -> None:
        self.status, self.type, self.checked, self.value = status, type, checked, value
        self.policy = 0
        self.key = self.inbox = self.correlation = b""
        self.headers: dict[bytes, bytes] = {}


def _row(payload: bytes) -> _Row:
    if len(payload) < HEADER_BYTES or payload[:5] != MAGIC + b"\0":
        return _Row(_PLAIN, value=payload)
    kind, checked = payload[7], payload[6] & 1
    body = content(payload, kind)
    if body is None:
        return _Row(_DAMAGED, kind, checked)
    if kind != _PUBLISH:
        return _Row(_OTHER, kind, checked, body)
    try:
        numbers, contents, entries = read_message(body, MESSAGE_STRINGS, _HEADERS)
    except MalformedError:
        return _Row(_DAMAGED, kind, checked)
    row = _Row(_MESSAGE, kind, checked, contents.get(0x1A, b""))
    row.key, row.headers = contents.get(0x12, b""), dict(entries)
    row.inbox, row.correlation = contents.get(0x52, b""), contents.get(0x5A, b"")
    row.policy = signed32(numbers.get(0x60, 0))
    return row


def envelope_rows(count: int, buffers: tuple[Buffer, ...], checked: bool) -> tuple[bytes, bytes]:
    """Columns into Messages in envelopes -> (ends, contents). `buffers`: as `frame_rows` takes them."""
    found = [_envelope(body, checked) for _, body in messages(count, buffers)]
    if sum(map(len, found)) > _MOST:
        raise ValueError("a column of Arrow has at most 2 GiB: give fewer rows at a time")
    return texts_of(found)


def _envelope(body: bytes, checked: bool) -> bytes:
    if not checked:
        return header(_PUBLISH) + body
    return MAGIC + bytes((0, CRC_HEADER_BYTES, 1, _PUBLISH)) + crc32c(body).to_bytes(4, "big") + body
