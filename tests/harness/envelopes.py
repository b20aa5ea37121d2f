"""Envelopes of Liftbridge messages on NATS, byte by byte: independent of the code under test."""

import struct
from typing import Any

import google_crc32c

from bascule.wire.pb import api_pb2 as api

MAGIC = b"\xb9\x0e\x43\xb4"
PUBLISH, ACK = 0, 1


def envelope(
    payload: bytes, kind: int = PUBLISH, *, magic: bytes = MAGIC, version: int = 0, length: int = 8, flags: int = 0
) -> bytes:
    """`length` is what the header says of itself; bytes between the header and it are filled with zeros."""
    return magic + bytes((version, length, flags, kind)) + bytes(max(0, length - 8)) + payload


def with_crc(payload: bytes, *, wrong: bool = False, length: int = 12) -> bytes:
    crc = google_crc32c.value(payload) ^ wrong
    return MAGIC + bytes((0, length, 1, PUBLISH)) + struct.pack(">I", crc) + payload


def message(value: bytes = b"v", **fields: Any) -> bytes:
    """A publish envelope, without an expectation of the offset."""
    fields = {"offset": -1, **fields}
    return envelope(api.Message(value=value, **fields).SerializeToString())


def ack_of(data: bytes) -> api.Ack:
    """An ack as it came over NATS, header checked."""
    assert data[:4] == MAGIC, data
    version, length, flags, kind = data[4:8]
    assert (version, length, flags, kind) == (0, 8, 0, ACK), data[:8]
    return api.Ack.FromString(data[length:])
