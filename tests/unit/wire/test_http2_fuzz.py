"""Whatever arrives, a connection answers with events and frames: it never raises, and it holds only what it must."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from bascule import limits
from bascule.wire.http2 import frames
from bascule.wire.http2.connection import Connection
from bascule.wire.http2.events import DataReceived, HeadersReceived, StreamReset
from bascule.wire.http2.headers import literal_block
from tests.harness import http2_peer as peer

_STREAM_IDS = st.sampled_from([0, 1, 2, 3, 5, 7, 9, 2**31 - 1])
_OK = literal_block([(":status", "200")])

_frames = st.one_of(
    st.builds(peer.raw, st.integers(0, 12), st.integers(0, 255), _STREAM_IDS, st.binary(max_size=40)),
    st.builds(peer.request, _STREAM_IDS, st.booleans()),
    st.builds(peer.data, _STREAM_IDS, st.binary(max_size=300), st.booleans()),
    st.builds(peer.window_update, _STREAM_IDS, st.sampled_from([0, 1, 100, 2**31 - 1, 2**32 - 1])),
    st.builds(
        lambda size, window, table: peer.settings(
            max_frame_size=size, initial_window_size=window, header_table_size=table
        ),
        st.sampled_from([16_384, 20_000]),
        st.sampled_from([0, 1, 65_535, 2**31 - 1]),
        st.sampled_from([0, 100, 4096, 2**32 - 1]),
    ),
    st.builds(lambda i: peer.raw(frames.RST_STREAM, 0, i, b"\0\0\0\x08"), _STREAM_IDS),
)


def _held_bytes(connection: Connection) -> int:
    return sum(stream.queued_bytes for stream in connection.streams.values())


def _exercise(connection: Connection, received: bytes, cuts: list[int]) -> None:
    """Feed it in pieces; answer what it reports like a server would."""
    rest = b""
    position = 0
    for cut in [*cuts, len(received)]:
        piece = rest + received[position : max(position, cut)]
        position = max(position, cut)
        consumed, events = connection.receive(piece, 0, len(piece), 5.0)
        assert 0 <= consumed <= len(piece)
        rest = piece[consumed:]
        assert len(rest) <= limits.HTTP2_MAX_FRAME_BYTES + 9
        for event in events:
            if isinstance(event, HeadersReceived) and not connection.client:
                connection.send_headers(event.stream_id, _OK)
                connection.send_data(event.stream_id, b"answer")
            elif isinstance(event, DataReceived):
                connection.grant(event.stream_id, event.flow)
                if event.end_stream:
                    connection.end_stream(event.stream_id, _OK)
            elif isinstance(event, StreamReset):
                assert event.stream_id not in connection.streams
        while connection.has_output:
            peer.parse(connection.take(1000)[0])
    assert _held_bytes(connection) <= 6 * len(connection.streams)
    assert connection.error is None or connection.finished


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=4).map(sorted))
def test_random_bytes_after_the_handshake_do_no_harm(malformed: bytes, cuts: list[int]) -> None:
    _exercise(peer.Server().connection, malformed, cuts)


@given(st.binary(max_size=100))
def test_random_bytes_instead_of_a_handshake_do_no_harm(malformed: bytes) -> None:
    _exercise(Connection(client=False), malformed, [])
    _exercise(Connection(client=True), malformed, [])


@settings(max_examples=300)
@given(st.lists(_frames, max_size=12), st.lists(st.integers(0, 500), max_size=4).map(sorted))
def test_frames_in_any_order_do_no_harm_to_a_server(pieces: list[bytes], cuts: list[int]) -> None:
    _exercise(peer.Server().connection, b"".join(pieces), cuts)


@settings(max_examples=200)
@given(st.lists(_frames, max_size=12))
def test_frames_in_any_order_do_no_harm_to_a_client(pieces: list[bytes]) -> None:
    client = Connection(client=True)
    client.open_stream(peer.REQUEST)
    client.open_stream(peer.REQUEST)
    client.send_data(1, b"answer")
    _exercise(client, peer.settings() + b"".join(pieces), [])


@settings(max_examples=200)
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_a_good_conversation_with_flipped_bytes_does_no_harm(seed: int, flips: int) -> None:
    good = bytearray(
        peer.request(1)
        + peer.data(1, b"\0\0\0\0\5hello", end_stream=True)
        + peer.settings(initial_window_size=100)
        + peer.request(3, end_stream=True)
        + peer.window_update(0, 5000)
        + peer.raw(frames.PING, 0, 0, bytes(8))
        + peer.request(5)
        + peer.raw(frames.RST_STREAM, 0, 5, b"\0\0\0\x08")
    )
    chance = random.Random(seed)
    for _ in range(flips):
        good[chance.randrange(len(good))] = chance.randrange(256)
    _exercise(peer.Server().connection, bytes(good), [])


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=8),
    st.lists(st.integers(1, 5000), min_size=1, max_size=30),
    st.integers(16_384, 20_000),
)
def test_sent_bytes_are_the_queued_bytes_however_windows_split_them(
    sizes: list[int], increments: list[int], max_frame: int
) -> None:
    server = peer.Server(initial_window_size=0, max_frame_size=max_frame)
    server.feed(peer.request(1))
    queued = b"".join(bytes([n % 256]) * size for n, size in enumerate(sizes))
    for n, size in enumerate(sizes):
        server.connection.send_data(1, bytes([n % 256]) * size)
    server.connection.end_stream(1, _OK)
    sent = b""
    allowed = 0
    for increment in increments:
        server.feed(peer.window_update(1, increment))
        allowed += increment
        sent += b"".join(f.payload for f in server.output() if f.kind == frames.DATA)
        assert sent == queued[: min(allowed, len(queued))]
    assert (1 in server.connection.streams) == (allowed < len(queued))
