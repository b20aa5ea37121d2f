"""One HTTP/2 connection, for either role, without I/O (RFC 9113).

Bytes in -> events out: `receive` takes what a read gave and returns what it means. Intentions in -> bytes out:
`send_data`, `end_stream` and the rest only queue; `take` gives the bytes to write next. The clock is an argument.
The machine knows nothing of gRPC: it moves header lists and bytes.

Rules. A violation that concerns one stream resets that stream; one that leaves the two ends with different ideas
of the connection (HPACK, windows, frame borders) ends it, with GOAWAY. Frames that move no data count against a
budget. Frames for closed streams are dropped: mostly they crossed our own RST_STREAM. The caller returns window
credit (`grant`) when it has processed the bytes; the rest of a stream's credit is returned when the stream is closed,
so that closed streams never use up the window of the connection. A client returns the connection's window as soon as
bytes arrive: a stream that nobody reads is bounded by its own window, and holds up no other stream.

A program that awaits one small answer after the other pays for each layer each time, so there is a short way for it:
`data_at_once` where nothing else is to be written, `data_alone` where nothing else has come. They do what `send_data`
with `take`, and `receive`, would do, or say that they do not.

Left out on purpose: server push (refused), priorities (read and ignored), HTTP/1.1 upgrade.
"""

from collections.abc import Callable

from bascule import limits
from bascule.errors import Http2Error
from bascule.wire import kernels
from bascule.wire.http2 import frames, headers, settings
from bascule.wire.http2.budget import Budget
from bascule.wire.http2.events import (
    ConnectionFailed,
    DataReceived,
    Event,
    GoAwayReceived,
    Headers,
    HeadersReceived,
    PingAcked,
    SettingsReceived,
    StreamReset,
)
from bascule.wire.http2.flow import ReceiveWindow, widen
from bascule.wire.http2.frames import ErrorCode
from bascule.wire.http2.headers import HeaderBlock, HeaderDecoder, HeaderEncoder
from bascule.wire.http2.outbox import Outbox
from bascule.wire.http2.settings import PeerSettings
from bascule.wire.http2.stream import Stream

_DEFAULT_WINDOW = 65_535
ALL = 1 << 31
"""More header blocks than one read can have."""


def _protocol_error(message: str) -> Http2Error:
    return Http2Error(ErrorCode.PROTOCOL_ERROR, message)


class Connection:
    def __init__(self, client: bool) -> None:
        self.client = client
        self.peer = PeerSettings()
        self.streams: dict[int, Stream] = {}
        self.settings_received = False
        """The peer's preface and first SETTINGS have arrived."""
        self.going_away = False
        """No new streams: we said so, or the peer did, or the connection failed."""
        self.error: Http2Error | None = None
        self.preface_seen = client
        self._decoder = HeaderDecoder()
        self._encoder = HeaderEncoder()
        self._window = ReceiveWindow(limits.HTTP2_CONNECTION_WINDOW_BYTES)
        self._next_stream_id = 1
        self._last_peer_stream = 0
        self._peer_last_stream = frames.MAX_STREAM_ID
        self._goaway_last: int | None = None
        self._held: list[frames.Frame] = []
        self._oversized = 0
        """The length of a frame behind those that are held, if it is too long."""
        self._block: HeaderBlock | None = None
        rate = limits.HTTP2_MAX_CONTROL_FRAMES_PER_SECOND
        self._control_budget = Budget("control frames", rate, rate)
        rate = limits.HTTP2_MAX_SETTINGS_PER_SECOND
        self._settings_budget = Budget("SETTINGS frames", rate, rate)
        self._reset_budget = Budget(
            "reset streams", limits.HTTP2_MAX_RESETS_PER_SECOND, limits.HTTP2_MAX_CONCURRENT_STREAMS
        )
        self._outbox = Outbox(client, self._encoder, self.peer)
        if client:
            self._outbox.control(frames.PREFACE)
            self._announce()

    def _announce(self) -> None:
        self._outbox.control(settings.announcement(self.client))
        self._outbox.credit(0, limits.HTTP2_CONNECTION_WINDOW_BYTES - _DEFAULT_WINDOW)

    # --- bytes out ------------------------------------------------------------------------------------------

    @property
    def has_output(self) -> bool:
        return bool(self._outbox)

    @property
    def finished(self) -> bool:
        """There will be no more output: once what is queued is written, the socket can be closed."""
        return not self._outbox and (self.error is not None or (self.going_away and not self.streams))

    def take(self, most: int) -> tuple[bytes, list[int]]:
        """The next bytes to write, control frames and about `most` of streams; and the streams whose queued
        bytes have all been handed out by now."""
        data = self._outbox.take(most)
        if self._outbox.closed:
            for stream in self._outbox.closed:
                if stream.remote_closed:
                    self._remove(stream)
            self._outbox.closed.clear()
        drained = self._outbox.drained
        if drained:
            self._outbox.drained = []
        return data, drained

    # --- intentions -----------------------------------------------------------------------------------------

    @property
    def can_open(self) -> bool:
        """A client may open a stream now."""
        return not self.going_away and len(self.streams) < self.peer.max_concurrent_streams

    def open_stream(self, request: Headers) -> int:
        stream = Stream(self._next_stream_id, self.peer.initial_window)
        self._next_stream_id += 2
        if self._next_stream_id > frames.MAX_STREAM_ID:
            self.going_away = True
        stream.head = request
        self.streams[stream.id] = stream
        self._outbox.offer(stream)
        return stream.id

    def send_headers(self, stream_id: int, block: bytes) -> None:
        """The head of a response, as a literal block."""
        stream = self.streams.get(stream_id)
        if stream is not None and not stream.ending:
            stream.head = block
            self._outbox.offer(stream)

    def send_data(self, stream_id: int, data: bytes) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None and not stream.ending and data:
            stream.queue(data)
            self._outbox.offer(stream)

    def data_at_once(self, stream_id: int, data: bytes) -> bytes:
        """The short way of a small message: its frame, for the caller to write now. Nothing if it cannot go whole, or
        others are before it: then it is for `send_data`."""
        stream = self.streams.get(stream_id)
        return b"" if stream is None or stream.ending else self._outbox.at_once(stream, data)

    def end_stream(self, stream_id: int, trailers: bytes | None = None) -> None:
        """The local side ends after what is queued, with trailers or without. A server that ends a stream takes
        nothing more from it."""
        stream = self.streams.get(stream_id)
        if stream is None or stream.ending:
            return
        stream.ending = True
        stream.trailers = trailers
        self._outbox.offer(stream)
        if not self.client:
            self._return_window(stream)

    def queued_bytes(self, stream_id: int) -> int:
        stream = self.streams.get(stream_id)
        return 0 if stream is None else stream.queued_bytes

    def trim(self, stream_id: int, border: Callable[[bytes, int], int]) -> None:
        """Drop what is queued, but for the message that is half sent: border(buffer, position) is where it ends."""
        stream = self.streams.get(stream_id)
        if stream is None or not stream.queued_bytes:
            return
        self._outbox.withdraw(stream)
        current, position = stream.current, stream.position
        stream.drop_queued()
        if position:
            stream.current, stream.position = current[: border(current, position)], position
            stream.queued_bytes = len(stream.current) - position
        self._outbox.offer(stream)

    def reset_stream(self, stream_id: int, code: int) -> None:
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        if stream.head is None or not self.client:
            self._outbox.control(frames.rst_stream(stream_id, code))
        self._remove(stream)

    def grant(self, stream_id: int, flow: int) -> None:
        """`flow` received bytes have been dealt with: the peer may send as many more."""
        stream = self.streams.get(stream_id)
        if stream is None or not flow:
            return
        flow = min(flow, stream.unacknowledged)
        stream.unacknowledged -= flow
        if not self.client:
            self._credit_connection(flow)
        if not stream.remote_closed:
            increment = stream.receive_window.grant(flow)
            if increment:
                self._outbox.credit(stream_id, increment)

    def ping(self, payload: bytes) -> None:
        self._outbox.control(frames.ping(payload, ack=False))

    def go_away(self, code: int = ErrorCode.NO_ERROR, reason: str = "") -> None:
        """No new streams; the open ones go on."""
        self.going_away = True
        if self._goaway_last is None or code:
            if self._goaway_last is None:
                self._goaway_last = self._last_peer_stream
            text = reason.encode()[: limits.HTTP2_MAX_GOAWAY_REASON_BYTES]
            self._outbox.control(frames.goaway(self._goaway_last, code, text))

    # --- bytes in -------------------------------------------------------------------------------------------

    def receive(
        self, buffer: bytes | bytearray | memoryview, start: int, end: int, now: float, most: int = ALL
    ) -> tuple[int, list[Event]]:
        """What buffer[start:end] says; the first number is where the unread rest (at most one frame) begins. After
        `most` header blocks the frames behind them are `held`, and so is what is received meanwhile."""
        events: list[Event] = []
        if self.error is not None:
            return end, events
        try:
            if not self.preface_seen:
                start = self._receive_preface(buffer, start, end)
                if not self.preface_seen:
                    return start, events
            consumed, arrived, self._oversized = kernels.scan_frames(buffer, start, end, limits.HTTP2_MAX_FRAME_BYTES)
            if self._held:
                self._held += arrived
            else:
                self._take_in(arrived, now, most, events)
        except Http2Error as error:
            self._fail(error)
            events.append(ConnectionFailed(error))
            return end, events
        return consumed, events

    def data_alone(self, buffer: bytes | memoryview, end: int) -> tuple[int, bytes] | None:
        """The short way of a small answer: its stream and bytes, if buffer[:end] is one DATA frame and says no more.
        None, and nothing has happened, if it is for `receive`."""
        flow = end - frames.HEADER_BYTES
        if not 0 < flow <= limits.HTTP2_MAX_FRAME_BYTES or not self.client or self.error is not None:
            return None
        high, low, kind, flags, stream_id = frames.HEADER.unpack_from(buffer)
        stream = self.streams.get(stream_id)
        window = self._window
        if kind != frames.DATA or flags or high << 8 | low != flow or self._block is not None or stream is None:
            return None
        if stream.remote_closed or not stream.response_seen or stream.announced >= 0:
            return None
        if flow > stream.receive_window.left or flow > window.left or window.pending + flow >= window.portion:
            return None
        window.left -= flow
        window.pending += flow
        stream.receive_window.left -= flow
        stream.unacknowledged += flow
        return stream_id, bytes(buffer[frames.HEADER_BYTES : end])

    @property
    def held(self) -> bool:
        """Frames have come that are taken in by `go_on`."""
        return bool(self._held)

    def go_on(self, now: float, most: int) -> list[Event]:
        """What the frames say that are held, up to `most` further header blocks."""
        events: list[Event] = []
        held, self._held = self._held, []
        if self.error is None:
            try:
                self._take_in(held, now, most, events)
            except Http2Error as error:
                self._fail(error)
                events.append(ConnectionFailed(error))
        return events

    def _take_in(self, arrived: list[frames.Frame], now: float, most: int, events: list[Event]) -> None:
        for number, (kind, flags, stream_id, payload, flow) in enumerate(arrived):
            if kind == frames.DATA and self._block is None and self.settings_received:
                self._on_data(flags, stream_id, payload, flow, now, events)
                continue
            if kind == frames.HEADERS:
                if most == 0:
                    self._held = arrived[number:]
                    return
                most -= 1
            self._on_frame(kind, flags, stream_id, payload, now, events)
        if self._oversized:
            raise Http2Error(
                ErrorCode.FRAME_SIZE_ERROR,
                f"a frame of {self._oversized} bytes is over the announced {limits.HTTP2_MAX_FRAME_BYTES}",
            )
        if self._outbox.control_bytes > limits.HTTP2_MAX_QUEUED_CONTROL_BYTES:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "the answers to control frames are not being read")

    def _fail(self, error: Http2Error) -> None:
        self._outbox.silence()
        if self.preface_seen:
            self.go_away(error.code, str(error))
        self.going_away = True
        error.__traceback__ = error.__context__ = None  # their frames would hold the whole read
        self.error = error

    def _receive_preface(self, buffer: bytes | bytearray | memoryview, start: int, end: int) -> int:
        """A server sends nothing before it: a client of another protocol can then get an answer in that protocol."""
        got = bytes(buffer[start : min(end, start + len(frames.PREFACE))])
        if not frames.PREFACE.startswith(got):
            raise _protocol_error("this is not HTTP/2: the connection preface is missing")
        if len(got) < len(frames.PREFACE):
            return start
        self.preface_seen = True
        self._announce()
        return start + len(got)

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float, events: list[Event]) -> None:
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block.stream_id):
            raise _protocol_error("a header block was interrupted by another frame")
        if not self.settings_received and (kind != frames.SETTINGS or flags & frames.ACK):
            raise _protocol_error("the first frame is not SETTINGS")
        if kind == frames.HEADERS:
            self._on_headers(flags, stream_id, payload, now, events)
        elif kind == frames.CONTINUATION:
            self._on_continuation(flags, stream_id, payload, now, events)
        elif kind == frames.WINDOW_UPDATE:
            self._on_window_update(stream_id, payload, now, events)
        elif kind == frames.RST_STREAM:
            self._on_rst_stream(stream_id, payload, now, events)
        elif kind == frames.SETTINGS:
            self._on_settings(flags, stream_id, payload, now, events)
        elif kind == frames.PING:
            self._on_ping(flags, stream_id, payload, now, events)
        elif kind == frames.GOAWAY:
            self._on_goaway(stream_id, payload, now, events)
        elif kind == frames.PUSH_PROMISE:
            raise _protocol_error("PUSH_PROMISE, although push is switched off")
        elif kind == frames.PRIORITY and (not stream_id or len(payload) != 5):
            code = ErrorCode.FRAME_SIZE_ERROR if stream_id else ErrorCode.PROTOCOL_ERROR
            raise Http2Error(code, "a malformed PRIORITY frame")
        else:
            self._control_budget.spend(now)

    # --- streams in -----------------------------------------------------------------------------------------

    def _is_idle(self, stream_id: int) -> bool:
        """Nobody has opened it yet."""
        if self.client:
            return stream_id % 2 == 0 or stream_id >= self._next_stream_id
        return stream_id % 2 == 0 or stream_id > self._last_peer_stream

    def _on_data(self, flags: int, stream_id: int, payload: bytes, flow: int, now: float, events: list[Event]) -> None:
        if flags == frames.BAD_PADDING:
            raise _protocol_error("a DATA frame's padding is longer than the frame")
        if not self._window.take(flow):
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window was overrun")
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
                raise _protocol_error(f"DATA on stream {stream_id}, which is not open")
            self._control_budget.spend(now)
            self._credit_connection(flow)
            return
        stream.unacknowledged += flow
        if self.client:
            self._credit_connection(flow)
        if stream.remote_closed:
            self._reset(stream, ErrorCode.STREAM_CLOSED, now, events)
            return
        if not stream.receive_window.take(flow):
            self._reset(stream, ErrorCode.FLOW_CONTROL_ERROR, now, events)
            return
        if self.client and not stream.response_seen:
            self._reset(stream, ErrorCode.PROTOCOL_ERROR, now, events)
            return
        end_stream = bool(flags & frames.END_STREAM)
        if stream.announced >= 0 and not self._as_announced(stream, len(payload), end_stream):
            self._reset(stream, ErrorCode.PROTOCOL_ERROR, now, events)
            return
        if not payload and not end_stream:
            self._control_budget.spend(now)
            self.grant(stream_id, flow)
            return
        if not self.client and stream.ending:
            self._return_window(stream)
        else:
            events.append(DataReceived(stream_id, payload, flow, end_stream))
        if end_stream:
            self._end_remote(stream)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes, now: float, events: list[Event]) -> None:
        if not stream_id or (self.client and self._is_idle(stream_id)) or (not self.client and stream_id % 2 == 0):
            raise _protocol_error(f"HEADERS on stream {stream_id}, which is not open")
        self._block = HeaderBlock(stream_id, flags, payload)
        if flags & frames.END_HEADERS:
            self._on_block(self._block, now, events)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes, now: float, events: list[Event]) -> None:
        if self._block is None:
            raise _protocol_error("CONTINUATION without HEADERS")
        self._block.go_on(payload)
        if flags & frames.END_HEADERS:
            self._on_block(self._block, now, events)

    def _on_block(self, block: HeaderBlock, now: float, events: list[Event]) -> None:
        """A header block is complete. It is decoded whatever happens to its stream: HPACK has state."""
        self._block = None
        stream_id, end_stream = block.stream_id, block.ends_stream
        received = self._decoder.decode(bytes(block.content))
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._on_later_headers(stream, received, end_stream, now, events)
        elif self._is_idle(stream_id):
            self._on_request(stream_id, received, end_stream, events)
        elif received and received[0][0].startswith(":") and not self.client:
            raise Http2Error(ErrorCode.STREAM_CLOSED, f"a request on stream {stream_id}, which is closed")
        else:
            self._control_budget.spend(now)

    def _on_request(self, stream_id: int, received: Headers, end_stream: bool, events: list[Event]) -> None:
        self._last_peer_stream = stream_id
        if self.going_away or len(self.streams) >= limits.HTTP2_MAX_CONCURRENT_STREAMS:
            self._outbox.control(frames.rst_stream(stream_id, ErrorCode.REFUSED_STREAM))
            return
        if headers.list_size(received) > limits.HTTP2_MAX_HEADER_LIST_BYTES:
            self._outbox.control(frames.rst_stream(stream_id, ErrorCode.ENHANCE_YOUR_CALM))
            return
        length = headers.content_length(received)
        if headers.request_problem(received) is not None or length is None or (end_stream and length > 0):
            self._outbox.control(frames.rst_stream(stream_id, ErrorCode.PROTOCOL_ERROR))
            return
        stream = Stream(stream_id, self.peer.initial_window)
        stream.remote_closed = end_stream
        stream.announced = length
        self.streams[stream_id] = stream
        events.append(HeadersReceived(stream_id, received, end_stream))

    def _on_later_headers(
        self, stream: Stream, received: Headers, end_stream: bool, now: float, events: list[Event]
    ) -> None:
        """Trailers; or, to a client, the headers of the response."""
        if stream.remote_closed:
            self._reset(stream, ErrorCode.STREAM_CLOSED, now, events)
            return
        first = self.client and not stream.response_seen
        problem = headers.response_problem(received) if first else headers.trailers_problem(received)
        if problem is not None or (not first and not end_stream) or (not first and stream.announced > 0):
            self._reset(stream, ErrorCode.PROTOCOL_ERROR, now, events)
            return
        if first and received[0][1].startswith("1"):
            if end_stream:
                self._reset(stream, ErrorCode.PROTOCOL_ERROR, now, events)
            return
        stream.response_seen = True
        if self.client:
            events.append(HeadersReceived(stream.id, received, end_stream))
        elif not stream.ending:
            # gRPC requests have no trailers that mean anything, but they do end the request.
            events.append(DataReceived(stream.id, b"", 0, True))
        if end_stream:
            self._end_remote(stream)

    def _on_rst_stream(self, stream_id: int, payload: bytes, now: float, events: list[Event]) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "an RST_STREAM frame is not 4 bytes long")
        stream = self.streams.get(stream_id)
        if stream is None:
            if not stream_id or self._is_idle(stream_id):
                raise _protocol_error(f"RST_STREAM on stream {stream_id}, which is not open")
            self._control_budget.spend(now)
            return
        if not self.client:
            self._reset_budget.spend(now)
        self._remove(stream)
        events.append(StreamReset(stream_id, int.from_bytes(payload, "big"), by_peer=True))

    # --- windows, settings and the rest ---------------------------------------------------------------------

    def _on_window_update(self, stream_id: int, payload: bytes, now: float, events: list[Event]) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a WINDOW_UPDATE frame is not 4 bytes long")
        increment = int.from_bytes(payload, "big") & frames.MAX_WINDOW
        if increment < limits.HTTP2_SMALL_WINDOW_UPDATE_BYTES:
            self._control_budget.spend(now)
        if not stream_id:
            if not increment:
                raise _protocol_error("WINDOW_UPDATE by 0")
            self._outbox.widen(increment)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
                raise _protocol_error(f"WINDOW_UPDATE on stream {stream_id}, which is not open")
            return
        if not increment:
            self._reset(stream, ErrorCode.PROTOCOL_ERROR, now, events)
        elif stream.send_window + increment > frames.MAX_WINDOW:
            self._reset(stream, ErrorCode.FLOW_CONTROL_ERROR, now, events)
        else:
            stream.send_window += increment
            self._outbox.offer(stream)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes, now: float, events: list[Event]) -> None:
        if stream_id:
            raise _protocol_error("SETTINGS on a stream")
        self._settings_budget.spend(now)
        if flags & frames.ACK:
            if payload:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS acknowledgement with content")
            return
        values = settings.parse(payload, from_server=self.client)
        peer = self.peer
        peer.max_frame = values.get(settings.MAX_FRAME_SIZE, peer.max_frame)
        if settings.MAX_CONCURRENT_STREAMS in values:
            peer.max_concurrent_streams = values[settings.MAX_CONCURRENT_STREAMS]
        if settings.HEADER_TABLE_SIZE in values:
            peer.header_table_size = values[settings.HEADER_TABLE_SIZE]
            self._encoder.resize(peer.header_table_size)
        if settings.INITIAL_WINDOW_SIZE in values:
            change = values[settings.INITIAL_WINDOW_SIZE] - peer.initial_window
            peer.initial_window += change
            for stream in self.streams.values():
                stream.send_window = widen(stream.send_window, change, f"stream {stream.id}")
                self._outbox.offer(stream)
        self.settings_received = True
        self._outbox.control(settings.acknowledgement())
        events.append(SettingsReceived())

    def _on_ping(self, flags: int, stream_id: int, payload: bytes, now: float, events: list[Event]) -> None:
        if stream_id:
            raise _protocol_error("PING on a stream")
        if len(payload) != 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a PING frame is not 8 bytes long")
        self._control_budget.spend(now)
        if flags & frames.ACK:
            events.append(PingAcked(payload))
        else:
            self._outbox.control(frames.ping(payload, ack=True))

    def _on_goaway(self, stream_id: int, payload: bytes, now: float, events: list[Event]) -> None:
        if stream_id:
            raise _protocol_error("GOAWAY on a stream")
        if len(payload) < 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a GOAWAY frame is shorter than 8 bytes")
        self._control_budget.spend(now)
        last = int.from_bytes(payload[:4], "big") & frames.MAX_STREAM_ID
        code = int.from_bytes(payload[4:8], "big")
        reason = payload[8 : 8 + limits.HTTP2_MAX_GOAWAY_REASON_BYTES].decode("utf-8", "replace")
        if self.client:
            self.going_away = True
            self._peer_last_stream = min(last, self._peer_last_stream)
            events.append(GoAwayReceived(self._peer_last_stream, code, reason))
            for stream in [s for s in self.streams.values() if s.id > self._peer_last_stream]:
                self._remove(stream)
                events.append(StreamReset(stream.id, ErrorCode.REFUSED_STREAM, by_peer=True))
        else:
            events.append(GoAwayReceived(last, code, reason))

    @staticmethod
    def _as_announced(stream: Stream, count: int, end_stream: bool) -> bool:
        """A request is malformed if its data are more or fewer than its content-length says (RFC 9113, 8.1.1)."""
        stream.announced -= count
        return stream.announced == 0 or (stream.announced > 0 and not end_stream)

    # --- streams end ----------------------------------------------------------------------------------------

    def _credit_connection(self, flow: int) -> None:
        increment = self._window.grant(flow)
        if increment:
            self._outbox.credit(0, increment)

    def _return_window(self, stream: Stream) -> None:
        """The bytes received on this stream need no processing any more: return their window to the connection."""
        if stream.unacknowledged and not self.client:
            self._credit_connection(stream.unacknowledged)
        stream.unacknowledged = 0

    def _end_remote(self, stream: Stream) -> None:
        stream.remote_closed = True
        if stream.local_closed:
            self._remove(stream)

    def _reset(self, stream: Stream, code: ErrorCode, now: float, events: list[Event]) -> None:
        """The peer broke the rules on this stream alone. It counts like a reset by the peer, because making us
        reset streams would otherwise be a way around that bound."""
        if not self.client:
            self._reset_budget.spend(now)
        self.reset_stream(stream.id, code)
        events.append(StreamReset(stream.id, code, by_peer=False))

    def _remove(self, stream: Stream) -> None:
        self._return_window(stream)
        self._outbox.forget(stream)
        stream.local_closed = stream.remote_closed = True
        self.streams.pop(stream.id, None)
