"""Calls with one request and one answer, of both services."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from bascule.errors import Internal, Unavailable
from bascule.limits import GRPC_SMALL_REQUEST_BYTES
from bascule.net.grpc import Handler
from bascule.node.process.broker import Broker
from bascule.ports import Call
from bascule.wire.grpc import frame, too_large

Request = TypeVar("Request", bound=Message)
Method = Callable[[Request, Call], Awaitable[Message]]


def unary(
    broker: Broker, request_type: type[Request], method: Method[Request], most: int = GRPC_SMALL_REQUEST_BYTES
) -> Handler:
    async def handle(call: Call) -> None:
        if broker.stopping:
            raise Unavailable("the broker is stopping")
        request = await receive(call, request_type, most)
        response = await method(request, call)
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
