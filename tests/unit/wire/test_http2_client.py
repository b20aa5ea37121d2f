"""HTTP/2 connections in the client's role, without I/O."""

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from bascule import limits
from bascule.wire.http2 import frames
from bascule.wire.http2.connection import Connection
from bascule.wire.http2.events import (
    ConnectionFailed,
    DataReceived,
    GoAwayReceived,
    HeadersReceived,
    PingAcked,
    StreamReset,
)
from bascule.wire.http2.frames import ErrorCode
from bascule.wire.http2.headers import literal_block
from tests.harness.http2_peer import REQUEST, data, decoded, parse, raw, settings, window_update

OK = literal_block([(":status", "200"), ("content-type", "application/grpc")])
END = literal_block([("grpc-status", "0")])


def connected_client(**server_settings: int) -> Connection:
    client = Connection(client=True)
    client.take(1000)
    greeting = settings(**server_settings)
    client.receive(greeting, 0, len(greeting), 0.0)
    client.take(1000)
    return client


def deliver(client: Connection, *pieces: bytes) -> list[object]:
    received = b"".join(pieces)
    return list(client.receive(received, 0, len(received), 0.0)[1])


def test_a_client_opens_streams_in_order_and_reads_the_answer() -> None:
    client = connected_client()
    assert client.open_stream(REQUEST) == 1
    client.send_data(1, b"question")
    client.end_stream(1)
    found = parse(client.take(1000)[0])
    assert [(f.kind, f.flags) for f in found] == [(frames.HEADERS, 4), (frames.DATA, frames.END_STREAM)]
    assert deliver(
        client,
        raw(frames.HEADERS, frames.END_HEADERS, 1, literal_block([(":status", "103")])),
        raw(frames.HEADERS, frames.END_HEADERS, 1, OK),
        data(1, b"answer"),
        raw(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, END),
    ) == [
        HeadersReceived(1, [(":status", "200"), ("content-type", "application/grpc")], False),
        DataReceived(1, b"answer", 6, False),
        HeadersReceived(1, [("grpc-status", "0")], True),
    ]
    assert not client.streams


def test_a_stream_cancelled_before_it_was_written_leaves_the_header_tables_in_step() -> None:
    client = connected_client()
    dropped = client.open_stream([*REQUEST, ("x-only-here", "1")])
    retained = client.open_stream([*REQUEST, ("x-kept", "2")])
    client.reset_stream(dropped, ErrorCode.CANCEL)
    found = parse(client.take(1000)[0])
    assert [f.stream_id for f in found] == [retained]
    assert decoded(found[0].payload, Decoder())[-1] == ("x-kept", "2")


def test_a_client_honours_the_servers_bound_on_streams() -> None:
    client = connected_client(max_concurrent_streams=1)
    client.open_stream(REQUEST)
    assert not client.can_open
    deliver(client, raw(frames.RST_STREAM, 0, 1, bytes(4)))
    assert client.can_open


def test_a_connection_that_ran_out_of_stream_numbers_takes_no_more() -> None:
    client = connected_client()
    client._next_stream_id = frames.MAX_STREAM_ID
    assert client.open_stream(REQUEST) == frames.MAX_STREAM_ID
    assert not client.can_open
    assert not client.finished


def test_goaway_ends_the_streams_the_server_never_saw() -> None:
    client = connected_client()
    client.open_stream(REQUEST)
    client.open_stream(REQUEST)
    client.take(1000)
    assert deliver(client, raw(frames.GOAWAY, 0, 0, (1).to_bytes(4, "big") + bytes(4) + b"bye")) == [
        GoAwayReceived(1, ErrorCode.NO_ERROR, "bye"),
        StreamReset(3, ErrorCode.REFUSED_STREAM, by_peer=True),
    ]
    assert not client.can_open
    assert list(client.streams) == [1]


@pytest.mark.parametrize(
    "frame",
    [
        raw(frames.PUSH_PROMISE, 4, 1, bytes(4)),
        raw(frames.HEADERS, frames.END_HEADERS, 2, OK),
        raw(frames.HEADERS, frames.END_HEADERS, 3, OK),
        data(3, b"never opened"),
        settings(enable_push=1),
    ],
)
def test_what_a_server_may_not_do_ends_the_clients_connection(frame: bytes) -> None:
    client = connected_client()
    client.open_stream(REQUEST)
    client.take(1000)
    assert isinstance(deliver(client, frame)[-1], ConnectionFailed)


@pytest.mark.parametrize("headers", [[("grpc-status", "0")], [(":status", "2xx")], [(":status", "200"), ("A", "b")]])
def test_a_malformed_response_resets_the_stream(headers: list[tuple[str, str]]) -> None:
    client = connected_client()
    client.open_stream(REQUEST)
    client.take(1000)
    assert deliver(client, raw(frames.HEADERS, frames.END_HEADERS, 1, literal_block(headers))) == [
        StreamReset(1, ErrorCode.PROTOCOL_ERROR, by_peer=False)
    ]


# --- small messages ---------------------------------------------------------------------------------------


def state(client: Connection) -> tuple[object, ...]:
    """Everything that data change, in and out."""
    streams = {
        each.id: (
            each.send_window,
            each.receive_window.left,
            each.receive_window.pending,
            each.unacknowledged,
            each.queued_bytes,
            each.remote_closed,
        )
        for each in client.streams.values()
    }
    window, outbox = client._window, client._outbox
    return streams, window.left, window.pending, outbox.window, bool(outbox), client.error is None


def with_a_call() -> Connection:
    """Its request is sent, and the head of the response has come."""
    client = connected_client(initial_window_size=1000)
    client.open_stream(REQUEST)
    client.take(1000)
    deliver(client, raw(frames.HEADERS, frames.END_HEADERS, 1, OK))
    return client


def test_a_small_message_is_framed_at_once_as_it_is_from_the_queue() -> None:
    at_once, queued = with_a_call(), with_a_call()
    for message in (b"small", bytes(995)):
        queued.send_data(1, message)
        assert at_once.data_at_once(1, message) == queued.take(2000)[0]
        assert state(at_once) == state(queued)
    assert at_once.data_at_once(1, b"x") == b"", "the window is used up"
    deliver(at_once, window_update(1, 1))
    assert at_once.data_at_once(1, b"x") == data(1, b"x")


def refuses(client: Connection, stream_id: int, message: bytes) -> None:
    before = state(client)
    assert client.data_at_once(stream_id, message) == b""
    assert state(client) == before


def test_a_message_is_not_framed_at_once_while_others_are_before_it() -> None:
    client = with_a_call()
    refuses(client, 3, b"no such stream")
    refuses(client, 1, b"")
    refuses(client, 1, bytes(1001))
    client.send_data(1, b"before it")
    refuses(client, 1, b"behind it")
    client.take(1000)
    client.ping(b"are you?")
    refuses(client, 1, b"behind a PING")
    client.take(1000)
    other = client.open_stream(REQUEST)
    refuses(client, other, b"before its own head")
    refuses(client, 1, b"behind another stream")
    client.take(1000)
    client.send_data(other, bytes(70_000))
    client.take(100_000)
    refuses(client, other, b"behind what waits for a window")
    client.end_stream(1)
    refuses(client, 1, b"after the end")


def test_a_message_is_not_framed_at_once_over_the_window_of_the_connection_or_the_size_of_a_frame() -> None:
    client = connected_client(initial_window_size=1 << 20)
    first, second = client.open_stream(REQUEST), client.open_stream(REQUEST)
    client.take(1000)
    refuses(client, first, bytes(16_385))
    assert len(client.data_at_once(first, bytes(16_384))) == 16_393
    client.send_data(first, bytes(65_535 - 16_384 - 10))
    client.take(100_000)
    refuses(client, second, bytes(11))
    assert client.data_at_once(second, bytes(10)) == data(second, bytes(10))


pieces = st.one_of(
    st.builds(data, st.sampled_from([1, 1, 1, 3, 5]), st.binary(max_size=20), st.booleans()),
    st.builds(
        raw, st.sampled_from([0, 0, 6, 9]), st.sampled_from([0, 8]), st.sampled_from([0, 1]), st.binary(max_size=8)
    ),
    st.just(data(1, bytes(16_384))),
    st.just(data(1, bytes(16_385))),
    st.just(data(1, b"x") + data(1, b"y")),
    st.just(data(1, b"cut")[:-1]),
    st.just(window_update(1, 5)),
    st.just(raw(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, END)),
    st.just(raw(frames.HEADERS, 0, 1, b"")),
)


@given(st.lists(pieces, max_size=80), st.booleans())
def test_an_answer_that_comes_alone_changes_what_it_changes_among_others(reads: list[bytes], answered: bool) -> None:
    one, other = (with_a_call(), with_a_call()) if answered else (connected_client(), connected_client())
    for client in (one, other):
        client.open_stream(REQUEST)  # without an answer
        client.take(1000)
    for read in reads:
        before = state(one)
        alone = one.data_alone(read, len(read))
        if alone is None:
            assert state(one) == before
            events = deliver(one, read)
        else:
            events = [DataReceived(*alone, len(alone[1]), False)]
        assert deliver(other, read) == events or one.error is not None
        assert state(one) == state(other)
        one.take(1000)
        other.take(1000)


def test_a_window_is_given_back_though_all_answers_come_alone() -> None:
    client = with_a_call()
    answer = data(1, bytes(16_384))
    credits = 0
    for _ in range(2 * limits.HTTP2_CONNECTION_WINDOW_BYTES // 16_384):
        if client.data_alone(answer, len(answer)) is None:
            deliver(client, answer)
        client.grant(1, 16_384)
        credits += sum(
            int.from_bytes(frame.payload, "big") for frame in parse(client.take(1000)[0]) if not frame.stream_id
        )
    assert client.error is None
    assert credits >= limits.HTTP2_CONNECTION_WINDOW_BYTES


def test_pings_of_a_client_come_back() -> None:
    client = connected_client()
    client.ping(b"abcdefgh")
    assert parse(client.take(0)[0])[0].kind == frames.PING
    assert deliver(client, raw(frames.PING, frames.ACK, 0, b"abcdefgh")) == [PingAcked(b"abcdefgh")]
