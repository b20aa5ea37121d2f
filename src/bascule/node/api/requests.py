"""The request of a gRPC call, read and decoded within bounds."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from bascule.errors import Internal, InvalidArgument
from bascule.limits import GRPC_SMALL_REQUEST_BYTES, MAX_MESSAGE_FIELDS
from bascule.ports import Call
from bascule.wire.fieldcount import fields_up_to
from bascule.wire.grpc import too_large

Request = TypeVar("Request", bound=Message)


async def receive(call: Call, request_type: type[Request], most: int) -> Request:
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
    """Called before a message that may be large is decoded: its value may be large, its number of headers is
    bounded."""
    if fields_up_to(data, MAX_MESSAGE_FIELDS + 1) > MAX_MESSAGE_FIELDS:
        raise InvalidArgument(
            f"the message has more than {MAX_MESSAGE_FIELDS} headers and other fields; send fewer headers, "
            "or combine them"
        )
