"""The output of a connection, and its order.

Answers to the peer's control frames and window updates go ahead of everything. Then the streams that have output
take turns, each with at most a quantum of data at a time, within their own window, the connection's window and the
peer's frame size. A stream without window leaves the round until the peer widens it; a stream that
only lacks the connection's window waits in `_starved`. Heads and trailers need no window and are never held up by
another stream's data.
"""

from bascule import limits
from bascule.wire import kernels
from bascule.wire.http2 import frames
from bascule.wire.http2.flow import widen
from bascule.wire.http2.frames import ErrorCode
from bascule.wire.http2.headers import HeaderEncoder
from bascule.wire.http2.settings import PeerSettings
from bascule.wire.http2.stream import Stream


class Outbox:
    def __init__(self, client: bool, encoder: HeaderEncoder, peer: PeerSettings) -> None:
        self.window = 65_535
        self.control_bytes = 0
        self.drained: list[int] = []
        """Streams whose queued bytes have all gone out since this was last cleared."""
        self.closed: list[Stream] = []
        """Streams whose local side ended since this was last cleared."""
        self._client = client
        self._encoder = encoder
        self._peer = peer
        self._control: list[bytes] = []
        self._credits: dict[int, int] = {}
        self._ready: dict[int, Stream] = {}
        self._starved: dict[int, Stream] = {}

    def __bool__(self) -> bool:
        """Whether `take` would give something now."""
        return bool(self._control or self._credits or self._ready)

    def control(self, frame: bytes) -> None:
        self._control.append(frame)
        self.control_bytes += len(frame)

    def credit(self, stream_id: int, increment: int) -> None:
        """A window update; updates of one window are merged until they go out."""
        self._credits[stream_id] = self._credits.get(stream_id, 0) + increment

    def at_once(self, stream: Stream, data: bytes) -> bytes:
        """The frame of `data`, to be written now, if nothing waits to be written before it and the windows have room
        for it. Nothing otherwise: it is to be queued."""
        if self._ready or self._control or self._credits or stream.queued_bytes or stream.head is not None:
            return b""
        size = len(data)
        if not size or size > self.window or size > stream.send_window or size > self._peer.max_frame:
            return b""
        self.window -= size
        stream.send_window -= size
        return kernels.frame_data(stream.id, data, size, False)

    def offer(self, stream: Stream) -> None:
        """The stream has new output, or a wider window for it."""
        if stream.ready or stream.local_closed:
            return
        data_can_go = stream.queued_bytes and stream.send_window > 0
        end_can_go = stream.ending and not stream.queued_bytes
        if stream.head is not None or data_can_go or end_can_go:
            stream.ready = True
            self._ready[stream.id] = stream

    def widen(self, increment: int) -> None:
        """The connection's window grows: streams that waited for it join the round again."""
        self.window = widen(self.window, increment, "the connection")
        if self._starved and self.window > 0:
            self._ready.update(self._starved)
            self._starved.clear()

    def withdraw(self, stream: Stream) -> None:
        """Out of the round; `offer` brings it back."""
        if stream.ready:
            self._ready.pop(stream.id, None)
            self._starved.pop(stream.id, None)
            stream.ready = False

    def forget(self, stream: Stream) -> None:
        """The stream is gone, with all its output."""
        stream.drop_queued()
        self.withdraw(stream)
        self._credits.pop(stream.id, None)

    def silence(self) -> None:
        """The connection ends: streams send nothing more."""
        self._ready.clear()
        self._starved.clear()
        self._credits.clear()

    def take(self, most: int) -> bytes:
        """The next bytes for the socket: all control frames, and about `most` bytes of streams."""
        chunks = self._control
        self._control = []
        self.control_bytes = 0
        if self._credits:
            chunks += [frames.window_update(stream_id, n) for stream_id, n in self._credits.items()]
            self._credits.clear()
        ready = self._ready
        left = most
        while ready and left > 0:
            stream = ready.pop(next(iter(ready)))
            left -= self._serve(stream, min(left, limits.HTTP2_SEND_QUANTUM_BYTES), chunks)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _serve(self, stream: Stream, most: int, chunks: list[bytes]) -> int:
        """One stream's turn. Returns what it took of the round's bytes."""
        stream.ready = False
        max_frame = self._peer.max_frame
        sent = 0
        if stream.head is not None:
            self._head(stream, chunks)
            sent += 64
        if stream.queued_bytes:
            size = min(stream.queued_bytes, stream.send_window, self.window, most)
            if size > 0:
                piece = stream.next_piece(size)
                size = len(piece)
                stream.send_window -= size
                self.window -= size
                sent += size
                ends = stream.ending and not stream.queued_bytes and stream.trailers is None
                chunks.append(kernels.frame_data(stream.id, piece, max_frame, ends))
                if not stream.queued_bytes:
                    self.drained.append(stream.id)
                if ends:
                    self._close(stream, chunks)
                    return sent
            if stream.queued_bytes:
                self._wait(stream)
                return sent
        if stream.ending and not stream.local_closed:
            if stream.trailers is None:
                chunks.append(kernels.frame_data(stream.id, b"", max_frame, True))
            else:
                block = self._encoder.encode(stream.trailers)
                chunks.append(frames.headers(stream.id, block, True, max_frame))
            sent += 64
            self._close(stream, chunks)
        return sent

    def _head(self, stream: Stream, chunks: list[bytes]) -> None:
        assert stream.head is not None
        block = self._encoder.encode(stream.head)
        stream.head = None
        bodyless = stream.ending and not stream.queued_bytes and stream.trailers is None
        chunks.append(frames.headers(stream.id, block, bodyless, self._peer.max_frame))
        if bodyless:
            self._close(stream, chunks)

    def _wait(self, stream: Stream) -> None:
        """It has bytes left: back into the round, or out of it until a window opens."""
        if stream.send_window <= 0:
            return
        stream.ready = True
        if self.window > 0:
            self._ready[stream.id] = stream
        else:
            self._starved[stream.id] = stream

    def _close(self, stream: Stream, chunks: list[bytes]) -> None:
        stream.local_closed = True
        if not self._client and not stream.remote_closed:
            # The answer is complete, so the rest of the request would be read for nothing.
            chunks.append(frames.rst_stream(stream.id, ErrorCode.NO_ERROR))
            stream.remote_closed = True
        self.closed.append(stream)
