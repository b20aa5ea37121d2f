"""A request that says how long it is must be that long (RFC 9113, 8.1.1)."""

import pytest

from bascule.wire.http2 import frames
from bascule.wire.http2.events import DataReceived, StreamReset
from bascule.wire.http2.frames import ErrorCode
from tests.harness.http2_peer import REQUEST, Server, data, raw, request


def announcing(*lengths: str) -> list[tuple[str, str]]:
    return [*REQUEST, *(("content-length", length) for length in lengths)]


def reset_codes(server: Server) -> list[int]:
    return [int.from_bytes(each.payload, "big") for each in server.output() if each.kind == frames.RST_STREAM]


@pytest.mark.parametrize("pieces", [[b"four"], [b"fo", b"ur"], [b"", b"fou", b"r"]])
def test_as_many_bytes_as_announced_are_taken(pieces: list[bytes]) -> None:
    server = Server()
    server.feed(request(1, headers=announcing("4")))
    received = b""
    for number, piece in enumerate(pieces):
        events = server.feed(data(1, piece, end_stream=number == len(pieces) - 1))
        received += b"".join(event.data for event in events if isinstance(event, DataReceived))
    assert received == b"four"
    assert reset_codes(server) == []


@pytest.mark.parametrize("sent", [b"", b"thr", b"five5"])
def test_more_or_fewer_reset_the_stream_and_leave_the_connection(sent: bytes) -> None:
    server = Server()
    server.feed(request(1, headers=announcing("4")))
    events = server.feed(data(1, sent, end_stream=True))
    assert StreamReset(1, ErrorCode.PROTOCOL_ERROR, by_peer=False) in events
    assert reset_codes(server) == [ErrorCode.PROTOCOL_ERROR]
    assert server.feed(request(3, end_stream=True))
    assert server.connection.error is None


def test_too_many_are_refused_before_the_end() -> None:
    server = Server()
    server.feed(request(1, headers=announcing("4")), data(1, b"four"))
    assert any(isinstance(event, StreamReset) for event in server.feed(data(1, b"more")))


def test_trailers_that_come_too_early_reset_the_stream() -> None:
    server = Server()
    server.feed(request(1, headers=announcing("4")), data(1, b"fo"))
    trailers = raw(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 1, b"")
    assert any(isinstance(event, StreamReset) for event in server.feed(trailers))


def test_padding_is_not_counted() -> None:
    server = Server()
    padded = raw(frames.DATA, frames.PADDED | frames.END_STREAM, 1, bytes([3]) + b"four" + bytes(3))
    events = server.feed(request(1, headers=announcing("4", "4")), padded)
    assert any(isinstance(event, DataReceived) and event.data == b"four" for event in events)


@pytest.mark.parametrize("lengths", [("-1",), ("4", "5"), ("four",), ("",), ("+4",), ("4.0",), ("9" * 40,), ("٤",)])
def test_lengths_that_cannot_be_are_refused(lengths: tuple[str, ...]) -> None:
    server = Server()
    headers = announcing(*lengths)
    if not all(length.isascii() for length in lengths):
        headers = announcing(*(length.encode().decode("latin-1") for length in lengths))
    assert server.feed(request(1, headers=headers)) == []
    assert reset_codes(server) == [ErrorCode.PROTOCOL_ERROR]


def test_a_request_without_data_that_announces_some_is_refused() -> None:
    server = Server()
    assert server.feed(request(1, end_stream=True, headers=announcing("1"))) == []
    assert reset_codes(server) == [ErrorCode.PROTOCOL_ERROR]
    assert server.feed(request(3, end_stream=True, headers=announcing("0")))
