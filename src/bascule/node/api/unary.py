"""A gRPC method of one request and one response."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from bascule.errors import Internal, InvalidArgument
from bascule.limits import GRPC_SMALL_REQUEST_BYTES, MAX_MESSAGE_FIELDS
from bascule.net.grpc import Handler
from bascule.node.partition.manager import ReplicaManager
from bascule.ports import Call
from bascule.wire.fieldcount import fields_up_to
from bascule.wire.grpc import frame, too_large

Request = TypeVar("Request", bound=Message)
Unary = Callable[[Request, Call], Awaitable[Message]]


def unary(
    manager: ReplicaManager,
    request_type: type[Request],
    method: Unary[Request],
    most: int = GRPC_SMALL_REQUEST_BYTES,
) -> Handler:
    async def handle(call: Call) -> None:
        manager.check_not_stopping()
        response = await method(await receive(call, request_type, most), call)
        call.write(frame(response.SerializeToString()))

    return handle


async def receive(call: Call, request_type: type[Request], most: int = GRPC_SMALL_REQUEST_BYTES) -> Request:
    data = await call.receive()
    if data is None:
        raise Internal("the call ended before its request arrived")
    if len(data) > most:
        raise too_large(len(data), most)
    if most > GRPC_SMALL_REQUEST_BYTES:
        check_fields(data)
    try:
        return request_type.FromString(data)
    except DecodeError as error:
        raise Internal(f"grpc: error unmarshalling request: {error}") from error


def check_fields(data: bytes) -> None:
    """Before a message that may be large is decoded: its value may be, but not the number of its headers."""
    if fields_up_to(data, MAX_MESSAGE_FIELDS + 1) > MAX_MESSAGE_FIELDS:
        raise InvalidArgument(
            f"the message has more than {MAX_MESSAGE_FIELDS} headers and other fields; send fewer headers, or one with "
            "all they say"
        )
