"""A gRPC method of one request and one response."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from bascule.errors import Internal
from bascule.limits import GRPC_SMALL_REQUEST_BYTES
from bascule.net.grpc import Handler
from bascule.node.partition.manager import ReplicaManager
from bascule.ports import Call
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
    try:
        return request_type.FromString(data)
    except DecodeError as error:
        raise Internal(f"grpc: error unmarshalling request: {error}") from error
