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


def pending_ack(offset: int, reception: int, policy: int, inbox: bytes, correlation_id: bytes) -> bytes:
    """One ack, of a message to the partition's own subject."""
    return _ENTRY.pack(offset, reception, policy, 0, len(inbox), 0, len(correlation_id)) + inbox + correlation_id


def unconfirmed(pending: bytes) -> bytes:
    """Refusals by a broker that may not lead any more. That a message is too large is true all the same; whether one is
    stored that has another fault, its successor knows."""
    out = bytearray(pending)
    position = 0
    while position < len(out):
        offset, reception, policy, error, inbox, subject, correlation = _ENTRY.unpack_from(out, position)
        if error != AckError.TOO_LARGE:
            _ENTRY.pack_into(out, position, offset, reception, policy, AckError.UNKNOWN, inbox, subject, correlation)
        position += _ENTRY.size + inbox + subject + correlation
    return bytes(out)


def with_error(pending: bytes, error: AckError) -> bytes:
    """The same acks, each saying `error` and no offset."""
    out = bytearray(pending)
    position = 0
    while position < len(out):
        _, reception, policy, _, inbox, subject, correlation = _ENTRY.unpack_from(out, position)
        _ENTRY.pack_into(out, position, 0, reception, policy, error, inbox, subject, correlation)
        position += _ENTRY.size + inbox + subject + correlation
    return bytes(out)
