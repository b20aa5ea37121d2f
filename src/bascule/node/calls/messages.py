"""Messages between brokers: every kind is declared here, once, with its type in the envelope. A method is a request and
its answer. Several kinds may have the same type, but not on one subject: there the type tells them apart.

A `Message` has its encoder and decoder here, too. Raft and replication have a codec in `wire/` and call it where they
send and receive, so that who follows a message through the code finds it by its name.

Every message has a checksum: a flipped bit must not become another request, such as the deletion of another stream. It
is in the envelope, or in the message itself if it has no envelope (Raft).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from google.protobuf import message as protobuf
from google.protobuf.message import DecodeError

from bascule.errors import PeerError
from bascule.wire.envelope import MsgType
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.pendingacks import decode_gone, encode_gone
from bascule.wire.repair import LogAnswer, Question, decode_answer, decode_question, encode_answer, encode_question

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")
P = TypeVar("P", bound=protobuf.Message)


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    """For the log: "a heartbeat"."""
    type: MsgType | None
    """The type in its envelope; None if it has no envelope."""
    asks: bool = field(default=False, kw_only=True)
    """Each of them wants an answer: one without a valid reply subject is ignored."""


@dataclass(frozen=True, slots=True)
class Message(Kind, Generic[T]):
    decode: Callable[[memoryview], T]
    """Raises PeerError, and no other exception, for any bytes."""
    encode: Callable[[T], bytes]


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, A]):
    question: Message[Q]
    answer: Message[A]


def _protobuf(name: str, type: MsgType, of: type[P], *, asks: bool = False) -> Message[P]:
    def decode(payload: memoryview) -> P:
        try:
            return of.FromString(bytes(payload))
        except DecodeError as error:
            raise PeerError(str(error)) from error

    return Message(name, type, decode, of.SerializeToString, asks=asks)


def _ended_calls(payload: memoryview) -> list[bytes]:
    tokens = decode_gone(bytes(payload))
    if not tokens:
        raise PeerError("its checksum is wrong, or it names no call, or too many")
    return tokens


def _from_bytes(decode: Callable[[bytes], T]) -> Callable[[memoryview], T]:
    return lambda payload: decode(bytes(payload))


# --- membership ----------------------------------------------------------------------------------------------------

FOUNDING = _protobuf("a message of a broker in no cluster", MsgType.RAFT_JOIN_REQUEST, pb.Bootstrap)
HEARTBEAT = _protobuf("a heartbeat", MsgType.SERVER_INFO_RESPONSE, pb.ServerInfoResponse)
HEARTBEATS_WANTED = _protobuf("a request for heartbeats", MsgType.SERVER_INFO_REQUEST, pb.ServerInfoRequest)
JOIN = Method(
    _protobuf("a request to join", MsgType.RAFT_JOIN_REQUEST, pb.RaftJoinRequest, asks=True),
    _protobuf("an answer to a request to join", MsgType.RAFT_JOIN_RESPONSE, pb.RaftJoinResponse),
)

# --- the metadata --------------------------------------------------------------------------------------------------

RAFT = Kind("a message to Raft", None)
CHANGE = Method(
    _protobuf("a change of the metadata", MsgType.PROPAGATED_REQUEST, pb.PropagatedRequest, asks=True),
    _protobuf("an answer of the controller", MsgType.PROPAGATED_RESPONSE, pb.PropagatedResponse),
)
STREAM_STATUS = Method(
    _protobuf("a question about a stream", MsgType.PARTITION_STATUS_REQUEST, pb.PartitionStatusRequest, asks=True),
    _protobuf("an answer about a stream", MsgType.PARTITION_STATUS_RESPONSE, pb.PartitionStatusResponse),
)

# --- administrators ------------------------------------------------------------------------------------------------

POSITIONS = Method(
    _protobuf("a question about positions", MsgType.PARTITION_STATUS_REQUEST, pb.PositionsRequest, asks=True),
    _protobuf("an answer about positions", MsgType.PARTITION_STATUS_RESPONSE, pb.PositionsResponse),
)
# Not every order wants an answer: who was removed is only told so.
ORDER = Method(
    _protobuf("an order of an administrator", MsgType.PROPAGATED_REQUEST, pb.PropagatedRequest),
    _protobuf("an answer to an administrator", MsgType.PROPAGATED_RESPONSE, pb.PropagatedResponse),
)

# --- partitions ----------------------------------------------------------------------------------------------------

FETCH_REQUEST = Kind("a fetch request", MsgType.REPLICATION_REQUEST)
FETCH_PART = Kind("a part of a fetch response", MsgType.REPLICATION_RESPONSE)
OTHER_LOG: Method[Question, LogAnswer] = Method(
    Message(
        "a question of another replica",
        MsgType.LEADER_EPOCH_OFFSET_REQUEST,
        _from_bytes(decode_question),
        encode_question,
        asks=True,
    ),
    Message(
        "an answer of another replica", MsgType.LEADER_EPOCH_OFFSET_RESPONSE, _from_bytes(decode_answer), encode_answer
    ),
)
ENDED_CALLS: Message[list[bytes]] = Message("a list of calls that ended", None, _ended_calls, encode_gone)
