"""Which payloads are envelopes, and what they carry."""

from __future__ import annotations

import google_crc32c

MAGIC = b"\xb9\x0e\x43\xb4"
HEADER_BYTES = 8
CRC_HEADER_BYTES = 12


def crc32c(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """CRC-32C of `data`, going on from `value`."""
    return int(google_crc32c.extend(value, bytes(data)))


def header(message_type: int) -> bytes:
    """The header Bascule writes: no checksum, as every other server and client does."""
    return MAGIC + bytes((0, HEADER_BYTES, 0, message_type))


def content(payload: bytes, message_type: int) -> bytes | None:
    """What the envelope of this type holds, not yet parsed; None if it is no such envelope."""
    if len(payload) < HEADER_BYTES or payload[:5] != MAGIC + b"\x00" or payload[7] != message_type:
        return None
    start = payload[5]
    if start > len(payload):
        return None
    if payload[6] & 1:
        if start != CRC_HEADER_BYTES:
            return None
        if crc32c(payload[start:]) != int.from_bytes(payload[8:12], "big"):
            return None
    return payload[start:]
