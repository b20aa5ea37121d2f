"""Records for tests, made by the kernel that makes real ones."""

import struct
from collections.abc import Sequence
from itertools import pairwise

from bascule.wire import kernels
from bascule.wire.pure.protobuf import bytes_field, frame
from bascule.wire.record import FRAME_PREFIX_BYTES, origin

SUBJECT = b"test.subject"


Encoded = tuple[bytes, int, int, int]
"""What `CommitLog.append` takes: records, their count, next offset, last timestamp."""


def pack_batch(payloads: Sequence[bytes], subject: bytes = SUBJECT) -> bytes:
    """As NATS would deliver them to one subscription."""
    return b"".join(struct.pack("<HHI", len(subject), 0, len(body)) + subject + body for body in payloads)


def encode(
    payloads: Sequence[bytes], offset: int = 0, timestamp: int = 1, epoch: int = 1, stream: str = "test"
) -> Encoded:
    """Records with offsets from `offset` and timestamps from `timestamp`, each one more than the last."""
    constant = origin(stream, 0)
    tail = kernels.record_tail(constant, SUBJECT, b"")
    records, count, next_offset, last_timestamp, *_ = kernels.encode_records(
        pack_batch(payloads),
        constant,
        SUBJECT,
        tail,
        offset,
        epoch,
        timestamp,
        timestamp - 1,
        1 << 30,
        False,
        b"",
    )
    return records, count, next_offset, last_timestamp


def encode_batch(payloads: Sequence[bytes], offset: int = 0, timestamp: int = 1, epoch: int = 1) -> Encoded:
    """The same as one atomic batch."""
    tail = kernels.record_tail(origin("test", 0), SUBJECT, b"")
    framed = b"".join(frame(bytes_field(0x1A, body)) for body in payloads)
    records, count, next_offset, last_timestamp, problem = kernels.encode_messages(
        framed, SUBJECT, tail, offset, epoch, timestamp, timestamp - 1, 1 << 30, len(payloads), True
    )
    assert not problem, "these are messages"
    return records, count, next_offset, last_timestamp


def record_starts(records: bytes) -> list[int]:
    """The position of each of these records, which are back to back, by their length fields."""
    starts, position = [], 0
    while position < len(records):
        starts.append(position)
        length = int.from_bytes(records[position + 1 : position + FRAME_PREFIX_BYTES], "big")
        position += FRAME_PREFIX_BYTES + length
    return starts


def split(records: bytes) -> list[bytes]:
    """Records back to back -> one by one."""
    borders = [*record_starts(records), len(records)]
    return [records[start:end] for start, end in pairwise(borders)]


def values(records: bytes) -> list[tuple[int, bytes]]:
    """Offset and value of each record."""
    decoded = kernels.decode_records(records, 0, len(records), len(records))[1]
    return [(record[0], record[2]) for record in decoded]
