"""What brokers say to each other about records: fetch requests and their answers, in envelopes of type 2 and 3.

A follower broker asks one leader broker for all the partitions it follows there, in one request: per partition how far
it has come (`end`), how much of that it promises to keep (`promised_end`), and the epoch of its last record. Only
partitions whose position changed are named; `full` says that this is all of them (after a reconnect, or a change of
leaders). The answer comes in parts of at most one NATS message; a part that is missing means: ask again.

Answers carry records exactly as they stand in the log. Everything else is fixed-width little-endian: a request for a
thousand partitions is one `bytes.join`, not a thousand protobuf messages.
"""

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from bascule.errors import PeerError

_REQUEST = struct.Struct("<QBHI")  # request id, full, length of the follower's id, entries
_POSITION = struct.Struct("<QIQQQQ")
_RESPONSE = struct.Struct("<QHHH")  # request id, part, parts, length of the leader's id
_ANSWER = struct.Struct("<QIBQQQQQI")


class Position(NamedTuple):
    """Where a follower stands in one partition."""

    stream_index: int
    """The stream's creation index: a re-created stream of the same name is another stream."""
    partition: int
    leader_epoch: int
    """The leader's term this follower believes in."""
    end: int
    promised_end: int
    last_epoch: int
    """Of the follower's last record: where the logs may have parted."""


class Kind(IntEnum):
    DATA = 0
    """Records from the asked position on (perhaps none, only news of the high watermark)."""
    DIVERGED = 1
    """The logs parted: cut back to `epoch_end`, the end of `epoch` in the leader's log, and ask again."""
    REFUSED = 2
    """Not the leader, or of another term: wait for the metadata to say who is."""


class Answer(NamedTuple):
    stream_index: int
    partition: int
    kind: Kind
    leader_epoch: int
    hw_end: int
    leader_end: int
    """The leader's end when it answered: a follower that later reaches it has caught up."""
    epoch: int
    epoch_end: int
    records: bytes


class FetchRequest(NamedTuple):
    request_id: int
    follower: str
    full: bool
    positions: list[Position]


class FetchPart(NamedTuple):
    request_id: int
    leader: str
    part: int
    parts: int
    answers: list[Answer]


def encode_request(request: FetchRequest) -> bytes:
    follower = request.follower.encode()
    head = _REQUEST.pack(request.request_id, request.full, len(follower), len(request.positions))
    return b"".join([head, follower, *(_POSITION.pack(*position) for position in request.positions)])


def decode_request(data: bytes) -> FetchRequest:
    """Raises PeerError for anything that is not exactly a request."""
    try:
        request_id, full, id_length, count = _REQUEST.unpack_from(data)
        start = _REQUEST.size + id_length
        follower = data[_REQUEST.size : start].decode()
        if len(data) != start + count * _POSITION.size:
            raise ValueError("its length is not what its head says")
        positions = [Position(*fields) for fields in _POSITION.iter_unpack(data[start:])]
    except (struct.error, ValueError) as error:
        raise PeerError(f"a fetch request cannot be decoded: {error}") from error
    return FetchRequest(request_id, follower, bool(full), positions)


def answer_bytes(records: int) -> int:
    """How large an answer with that many bytes of records is."""
    return _ANSWER.size + records


def response_bytes(leader: str) -> int:
    """What a part takes beside its answers."""
    return _RESPONSE.size + len(leader.encode())


def encode_parts(request_id: int, leader: str, parts: Sequence[Iterable[Answer]]) -> list[bytes]:
    name = leader.encode()
    encoded = []
    for number, answers in enumerate(parts):
        pieces = [_RESPONSE.pack(request_id, number, len(parts), len(name)), name]
        for answer in answers:
            pieces += (_ANSWER.pack(*answer[:8], len(answer.records)), answer.records)
        encoded.append(b"".join(pieces))
    return encoded


def decode_part(data: bytes) -> FetchPart:
    """Raises PeerError for anything that is not exactly a part."""
    try:
        request_id, part, parts, id_length = _RESPONSE.unpack_from(data)
        position = _RESPONSE.size + id_length
        leader = data[_RESPONSE.size : position].decode()
        answers = []
        while position < len(data):
            index, partition, kind, *numbers, length = _ANSWER.unpack_from(data, position)
            position += _ANSWER.size
            if position + length > len(data):
                raise ValueError("its records are cut short")
            records = data[position : position + length]
            answers.append(Answer._make((index, partition, Kind(kind), *numbers, records)))
            position += length
        if part >= parts:
            raise ValueError(f"part {part} of {parts}")
    except (struct.error, ValueError) as error:
        raise PeerError(f"a fetch response cannot be decoded: {error}") from error
    return FetchPart(request_id, leader, part, parts, answers)
