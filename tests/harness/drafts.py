"""Messages of the FlatBuffers draft, written and read with the official library: the independent judge."""

from typing import Any

import flatbuffers
from flatbuffers import number_types as numbers
from flatbuffers.table import Table

from bascule.wire.envelope import MsgType, encode

TEXT_FIELDS = {"subject": 4, "reply": 5, "ack_inbox": 7, "correlation_id": 8}


def draft(
    value: bytes | None = b"v",
    key: bytes | None = None,
    headers: list[tuple[str, bytes]] | None = None,
    offset: int = 0,
    policy: int = 0,
    timestamp: int = 0,
    **texts: str,
) -> bytes:
    """A PublishRequest of the draft."""
    builder: Any = flatbuffers.Builder(64)
    tables = []
    for name, content in headers or ():
        ends = builder.CreateString(name), builder.CreateByteVector(content)
        builder.StartObject(2)
        for slot, end in enumerate(ends):
            builder.PrependUOffsetTRelativeSlot(slot, end, 0)
        tables.append(builder.EndObject())
    fields: dict[int, int] = {}
    if headers is not None:
        builder.StartVector(4, len(tables), 4)
        for table in reversed(tables):
            builder.PrependUOffsetTRelative(table)
        fields[6] = builder.EndVector()
    for slot, vector in ((1, key), (2, value)):
        if vector is not None:
            fields[slot] = builder.CreateByteVector(vector)
    fields |= {TEXT_FIELDS[name]: builder.CreateString(text) for name, text in texts.items()}
    builder.StartObject(10)
    builder.PrependInt64Slot(0, offset, 0)
    builder.PrependInt64Slot(3, timestamp, 0)
    for slot, at in fields.items():
        builder.PrependUOffsetTRelativeSlot(slot, at, 0)
    builder.PrependUint8Slot(9, policy, 0)
    message = builder.EndObject()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, message, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def drafted_envelope(*, crc: bool = False, **fields: Any) -> bytes:
    return encode(MsgType.PUBLISH, draft(**fields), crc=crc)


def _field(table: Any, number: int) -> int:
    found = table.Offset(4 + 2 * number)
    return int(found + table.Pos) if found else 0


def _bytes(table: Any, number: int) -> bytes | None:
    """Of a vector or a string."""
    if not (at := _field(table, number)):
        return None
    begin = table.Vector(at - table.Pos)
    return bytes(table.Bytes[begin : begin + table.VectorLen(at - table.Pos)])


def read(data: bytes) -> tuple[int, bytes, bytes, list[tuple[bytes | None, bytes | None]], bytes, bytes, int]:
    """Offset, key, value, headers, ack inbox, correlation id and ack policy, as the official library finds them."""
    root: Any = Table(data, int.from_bytes(data[:4], "little"))
    message: Any = Table(data, root.Indirect(_field(root, 0)))
    headers = []
    if at := _field(message, 6):
        begin, count = message.Vector(at - message.Pos), message.VectorLen(at - message.Pos)
        for number in range(count):
            header = Table(data, message.Indirect(begin + 4 * number))
            headers.append((_bytes(header, 0), _bytes(header, 1)))
    offset, policy = _field(message, 0), _field(message, 9)
    return (
        message.Get(numbers.Int64Flags, offset) if offset else 0,
        _bytes(message, 1) or b"",
        _bytes(message, 2) or b"",
        headers,
        _bytes(message, 7) or b"",
        _bytes(message, 8) or b"",
        message.Get(numbers.Uint8Flags, policy) if policy else 0,
    )
