"""Requests between replicas outside of replication: for the log end of another replica, and for its records in a range.

A question names a range of offsets, perhaps an empty one. The answer has the log end of the other replica, and a piece
of the first records in the range: a record may be larger than a NATS message, so the question says how many bytes of
them the asking replica has already. Both carry a checksum of their own, because leaders are chosen by them.
"""

import struct
from typing import NamedTuple

from bascule.errors import PeerError
from bascule.wire.kernels import crc32c

_QUESTION = struct.Struct("<QIQQQ")
_ANSWER = struct.Struct("<??BQQQ")
_CRC = struct.Struct("<I")
_CERTAIN, _SAYS_CLEARED = 1, 2
"""In one byte. Where the second one is set, which is in answers with records, the place of the log end has the cleared
end instead: brokers of an older release look at neither there, and set neither."""


class Question(NamedTuple):
    stream_index: int
    partition: int
    start: int
    end: int
    """Exclusive end of the wanted offsets; the same as `start` if only the log end is wanted."""
    skip: int
    """Bytes of the records from `start` on that the asking replica has already."""
    asker: str


class LogEnd(NamedTuple):
    """The end of a log, compared by epoch first. Of two logs the larger one has everything that was ever committed, if
    either has: the rule by which Raft chooses its leaders."""

    last_epoch: int
    end: int


class Cleared(NamedTuple):
    """How far a log is cleared, and since which command that counts (`core.metadata.tombstones`)."""

    epoch: int
    end: int


class LogAnswer(NamedTuple):
    here: bool
    """Whether the answering broker has opened that partition."""
    undamaged: bool
    """Whether its log is undamaged in the range; anywhere, if the range is empty."""
    log_end: LogEnd | Cleared
    """In an answer with records it is not the end that matters, but how far the log that they are of is cleared; a
    broker of an older release says its end all the same."""
    total: int
    """Bytes of all the records that the answer has a piece of; 0 if there are none in the range."""
    piece: bytes
    certain: bool = False
    """Whether that log is known to have everything it promised: it is not suspect."""


def encode_question(question: Question) -> bytes:
    return _sealed(_QUESTION.pack(*question[:5]) + question.asker.encode())


def decode_question(data: bytes) -> Question:
    body = _opened(data, _QUESTION.size)
    try:
        stream_index, partition, start, end, skip = _QUESTION.unpack_from(body)
        return Question(stream_index, partition, start, end, skip, body[_QUESTION.size :].decode())
    except ValueError as error:
        raise PeerError(f"a question of a replica cannot be decoded: {error}") from error


def encode_answer(answer: LogAnswer) -> bytes:
    said = _CERTAIN * answer.certain | _SAYS_CLEARED * isinstance(answer.log_end, Cleared)
    head = _ANSWER.pack(answer.here, answer.undamaged, said, *answer.log_end, answer.total)
    return _sealed(head + answer.piece)


def decode_answer(data: bytes) -> LogAnswer:
    body = _opened(data, _ANSWER.size)
    here, undamaged, said, *numbers, total = _ANSWER.unpack_from(body)
    log_end = Cleared(*numbers) if said & _SAYS_CLEARED else LogEnd(*numbers)
    return LogAnswer(here, undamaged, log_end, total, body[_ANSWER.size :], bool(said & _CERTAIN))


def _sealed(body: bytes) -> bytes:
    return body + _CRC.pack(crc32c(body))


def _opened(data: bytes, least: int) -> bytes:
    body = data[: -_CRC.size]
    if len(body) < least or _CRC.unpack(data[-_CRC.size :])[0] != crc32c(body):
        raise PeerError("a message of a replica about its log is truncated, or its checksum is wrong")
    return body
