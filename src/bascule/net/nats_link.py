"""One TCP connection to a NATS server: bytes in, batches to subscriptions, commands out.

Reading: the socket fills a reused buffer of 1 MiB; each read is one kernel call, which splits it into packed batches,
one per subscription with traffic, and each batch is handed over with one synchronous call. What is left of an
incomplete item is moved to the front. Only a message larger than the buffer gets a buffer of its own, exactly as long
as it needs, and the usual one is back when it has been read. The bound for what may arrive is NATS's own ceiling and
not the `max_payload` of this server: in a cluster another server may allow more, and one such message must not end
every connection we make.

Writing: commands of one turn of the event loop leave in one write. NATS has no backpressure, so what the socket does
not take is bounded: above the bound `write` refuses.

A link is used once. It ends with a reason, every waiter gets that reason, and `Connection` makes another link.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from bascule.errors import BusUnavailable, NatsProtocolError
from bascule.limits import (
    NATS_HIGH_WATER_BYTES,
    NATS_LOW_WATER_BYTES,
    NATS_MAX_INFO_BYTES,
    NATS_MAX_PAYLOAD_BYTES,
    NATS_MAX_PENDING_BYTES,
    NATS_READ_BUFFER_BYTES,
)
from bascule.ports import OnBatch
from bascule.wire.kernels import split_nats
from bascule.wire.nats import PING, PONG, Info, ServerError, classify_error, error_text

logger = logging.getLogger(__name__)

SAME_ERROR_INTERVAL_S = 10.0  # one log line for what a server keeps complaining about


class Refused(BusUnavailable):
    """The server refuses us: wrong credentials, or TLS settings that do not match. Trying again does not help."""


class WrongCredentials(Refused):
    """The server does not accept our credentials, or no longer."""


class Receiver(Protocol):
    """What a link needs to know of a subscription."""

    @property
    def on_batch(self) -> OnBatch: ...


class Link(asyncio.BufferedProtocol):
    """Owned by one `Connection`; used from the event loop's thread only."""

    def __init__(
        self,
        receivers: Mapping[int, Receiver],
        ping_interval_s: float,
        on_info: Callable[[Info], None],
        on_lost: Callable[["Link"], None],
    ) -> None:
        self.info = Info()
        self.lost: BusUnavailable | None = None
        """Why this link ended; None while it is connected."""
        self._receivers = receivers
        self._ping_interval_s = ping_interval_s
        self._on_info = on_info
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._first_info: asyncio.Future[Info] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        # reading
        self._usual = memoryview(bytearray(NATS_READ_BUFFER_BYTES))
        self._buffer = self._usual
        self._end = 0
        self._needed = 0
        self._reading_paused = False
        # writing
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._paused = False
        self._drain_waiters: list[asyncio.Future[None]] = []
        # waiting for the server; None is a PING of the keepalive, which nobody waits for
        self._pongs: deque[asyncio.Future[None] | None] = deque()
        self._ticker: asyncio.TimerHandle | None = None
        self._heard = False
        self._silent_ticks = 0
        self._last_error = ("", 0.0)

    # --- start and end ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._use(transport)

    def _use(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(NATS_HIGH_WATER_BYTES, NATS_LOW_WATER_BYTES)

    async def first_info(self) -> Info:
        """The INFO that a server sends first. Raises BusUnavailable if the connection ends without one."""
        return await self._first_info

    async def upgrade(self, context: ssl.SSLContext, server_name: str) -> None:
        """Upgrade the connection to TLS."""
        assert self._transport is not None
        transport = await self._loop.start_tls(self._transport, self, context, server_hostname=server_name)
        if transport is None:  # the server left in the middle of it
            raise BusUnavailable("the NATS server closed the connection during the TLS handshake")
        self._use(transport)

    def keep_alive(self) -> None:
        """From here on a silent server gets a PING, and the link ends if there is no answer."""
        self._ticker = self._loop.call_later(self._ping_interval_s, self._tick)

    def _tick(self) -> None:
        self._silent_ticks = 0 if self._heard or self._reading_paused else self._silent_ticks + 1
        self._heard = False
        if self._silent_ticks > 1:
            self.end(BusUnavailable(f"the NATS server did not answer a PING for {self._ping_interval_s:g} s"))
            return
        if self._silent_ticks:
            self._pongs.append(None)
            self._write_control(PING)
        self.keep_alive()

    def pause_reading(self, paused: bool) -> None:
        """While paused, read nothing: messages are buffered by the server."""
        if self._transport is None or paused == self._reading_paused or self.lost is not None:
            return
        self._reading_paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def end(self, reason: BusUnavailable) -> None:
        """End it now. What is queued is dropped."""
        self._lose(reason)
        if self._transport is not None:
            self._transport.abort()

    async def close(self, timeout_s: float) -> None:
        """Write what is queued, then end."""
        if self._transport is None or self.lost is not None:
            return
        self._write_out()
        self._transport.close()
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._closed)
        except TimeoutError:
            self.end(BusUnavailable("the connection to NATS was closed"))

    def connection_lost(self, exc: Exception | None) -> None:
        what = "the NATS server closed the connection" if exc is None else f"the connection broke: {reason_of(exc)}"
        if isinstance(exc, ssl.SSLError):
            self._lose(Refused(f"the NATS server ended the TLS connection: {reason_of(exc)}"))
        elif self._end:  # newer servers send no -ERR before they disconnect a slow consumer
            self._lose(BusUnavailable(f"{what}, inside a message: we were a slow consumer, or the server died"))
        else:
            self._lose(BusUnavailable(what))
        if not self._closed.done():
            self._closed.set_result(None)

    def _lose(self, reason: BusUnavailable) -> None:
        """Fail all waiters with this reason, once."""
        if self.lost is not None:
            return
        self.lost = reason
        self._queue.clear()
        self._queued_bytes = 0
        if self._ticker is not None:
            self._ticker.cancel()
        if not self._first_info.done():
            self._first_info.set_exception(reason)
            self._first_info.exception()  # taken: nobody may be waiting for it
        for pong in self._pongs:
            if pong is not None and not pong.done():
                pong.set_exception(type(reason)(str(reason)))
        self._pongs.clear()
        self._release_drain_waiters()
        self._on_lost(self)

    # --- reading ---------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = True
        self._end += nbytes
        if self._end < self._needed or self.lost is not None:
            return
        try:
            consumed, self._needed, batches, controls = split_nats(
                self._buffer, 0, self._end, NATS_MAX_INFO_BYTES, NATS_MAX_PAYLOAD_BYTES
            )
            self._keep_rest(consumed)
        except NatsProtocolError as error:
            self.end(BusUnavailable(str(error)))
            return
        receivers = self._receivers
        for sid, count, batch in batches:
            receiver = receivers.get(sid)
            if receiver is not None:
                try:
                    receiver.on_batch(batch, count)
                except Exception:
                    logger.exception("a subscriber failed on a batch of %d messages from NATS", count)
        for verb, argument in controls:
            self._control(verb, argument)

    def _keep_rest(self, consumed: int) -> None:
        """Move the incomplete item to the front of a buffer it fits in."""
        rest = self._buffer[consumed : self._end]
        size = max(NATS_READ_BUFFER_BYTES, self._needed)
        if size == NATS_READ_BUFFER_BYTES:
            target = self._usual
        elif size == len(self._buffer):
            target = self._buffer
        else:
            target = memoryview(bytearray(size))
        if len(rest) >= size:
            raise NatsProtocolError(f"the NATS server sent a line of more than {size} bytes")
        if rest and (target is not self._buffer or consumed):
            target[: len(rest)] = rest
        self._buffer = target
        self._end = len(rest)

    def _control(self, verb: bytes, argument: bytes) -> None:
        if self.lost is not None:
            return
        if verb == b"PING":
            self._write_control(PONG)
        elif verb == b"PONG":
            pong = self._pongs.popleft() if self._pongs else None
            if pong is not None and not pong.done():
                pong.set_result(None)
        elif verb == b"INFO":
            self._take_info(argument)
        elif verb == b"-ERR":
            self._take_error(error_text(argument))

    def _take_info(self, argument: bytes) -> None:
        try:
            self.info = Info.parse(argument)
        except NatsProtocolError as error:
            self.end(BusUnavailable(str(error)))
            return
        if not self._first_info.done():
            self._first_info.set_result(self.info)
        self._on_info(self.info)

    def _take_error(self, text: str) -> None:
        kind = classify_error(text)
        if kind is ServerError.AUTH:
            self.end(WrongCredentials(f"the NATS server refused our credentials: {text}"))
        elif kind is ServerError.SLOW_CONSUMER:
            self.end(BusUnavailable(f"the NATS server disconnected us as a slow consumer: {text}"))
        elif kind is ServerError.FATAL:
            self.end(BusUnavailable(f"the NATS server ended the connection: {text}"))
        else:
            now = self._loop.time()
            last_text, last_time = self._last_error
            if text != last_text or now - last_time > SAME_ERROR_INTERVAL_S:
                self._last_error = (text, now)
                logger.error("the NATS server refused something we asked for: %s", text)

    # --- writing ---------------------------------------------------------------------------------------------

    def write(self, commands: bytes) -> None:
        """Leaves in this turn of the loop. Raises BusUnavailable past the bound on pending bytes."""
        self._check_room(len(commands))
        if not self._queue:
            self._loop.call_soon(self._write_out)
        self._queue.append(commands)
        self._queued_bytes += len(commands)

    def write_now(self, commands: bytes) -> None:
        """As `write`, but leaves at once."""
        self._check_room(len(commands))
        self._queue.append(commands)
        self._queued_bytes += len(commands)
        self._write_out()

    def push(self) -> None:
        self._write_out()

    def _check_room(self, count: int) -> None:
        if self.lost is not None:
            raise BusUnavailable(str(self.lost))
        if not self._paused and self._queued_bytes + count <= NATS_MAX_PENDING_BYTES - NATS_HIGH_WATER_BYTES:
            return  # the transport holds less than what makes it pause us
        if self._pending_bytes() + count > NATS_MAX_PENDING_BYTES:
            raise BusUnavailable(
                f"the NATS server takes too little: {self._pending_bytes()} bytes wait to be sent already"
            )

    def _write_control(self, command: bytes) -> None:
        """For commands that the protocol needs: if even these do not fit, the link ends."""
        try:
            self.write(command)
        except BusUnavailable as error:
            self.end(error)

    def subscribe(self, commands: bytes) -> None:
        """SUB and UNSUB. None may be dropped, or the server's list of our subscriptions would differ from ours."""
        self._write_control(commands)

    def ping(self) -> asyncio.Future[None]:
        """Done when the server has taken everything written before. Fails with BusUnavailable."""
        pong: asyncio.Future[None] = self._loop.create_future()
        self.write(PING)
        self._pongs.append(pong)
        return pong

    def _pending_bytes(self) -> int:
        taken = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._queued_bytes + taken

    def _write_out(self) -> None:
        if not self._queue or self._transport is None:
            return
        commands = self._queue[0] if len(self._queue) == 1 else b"".join(self._queue)
        self._queue.clear()
        self._queued_bytes = 0
        self._transport.write(commands)

    def drained(self) -> asyncio.Future[None]:
        if self._queued_bytes > NATS_HIGH_WATER_BYTES:
            self._write_out()  # only the transport knows how much of it the socket takes at once
        done: asyncio.Future[None] = self._loop.create_future()
        if self._paused and self.lost is None:
            self._drain_waiters.append(done)
        else:
            done.set_result(None)
        return done

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._release_drain_waiters()

    def _release_drain_waiters(self) -> None:
        for waiter in self._drain_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._drain_waiters.clear()


def reason_of(error: BaseException) -> str:
    """The reason of a failure to connect, for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if isinstance(error, socket.gaierror):
        return f"name not found ({error.strerror})"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
