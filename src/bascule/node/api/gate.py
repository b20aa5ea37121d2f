"""The gate in front of the API: every call of a method of `proto.API`, `bascule.v1.Admin`, `bascule.v1.Log` and
`bascule.v1.Producers` passes here, in two steps.

1. `Gate.arrived`, before anything of the request is read. The call is counted, and is refused while this broker cannot
   answer it: while it stops, and, for what is answered out of the metadata, until it has caught up with its cluster.
2. `Gate.admit`, before the method runs. It is given the name of the method, what the request is about (`About`: a
   stream, a subject, a consumer group, a broker, the cluster), the decoded request, and the call. A call that streams
   its requests has none yet.

A check of every call belongs in one of the two: authorization in `Gate.admit`, where the method is the action, `about`
the resource, and `call.peer_common_name` the client, as its certificate names it. What a call reaches besides, such as
the other streams on a subject, is in docs/architecture.md.

A method is registered in its `Service`: with `unary` (one request, one response), `changing` (the same, for a change of
the metadata, of which a connection has a bounded number under way), `sending` (one request, it sends its
responses itself) or `streaming` (it reads its requests itself, too).

PublishAsync passes once per call, before any of its messages is read. No Python runs per message then: the kernel
`route_publishes` checks messages against a table of routes (`node/partition/routes.py`). Those without a route, or with
a flag, are singled out, and each of them passes `Gate.admit_message`. Where `Gate.checks_each_message` says so, the
call is given an empty table, and all its messages are singled out. Authorization of messages belongs in these two.
What the broker itself publishes (cursors, the activity stream) goes through `MessageSender`, past the gate.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from typing import NamedTuple

from google.protobuf.message import Message

from bascule.errors import Unavailable
from bascule.limits import CONNECTION_CHANGES, GRPC_SMALL_REQUEST_BYTES
from bascule.net.grpc import Handler
from bascule.node.api.requests import Request, receive
from bascule.node.membership.cluster import Cluster
from bascule.node.partition.manager import ReplicaManager
from bascule.node.runtime.metrics import Metrics
from bascule.ports import Call
from bascule.wire.grpc import frame
from bascule.wire.pb import api_pb2 as api

logger = logging.getLogger(__name__)


class Kind(Enum):
    STREAM = "stream"
    ALL_STREAMS = "all streams"
    MESSAGES = "messages"
    SUBJECT = "subject"
    BROKER = "broker"
    GROUP = "group"
    CLUSTER = "cluster"


class About(NamedTuple):
    """What a request is about."""

    kind: Kind
    names: tuple[str, ...] = ()
    """As the client wrote them; nothing has been checked. () where the kind says it all."""


CLUSTER = About(Kind.CLUSTER)
ALL_STREAMS = About(Kind.ALL_STREAMS)
"""Every stream there is when the request is answered."""
ITS_MESSAGES = About(Kind.MESSAGES)
"""The streams that the messages of the call name, which are not known yet: see `Gate.admit_message`."""


def about_stream(*names: str) -> About:
    assert names, "a request that names no stream is about ALL_STREAMS, or about ITS_MESSAGES"
    return About(Kind.STREAM, names)


def about_subject(name: str) -> About:
    return About(Kind.SUBJECT, (name,))


def about_group(name: str) -> About:
    return About(Kind.GROUP, (name,))


def about_broker(name: str) -> About:
    return About(Kind.BROKER, (name,))


class _Share:
    """The changes of the metadata that one connection asks for."""

    def __init__(self) -> None:
        self.room = asyncio.Semaphore(CONNECTION_CHANGES)
        self.calls = 0


class Gate:
    def __init__(self, manager: ReplicaManager, cluster: Cluster, metrics: Metrics) -> None:
        self._manager = manager
        self._cluster = cluster
        self._calls = metrics.counter("bascule_calls_total", "Calls of clients and administrators", label="method")
        self._stopping = False
        self._changing: dict[str, _Share] = {}
        """By connection."""

    def close(self) -> None:
        """The broker stops, and takes no more calls."""
        self._stopping = True

    @asynccontextmanager
    async def changing(self, call: Call) -> AsyncIterator[None]:
        """A change of the metadata, of which a connection has a bounded number under way."""
        share = self._changing.setdefault(call.peer, _Share())
        share.calls += 1
        try:
            async with share.room:
                yield
        finally:
            share.calls -= 1
            if not share.calls:
                del self._changing[call.peer]

    def arrived(self, method: str, needs_metadata: bool) -> None:
        self._calls.add(method)
        if needs_metadata:
            self.check_caught_up()
        if self._stopping:
            raise Unavailable("the broker is stopping")

    def check_caught_up(self) -> None:
        """Raises Unavailable until this broker has caught up with the metadata: before that it must not say that a
        stream does not exist, nor that all is well."""
        if not self._manager.caught_up:
            raise Unavailable(
                self._cluster.waits or "this broker has started and has not caught up with its cluster yet; try again"
            )

    def admit(self, method: str, about: About, request: Message | None, call: Call) -> None:
        logger.debug("%s about %s, by %s", method, about, call.peer_common_name)

    def checks_each_message(self, call: Call) -> bool:
        """Whether all messages of this PublishAsync pass `admit_message`, and not only those that the kernel singles
        out. This costs many times what the kernel does: it is for clients that may not publish everywhere."""
        return False

    def admit_message(self, message: api.PublishRequest, call: Call) -> None:
        """One message of a PublishAsync, before anything is done for it: a paused partition is not resumed for a client
        that is refused. PermissionDenied is answered as such, every other error as INTERNAL."""
        self.admit("PublishAsync", about_stream(message.stream), message, call)


class Service:
    """The methods of one gRPC service, behind the gate."""

    def __init__(self, name: str, gate: Gate) -> None:
        self._name = name
        self._gate = gate
        self._methods: dict[str, Handler] = {}

    @property
    def methods(self) -> Mapping[str, Handler]:
        """By path."""
        return self._methods

    def unary(
        self,
        method: str,
        request_type: type[Request],
        answer: Callable[[Request, Call], Awaitable[Message]],
        about: Callable[[Request], About],
        *,
        most: int = GRPC_SMALL_REQUEST_BYTES,
        needs_metadata: bool = False,
    ) -> None:
        """One request of at most so many bytes, and one response."""

        async def handle(call: Call) -> None:
            request = await self._admitted(call, method, request_type, about, most, needs_metadata)
            call.write(frame((await answer(request, call)).SerializeToString()))

        self._add(method, handle)

    def changing(
        self,
        method: str,
        request_type: type[Request],
        answer: Callable[[Request, Call], Awaitable[Message]],
        about: Callable[[Request], About],
        *,
        needs_metadata: bool = False,
    ) -> None:
        """The same, of a change of the metadata."""

        async def handle(call: Call) -> None:
            request = await self._admitted(call, method, request_type, about, GRPC_SMALL_REQUEST_BYTES, needs_metadata)
            async with self._gate.changing(call):
                response = await answer(request, call)
            call.write(frame(response.SerializeToString()))

        self._add(method, handle)

    def sending(
        self,
        method: str,
        request_type: type[Request],
        serve: Callable[[Request, Call], Awaitable[None]],
        about: Callable[[Request], About],
        *,
        most: int = GRPC_SMALL_REQUEST_BYTES,
        needs_metadata: bool = False,
    ) -> None:
        """One request; `serve` sends the responses."""

        async def handle(call: Call) -> None:
            await serve(await self._admitted(call, method, request_type, about, most, needs_metadata), call)

        self._add(method, handle)

    def streaming(
        self, method: str, serve: Callable[[Call], Awaitable[None]], about: About, *, needs_metadata: bool = False
    ) -> None:
        """`serve` reads the requests, and sends the responses."""

        async def handle(call: Call) -> None:
            self._gate.arrived(method, needs_metadata)
            self._gate.admit(method, about, None, call)
            await serve(call)

        self._add(method, handle)

    async def _admitted(
        self,
        call: Call,
        method: str,
        request_type: type[Request],
        about: Callable[[Request], About],
        most: int,
        needs_metadata: bool,
    ) -> Request:
        self._gate.arrived(method, needs_metadata)
        request = await receive(call, request_type, most)
        self._gate.admit(method, about(request), request, call)
        return request

    def _add(self, method: str, handler: Handler) -> None:
        path = f"/{self._name}/{method}"
        assert path not in self._methods, f"{path} is registered already"
        self._methods[path] = handler
