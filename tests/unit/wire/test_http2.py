"""HTTP/2 connections without I/O: what a well-behaved peer sees, and what a misbehaving one does."""

import pytest
from hpack import Decoder

from bascule import limits
from bascule.wire.http2 import frames
from bascule.wire.http2.connection import Connection
from bascule.wire.http2.events import (
    ConnectionFailed,
    DataReceived,
    HeadersReceived,
    StreamReset,
)
from bascule.wire.http2.frames import ErrorCode
from bascule.wire.http2.headers import literal_block
from tests.harness.http2_peer import (
    REQUEST,
    Frame,
    Server,
    block,
    data,
    decoded,
    parse,
    raw,
    request,
    settings,
    window_update,
)

OK = literal_block([(":status", "200"), ("content-type", "application/grpc")])
END = literal_block([("grpc-status", "0")])


def sent_data(found: list[Frame], stream_id: int) -> bytes:
    return b"".join(f.payload for f in found if f.kind == frames.DATA and f.stream_id == stream_id)


# --- the handshake ------------------------------------------------------------------------------------------


def test_a_server_says_nothing_before_the_preface_and_its_settings_after_it() -> None:
    connection = Connection(client=False)
    assert not connection.has_output
    half = frames.PREFACE[:10]
    assert connection.receive(half, 0, len(half), 0.0) == (0, [])
    assert not connection.has_output
    connection.receive(frames.PREFACE, 0, 24, 0.0)
    found = parse(connection.take(0)[0])
    assert [f.kind for f in found] == [frames.SETTINGS, frames.WINDOW_UPDATE]
    assert not connection.settings_received


def test_other_bytes_than_the_preface_end_the_connection_without_an_answer() -> None:
    connection = Connection(client=False)
    _, events = connection.receive(b"GET / HTTP/1.1\r\n", 0, 16, 0.0)
    assert isinstance(events[0], ConnectionFailed)
    assert not connection.has_output
    assert connection.finished


def test_the_first_frame_must_be_settings() -> None:
    connection = Connection(client=False)
    received = frames.PREFACE + raw(frames.PING, 0, 0, bytes(8))
    connection.receive(received, 0, len(received), 0.0)
    assert connection.error is not None
    assert connection.error.code == ErrorCode.PROTOCOL_ERROR


def test_settings_are_acknowledged_and_pings_answered_ahead_of_queued_data() -> None:
    server = Server()
    server.feed(request(1))
    server.connection.send_headers(1, OK)
    server.connection.send_data(1, bytes(1000))
    server.feed(raw(frames.PING, 0, 0, b"12345678"), settings())
    found = server.output()
    assert [f.kind for f in found] == [frames.PING, frames.SETTINGS, frames.HEADERS, frames.DATA]
    assert (found[0].flags, found[0].payload) == (frames.ACK, b"12345678")
    assert (found[1].flags, found[1].payload) == (frames.ACK, b"")


# --- requests and responses ---------------------------------------------------------------------------------


def test_a_request_with_padding_priority_and_continuations_is_read() -> None:
    server = Server()
    whole = block()
    first = bytes([3]) + bytes(5) + whole[:10] + bytes(3)
    events = server.feed(
        raw(frames.HEADERS, frames.PADDED | frames.PRIORITY_PRESENT, 1, first),
        raw(frames.CONTINUATION, 0, 1, whole[10:20]),
        raw(frames.CONTINUATION, frames.END_HEADERS, 1, whole[20:]),
        raw(frames.DATA, frames.PADDED | frames.END_STREAM, 1, bytes([2]) + b"body" + bytes(2)),
    )
    assert events == [
        HeadersReceived(1, REQUEST, False),
        DataReceived(1, b"body", 7, True),
    ]


def test_a_response_is_headers_data_trailers_and_then_the_stream_is_gone() -> None:
    server = Server()
    server.feed(request(1, end_stream=True))
    server.connection.send_headers(1, OK)
    server.connection.send_data(1, b"one")
    server.connection.send_data(1, b"two")
    server.connection.end_stream(1, END)
    found = server.output()
    assert [(f.kind, f.flags) for f in found] == [
        (frames.HEADERS, frames.END_HEADERS),
        (frames.DATA, 0),
        (frames.HEADERS, frames.END_HEADERS | frames.END_STREAM),
    ]
    assert found[1].payload == b"onetwo"
    decoder = Decoder()
    assert decoded(found[0].payload, decoder) == [(":status", "200"), ("content-type", "application/grpc")]
    assert decoded(found[2].payload, decoder) == [("grpc-status", "0")]
    assert not server.connection.streams


def test_a_server_that_answers_early_tells_the_client_to_stop_sending() -> None:
    server = Server()
    server.feed(request(1), data(1, b"half of it"))
    server.connection.end_stream(1, OK + END)
    found = server.output()
    assert [f.kind for f in found] == [frames.HEADERS, frames.RST_STREAM]
    assert found[1].payload == bytes(4)
    assert server.feed(data(1, b"already on its way")) == []
    assert server.connection.error is None


def test_trailers_of_a_request_end_it() -> None:
    server = Server()
    events = server.feed(
        request(1),
        raw(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, literal_block([("x", "y")])),
    )
    assert events[1] == DataReceived(1, b"", 0, True)


@pytest.mark.parametrize(
    "headers",
    [
        [("Upper", "case")],
        [("connection", "close")],
        [("te", "gzip")],
        [("x", "line\nbreak")],
        [(":late", "pseudo")],
        [("", "empty")],
    ],
)
def test_a_malformed_request_resets_its_stream_only(headers: list[tuple[str, str]]) -> None:
    server = Server()
    assert server.feed(raw(frames.HEADERS, frames.END_HEADERS, 1, block(REQUEST + headers))) == []
    assert [(f.kind, f.payload[-1]) for f in server.output()] == [(frames.RST_STREAM, ErrorCode.PROTOCOL_ERROR)]
    assert isinstance(server.feed(request(3))[0], HeadersReceived)


@pytest.mark.parametrize("missing", [":method", ":scheme", ":path"])
def test_a_request_without_a_pseudo_header_is_malformed(missing: str) -> None:
    server = Server()
    assert server.feed(request(1, headers=[h for h in REQUEST if h[0] != missing])) == []
    assert server.output()[0].kind == frames.RST_STREAM
    empty = [(name, "" if name == ":path" else value) for name, value in REQUEST]
    assert server.feed(request(3, headers=empty)) == []
    assert server.output()[0].kind == frames.RST_STREAM


def test_a_reset_stream_says_nothing_more_and_frees_its_window() -> None:
    server = Server()
    server.feed(request(1), data(1, bytes(16_000)))
    server.connection.send_headers(1, OK)
    server.connection.send_data(1, b"unsent")
    assert server.feed(raw(frames.RST_STREAM, 0, 1, (8).to_bytes(4, "big"))) == [
        StreamReset(1, ErrorCode.CANCEL, by_peer=True)
    ]
    assert server.output() == []
    assert server.connection.streams == {}
    server.connection.send_data(1, b"late")
    server.connection.end_stream(1, END)
    assert server.output() == []


# --- flow control -------------------------------------------------------------------------------------------


def test_data_stops_at_the_stream_window_and_goes_on_from_there() -> None:
    server = Server(initial_window_size=10)
    server.feed(request(1))
    server.connection.send_headers(1, OK)
    message = bytes(range(100))
    server.connection.send_data(1, message)
    got = sent_data(server.output(), 1)
    assert got == message[:10]
    for increment in (1, 7, 30):
        server.feed(window_update(1, increment))
        got += sent_data(server.output(), 1)
    assert got == message[:48]
    server.connection.end_stream(1, END)
    assert server.output() == []
    server.feed(window_update(1, 1000))
    found = server.output()
    assert got + sent_data(found, 1) == message
    assert found[-2].kind == frames.HEADERS


def test_a_changed_initial_window_applies_to_open_streams_even_below_zero() -> None:
    server = Server(initial_window_size=100)
    server.feed(request(1))
    server.connection.send_data(1, bytes(150))
    assert len(sent_data(server.output(), 1)) == 100
    server.feed(settings(initial_window_size=20), window_update(1, 80))
    assert sent_data(server.output(), 1) == b""
    server.feed(settings(initial_window_size=30))
    assert len(sent_data(server.output(), 1)) == 10


def test_a_shut_connection_window_holds_data_of_all_streams_but_no_headers() -> None:
    server = Server(initial_window_size=1 << 20)
    server.feed(request(1), request(3))
    server.connection.send_data(1, bytes(70_000))
    assert len(sent_data(server.output(), 1)) == 65_535
    server.connection.send_headers(3, OK)
    server.connection.send_data(3, b"waits")
    assert [f.kind for f in server.output()] == [frames.HEADERS]
    server.feed(window_update(0, 100_000))
    found = server.output()
    assert len(sent_data(found, 1)) == 70_000 - 65_535
    assert sent_data(found, 3) == b"waits"


def test_streams_take_turns() -> None:
    server = Server(initial_window_size=1 << 20)
    server.feed(window_update(0, 1 << 24), request(1), request(3))
    quantum = limits.HTTP2_SEND_QUANTUM_BYTES
    server.connection.send_data(1, bytes(3 * quantum))
    server.connection.send_data(3, b"small")
    found = server.output()
    order = [f.stream_id for f in found]
    assert order.index(3) == quantum // 16_384
    assert len(sent_data(found, 1)) == 3 * quantum


def test_frames_are_as_large_as_the_peer_takes() -> None:
    server = Server(max_frame_size=20_000, initial_window_size=1 << 20)
    server.feed(request(1))
    server.connection.send_data(1, bytes(50_000))
    assert [len(f.payload) for f in server.output()] == [20_000, 20_000, 10_000]


def test_drained_streams_are_reported_when_the_last_byte_goes() -> None:
    server = Server(initial_window_size=10)
    server.feed(request(1))
    server.connection.send_data(1, bytes(15))
    assert server.connection.take(1000)[1] == []
    server.feed(window_update(1, 10))
    assert server.connection.take(1000)[1] == [1]
    assert server.connection.queued_bytes(1) == 0


def test_credit_is_given_back_in_portions_and_only_when_granted() -> None:
    server = Server()
    server.feed(request(1))
    portion = limits.HTTP2_STREAM_WINDOW_BYTES // 4
    for _ in range(portion // 16_384):
        server.feed(data(1, bytes(16_384)))
    assert server.output() == []
    server.connection.grant(1, portion - 1)
    assert server.output() == []
    server.connection.grant(1, 1)
    assert [(f.kind, f.stream_id, int.from_bytes(f.payload, "big")) for f in server.output()] == [
        (frames.WINDOW_UPDATE, 1, portion)
    ]
    server.connection.grant(1, 10**9)
    assert server.output() == []


def test_overrunning_a_stream_window_resets_the_stream() -> None:
    server = Server()
    server.feed(request(1))
    events = server.feed(*[data(1, bytes(16_384))] * (limits.HTTP2_STREAM_WINDOW_BYTES // 16_384), data(1, b"x"))
    assert events[-1] == StreamReset(1, ErrorCode.FLOW_CONTROL_ERROR, by_peer=False)
    assert server.connection.error is None


def test_overrunning_the_connection_window_ends_the_connection() -> None:
    server = Server()
    frame_count = limits.HTTP2_CONNECTION_WINDOW_BYTES // 16_384
    per_stream = limits.HTTP2_STREAM_WINDOW_BYTES // 16_384
    stream_id = -1
    for n in range(frame_count):
        if n % per_stream == 0:
            stream_id += 2
            server.feed(request(stream_id))
        server.feed(data(stream_id, bytes(16_384)))
    assert server.connection.error is None
    server.feed(request(stream_id + 2), data(stream_id + 2, b"x"))
    assert server.error_code() == ErrorCode.FLOW_CONTROL_ERROR


def test_streams_that_end_unread_give_the_connection_its_window_back() -> None:
    server = Server()
    for n in range(200):
        stream_id = 2 * n + 1
        server.feed(request(stream_id), *[data(stream_id, bytes(16_384))] * 10)
        server.connection.end_stream(stream_id, OK + END)
        server.output()
    assert server.connection.error is None
    assert not server.connection.streams


@pytest.mark.parametrize("where", [0, 1])
def test_a_window_past_its_maximum_is_an_error(where: int) -> None:
    server = Server()
    server.feed(request(1))
    events = server.feed(window_update(where, frames.MAX_WINDOW))
    if where:
        assert events == [StreamReset(1, ErrorCode.FLOW_CONTROL_ERROR, by_peer=False)]
    else:
        assert server.error_code() == ErrorCode.FLOW_CONTROL_ERROR


def test_a_settings_change_that_overflows_a_window_ends_the_connection() -> None:
    server = Server(initial_window_size=100)
    server.feed(request(1), window_update(1, frames.MAX_WINDOW - 100))
    server.feed(settings(initial_window_size=101))
    assert server.error_code() == ErrorCode.FLOW_CONTROL_ERROR


def test_trimming_keeps_only_the_message_under_way() -> None:
    server = Server(initial_window_size=5)
    server.feed(request(1))
    server.connection.send_data(1, b"abcdefgh" * 4)
    assert sent_data(server.output(), 1) == b"abcde"
    server.connection.send_data(1, b"more")
    server.connection.trim(1, lambda buffer, position: 8)
    server.connection.end_stream(1, END)
    server.feed(window_update(1, 100))
    found = server.output()
    assert sent_data(found, 1) == b"fgh"
    assert found[1].kind == frames.HEADERS


# --- violations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (raw(frames.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.DATA, 0, 5, b"x"), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.DATA, frames.PADDED, 1, b"\x09x"), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.DATA, frames.PADDED, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.HEADERS, frames.END_HEADERS, 0, block()), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.HEADERS, frames.END_HEADERS, 2, block()), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.HEADERS, frames.END_HEADERS | frames.PADDED, 3, b"\x09x"), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.HEADERS, frames.END_HEADERS | frames.PADDED, 3, b""), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.HEADERS, frames.END_HEADERS | frames.PRIORITY_PRESENT, 3, b"abc"), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.HEADERS, frames.END_HEADERS, 3, b"\xff\xff\xff\xff\xff"), ErrorCode.COMPRESSION_ERROR),
        (raw(frames.HEADERS, 0, 3, block()) + raw(frames.PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.HEADERS, 0, 3, block()) + raw(frames.DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.HEADERS, 0, 3, block()) + raw(frames.CONTINUATION, 4, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.CONTINUATION, frames.END_HEADERS, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
        (raw(frames.RST_STREAM, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.RST_STREAM, 0, 7, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.RST_STREAM, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (raw(frames.SETTINGS, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (raw(frames.SETTINGS, frames.ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
        (settings(enable_push=2), ErrorCode.PROTOCOL_ERROR),
        (settings(initial_window_size=1 << 31), ErrorCode.FLOW_CONTROL_ERROR),
        (settings(max_frame_size=1 << 24), ErrorCode.PROTOCOL_ERROR),
        (settings(max_frame_size=16_383), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.PUSH_PROMISE, 4, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (raw(frames.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (raw(frames.WINDOW_UPDATE, 0, 0, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.WINDOW_UPDATE, 0, 9, b"\0\0\0\1"), ErrorCode.PROTOCOL_ERROR),
        (raw(frames.WINDOW_UPDATE, 0, 1, bytes(3)), ErrorCode.FRAME_SIZE_ERROR),
        (raw(frames.DATA, 0, 1, bytes(16_385)), ErrorCode.FRAME_SIZE_ERROR),
        (request(7) + request(5), ErrorCode.STREAM_CLOSED),
    ],
)
def test_a_violation_ends_the_connection_with_its_code(frame: bytes, code: ErrorCode) -> None:
    server = Server()
    server.feed(request(1))
    events = server.feed(frame)
    assert isinstance(events[-1], ConnectionFailed)
    assert server.error_code() == code
    assert server.connection.finished
    assert server.feed(request(3)) == []


def test_violations_on_one_stream_leave_the_others_alone() -> None:
    server = Server()
    server.feed(request(1, end_stream=True), request(3), request(5))
    assert server.feed(data(1, b"after the end")) == [StreamReset(1, ErrorCode.STREAM_CLOSED, by_peer=False)]
    assert server.feed(request(3)) == [StreamReset(3, ErrorCode.PROTOCOL_ERROR, by_peer=False)]
    assert server.feed(data(5, b"fine")) == [DataReceived(5, b"fine", 4, False)]
    assert server.feed(window_update(5, 0)) == [StreamReset(5, ErrorCode.PROTOCOL_ERROR, by_peer=False)]
    assert server.connection.error is None


def test_unknown_frames_and_priorities_are_ignored() -> None:
    server = Server()
    assert server.feed(request(1), raw(0x42, 0xFF, 7, b"?"), raw(frames.PRIORITY, 0, 9, bytes(5)))[1:] == []
    assert server.connection.error is None


def test_more_streams_than_announced_are_refused() -> None:
    server = Server()
    for n in range(limits.HTTP2_MAX_CONCURRENT_STREAMS):
        server.feed(request(2 * n + 1))
    over = 2 * limits.HTTP2_MAX_CONCURRENT_STREAMS + 1
    assert server.feed(request(over), data(over, b"its body")) == []
    assert [(f.kind, f.stream_id, f.payload[-1]) for f in server.output()] == [
        (frames.RST_STREAM, over, ErrorCode.REFUSED_STREAM)
    ]


def test_a_header_list_over_the_bound_is_refused_and_the_next_request_still_decodes() -> None:
    server = Server()
    large = [*REQUEST, *((f"x-{n}", "v" * 1000) for n in range(17))]
    assert (
        server.feed(
            raw(frames.HEADERS, 0, 1, block(large)[:16_000]),
            raw(frames.CONTINUATION, frames.END_HEADERS, 1, block(large)[16_000:]),
        )
        == []
    )
    assert server.output()[0].payload[-1] == ErrorCode.ENHANCE_YOUR_CALM
    assert isinstance(server.feed(request(3))[0], HeadersReceived)


def test_a_flood_is_a_matter_of_rate_not_of_number() -> None:
    patient, impatient = Server(), Server()
    for _ in range(100):
        for server, pause in ((patient, 0.1), (impatient, 0.01)):
            server.now += pause
            server.feed(raw(frames.PING, 0, 0, bytes(8)) * 900)
            server.connection.take(0)
    assert patient.connection.error is None
    assert impatient.connection.error is not None
    assert impatient.connection.error.code == ErrorCode.ENHANCE_YOUR_CALM


def test_answers_that_nobody_reads_end_the_connection() -> None:
    server = Server()
    most = limits.HTTP2_MAX_QUEUED_CONTROL_BYTES // 17
    for _ in range(most):
        server.now += 1.0
        server.feed(raw(frames.PING, 0, 0, bytes(8)))
    assert server.connection.error is None
    server.feed(raw(frames.PING, 0, 0, bytes(8)))
    assert server.error_code() == ErrorCode.ENHANCE_YOUR_CALM


# --- header tables ------------------------------------------------------------------------------------------


def test_a_changed_header_table_size_is_announced_before_the_next_block() -> None:
    server = Server()
    server.feed(request(1), settings(header_table_size=0), settings(header_table_size=100))
    server.connection.send_headers(1, OK)
    head = next(f for f in server.output() if f.kind == frames.HEADERS)
    decoder = Decoder()
    decoder.max_allowed_table_size = 100
    assert decoded(head.payload, decoder)[0] == (":status", "200")
    assert decoder.header_table_size == 100
    assert head.payload[0] == 0x20, "the lowest size comes first"


def test_a_peer_that_keeps_changing_the_table_size_costs_no_memory() -> None:
    server = Server()
    for n in range(50):
        server.feed(settings(header_table_size=n % 7))
    server.feed(request(1))
    server.connection.send_headers(1, OK)
    head = next(f for f in server.output() if f.kind == frames.HEADERS)
    assert len(head.payload) <= len(OK) + 4


# --- going away ---------------------------------------------------------------------------------------------


def test_a_draining_server_finishes_open_streams_and_refuses_new_ones() -> None:
    server = Server()
    server.feed(request(1, end_stream=True))
    server.connection.go_away(reason="bye")
    assert server.feed(request(3), data(3, b"its body")) == []
    found = server.output()
    assert [f.kind for f in found] == [frames.GOAWAY, frames.RST_STREAM]
    assert found[0].payload == (1).to_bytes(4, "big") + bytes(4) + b"bye"
    assert not server.connection.finished
    server.connection.end_stream(1, OK + END)
    server.output()
    assert server.connection.finished
