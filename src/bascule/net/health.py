"""The gRPC health service, `grpc.health.v1.Health`: what load balancers and Kubernetes ask.

Statuses are set by service name; the empty name is the whole server. Check answers once (NOT_FOUND for a name
nobody set); Watch answers now and after each change (SERVICE_UNKNOWN for such a name), until the client leaves.
"""

import asyncio
from collections.abc import Mapping

from google.protobuf.message import DecodeError

from bascule.errors import Internal, NotFound
from bascule.net.call import Call, Handler
from bascule.wire import grpc
from bascule.wire.pb.health_pb2 import HealthCheckRequest, HealthCheckResponse

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING


class Health:
    def __init__(self) -> None:
        self._statuses: dict[str, HealthCheckResponse.ServingStatus] = {"": SERVING}
        self._watchers: dict[asyncio.Event, None] = {}

    def set(self, service: str, serving: bool) -> None:
        status = SERVING if serving else NOT_SERVING
        if self._statuses.get(service) != status:
            self._statuses[service] = status
            for changed in self._watchers:
                changed.set()

    def set_all(self, serving: bool) -> None:
        """Every service that was ever set, the server itself included."""
        for service in self._statuses:
            self.set(service, serving)

    def methods(self) -> Mapping[str, Handler]:
        return {"/grpc.health.v1.Health/Check": self._check, "/grpc.health.v1.Health/Watch": self._watch}

    async def _check(self, call: Call) -> None:
        service = await _service(call)
        status = self._statuses.get(service)
        if status is None:
            raise NotFound("unknown service")
        call.write(_answer(status))

    async def _watch(self, call: Call) -> None:
        service = await _service(call)
        changed = asyncio.Event()
        self._watchers[changed] = None
        try:
            last: HealthCheckResponse.ServingStatus | None = None
            while True:
                status = self._statuses.get(service, HealthCheckResponse.SERVICE_UNKNOWN)
                if status != last:
                    last = status
                    await call.send(_answer(status))
                    continue
                changed.clear()
                await changed.wait()
        finally:
            del self._watchers[changed]


async def _service(call: Call) -> str:
    message = await call.receive()
    if message is None:
        raise Internal("the request holds no message")
    try:
        return HealthCheckRequest.FromString(message).service
    except DecodeError:
        raise Internal("the request is not a HealthCheckRequest") from None


def _answer(status: "HealthCheckResponse.ServingStatus") -> bytes:
    return grpc.frame(HealthCheckResponse(status=status).SerializeToString())
