"""Every method that a broker serves, from the descriptors: one that is added there is called without a change here."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf import message_factory
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.message import Message

from bascule.wire.pb import admin_pb2, api_pb2, health_pb2, log_pb2, producer_pb2

FILES: tuple[FileDescriptor, ...] = (
    api_pb2.DESCRIPTOR,
    admin_pb2.DESCRIPTOR,
    log_pb2.DESCRIPTOR,
    producer_pb2.DESCRIPTOR,
    health_pb2.DESCRIPTOR,
)
_READING = ("Fetch", "Describe", "List", "Subscribe", "Read", "Check", "Watch", "ClusterStatus")


@dataclass(frozen=True, slots=True)
class Method:
    path: str
    request: type[Message]
    response: type[Message]
    streams_requests: bool
    streams_responses: bool

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def reads_only(self) -> bool:
        """It changes no stream, whatever it is asked: it may be asked about the stream of the load."""
        return self.name.startswith(_READING)


def every_method() -> list[Method]:
    return [
        _method(f"/{service.full_name}/{method.name}", method)
        for file in FILES
        for service in file.services_by_name.values()
        for method in service.methods
    ]


def _method(path: str, method: MethodDescriptor) -> Method:
    return Method(
        path,
        message_factory.GetMessageClass(method.input_type),
        message_factory.GetMessageClass(method.output_type),
        method.client_streaming,
        method.server_streaming,
    )
