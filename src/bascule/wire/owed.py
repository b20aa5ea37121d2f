"""Owed acks as Python sees them: off the hot path, where a failure turns them all into errors."""

import struct

from bascule.errors import AckError

_ENTRY = struct.Struct("<qqBBHHI")  # as `wire.kernels` lays it out


def with_error(owed: bytes, error: AckError) -> bytes:
    """The same acks, each saying `error` and no offset."""
    out = bytearray(owed)
    position = 0
    while position < len(out):
        _, reception, policy, _, inbox, subject, correlation = _ENTRY.unpack_from(out, position)
        _ENTRY.pack_into(out, position, 0, reception, policy, error, inbox, subject, correlation)
        position += _ENTRY.size + inbox + subject + correlation
    return bytes(out)
