"""What the fault tests ask of a broker, through grpcio: a client that shares no code with it."""

from collections.abc import Callable

import grpc

from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import health_pb2
from tests.harness.stub import Stub

TIMEOUT_S = 30.0
"""Of one call. Generous: the machine may be busy with other tests."""


def create(stub: Stub, name: str, subject: str | None = None, **fields: object) -> None:
    request = api.CreateStreamRequest(name=name, subject=name if subject is None else subject, **fields)  # type: ignore[arg-type]
    stub.CreateStream(request, timeout=TIMEOUT_S)


def delete(stub: Stub, name: str) -> None:
    stub.DeleteStream(api.DeleteStreamRequest(name=name), timeout=TIMEOUT_S)


def publish(stub: Stub, stream: str, value: bytes = b"v", timeout: float = TIMEOUT_S, **fields: object) -> api.Ack:
    request = api.PublishRequest(stream=stream, value=value, **fields)  # type: ignore[arg-type]
    response: api.PublishResponse = stub.Publish(request, timeout=timeout)
    return response.ack


def stored(stub: Stub, stream: str, partition: int = 0) -> list[api.Message]:
    """Everything a partition holds right now."""
    request = api.SubscribeRequest(
        stream=stream, partition=partition, startPosition=api.EARLIEST, stopPosition=api.STOP_LATEST
    )
    received: list[api.Message] = []
    try:
        for message in stub.Subscribe(request, timeout=TIMEOUT_S):
            received.append(message)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
    return received[1:]


def values(stub: Stub, stream: str, partition: int = 0) -> list[bytes]:
    return [message.value for message in stored(stub, stream, partition)]


def streams(stub: Stub) -> list[str]:
    response = stub.FetchMetadata(api.FetchMetadataRequest(), timeout=TIMEOUT_S)
    return sorted(stream.name for stream in response.streamMetadata)


def broker_id(stub: Stub) -> str:
    (broker,) = stub.FetchMetadata(api.FetchMetadataRequest(), timeout=TIMEOUT_S).brokers
    return str(broker.id)


def watch_health(stub: Stub, service: str = "proto.API") -> "grpc.CallIterator[health_pb2.HealthCheckResponse]":
    watch = stub.channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    return watch(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S)


def status_of(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """How a call failed; OK if it did not."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""
