"""What replicas ask each other outside of replication: where do you stand, and what do you have from here to there.

A question names a range of offsets, perhaps an empty one. The answer says how far the asked log goes, and carries a
piece of the first records in the range: a record may be larger than a NATS message, so the asker says how many bytes of
them it has already. Both carry a checksum of their own: on what they say a leader is chosen.
"""

import struct
from typing import NamedTuple

from bascule.errors import PeerError
from bascule.wire.kernels import crc32c

_QUESTION = struct.Struct("<QIQQQ")
_ANSWER = struct.Struct("<???QQQ")
_CRC = struct.Struct("<I")


class Question(NamedTuple):
    stream_index: int
    partition: int
    start: int
    end: int
    """Of the offsets wanted; the same as `start` if only the log_end is."""
    skip: int
    """Bytes of the records from `start` on that are here already."""
    asker: str


class LogEnd(NamedTuple):
    """How far a log goes. Of two logs the larger one has everything that was ever committed, if either has: the rule
    by which Raft chooses its leaders."""

    last_epoch: int
    end: int


class Told(NamedTuple):
    here: bool
    """Whether the asked broker has opened that partition."""
    sound: bool
    """Whether it has everything there ever was in the range."""
    log_end: LogEnd
    total: int
    """Bytes of the records this answer is about; 0: there are none in the range."""
    piece: bytes
    certain: bool = False
    """Whether that log is sure to have everything it promised."""


def encode_question(question: Question) -> bytes:
    return _sealed(_QUESTION.pack(*question[:5]) + question.asker.encode())


def decode_question(data: bytes) -> Question:
    body = _opened(data, _QUESTION.size)
    try:
        stream_index, partition, start, end, skip = _QUESTION.unpack_from(body)
        return Question(stream_index, partition, start, end, skip, body[_QUESTION.size :].decode())
    except ValueError as error:
        raise PeerError(f"a question of a replica cannot be decoded: {error}") from error


def encode_told(told: Told) -> bytes:
    return _sealed(_ANSWER.pack(told.here, told.sound, told.certain, *told.log_end, told.total) + told.piece)


def decode_told(data: bytes) -> Told:
    body = _opened(data, _ANSWER.size)
    here, sound, certain, last_epoch, end, total = _ANSWER.unpack_from(body)
    return Told(here, sound, LogEnd(last_epoch, end), total, body[_ANSWER.size :], certain)


def _sealed(body: bytes) -> bytes:
    return body + _CRC.pack(crc32c(body))


def _opened(data: bytes, least: int) -> bytes:
    body = data[: -_CRC.size]
    if len(body) < least or _CRC.unpack(data[-_CRC.size :])[0] != crc32c(body):
        raise PeerError("what a replica said about its log did not arrive whole")
    return body
