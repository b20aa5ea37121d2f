"""Messages between brokers: every kind is declared here, once, with its type in the envelope, its encoder and its
decoder. A method is a request and its answer.

Every message has a checksum: a flipped bit must not become another request, such as the deletion of another stream. It
is in the envelope, or in the message itself if it has no envelope (Raft).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf import message as protobuf
from google.protobuf.message import DecodeError

from bascule.errors import PeerError
from bascule.wire.envelope import MsgType
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.pendingacks import decode_gone, encode_gone
from bascule.wire.raft import decode_message, encode_message
from bascule.wire.raft_messages import Message as RaftMessage
from bascule.wire.repair import LogAnswer, Question, decode_answer, decode_question, encode_answer, encode_question
from bascule.wire.replication import FetchPart, FetchRequest, decode_part, decode_request

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")
P = TypeVar("P", bound=protobuf.Message)


@dataclass(frozen=True, slots=True)
class Decoded(Generic[T]):
    """A kind of message that can be received."""

    name: str
    """For the log: "a heartbeat"."""
    type: MsgType | None
    """The type in its envelope; None if it has no envelope."""
    decode: Callable[[memoryview], T]
    """Raises PeerError, and no other exception, for any bytes."""


@dataclass(frozen=True, slots=True)
class Message(Decoded[T]):
    """A kind that can be sent, too. Replication does not use this to send: it writes its messages in pieces."""

    encode: Callable[[T], bytes]


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, A]):
    question: Message[Q]
    answer: Message[A]


def _protobuf(name: str, type: MsgType, of: type[P]) -> Message[P]:
    def decode(payload: memoryview) -> P:
        try:
            return of.FromString(bytes(payload))
        except DecodeError as error:
            raise PeerError(str(error)) from error

    return Message(name, type, decode, of.SerializeToString)


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
    _protobuf("a request to join", MsgType.RAFT_JOIN_REQUEST, pb.RaftJoinRequest),
    _protobuf("an answer to a request to join", MsgType.RAFT_JOIN_RESPONSE, pb.RaftJoinResponse),
)

# --- the metadata --------------------------------------------------------------------------------------------------

RAFT: Message[RaftMessage] = Message("a message to Raft", None, _from_bytes(decode_message), encode_message)
CHANGE = Method(
    _protobuf("a change of the metadata", MsgType.PROPAGATED_REQUEST, pb.PropagatedRequest),
    _protobuf("an answer of the controller", MsgType.PROPAGATED_RESPONSE, pb.PropagatedResponse),
)
STREAM_STATUS = Method(
    _protobuf("a question about a stream", MsgType.PARTITION_STATUS_REQUEST, pb.PartitionStatusRequest),
    _protobuf("an answer about a stream", MsgType.PARTITION_STATUS_RESPONSE, pb.PartitionStatusResponse),
)

# --- administrators ------------------------------------------------------------------------------------------------

POSITIONS = Method(
    _protobuf("a question about positions", MsgType.PARTITION_STATUS_REQUEST, pb.PositionsRequest),
    _protobuf("an answer about positions", MsgType.PARTITION_STATUS_RESPONSE, pb.PositionsResponse),
)
ORDER = Method(
    _protobuf("an order of an administrator", MsgType.PROPAGATED_REQUEST, pb.PropagatedRequest),
    _protobuf("an answer to an administrator", MsgType.PROPAGATED_RESPONSE, pb.PropagatedResponse),
)

# --- partitions ----------------------------------------------------------------------------------------------------

FETCH_REQUEST: Decoded[FetchRequest] = Decoded("a fetch request", MsgType.REPLICATION_REQUEST, decode_request)
FETCH_PART: Decoded[FetchPart] = Decoded("a part of a fetch response", MsgType.REPLICATION_RESPONSE, decode_part)
OTHER_LOG: Method[Question, LogAnswer] = Method(
    Message(
        "a question of another replica",
        MsgType.LEADER_EPOCH_OFFSET_REQUEST,
        _from_bytes(decode_question),
        encode_question,
    ),
    Message(
        "an answer of another replica", MsgType.LEADER_EPOCH_OFFSET_RESPONSE, _from_bytes(decode_answer), encode_answer
    ),
)
ENDED_CALLS: Message[list[bytes]] = Message("a list of calls that ended", None, _ended_calls, encode_gone)
