"""What brokers say to each other about records: fetch requests and their answers, in envelopes of type 2 and 3.

A follower broker asks one leader broker for all the partitions it follows there, in one request: per partition how far
it has come (`end`), how much of that it promises to keep (`promised_end`), the epoch of its last record, and whether
its disk is failing: then it gets nothing, and leaves the in-sync set at once instead of being waited for. Only
partitions whose position changed are named; `full` says that this is all of them (after a reconnect, or a change of
leaders). Requests name the last full one and are counted from it: a leader that has had all of them knows that whatever
is not named stands where it stood, and one that misses one knows that it does not.

A response is one run of bytes, cut into parts that fit a NATS message: a record is larger than the message it came
from, and one of exactly the largest size must still replicate. Responses are numbered, and a request says which was the
last one taken: the leader may then send more without being asked, and a number or a part that is missing means: ask for
everything again.

Both name the lives of both: a request is believed by the very life of the leader it was meant for. Who does not know it
yet is told by an empty response with the number 0, and asks again. So what a follower promised in an earlier life,
played back to a leader that has not heard of that life, promises nothing.

Answers carry records exactly as they stand in the log. Everything else is fixed-width little-endian: a request for a
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
    failing: bool = False
    """Its disk takes nothing more for now."""


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
    asked_end: int
    asked_epoch: int
    """Where the follower stood when it asked: an answer that comes late, or twice, must not be taken for a new one."""
    epoch: int
    epoch_end: int
    records: bytes


class FetchRequest(NamedTuple):
    session: int
    """One life of one follower: what an earlier one said or was told is not this one's."""
    leader_session: int
    """The life of the leader that this is said to; 0 if it is not known yet."""
    request_id: int
    full_id: int
    """Of the last full one; its own if it is full."""
    report: int
    """How many there were to this leader since the last full one, this one counted; 0 if it is full."""
    taken: int
    """The number of the last response that was taken; 0 if none was."""
    follower: str
    full: bool
    positions: list[Position]


class FetchPart(NamedTuple):
    """One piece of a response."""

    session: int
    leader_session: int
    request_id: int
    """Of the newest request the leader knew."""
    number: int
    """Of the response, counted from 1 on; 0 says only which life of the leader to ask."""
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
                raise ValueError("its records are cut short")
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
