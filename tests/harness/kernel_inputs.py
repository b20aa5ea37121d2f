"""What the kernels are fed with in tests: packed batches, envelopes, frames and pending acks, built the slow way."""

from __future__ import annotations

import importlib
import struct
from types import ModuleType

import google_crc32c
import pytest

from bascule.wire.pb import api_pb2
from bascule.wire.record import origin

MAGIC = bytes.fromhex("b90e43b4")
SUBJECT = b"sensor.readings"
ORIGIN = origin("readings", 0)
NOW = 1_700_000_000_000_000_000

Message = tuple[bytes, bytes, bytes]
"""Subject, reply, payload."""


def twin(name: str) -> ModuleType:
    """A twin of the kernels by name. The compiled one may be missing only where it was not built."""
    if name == "pure":
        return importlib.import_module("bascule.wire._pure")
    try:
        return importlib.import_module("bascule.wire._kernels")
    except ImportError as error:
        pytest.skip(f"the compiled kernels were not built here ({error})")


def built_twins() -> list[ModuleType]:
    """The pure twin, and the compiled one where it was built."""
    try:
        return [twin("pure"), importlib.import_module("bascule.wire._kernels")]
    except ImportError:
        return [twin("pure")]


def pack(*messages: Message) -> bytes:
    return b"".join(
        struct.pack("<HHI", len(subject), len(reply), len(payload)) + subject + reply + payload
        for subject, reply, payload in messages
    )


def pack_pending(
    offset: int, inbox: bytes, *, policy: int = 0, error: int = 0, subject: bytes = b"", correlation: bytes = b""
) -> bytes:
    head = struct.pack("<qqBBHHI", offset, NOW, policy, error, len(inbox), len(subject), len(correlation))
    return head + inbox + subject + correlation


def envelope(payload: bytes, message_type: int = 0, crc: int | None = None) -> bytes:
    if crc is None:
        return MAGIC + bytes((0, 8, 0, message_type)) + payload
    return MAGIC + bytes((0, 12, 1, message_type)) + struct.pack(">I", crc) + payload


def checked_envelope(payload: bytes, message_type: int = 0) -> bytes:
    return envelope(payload, message_type, google_crc32c.value(payload))


def frame(payload: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(payload)) + payload


def unframe(data: bytes) -> list[bytes]:
    """The payloads of gRPC frames that fill `data` exactly."""
    payloads = []
    while data:
        flag, length = struct.unpack_from(">BI", data)
        assert flag == 0
        assert len(data) >= 5 + length
        payloads.append(data[5 : 5 + length])
        data = data[5 + length :]
    return payloads


def parse_messages(records: bytes) -> list[api_pb2.Message]:
    """Records as the protobuf library reads them: each is a Message to any client."""
    return [api_pb2.Message.FromString(payload) for payload in unframe(records)]


def encode(
    kernels: ModuleType,
    batch: bytes,
    *,
    next_offset: int = 0,
    epoch: int = 1,
    now: int = NOW,
    last_timestamp: int = 0,
    max_bytes: int = 1 << 20,
    occ: bool = False,
    refused_prefix: bytes = b"",
) -> tuple[bytes, int, int, int, bytes, bytes, bytes]:
    """`encode_records` for the partition all these tests write to, without how many messages were taken."""
    tail = kernels.record_tail(ORIGIN, SUBJECT, b"")
    result: tuple[bytes, int, int, int, bytes, bytes, bytes, int] = kernels.encode_records(
        batch,
        ORIGIN,
        SUBJECT,
        tail,
        next_offset,
        epoch,
        now,
        last_timestamp,
        max_bytes,
        occ,
        refused_prefix,
    )
    return result[:7]


def make_records(kernels: ModuleType, values: list[bytes], first_offset: int = 0) -> list[bytes]:
    """One record per value, apart."""
    return [
        encode(kernels, pack((SUBJECT, b"", value)), next_offset=first_offset + index, now=NOW + index)[0]
        for index, value in enumerate(values)
    ]


def http2_frame(frame_type: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", frame_type, flags, stream_id) + payload


def pub_payloads(commands: bytes) -> list[tuple[bytes, bytes]]:
    """(subject, payload) of PUB commands that fill `commands` exactly."""
    found = []
    while commands:
        line, _, rest = commands.partition(b"\r\n")
        verb, subject, length = line.split(b" ")
        assert verb == b"PUB"
        assert rest[int(length) : int(length) + 2] == b"\r\n"
        found.append((subject, rest[: int(length)]))
        commands = rest[int(length) + 2 :]
    return found
