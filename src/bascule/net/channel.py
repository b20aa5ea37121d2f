"""The calling side: one connection to a gRPC server, and calls on it.

A channel does not reconnect: when its connection is lost or the server sends GOAWAY it is `closed`, and its owner makes
another. A call waits while all of the server's streams are in use.

While calls are open, a server that sends nothing is probed, and the connection counts as lost if no answer
comes: a frozen server or a dead link closes no connection by itself. The probe is an HTTP/2 PING. Servers of
other makes may refuse those when they come too often (GOAWAY, "too_many_pings"): with `pings=False` it is a call of the
health service, to which any answer will do.
"""

import asyncio
import errno
import ssl
from collections import deque
from typing import Protocol

from bascule import limits
from bascule.errors import BasculeError, HungUp, RpcError, Status, TlsRefused, Unavailable, WrongServer
from bascule.net.http2 import Http2Protocol, ReadBuffer
from bascule.net.inbound import Inbound
from bascule.net.silence import Silence
from bascule.wire import grpc
from bascule.wire.http2.events import (
    ConnectionFailed,
    DataReceived,
    Event,
    GoAwayReceived,
    Headers,
    HeadersReceived,
    SettingsReceived,
    StreamReset,
)
from bascule.wire.http2.frames import ErrorCode, error_name

HEALTH_CHECK = "/grpc.health.v1.Health/Check"
KEEPALIVE = b"are you?"
TOO_MANY_PINGS = "too_many_pings"


class ClientConnection(Http2Protocol):
    """The channel's end of the connection."""

    def __init__(self, authority: str, secure: bool, pings: bool) -> None:
        super().__init__(client=True, read_buffer=ReadBuffer())
        self.authority = authority
        self.secure = secure
        self.pings = pings
        self.calls: dict[int, ClientCall] = {}
        self.waiting: deque[ClientCall] = deque()
        self.ready: asyncio.Future[None] = self.loop.create_future()
        self.gone: asyncio.Future[None] = self.loop.create_future()
        self.reason = ""
        """Why no more calls can be made; empty while they can. `ready` is done when either is known."""
        self.is_nats = False
        """What answers is a NATS server: it greets before it is spoken to."""
        self.silent = False
        """It was given up because the server did not answer."""
        self.too_many_pings = False
        """The server ended it, because it takes no PINGs."""
        self._watch: asyncio.TimerHandle | None = None
        self._silence = Silence()  # an object has at most 29 attributes that CPython 3.11 reads the fast way

    # --- keep-alive -----------------------------------------------------------------------------------------

    def watch(self) -> None:
        """A call begins."""
        if self._watch is None and not self.lost:
            self._silence.begin()
            self._watch = self.loop.call_later(limits.GRPC_KEEPALIVE_TICK_S, self._tick)

    def _tick(self) -> None:
        self._watch = None
        if self.lost or not (self.calls or self.waiting):
            return
        unwritten = 0 if self.transport is None else self.transport.get_write_buffer_size()
        silent = self._silence.tick(self.heard_at, unwritten)
        if silent >= limits.GRPC_KEEPALIVE_DEAD_TICKS:
            self.silent = True
            seconds = limits.GRPC_KEEPALIVE_DEAD_TICKS * limits.GRPC_KEEPALIVE_TICK_S
            self._no_more(f"the server has not answered for {seconds:g} seconds")
            self._fail_open_calls()
            self.abort()
            return
        if silent == limits.GRPC_KEEPALIVE_PING_TICKS:
            self._probe()
        self._watch = self.loop.call_later(limits.GRPC_KEEPALIVE_TICK_S, self._tick)

    def _probe(self) -> None:
        if self.pings:
            self.connection.ping(KEEPALIVE)
            self.flush_soon()
        elif self.connection.can_open:
            call = ClientCall(self, HEALTH_CHECK, None)
            call.open()
            call.write(grpc.frame(b""))
            call.half_close()

    # --- events ---------------------------------------------------------------------------------------------

    def buffer_updated(self, nbytes: int) -> None:
        usual = not self._rest and not self._closing
        alone = self.connection.data_alone(self._read_buffer.view, nbytes) if usual else None
        if alone is None:
            super().buffer_updated(nbytes)
            return
        self.heard_at = self.loop.time()
        stream_id, data = alone
        call = self.calls.get(stream_id)
        if call is not None:
            call.on_data(data, len(data))

    def on_event(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            call = self.calls.get(event.stream_id)
            if call is not None:
                call.on_data(event.data, event.flow)
                if event.end_stream:
                    call.on_end_without_status()
        elif isinstance(event, HeadersReceived):
            call = self.calls.get(event.stream_id)
            if call is not None:
                call.on_headers(event.headers, event.end_stream)
        elif isinstance(event, StreamReset):
            call = self.calls.get(event.stream_id)
            if call is not None:
                call.refused = event.code == ErrorCode.REFUSED_STREAM
                who = "the server" if event.by_peer else "a protocol error of the server"
                call.end(grpc.status_of_reset(event.code), f"{who} reset the call ({error_name(event.code)})")
        elif isinstance(event, SettingsReceived):
            if not self.ready.done():
                self.ready.set_result(None)
            self.open_waiting()
        elif isinstance(event, GoAwayReceived):
            self.too_many_pings = event.reason == TOO_MANY_PINGS
            self._no_more(f"the server sent GOAWAY: {event.reason or error_name(event.code)}")
        elif isinstance(event, ConnectionFailed):
            self._no_more(f"the server violated HTTP/2: {event.error}")
            self._fail_open_calls()

    def on_not_http2(self, first_bytes: bytes) -> bytes:
        self.is_nats = first_bytes.startswith(b"INFO {")
        return b""

    def on_drained(self, stream_id: int) -> None:
        call = self.calls.get(stream_id)
        if call is not None:
            call.wake_sender()

    def on_lost(self, error: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._no_more(f"the connection was lost{f': {error}' if error is not None else ''}")
        self._fail_open_calls()
        if not self.gone.done():
            self.gone.set_result(None)

    def _no_more(self, reason: str) -> None:
        self.reason = self.reason or reason
        if not self.ready.done():
            self.ready.set_result(None)
        waiting, self.waiting = self.waiting, deque()
        for call in waiting:
            call.end(Status.UNAVAILABLE, self.reason)

    def _fail_open_calls(self) -> None:
        for call in list(self.calls.values()):
            call.end(Status.UNAVAILABLE, self.reason)

    def open_waiting(self) -> None:
        while self.waiting and self.connection.can_open:
            self.waiting.popleft().open()
        if self.waiting and not self.calls and self.connection.going_away:
            self._no_more("the connection takes no more calls")


WHY_PLAIN = "does the server expect TLS, or something else than gRPC?"
WHY_TLS = "does the server serve TLS?"
NATS_THERE = (
    "a NATS server answers there, and not a broker: brokers have a gRPC port of their own, 9292 unless they are "
    "started with another"
)
WHY_CERTIFICATE = "does the server want a client certificate, or another one?"


def _reason(error: OSError) -> str:
    """The reason without the addresses that asyncio adds, one for each address of the host."""
    if f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return "connection refused"
    return error.strerror or str(error)


class Channel:
    def __init__(self, connection: ClientConnection, max_message: int) -> None:
        self.connection = connection
        self._max_message = max_message

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        timeout: float = limits.CLIENT_CONNECT_TIMEOUT_S,
        max_message: int = limits.GRPC_MAX_MESSAGE_BYTES,
        pings: bool = True,
    ) -> "Channel":
        """A connection whose server has answered in HTTP/2. Raises Unavailable with the reason; HungUp, TlsRefused or
        WrongServer if a server was there and refused us, or is none of gRPC."""
        authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        connection: ClientConnection | None = None
        kind: type[BasculeError] = Unavailable
        try:
            async with asyncio.timeout(timeout):
                loop = asyncio.get_running_loop()
                server_name = host if tls is not None else None
                _, connection = await loop.create_connection(
                    lambda: ClientConnection(authority, tls is not None, pings),
                    host,
                    port,
                    ssl=tls,
                    server_hostname=server_name,
                )
                await connection.ready
            if not connection.reason:
                return cls(connection, max_message)
            kind = WrongServer if connection.is_nats else HungUp if tls is not None else Unavailable
            problem = f"{connection.reason}; {WHY_CERTIFICATE if tls is not None else WHY_PLAIN}"
            problem = NATS_THERE if connection.is_nats else problem
        except TimeoutError:
            problem = f"no answer within {timeout:g} seconds; is a gRPC server there?"
        except ssl.SSLError as error:
            kind = TlsRefused
            problem = f"TLS failed ({error.reason or error}); check the CA, the certificate and its host names"
        except (ConnectionAbortedError, ConnectionResetError):
            problem = f"the connection was lost at once; {WHY_TLS if tls is not None else WHY_PLAIN}"
        except OSError as error:
            problem = _reason(error)
        except asyncio.CancelledError:
            if connection is not None:
                connection.abort()
            raise
        if connection is not None:
            connection.abort()
        raise kind(f"cannot connect to {authority}: {problem}")

    @property
    def closed(self) -> bool:
        """No further calls can be made here."""
        return bool(self.connection.reason) or self.connection.lost or self.connection.connection.going_away

    @property
    def calls(self) -> int:
        """Open, or waiting for a free stream."""
        return len(self.connection.calls) + len(self.connection.waiting)

    @property
    def has_room(self) -> bool:
        """A call would begin at once."""
        return self.connection.connection.can_open and not self.connection.waiting

    def stream(self, path: str, *, timeout: float | None = None) -> "ClientCall":
        """A call with any number of messages either way. It is under way when this returns."""
        connection = self.connection
        call = ClientCall(connection, path, timeout)
        if self.closed:
            call.end(Status.UNAVAILABLE, connection.reason or "the channel is closed")
        elif connection.connection.can_open and not connection.waiting:
            call.open()
        elif len(connection.waiting) < limits.GRPC_MAX_WAITING_CALLS:
            connection.waiting.append(call)
            connection.watch()
        else:
            call.end(Status.RESOURCE_EXHAUSTED, "too many calls wait for a free stream on this channel")
        return call

    async def unary(self, path: str, request: bytes, *, timeout: float | None = None) -> bytes:
        """One request message, one response message. RpcError if the call ends otherwise.

        A server may refuse a stream without processing it (REFUSED_STREAM), even one within its limit when the end of
        another stream has not arrived there yet; such a call is made again."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        for retry in range(limits.GRPC_REFUSED_RETRIES):
            call = self.stream(path, timeout=None if deadline is None else deadline - loop.time())
            try:
                return await self._exchange(call, request)
            except RpcError:
                if not call.refused or self.closed:
                    raise
            finally:
                call.cancel()
            await asyncio.sleep(limits.GRPC_REFUSED_PAUSE_S * (1 << retry))
        raise RpcError(Status.UNAVAILABLE, f"the server refused {path} again and again: it is at its bound of calls")

    async def _exchange(self, call: "ClientCall", request: bytes) -> bytes:
        call.write(grpc.frame(request))
        call.half_close()
        parts: list[bytes] = []
        size = 0
        while (part := await call.receive()) is not None:
            parts.append(part)
            size += len(part)
            if size > self._max_message + grpc.PREFIX_BYTES:
                error = grpc.too_large(size - grpc.PREFIX_BYTES, self._max_message)
                raise RpcError(error.status, str(error))
        return _single_message(b"".join(parts))

    async def close(self) -> None:
        """End all calls and the connection."""
        connection = self.connection
        for call in [*connection.waiting, *connection.calls.values()]:
            call.cancel()
        connection.reason = connection.reason or "the channel was closed"
        if not connection.lost:
            connection.connection.go_away()
            connection.flush_soon()
            try:
                async with asyncio.timeout(limits.HTTP2_CLOSE_TIMEOUT_S):
                    await connection.gone
            except TimeoutError:
                connection.abort()


def _single_message(frames: bytes) -> bytes:
    if len(frames) < grpc.PREFIX_BYTES or len(frames) != grpc.PREFIX_BYTES + int.from_bytes(frames[1:5], "big"):
        raise RpcError(Status.INTERNAL, "the server did not answer with exactly one message")
    if frames[0]:
        raise RpcError(Status.INTERNAL, "the server sent a compressed message that was not asked for")
    return frames[grpc.PREFIX_BYTES :]


class Listener(Protocol):
    """Of a call whose events are handled where they happen, without a task that waits for them."""

    def on_data(self, data: bytes, now: float) -> None:
        """Framed bytes, perhaps ending in the middle of a message. The server may send as many more."""

    def on_drained(self) -> None:
        """The transport has taken all that was written."""

    def on_end(self, error: RpcError | None) -> None:
        """The call has ended, without an error if it ended OK."""


class ClientCall:
    def __init__(self, protocol: ClientConnection, path: str, timeout: float | None) -> None:
        self.path = path
        self.headers: Headers = []
        """What the server sent before its first message."""
        self.status: Status | None = None
        """How the call ended; None while it has not."""
        self.message = ""
        self.refused = False
        """The server did not process it: making the call again is safe."""
        self.inbound = Inbound(protocol, 0)
        self._protocol = protocol
        self._connection = protocol.connection
        self._stream_id = 0
        self._early: list[bytes] = []
        self._half_closed = False
        self._listener: Listener | None = None
        self._dealt_with = 0
        """What the listener had, and the server has not got back as room for more."""
        self._send_waiter: asyncio.Future[None] | None = None
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            self._deadline = self._protocol.loop.time() + timeout
            self._timer = self._protocol.loop.call_later(timeout, self._deadline_passed)

    # --- start and end --------------------------------------------------------------------------------------

    def open(self) -> None:
        """A stream is free: begin."""
        remaining = None if self._deadline is None else self._deadline - self._protocol.loop.time()
        protocol = self._protocol
        self._stream_id = self._connection.open_stream(
            grpc.request_headers(self.path, protocol.authority, protocol.secure, remaining)
        )
        protocol.watch()
        self.inbound.stream_id = self._stream_id
        self._protocol.calls[self._stream_id] = self
        for frames in self._early:
            self._connection.send_data(self._stream_id, frames)
        self._early.clear()
        if self._half_closed:
            self._connection.end_stream(self._stream_id)
        self._protocol.flush_soon()
        self.wake_sender()

    def end(self, status: Status, message: str) -> None:
        if self.status is not None:
            return
        self.status = status
        self.message = message
        if self._timer is not None:
            self._timer.cancel()
        if self._stream_id:
            self._protocol.calls.pop(self._stream_id, None)
            # If our side of the stream is still open, the rest of it is not needed.
            self._connection.reset_stream(self._stream_id, ErrorCode.CANCEL)
            self._protocol.flush_soon()
        elif self in self._protocol.waiting:
            self._protocol.waiting.remove(self)
        self.inbound.end()
        self.wake_sender()
        if self._listener is not None:
            self._listener.on_end(self._error())
        self._protocol.open_waiting()

    def cancel(self) -> None:
        """Give up; harmless when the call has ended."""
        self.end(Status.CANCELLED, "the call was cancelled on this side")

    def _error(self) -> RpcError | None:
        return None if self.status is Status.OK else RpcError(self.status or Status.UNKNOWN, self.message)

    def listen(self, listener: Listener) -> None:
        """Instead of `receive`, and before anything has arrived."""
        self._listener = listener
        if self.status is not None:
            listener.on_end(self._error())

    def on_data(self, data: bytes, flow: int) -> None:
        if self._listener is None:
            self.inbound.put(data, flow)
            return
        if data:
            self._listener.on_data(data, self._protocol.heard_at)
        self._dealt_with += flow
        if self._dealt_with >= limits.GRPC_LISTENER_GRANT_BYTES:
            self._protocol.grant(self._stream_id, self._dealt_with)
            self._dealt_with = 0

    def _deadline_passed(self) -> None:
        self.end(Status.DEADLINE_EXCEEDED, f"{self.path}: the deadline passed")

    def on_headers(self, headers: Headers, end_stream: bool) -> None:
        ended = grpc.status_of_trailers(headers)
        if end_stream and ended is not None:
            self.end(*ended)
        elif headers[0][0] == ":status" and headers[0][1] != "200":
            http_status = headers[0][1]
            self.end(grpc.status_of_http(http_status), f"the server answered with HTTP status {http_status}")
        elif end_stream:
            self.on_end_without_status()
        else:
            self.headers = headers

    def on_end_without_status(self) -> None:
        self.end(Status.UNKNOWN, "the server ended the call without a status")

    # --- out ------------------------------------------------------------------------------------------------

    def write(self, frames: bytes) -> None:
        """Queue framed messages; never waits."""
        if self.status is not None or self._half_closed:
            return
        if self._stream_id:
            self._connection.send_data(self._stream_id, frames)
            self._protocol.flush_soon()
        else:
            self._early.append(frames)

    def write_now(self, frames: bytes) -> bool:
        """The same, and the transport has them when this returns, if it takes them now. With True it has, and says
        no more of it; otherwise the listener's `on_drained` says when."""
        if self.status is None and not self._half_closed and self._stream_id:
            if self._protocol.write_at_once(self._stream_id, frames):
                return True
            self._connection.send_data(self._stream_id, frames)
            self._protocol.flush_now()
        else:
            self.write(frames)
        return False

    async def send(self, frames: bytes) -> None:
        """Framed messages, and wait until the transport has them all, within the server's windows. When the call
        has ended this returns at once: `receive` says how."""
        self.write(frames)
        await self.drained()

    @property
    def queued_bytes(self) -> int:
        """Written, and not handed to the transport yet."""
        if self.status is not None:
            return 0
        return sum(map(len, self._early)) if self._early else self._connection.queued_bytes(self._stream_id)

    async def drained(self) -> None:
        while self.queued_bytes:
            if self._send_waiter is None or self._send_waiter.done():
                self._send_waiter = self._protocol.loop.create_future()
            await self._send_waiter

    def wake_sender(self) -> None:
        if self._send_waiter is not None and not self._send_waiter.done():
            self._send_waiter.set_result(None)
        if self._listener is not None and self.status is None and not self.queued_bytes:
            self._listener.on_drained()

    def half_close(self) -> None:
        """No more messages from this side."""
        if not self._half_closed and self.status is None:
            self._half_closed = True
            if self._stream_id:
                self._connection.end_stream(self._stream_id)
                self._protocol.flush_soon()

    # --- in -------------------------------------------------------------------------------------------------

    async def receive(self) -> bytes | None:
        """All framed bytes that have arrived, perhaps ending in the middle of a message. None when the call has
        ended OK; RpcError when it has ended otherwise."""
        self.inbound.return_window()
        await self.inbound.wait()
        if not self.inbound.empty:
            return self.inbound.take()
        if (error := self._error()) is not None:
            raise error
        return None
