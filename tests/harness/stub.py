"""grpcio stubs for proto.API, made from our descriptors: the C-core client is the independent peer."""

from typing import Any

import grpc

from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb.pool import POOL


class Stub:
    """`stub.CreateStream(request, timeout=5)` and so on for every method of the service."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None = None, **options: Any) -> None:
        if credentials is None:
            self.channel = grpc.insecure_channel(address, options=list(options.items()))
        else:
            self.channel = grpc.secure_channel(address, credentials, options=list(options.items()))
        for method in POOL.FindServiceByName("proto.API").methods:
            kind = ("stream" if method.client_streaming else "unary", "stream" if method.server_streaming else "unary")
            factory = getattr(self.channel, "_".join(kind))
            setattr(
                self,
                method.name,
                factory(
                    f"/proto.API/{method.name}",
                    request_serializer=getattr(api, method.input_type.name).SerializeToString,
                    response_deserializer=getattr(api, method.output_type.name).FromString,
                ),
            )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __enter__(self) -> "Stub":
        return self

    def __exit__(self, *exc: object) -> None:
        self.channel.close()
