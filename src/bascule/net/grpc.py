"""The gRPC server: listening sockets, connections, and one task for each call.

A server knows paths ("/package.Service/Method") and handlers, and not what the messages mean. An error on one
connection never affects another: errors of a peer end its connection, errors of a handler end its call, and a peer that
does not speak HTTP/2 gets an answer that says so, and is disconnected.
"""

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import partial

from bascule import limits
from bascule.errors import BasculeError, RpcError, StartError, Status
from bascule.net.call import Call, Handler
from bascule.net.http2 import Http2Protocol, ReadBuffer, Turns
from bascule.net.listen import bind
from bascule.net.secured import Handshakes, SecuredConnection
from bascule.wire import grpc
from bascule.wire.http2.events import (
    ConnectionFailed,
    DataReceived,
    Event,
    HeadersReceived,
    StreamReset,
)
from bascule.wire.http2.frames import ErrorCode

__all__ = ["Call", "GrpcServer", "Handler"]

log = logging.getLogger("bascule.grpc")

_HTTP1_REQUEST = re.compile(rb"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS|TRACE|CONNECT) ")
_HTTP1_ANSWER = (
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    "Content-Length: {length}\r\n\r\n{text}"
)
_HTTP1_TEXT = "This port speaks gRPC over HTTP/2. Use a gRPC or Liftbridge client.\n"


class ServerConnection(Http2Protocol):
    """One client's connection and the calls on it."""

    def __init__(self, server: "GrpcServer") -> None:
        super().__init__(client=False, read_buffer=server.read_buffer, turns=server.turns)
        self.peer = "unknown"
        self.peer_common_name: str | None = None
        self.max_message = server.max_message
        self.assembly_bytes = 0
        self.calls: dict[int, Call] = {}
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def protocol(self) -> Http2Protocol:
        return self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "local"
        self.peer_common_name = _common_name(transport.get_extra_info("peercert"))
        super().connection_made(transport)
        if not self._server.admit(self):
            self.abort()

    def on_lost(self, error: Exception | None) -> None:
        for call in list(self.calls.values()):
            call.abandon()
        self.calls.clear()
        self._server.forget(self)

    def on_not_http2(self, first_bytes: bytes) -> bytes:
        if _HTTP1_REQUEST.match(first_bytes):
            return _HTTP1_ANSWER.format(length=len(_HTTP1_TEXT), text=_HTTP1_TEXT).encode()
        if first_bytes[:1] == b"\x16":
            log.info("%s tried TLS, but this port has none: set tls.cert and tls.key, or use plaintext", self.peer)
        return b""

    # --- events ---------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            call = self.calls.get(event.stream_id)
            if call is not None:
                call.inbound.put(event.data, event.flow)
                if event.end_stream:
                    call.inbound.end()
        elif isinstance(event, HeadersReceived):
            self._on_request(event)
        elif isinstance(event, StreamReset):
            call = self.calls.pop(event.stream_id, None)
            if call is not None:
                call.abandon()
        elif isinstance(event, ConnectionFailed):
            log.info("ending the connection of %s: %s", self.peer, event.error)
            for call in list(self.calls.values()):
                call.abandon()
            self.calls.clear()

    def on_drained(self, stream_id: int) -> None:
        call = self.calls.get(stream_id)
        if call is not None:
            call.wake_sender()

    def _on_request(self, event: HeadersReceived) -> None:
        stream_id = event.stream_id
        fields = dict(event.headers)
        path = fields[":path"]
        if fields[":method"] != "POST":
            self._refuse(stream_id, 405, Status.INTERNAL, f"gRPC calls are POST requests, not {fields[':method']}")
        elif not grpc.is_grpc(fields.get("content-type")):
            shown = fields.get("content-type", "")
            self._refuse(stream_id, 415, Status.INVALID_ARGUMENT, f'invalid gRPC request content-type "{shown}"')
        elif (
            len(self._tasks) >= 2 * limits.HTTP2_MAX_CONCURRENT_STREAMS
            or len(self._server.tasks) >= limits.GRPC_MAX_CALLS
        ):
            # Handlers of cancelled calls may not have ended yet: new work has to wait for them.
            self.connection.reset_stream(stream_id, ErrorCode.REFUSED_STREAM)
        else:
            try:
                handler, gzipped, timeout = self._server.route(path, fields)
            except BasculeError as error:
                self.connection.end_stream(stream_id, grpc.trailers_only(error.status, str(error)))
            else:
                self._start(event, path, handler, gzipped, timeout)
        self.flush_soon()

    def _refuse(self, stream_id: int, http_status: int, status: Status, message: str) -> None:
        self.connection.end_stream(stream_id, grpc.http_refusal(http_status, status, message))

    def _start(self, event: HeadersReceived, path: str, handler: Handler, gzipped: bool, timeout: float | None) -> None:
        metadata = [(name, value) for name, value in event.headers if not name.startswith(":")]
        call = Call(self, event.stream_id, path, metadata, gzipped)
        self.calls[event.stream_id] = call
        call.add_done_callback(lambda: self.calls.pop(event.stream_id, None))
        if event.end_stream:
            call.inbound.end()
        if timeout is not None:
            call.set_timeout(timeout)
        call.task = self.loop.create_task(_run(call, handler))
        self._tasks.add(call.task)
        self._server.tasks.add(call.task)
        call.task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._server.task_done(task)


async def _run(call: Call, handler: Handler) -> None:
    """Run a handler from start to end. Every exception becomes the status of the call."""
    try:
        await handler(call)
    except asyncio.CancelledError:
        call.finish(Status.CANCELLED, "the server cancelled the call")
    except RpcError as error:
        call.finish(error.code, str(error))
    except BasculeError as error:
        call.finish(error.status, str(error))
    except Exception:
        log.exception("the handler of %s failed", call.path)
        call.finish(Status.INTERNAL, f"{call.path} failed inside the server; its log says why")
    else:
        call.finish(Status.OK, "")


def _common_name(certificate: object) -> str | None:
    """The CN of a verified client certificate."""
    if not isinstance(certificate, dict):
        return None
    for relative_name in certificate.get("subject", ()):
        for key, value in relative_name:
            if key == "commonName":
                return str(value)
    return None


class GrpcServer:
    def __init__(
        self,
        methods: Mapping[str, Handler],
        *,
        max_message: int = limits.GRPC_MAX_MESSAGE_BYTES,
        max_connections: int | None = None,
    ) -> None:
        self.max_message = max_message
        self._max_connections = limits.MAX_CONNECTIONS if max_connections is None else max_connections
        self.read_buffer = ReadBuffer()
        self.turns = Turns()
        self.tasks: set[asyncio.Task[None]] = set()
        self._methods = dict(methods)
        self._connections: dict[ServerConnection, None] = {}
        self._servers: list[asyncio.Server] = []
        self._handshakes: Handshakes | None = None
        self._draining = False
        self._changed = asyncio.Event()

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    # --- start and stop -------------------------------------------------------------------------------------

    async def start(self, host: str | None, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen, and return the port. Without a host: on every address of the machine."""
        loop = asyncio.get_running_loop()
        sockets = await bind(host, port)
        bound = int(sockets[0].getsockname()[1])
        connection: Callable[[], asyncio.BaseProtocol] = partial(ServerConnection, self)
        if tls is not None:
            self._handshakes = Handshakes(tls, partial(ServerConnection, self), self._has_room)
            connection = partial(SecuredConnection, self._handshakes)
        try:
            for sock in sockets:
                server = await loop.create_server(connection, sock=sock, backlog=limits.ACCEPT_BURST)
                sock.listen(socket.SOMAXCONN)  # asyncio's `backlog` sets both the accept burst and the queue
                self._servers.append(server)
        except OSError as error:
            for sock in sockets:
                sock.close()
            raise StartError(f"cannot listen on port {bound}: {error.strerror or error}") from None
        return bound

    def serve(self, methods: Mapping[str, Handler]) -> None:
        """Replace the methods; open calls go on."""
        self._methods = dict(methods)

    def drain(self) -> None:
        """Take no new connections and no new calls; the open calls go on."""
        self._draining = True
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._handshakes is not None:
            self._handshakes.close()
        for connection in list(self._connections):
            connection.connection.go_away(reason="the server is shutting down")
            connection.flush_soon()

    async def close(self, status: Status, message: str, grace: float) -> None:
        """End every open call with this status, then every connection, within `grace` seconds."""
        self.drain()
        for connection in list(self._connections):
            for call in list(connection.calls.values()):
                call.stop(status, message)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace
        while (self._connections or self.tasks) and loop.time() < deadline:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - loop.time())
            except TimeoutError:
                break
        for connection in list(self._connections):
            connection.abort()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.sleep(0)

    # --- for connections ------------------------------------------------------------------------------------

    def admit(self, connection: ServerConnection) -> bool:
        if not self._has_room():
            return False
        self._connections[connection] = None
        return True

    def _has_room(self, others: int = 0) -> bool:
        return not self._draining and len(self._connections) + others < self._max_connections

    def forget(self, connection: ServerConnection) -> None:
        self._connections.pop(connection, None)
        self._changed.set()

    def task_done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self._changed.set()

    def route(self, path: str, fields: Mapping[str, str]) -> tuple[Handler, bool, float | None]:
        """The handler of a request, whether its messages are gzipped, and its timeout."""
        timeout = fields.get("grpc-timeout")
        seconds = None if timeout is None else grpc.parse_timeout(timeout)
        handler = self._methods.get(path)
        if handler is None:
            raise grpc.unknown_method(path, self._methods)
        encoding = fields.get("grpc-encoding", "identity")
        if encoding not in ("identity", "gzip"):
            raise grpc.unknown_encoding(encoding)
        return handler, encoding == "gzip", seconds
