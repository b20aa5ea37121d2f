"""What an idempotent producer says with each message, off the hot path: field 2001, as `wire.kernels` lays it out; and
why messages of producers, and atomic batches, are refused."""

import struct

from bascule.errors import AckError
from bascule.wire.pure.protobuf import varint

REFUSALS: dict[int, str] = {
    AckError.SEQUENCE_GAP: "sequence gap: messages of this producer before this one are missing",
    AckError.UNKNOWN_PRODUCER: "unknown producer: this partition has nothing of it, and it does not begin at 0",
    AckError.FENCED: "producer fenced: its id is in use under a higher epoch",
    AckError.DUPLICATE: "duplicate: stored before, at an offset that is not known any more",
    AckError.OVERLAP: "sequence overlap: a part of the batch is stored, or all of it in another way than as one batch",
    AckError.EMPTY_BATCH: "empty batch: it has no message",
    AckError.BENT_BATCH: "a message of the batch is torn, or no proto.Message: nothing of the batch is stored",
    AckError.LONG_BATCH: "the batch has too many messages or headers: nothing of it is stored",
}
"""By the error of the ack, and the code of a PublishAsyncError, which is the same."""

BATCH_REFUSALS = (AckError.EMPTY_BATCH, AckError.BENT_BATCH, AckError.LONG_BATCH)
"""Those that are the fault of a batch itself."""

INVALID_PRODUCER = "what it says of its producer is torn, or about another stream or partition"

REMADE_STREAM = (
    "what it says of its producer is about another stream of the same name, which was deleted: take a new producer, "
    "and number what has no ack anew. This message was not stored"
)

_SEQUENCE = struct.Struct("<Q")


def producer_prefix(id: int, epoch: int, creation: int, partition: int) -> bytes:
    """The same in all messages of a producer to a partition. The sequence follows."""
    return varint(id) + varint(epoch) + varint(creation) + varint(partition)


_PRODUCER = struct.Struct("<QQQqI")
_RUN = struct.Struct("<qII")


def last_offsets(snapshot: bytes, bound: int) -> list[int] | None:
    """The offset of the last record below `bound` of each producer, of a snapshot of their table. None if it does not
    say: all it knows of a producer is at or above."""
    offsets: list[int] = []
    position = 0
    while position < len(snapshot):
        *_, count = _PRODUCER.unpack_from(snapshot, position)
        first = position + _PRODUCER.size
        position = run = first + count * _RUN.size
        while run > first:
            run -= _RUN.size
            offset, _, length = _RUN.unpack_from(snapshot, run)
            if offset < bound:
                offsets.append(min(offset + length, bound) - 1)
                break
        else:
            if count:
                return None
    return offsets


def numbered(prefix: bytes, sequence: int) -> bytes:
    return prefix + _SEQUENCE.pack(sequence)
