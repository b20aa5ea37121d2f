"""TLS on the connections of a server, between the socket's transport and the protocol inside.

asyncio's own TLS holds a buffer of 256 KiB for every connection, from before its handshake on, and frees it only when
the garbage collector runs: 300 KB a connection, and hundreds of megabytes after some rounds of short connections. Here
all connections of a server share one read buffer, which is safe for the reason given in `http2`. OpenSSL gets its input
in small pieces, because its buffers stay as large as the largest piece. A connection that ends frees everything at
once.

A handshake costs the server a thousand times more than the client. So only some handshakes continue in a turn of the
event loop, the number under way is bounded (above it, the oldest one is given up), and each has a time limit, counted
from the connection.

Closing sends close_notify to the peer and does not wait for its answer.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Any, cast

from bascule import limits
from bascule.net.http2 import Http2Protocol, ReadBuffer

log = logging.getLogger("bascule.grpc")


class Handshakes:
    """The handshakes under way at one server."""

    def __init__(
        self, context: ssl.SSLContext, inside: Callable[[], Http2Protocol], room: Callable[[int], bool]
    ) -> None:
        """`inside` makes the protocol of a connection whose handshake is done; `room` says whether the server takes
        another one beside those under way."""
        self.context = context
        self.inside = inside
        self.room = room
        self.buffer = ReadBuffer()
        self._under_way: dict[SecuredConnection, None] = {}
        self._due: dict[SecuredConnection, None] = {}
        self._asked = False
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, connection: "SecuredConnection") -> bool:
        if not self.room(len(self._under_way)):
            return False
        self._under_way[connection] = None
        if len(self._under_way) > limits.TLS_HANDSHAKES:
            next(iter(self._under_way)).give_up("too many others are under way")
        return True

    def close(self) -> None:
        for connection in list(self._under_way):
            connection.abort()

    def end(self, connection: "SecuredConnection") -> None:
        self._under_way.pop(connection, None)
        self._due.pop(connection, None)

    def carry_on(self, connection: "SecuredConnection") -> None:
        """The peer has sent something: continue when it is this connection's turn."""
        self._due[connection] = None
        if not self._asked:
            self._asked = True
            self._loop.call_soon(self._some)

    def _some(self) -> None:
        for connection in list(self._due)[: limits.TLS_HANDSHAKES_A_TURN]:
            self._due.pop(connection, None)
            try:
                connection.shake_hands()
            except Exception:  # of one connection: the others wait for their turn
                log.exception("a TLS connection ends")
                connection.abort()
        self._asked = bool(self._due)
        if self._asked:
            self._loop.call_soon(self._some)


class SecuredConnection(asyncio.BufferedProtocol):
    """The socket's protocol. The one inside is made after the handshake, and sees a transport that encrypts."""

    def __init__(self, handshakes: Handshakes) -> None:
        self.transport: asyncio.Transport | None = None
        self._inside: Http2Protocol | None = None
        self._handshakes = handshakes
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self._timer: asyncio.TimerHandle | None = None

    # --- the socket's side ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self._handshakes.begin(self):
            self.abort()
            return
        self._tls = self._handshakes.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(limits.HTTP2_HANDSHAKE_TIMEOUT_S, self.give_up, "it took too long")

    def get_buffer(self, sizehint: int) -> memoryview:
        view = self._handshakes.buffer.view
        return view[: limits.TLS_PIECE_BYTES] if self._inside is None else view

    def buffer_updated(self, nbytes: int) -> None:
        data = self._handshakes.buffer.view[:nbytes]
        if self._inside is not None:
            self._take(data)
        elif self._tls is not None and self.transport is not None:
            self._incoming.write(data)
            self.transport.pause_reading()  # until it is this connection's turn
            self._handshakes.carry_on(self)

    def eof_received(self) -> bool:
        if self._inside is not None:
            self._inside.eof_received()
        return False

    def pause_writing(self) -> None:
        if self._inside is not None:
            self._inside.pause_writing()

    def resume_writing(self) -> None:
        if self._inside is not None:
            self._inside.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_handshake()
        inside, self._inside, self._tls, self.transport = self._inside, None, None, None
        if inside is not None:
            inside.connection_lost(exc)

    # --- the handshake --------------------------------------------------------------------------------------

    def shake_hands(self) -> None:
        if self._tls is None or self.transport is None:
            return
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send_outgoing()
            self.transport.resume_reading()
            return
        except ssl.SSLError as error:
            self._send_outgoing()  # the TLS alert for the peer
            self.give_up(error.reason or str(error))
            return
        self._end_handshake()
        self._send_outgoing()
        self._inside = self._handshakes.inside()
        self._inside.connection_made(SecuredTransport(self, self.transport, self._tls))
        self.transport.resume_reading()
        self._take(memoryview(b""))  # data that came with the last message of the handshake

    def give_up(self, reason: str) -> None:
        log.debug("a TLS handshake is given up: %s", reason)
        self._end_handshake()
        if self.transport is not None:
            self.transport.close()  # not aborted: an alert may be in the transport's buffer

    def _end_handshake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._handshakes.end(self)

    # --- data -----------------------------------------------------------------------------------------------

    def _take(self, data: memoryview) -> None:
        """Decrypt it, and hand over all that was in it at once. OpenSSL buffers the rest of an incomplete record."""
        position, filled = 0, 0
        target = memoryview(b"")
        while self._tls is not None and self._inside is not None and not self._closing:
            if filled == len(target):
                if filled:
                    self._inside.buffer_updated(filled)
                target, filled = self._inside.get_buffer(-1), 0
            count = self._decrypt(target[filled:])
            filled += max(count, 0)
            if count == 0:
                if position == len(data):
                    break
                position += self._incoming.write(data[position : position + limits.TLS_PIECE_BYTES])
            elif count < 0:
                break
        if filled and self._inside is not None:
            self._inside.buffer_updated(filled)
        self._send_outgoing()

    @property
    def _closing(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    def _decrypt(self, target: memoryview) -> int:
        """0: more of the record is needed. Below 0: the peer sends no more."""
        assert self._tls is not None
        try:
            return cast(int, self._tls.read(len(target), target)) or self._close_notify_received()
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLError as error:
            log.info("a TLS connection ends: %s", error.reason or error)
            self._send_outgoing()
            self.abort()
            return -1

    def _close_notify_received(self) -> int:
        if self._inside is not None:
            self._inside.eof_received()
        self.close()
        return -1

    def encrypt(self, data: bytes) -> None:
        if self._tls is None:
            return
        view = memoryview(data)
        pieces: list[bytes] = []
        try:
            while view:
                view = view[self._tls.write(view[: limits.TLS_RECORD_BYTES]) :]
                pieces.append(self._outgoing.read())
        except ssl.SSLError as error:  # of which there is none without renegotiation
            log.info("a TLS connection ends: %s", error.reason or error)
            self.abort()
            return
        self._write(b"".join(pieces))

    def _send_outgoing(self) -> None:
        if self._outgoing.pending:
            self._write(self._outgoing.read())

    def _write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    # --- ending ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        if self.transport is None or self._closing:
            return
        if self._tls is not None and self._inside is not None:
            try:
                self._tls.unwrap()
            except ssl.SSLError:
                pass  # OpenSSL would wait for the peer's close_notify, and we do not
            self._send_outgoing()
        self.transport.close()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class SecuredTransport(asyncio.Transport):
    """What the protocol inside writes to."""

    def __init__(self, connection: SecuredConnection, transport: asyncio.Transport, tls: ssl.SSLObject) -> None:
        super().__init__()
        self._connection = connection
        self._transport = transport
        self._peercert = tls.getpeercert()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peercert if name == "peercert" else self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.encrypt(bytes(data))

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._connection.close()

    def abort(self) -> None:
        self._connection.abort()
