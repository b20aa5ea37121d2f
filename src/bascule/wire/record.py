"""Records as Python sees them: what is constant in them, and one decoded.

The bytes themselves are the kernels' business; `wire.kernels` describes them.
"""

from __future__ import annotations

from typing import NamedTuple

from bascule.wire.pure.protobuf import bytes_field, number_field

FRAME_PREFIX_BYTES = 5
"""Of every record and gRPC message: compression flag and length."""


class Record(NamedTuple):
    """One message of a partition; `Record._make` takes what `kernels.decode_records` gives."""

    offset: int
    key: bytes
    value: bytes
    timestamp: int
    stream: str
    partition: int
    subject: str
    reply_subject: str
    headers: dict[str, bytes]


def origin(stream: str, partition: int) -> bytes:
    """The fields stream and partition of `Message`, encoded: the same in every record of a partition."""
    encoded = bytes_field(0x2A, stream.encode())
    return encoded + number_field(0x30, partition) if partition else encoded


def ack_prefix(stream: str, subject: str) -> bytes:
    """The fields stream and partitionSubject of `Ack`, encoded. The subject is the stream's own, without the
    partition's number, for every partition."""
    return bytes_field(0x0A, stream.encode()) + bytes_field(0x12, subject.encode())
