"""A gRPC call in memory: `ports.Call` without a socket."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from bascule.errors import BasculeError, Cancelled, Status
from bascule.ports import Call
from bascule.wire.grpc import frame


class MemoryCall:
    """The test is the client: `request` and `half_close` on one side, `responses` and `outcome` on the other."""

    def __init__(self, timeout_s: float | None = 5.0, peer_common_name: str | None = None) -> None:
        self.peer = "a client in memory"
        self.peer_common_name = peer_common_name
        self.ended = False
        self.responses = bytearray()
        """Everything the handler sent, framed."""
        self.outcome: tuple[Status, str] | None = None
        self.taking = True
        """False: a client that does not read."""
        self._deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        self._requests: deque[bytes | None] = deque()
        self._changed = asyncio.Event()
        self._queued = 0
        self._arrived = asyncio.Event()

    # --- the client's side ---------------------------------------------------------------------------------

    def request(self, message: bytes) -> None:
        self._requests.append(message)
        self._changed.set()

    def half_close(self) -> None:
        self._requests.append(None)
        self._changed.set()

    def take(self) -> None:
        """Read what was held back."""
        self._queued = 0
        self._changed.set()

    def cancel(self) -> None:
        self.ended = True
        self._changed.set()
        self._arrived.set()

    def lose(self, reason: str) -> None:
        """The connection is gone: what the client sees if it has no outcome yet."""
        if self.outcome is None:
            self.outcome = (Status.UNAVAILABLE, reason)
        self.cancel()

    async def arrived(self) -> bytes:
        """What the handler sent since the last time; nothing more once the call is over."""
        while not self.responses and not self.ended:
            self._arrived.clear()
            await self._arrived.wait()
        frames = bytes(self.responses)
        self.responses.clear()
        return frames

    async def over(self) -> tuple[Status, str]:
        """Wait for the end and return the outcome; what came meanwhile stays in `responses`."""
        while not self.ended:
            self._arrived.clear()
            await self._arrived.wait()
        return self.outcome or (Status.CANCELLED, "the client is gone")

    async def run(self, handler: Callable[[Call], Awaitable[None]]) -> tuple[Status, str]:
        """Serve it to the end, as the gRPC server would."""
        try:
            async with asyncio.timeout(self.time_remaining()):
                await handler(self)
            self.outcome = (Status.OK, "")
        except BasculeError as error:
            self.outcome = (error.status, str(error))
        except TimeoutError:
            self.outcome = (Status.DEADLINE_EXCEEDED, "")
        finally:
            self.ended = True
            self._arrived.set()
        return self.outcome

    # --- the handler's side --------------------------------------------------------------------------------

    @property
    def queued_bytes(self) -> int:
        return self._queued

    def time_remaining(self) -> float | None:
        return None if self._deadline is None else self._deadline - asyncio.get_running_loop().time()

    async def receive(self) -> bytes | None:
        while not self._requests:
            if self.ended:
                raise Cancelled("the client is gone")
            self._changed.clear()
            await self._changed.wait()
        return self._requests.popleft()

    async def receive_frames(self) -> bytes | None:
        first = await self.receive()
        if first is None:
            return None
        frames = [frame(first)]
        while self._requests and self._requests[0] is not None:
            frames.append(frame(self._requests.popleft() or b""))
        return b"".join(frames)

    def send_headers(self) -> None:
        pass

    def write(self, frames: bytes) -> None:
        if self.ended:
            raise Cancelled("the call is over")
        self.responses += frames
        self._arrived.set()
        if not self.taking:
            self._queued += len(frames)

    async def send(self, frames: bytes) -> None:
        self.write(frames)
        await self.drained()

    async def drained(self) -> None:
        while self._queued and not self.ended:
            self._changed.clear()
            await self._changed.wait()
