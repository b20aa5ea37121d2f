"""One gRPC call on the server's side, as a handler sees it.

A handler is a coroutine: when it returns, the call ends OK; when it raises, with the error's status. When the client
cancels, its deadline passes or its connection is lost, the call ends first and the handler's task is cancelled. What a
handler sends or receives after its call has ended raises Cancelled.

Messages travel in bulk as framed bytes (`receive_frames`, `write`, `send`): their cost is per batch. `receive` is
the convenience for calls with one request.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

from bascule import limits
from bascule.errors import Cancelled, Internal, ResourceExhausted, Status
from bascule.net.http2 import Http2Protocol
from bascule.net.inbound import Inbound
from bascule.wire import grpc, kernels
from bascule.wire.http2.events import Headers


class CallOwner(Protocol):
    """What a call needs to know of its connection."""

    peer: str
    peer_common_name: str | None
    max_message: int
    assembly_bytes: int

    @property
    def protocol(self) -> Http2Protocol: ...


class Call:
    def __init__(self, owner: CallOwner, stream_id: int, path: str, metadata: Headers, gzipped: bool) -> None:
        self.path = path
        self.metadata = metadata
        self.peer = owner.peer
        self.peer_common_name = owner.peer_common_name
        self.cancelled = False
        """The client gave up, or its connection is gone."""
        self.ended = False
        self.task: asyncio.Task[None] | None = None
        self.inbound = Inbound(owner.protocol, stream_id)
        self._owner = owner
        self._protocol = owner.protocol
        self._connection = owner.protocol.connection
        self._stream_id = stream_id
        self._gzipped = gzipped
        self._headers_sent = False
        self._deadline: float | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._partial = bytearray()
        self._messages: deque[tuple[int, bytes]] = deque()
        self._send_waiter: asyncio.Future[None] | None = None
        self._done_callbacks: list[Callable[[], object]] = []

    # --- time and end ---------------------------------------------------------------------------------------

    def time_remaining(self) -> float | None:
        """Seconds to the client's deadline; None if it set none."""
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - self._protocol.loop.time())

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Called once when the call ends, for whatever reason; at once if it has."""
        if self.ended:
            callback()
        else:
            self._done_callbacks.append(callback)

    def set_timeout(self, seconds: float) -> None:
        loop = self._protocol.loop
        self._deadline = loop.time() + seconds
        self._deadline_timer = loop.call_at(self._deadline, self._deadline_passed)

    def _deadline_passed(self) -> None:
        self.stop(Status.DEADLINE_EXCEEDED, "context deadline exceeded")

    def finish(self, status: Status, message: str) -> None:
        """End the call with this status, after what is queued; the first end counts."""
        if self.ended:
            return
        if self._headers_sent:
            block = grpc.trailers(status, message)
        else:
            block = grpc.trailers_only(status, message)
        self._connection.end_stream(self._stream_id, block)
        self._protocol.flush_soon()
        self._over()

    def stop(self, status: Status, message: str) -> None:
        """End the call from outside, without waiting for its handler or for a slow reader: what is queued is dropped,
        except for the rest of a message that is half sent."""
        self._connection.trim(self._stream_id, grpc.message_border)
        self.finish(status, message)
        if self.task is not None:
            self.task.cancel()

    def abandon(self) -> None:
        """The client is gone: nothing can be sent to it any more."""
        self.cancelled = True
        self._over()
        if self.task is not None:
            self.task.cancel()

    def _over(self) -> None:
        if self.ended:
            return
        self.ended = True
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._count_assembly(-len(self._partial))
        self._partial.clear()
        self._messages.clear()
        self.inbound.discard()
        self.wake_sender()
        callbacks, self._done_callbacks = self._done_callbacks, []
        for callback in callbacks:
            callback()

    # --- out ------------------------------------------------------------------------------------------------

    @property
    def queued_bytes(self) -> int:
        """Written and not yet handed to the transport."""
        return self._connection.queued_bytes(self._stream_id)

    def send_headers(self) -> None:
        """The response's headers now, before the first message."""
        if not self._headers_sent and not self.ended:
            self._headers_sent = True
            self._connection.send_headers(self._stream_id, grpc.RESPONSE_HEAD)
            self._protocol.flush_soon()

    def write(self, frames: bytes) -> None:
        """Queue framed messages; never waits, so the caller bounds what it writes (see `queued_bytes`)."""
        if self.ended:
            raise self._gone()
        if not self._headers_sent:
            self.send_headers()
        self._connection.send_data(self._stream_id, frames)
        self._protocol.flush_soon()

    async def send(self, frames: bytes) -> None:
        """Framed messages, and wait until the transport has them all, within the client's windows."""
        self.write(frames)
        await self.drained()

    async def drained(self) -> None:
        """Wait until the transport has everything that was written."""
        while self._connection.queued_bytes(self._stream_id):
            if self._send_waiter is None or self._send_waiter.done():
                self._send_waiter = self._protocol.loop.create_future()
            await self._send_waiter
        if self.ended:
            raise self._gone()

    def wake_sender(self) -> None:
        if self._send_waiter is not None and not self._send_waiter.done():
            self._send_waiter.set_result(None)

    def _gone(self) -> Cancelled:
        why = "the client cancelled it or its connection is gone" if self.cancelled else "it has been answered"
        return Cancelled(f"the call {self.path} is over: {why}")

    # --- in -------------------------------------------------------------------------------------------------

    async def receive(self) -> bytes | None:
        """The next request message, decompressed; None at the client's half-close."""
        while not self._messages:
            if not await self._split_more():
                return None
        return self._plain(*self._messages.popleft())

    async def receive_frames(self) -> bytes | None:
        """All framed bytes that have arrived, perhaps ending in the middle of a message; None at the half-close."""
        if self._gzipped or self._messages or self._partial:
            return await self._reframe()
        self.inbound.return_window()
        await self.inbound.wait()
        if self.ended:
            raise self._gone()
        return None if self.inbound.empty else self.inbound.take()

    async def _reframe(self) -> bytes | None:
        """As `receive_frames`, for messages that were split already or are compressed: framed again, some at a time."""
        while not self._messages:
            if not await self._split_more():
                return None
        frames: list[bytes] = []
        size = 0
        while self._messages and size < self._owner.max_message:
            frame = grpc.frame(self._plain(*self._messages.popleft()))
            size += len(frame)
            frames.append(frame)
        return b"".join(frames)

    async def _split_more(self) -> bool:
        """Wait for more bytes and split them into whole messages; False at the half-close."""
        self.inbound.return_window()
        await self.inbound.wait()
        if self.ended:
            raise self._gone()
        if self.inbound.empty:
            if self._partial:
                raise Internal("grpc: the request ended in the middle of a message")
            return False
        before = len(self._partial)
        self._partial += self.inbound.take()
        consumed, messages, oversized = kernels.split_messages(
            self._partial, 0, len(self._partial), self._owner.max_message
        )
        del self._partial[:consumed]
        self._count_assembly(len(self._partial) - before)
        self._messages.extend(messages)
        if oversized and not messages:
            raise grpc.too_large(oversized, self._owner.max_message)
        if self._owner.assembly_bytes > limits.GRPC_MAX_ASSEMBLY_BYTES:
            raise ResourceExhausted("too many large messages are unfinished on this connection at once; send fewer")
        return True

    def _count_assembly(self, change: int) -> None:
        self._owner.assembly_bytes += change

    def _plain(self, flag: int, message: bytes) -> bytes:
        if flag == 0:
            return message
        if flag != 1 or not self._gzipped:
            raise grpc.unexpected_compression()
        return grpc.gunzip(message, self._owner.max_message)


Handler = Callable[[Call], Awaitable[None]]
