"""The bytes that have arrived on one stream and are not read yet, and their flow control.

The peer gets window back for bytes only when the *next* ones are read: a reader that stops reading slows the peer down
by HTTP/2's flow control.
"""

import asyncio

from bascule.net.http2 import Http2Protocol


class Inbound:
    __slots__ = ("_chunks", "_flow", "_handed_out", "_protocol", "_waiter", "ended", "stream_id")

    def __init__(self, protocol: Http2Protocol, stream_id: int) -> None:
        self.ended = False
        """Nothing more will arrive."""
        self._protocol = protocol
        self.stream_id = stream_id
        self._chunks: list[bytes] = []
        self._flow = 0
        self._handed_out = 0
        self._waiter: asyncio.Future[None] | None = None

    def put(self, data: bytes, flow: int) -> None:
        if data:
            self._chunks.append(data)
        self._flow += flow
        self.wake()

    def end(self) -> None:
        self.ended = True
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None

    @property
    def empty(self) -> bool:
        return not self._chunks

    def return_window(self) -> None:
        """Give the peer window for what was handed out last."""
        if self._handed_out:
            self._protocol.grant(self.stream_id, self._handed_out)
            self._handed_out = 0

    async def wait(self) -> None:
        """Until something has arrived, or nothing more will."""
        while not self._chunks and not self.ended:
            if self._waiter is not None:
                raise RuntimeError("two coroutines wait for the messages of one call")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def take(self) -> bytes:
        """All that has arrived."""
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._handed_out += self._flow
        self._flow = 0
        return data

    def discard(self) -> None:
        """The call has ended: drop what will not be read any more."""
        self._chunks.clear()
        self.end()
