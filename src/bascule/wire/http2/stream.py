"""One HTTP/2 stream: what is still to be sent on it, and what came in without being dealt with yet.

Output is, in this order: a head (HEADERS), bytes (DATA, split as windows and frame sizes demand), and an end
(END_STREAM on the last DATA frame, or trailers).
"""

from bascule import limits
from bascule.wire.http2.events import Headers
from bascule.wire.http2.flow import ReceiveWindow


class Stream:
    __slots__ = (
        "announced",
        "current",
        "ending",
        "head",
        "id",
        "local_closed",
        "outgoing",
        "position",
        "queued_bytes",
        "ready",
        "receive_window",
        "remote_closed",
        "response_seen",
        "send_window",
        "trailers",
        "unacknowledged",
    )

    def __init__(self, stream_id: int, send_window: int) -> None:
        self.id = stream_id
        self.send_window = send_window
        self.receive_window = ReceiveWindow(limits.HTTP2_STREAM_WINDOW_BYTES)
        self.announced = -1
        """Bytes that are still to come by the peer's content-length; -1 if it set none."""
        self.unacknowledged = 0
        """Received, and not yet granted back: the connection's window gets it when the stream goes."""
        self.head: Headers | bytes | None = None
        self.current = b""
        self.position = 0
        self.outgoing: list[bytes] = []
        self.queued_bytes = 0
        self.trailers: bytes | None = None
        self.ending = False
        """The local side ends once what is queued has gone out; nothing more is taken, in or out."""
        self.local_closed = False
        self.remote_closed = False
        self.response_seen = False
        self.ready = False
        """It is in one of the outbox's queues."""

    def queue(self, data: bytes) -> None:
        self.outgoing.append(data)
        self.queued_bytes += len(data)

    def next_piece(self, most: int) -> memoryview:
        """Up to `most` of the queued bytes, in order."""
        if self.position == len(self.current):
            self.current = self.outgoing[0] if len(self.outgoing) == 1 else b"".join(self.outgoing)
            self.outgoing.clear()
            self.position = 0
        piece = memoryview(self.current)[self.position : self.position + most]
        self.position += len(piece)
        self.queued_bytes -= len(piece)
        if not self.queued_bytes:
            self.current, self.position = b"", 0
        return piece

    def drop_queued(self) -> None:
        self.current, self.position = b"", 0
        self.outgoing.clear()
        self.queued_bytes = 0
