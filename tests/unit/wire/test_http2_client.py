"""HTTP/2 connections in the client's role, without I/O."""

import pytest
from hpack import Decoder

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
from tests.harness.http2_peer import REQUEST, data, decoded, parse, raw, settings

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


def test_pings_of_a_client_come_back() -> None:
    client = connected_client()
    client.ping(b"abcdefgh")
    assert parse(client.take(0)[0])[0].kind == frames.PING
    assert deliver(client, raw(frames.PING, frames.ACK, 0, b"abcdefgh")) == [PingAcked(b"abcdefgh")]
