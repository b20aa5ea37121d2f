"""Replication messages: fetch requests and fetch responses, in envelopes of type 2 and 3.

A follower broker sends one request to a leader broker for all the partitions it follows there. For each partition the
request has the log end (`end`), the promised end, the epoch of the last record, and whether the follower's disk is
failing: then the follower gets nothing, and the leader takes it out of the ISR at once. A request names only the
partitions whose position changed; a `full` one (after a reconnect, or a change of leaders) names all of them. Requests
name the last full one and are counted from it. So a leader that received all of them knows that the positions of other
partitions have not changed, and a leader that missed one notices.

A response is one run of bytes, split into parts that fit a NATS message: a record is larger than the message it stores,
and a record of the largest possible size must still replicate. Responses are numbered, and a request names the last
one that was processed: the leader may then send more without a request. If a number or a part is missing, the follower
requests everything again.

Requests and responses name the sessions of both brokers. A leader accepts only a request that names its own session. A
follower that does not know it yet learns it from an empty response with the number 0, and asks again. So a delayed
request from before a restart of the follower or of the leader promises nothing.

Answers carry records exactly as the log has them. Everything else is fixed-width little-endian: a request for a
thousand partitions is one `bytes.join`, not a thousand protobuf messages.
"""

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from bascule.errors import PeerError

_REQUEST = struct.Struct("<QQQQQQBHI")  # the numbers of a FetchRequest, full, length of the follower's id, entries
_POSITION = struct.Struct("<QIQQQQ?")
_PART = struct.Struct("<QQQQII")  # session, leader's session, request id, number, part, parts
_ANSWER = struct.Struct("<QIBQQQQQQQI")


class Position(NamedTuple):
    """The position of a follower in one partition."""

    stream_index: int
    """The stream's creation index: a re-created stream of the same name is another stream."""
    partition: int
    leader_epoch: int
    """The newest leader epoch that the follower knows."""
    end: int
    promised_end: int
    last_epoch: int
    """The epoch of the follower's last record: the leader finds with it where the logs diverge."""
    failing: bool = False
    """Its disk takes no writes for now."""


class Kind(IntEnum):
    DATA = 0
    """Records from the requested position on; perhaps none, and only a new high watermark."""
    DIVERGED = 1
    """The logs diverge: truncate to `epoch_end`, the end of `epoch` in the leader's log, and fetch again."""
    REFUSED = 2
    """Not the leader, or of another leader epoch: wait for the metadata."""


class Answer(NamedTuple):
    stream_index: int
    partition: int
    kind: Kind
    leader_epoch: int
    hw_end: int
    leader_end: int
    """The leader's log end when it answered: a follower that later reaches it has caught up."""
    asked_end: int
    asked_epoch: int
    """The follower's position in its request: a late or repeated answer must not be taken for a new one."""
    epoch: int
    epoch_end: int
    records: bytes


class FetchRequest(NamedTuple):
    session: int
    """The session of the follower: messages to or from an earlier session do not count for this one."""
    leader_session: int
    """The session of the leader that the request is for; 0 if it is not known yet."""
    request_id: int
    full_id: int
    """The id of the last full request; the request's own id if it is full."""
    report: int
    """The number of requests to this leader since the last full one, with this one; 0 if it is full."""
    taken: int
    """The number of the last response that the follower processed; 0 if there is none."""
    follower: str
    full: bool
    positions: list[Position]


class FetchPart(NamedTuple):
    """One piece of a response."""

    session: int
    leader_session: int
    request_id: int
    """The id of the newest request that the leader has received."""
    number: int
    """The number of the response, from 1 on; 0 only names the session of the leader."""
    part: int
    parts: int
    piece: bytes | memoryview


def encode_request(request: FetchRequest) -> bytes:
    follower = request.follower.encode()
    head = _REQUEST.pack(*request[:6], request.full, len(follower), len(request.positions))
    return b"".join([head, follower, *(_POSITION.pack(*position) for position in request.positions)])


def decode_request(data: bytes | memoryview) -> FetchRequest:
    """Raises PeerError for anything that is not exactly a request."""
    try:
        *numbers, full, id_length, count = _REQUEST.unpack_from(data)
        start = _REQUEST.size + id_length
        follower = bytes(data[_REQUEST.size : start]).decode()
        if len(data) != start + count * _POSITION.size:
            raise ValueError("its length is not what its head says")
        positions = [Position(*fields) for fields in _POSITION.iter_unpack(data[start:])]
    except (struct.error, ValueError) as error:
        raise PeerError(f"a fetch request cannot be decoded: {error}") from error
    return FetchRequest._make((*numbers, follower, bool(full), positions))


def encode_response(answers: Iterable[Answer]) -> list[bytes]:
    """In pieces: records are long, and copied once, when the message is made."""
    pieces: list[bytes] = []
    for answer in answers:
        pieces += (_ANSWER.pack(*answer[:10], len(answer.records)), answer.records)
    return pieces


def decode_response(data: bytes | memoryview) -> list[Answer]:
    """Raises PeerError for anything that is not exactly a response."""
    answers: list[Answer] = []
    position = 0
    try:
        while position < len(data):
            index, partition, kind, *numbers, length = _ANSWER.unpack_from(data, position)
            position += _ANSWER.size
            if position + length > len(data):
                raise ValueError("its records are truncated")
            records = bytes(data[position : position + length])
            answers.append(Answer._make((index, partition, Kind(kind), *numbers, records)))
            position += length
    except (struct.error, ValueError) as error:
        raise PeerError(f"a fetch response cannot be decoded: {error}") from error
    return answers


def encode_parts(
    sessions: tuple[int, int], request_id: int, number: int, response: list[bytes], max_part: int
) -> list[list[bytes]]:
    """The response in messages of at most `max_part` bytes each, themselves in pieces; one, if it is empty."""
    step = max_part - _PART.size
    if sum(map(len, response)) <= step:
        return [[_PART.pack(*sessions, request_id, number, 0, 1), *response]]
    whole = b"".join(response)
    starts = range(0, len(whole), step)
    return [
        [_PART.pack(*sessions, request_id, number, part, len(starts)), whole[start : start + step]]
        for part, start in enumerate(starts)
    ]


def decode_part(data: bytes | memoryview) -> FetchPart:
    try:
        session, leader_session, request_id, number, part, parts = _PART.unpack_from(data)
    except struct.error as error:
        raise PeerError(f"a part of a fetch response cannot be decoded: {error}") from error
    if part >= parts:
        raise PeerError(f"a fetch response has no part {part} of {parts}")
    return FetchPart(session, leader_session, request_id, number, part, parts, data[_PART.size :])
