"""Pending acks off the hot path, where a failure turns them all into errors; and the message between brokers that names
calls which ended before their acks came.
"""

import struct

from bascule.errors import AckError
from bascule.limits import GONE_CALLS_AT_ONCE
from bascule.wire.kernels import crc32c

_ENTRY = struct.Struct("<qqBBHHI")  # as `wire.kernels` lays it out


_CRC = struct.Struct("<I")
_MAX_TOKEN_BYTES = 64


def encode_gone(tokens: list[bytes]) -> bytes:
    """Tokens of calls that have ended, with a checksum: a wrong bit must not drop the acks of another call."""
    body = b" ".join(tokens)
    return _CRC.pack(crc32c(body)) + body


def decode_gone(payload: bytes) -> list[bytes]:
    """None of them if this is no such message."""
    body = payload[_CRC.size :]
    if len(payload) < _CRC.size or payload[: _CRC.size] != _CRC.pack(crc32c(body)):
        return []
    tokens = body.split(b" ")
    return (
        tokens
        if len(tokens) <= GONE_CALLS_AT_ONCE and all(0 < len(item) <= _MAX_TOKEN_BYTES for item in tokens)
        else []
    )


def with_error(pending: bytes, error: AckError) -> bytes:
    """The same acks, each saying `error` and no offset."""
    out = bytearray(pending)
    position = 0
    while position < len(out):
        _, reception, policy, _, inbox, subject, correlation = _ENTRY.unpack_from(out, position)
        _ENTRY.pack_into(out, position, 0, reception, policy, error, inbox, subject, correlation)
        position += _ENTRY.size + inbox + subject + correlation
    return bytes(out)
