"""An HTTP/2 connection on an asyncio transport, for either role.

Reading: all connections of one owner share a read buffer. That is safe because asyncio asks for a buffer, fills it
and reports it without other reads in between; the rest of an incomplete frame is copied out of it. So an idle
connection holds no buffer at all.

A read may have very many requests, and what each of them costs would add up: a server begins a bounded number of them,
and the rest is held, and nothing more is read of that connection, until it is its turn again (`Turns`).

Writing: output is queued, and a flush is requested; the flush runs once in a turn of the loop and makes one write.
While the transport is full, nothing is taken from the queues, so control frames still overtake data that has not been
written.

Ending: a connection closes when it has no more output. It is aborted when the peer does not read (a stalled write),
does not finish the handshake, or does not close its side in time.
"""

import asyncio
import logging
import socket
from abc import ABC, abstractmethod
from typing import cast

from bascule import limits
from bascule.errors import Http2Error
from bascule.wire.http2.connection import ALL, Connection
from bascule.wire.http2.events import Event
from bascule.wire.http2.frames import ErrorCode

log = logging.getLogger("bascule.grpc")


class Turns:
    """Connections with more requests than are begun at once: some of them go on in each turn of the event loop. Others
    have their answers meanwhile."""

    def __init__(self) -> None:
        self._due: dict[Http2Protocol, None] = {}

    def wait(self, connection: "Http2Protocol") -> None:
        if not self._due:
            asyncio.get_running_loop().call_soon(self._some)
        self._due[connection] = None

    def _some(self) -> None:
        for connection in list(self._due)[: limits.HTTP2_CROWDED_A_TURN]:
            del self._due[connection]
            try:
                if connection.go_on():
                    self._due[connection] = None  # behind the others
            except Exception:  # of one connection: the others wait for their turn
                log.exception("a connection ends")
                connection.abort()
        if self._due:
            asyncio.get_running_loop().call_soon(self._some)


class ReadBuffer:
    """Room for one read and for the incomplete frame before it."""

    __slots__ = ("data", "view")

    def __init__(self) -> None:
        self.data = bytearray(limits.HTTP2_READ_BUFFER_BYTES)
        self.view = memoryview(self.data)


def tune(sock: socket.socket) -> None:
    """No waiting for full segments (TCP_NODELAY); keepalive probes detect peers that are gone."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.TCP_KEEPALIVE_IDLE_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, limits.TCP_KEEPALIVE_INTERVAL_S),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, limits.TCP_KEEPALIVE_PROBES),
    ):
        sock.setsockopt(level, option, value)


class Http2Protocol(asyncio.BufferedProtocol, ABC):
    """What server and client connections share. Subclasses handle the events."""

    def __init__(self, client: bool, read_buffer: ReadBuffer, turns: Turns | None = None) -> None:
        """Without `turns` everything that was read is taken in at once."""
        self.loop = asyncio.get_running_loop()
        self.connection = Connection(client)
        self.lost = False
        self.heard_at = 0.0
        """When something arrived last."""
        self.transport: asyncio.Transport | None = None
        self._read_buffer = read_buffer
        self._turns = turns
        self._rest = b""
        self._flush_asked = False
        self._paused = False
        self._closing = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._handshake_timer: asyncio.TimerHandle | None = None
        self._stalled_size = 0

    # --- for subclasses -------------------------------------------------------------------------------------

    @abstractmethod
    def on_event(self, event: Event) -> None: ...

    @abstractmethod
    def on_drained(self, stream_id: int) -> None:
        """All bytes queued on the stream have been handed to the transport."""

    @abstractmethod
    def on_lost(self, error: Exception | None) -> None: ...

    def on_not_http2(self, first_bytes: bytes) -> bytes:
        """The answer to a peer that speaks another protocol, before the connection is closed."""
        return b""

    # --- the transport's side -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            tune(sock)
        self._handshake_timer = self.loop.call_later(limits.HTTP2_HANDSHAKE_TIMEOUT_S, self._handshake_late)
        self.flush_soon()

    def get_buffer(self, sizehint: int) -> memoryview:
        rest = self._rest
        if not rest:
            return self._read_buffer.view
        self._read_buffer.data[: len(rest)] = rest
        return self._read_buffer.view[len(rest) :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            self._rest = b""
            return
        connection = self.connection
        end = len(self._rest) + nbytes
        data = self._read_buffer.data
        most = ALL if self._turns is None else limits.HTTP2_REQUESTS_A_TURN
        self.heard_at = self.loop.time()
        consumed, events = connection.receive(data, 0, end, self.heard_at, most)
        self._rest = bytes(self._read_buffer.view[consumed:end]) if consumed < end else b""
        is_http2 = connection.settings_received if connection.client else connection.preface_seen
        if connection.error is not None and not is_http2:
            self._write(self.on_not_http2(bytes(self._read_buffer.view[: min(end, 64)])))
        if self._handshake_timer is not None and connection.settings_received:
            self._handshake_timer.cancel()
            self._handshake_timer = None
        self._take_in(events)
        if connection.held and self._turns is not None and self.transport is not None:
            self.transport.pause_reading()
            self._turns.wait(self)

    def _take_in(self, events: list[Event]) -> None:
        for event in events:
            self.on_event(event)
        if self.connection.has_output or self.connection.finished:
            self.flush_soon()

    def go_on(self) -> bool:
        """It is its turn, with what is held. Whether there is more."""
        if self.lost or self._closing or self.transport is None:
            return False
        self._take_in(self.connection.go_on(self.loop.time(), limits.HTTP2_REQUESTS_A_TURN))
        if not self.connection.held:
            self.transport.resume_reading()
        return self.connection.held

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        for timer in (self._stall_timer, self._close_timer, self._handshake_timer):
            if timer is not None:
                timer.cancel()
        self._rest = b""
        self.on_lost(exc)

    # --- writing --------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        if not self._flush_asked and not self.lost:
            self._flush_asked = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_asked = False
        self.flush_now()

    def flush_now(self) -> None:
        """For output that waits for no other: a turn of the loop less."""
        if self.lost or self._paused or self._closing:
            return
        connection = self.connection
        if connection.has_output:
            data, drained = connection.take(limits.HTTP2_SEND_ROUND_BYTES)
            self._write(data)
            for stream_id in drained:
                self.on_drained(stream_id)
            if connection.has_output:
                self.flush_soon()
        if connection.finished:
            self.close()

    def write_at_once(self, stream_id: int, data: bytes) -> bool:
        """The short way of a small message: whether all of it was written. Nothing of it was, otherwise."""
        transport = self.transport
        if self._paused or self._closing or self.lost or transport is None:
            return False
        frame = self.connection.data_at_once(stream_id, data)
        if not frame:
            return False
        transport.write(frame)
        return True

    def grant(self, stream_id: int, flow: int) -> None:
        """The peer may send `flow` bytes more on this stream."""
        self.connection.grant(stream_id, flow)
        if self.connection.has_output:
            self.flush_soon()

    def _write(self, data: bytes) -> None:
        if data and self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def pause_writing(self) -> None:
        self._paused = True
        self._watch_stall()

    def resume_writing(self) -> None:
        self._paused = False
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self.flush_soon()

    def _watch_stall(self) -> None:
        assert self.transport is not None
        self._stalled_size = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(limits.HTTP2_WRITE_STALL_S, self._stalled)

    def _stalled(self) -> None:
        assert self.transport is not None
        if self.transport.get_write_buffer_size() < self._stalled_size:
            self._watch_stall()
        else:
            self.transport.abort()

    # --- ending ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what the transport still holds, then close; abort the connection if that takes too long."""
        if self._closing or self.lost or self.transport is None:
            return
        self._closing = True
        self.transport.close()
        self._close_timer = self.loop.call_later(limits.HTTP2_CLOSE_TIMEOUT_S, self.abort)

    def abort(self) -> None:
        if self.transport is not None and not self.lost:
            self.transport.abort()

    def _handshake_late(self) -> None:
        self._handshake_timer = None
        error = Http2Error(
            ErrorCode.SETTINGS_TIMEOUT,
            f"the HTTP/2 handshake did not finish in {limits.HTTP2_HANDSHAKE_TIMEOUT_S:g} seconds",
        )
        self.connection.go_away(error.code, str(error))
        self.flush_soon()
        self.loop.call_soon(self.close)
