"""A hand-made HTTP/2 peer for tests: it writes frames as it is told, right or wrong."""

import struct
from dataclasses import dataclass

from hpack import Decoder, Encoder

from bascule.wire.http2 import frames
from bascule.wire.http2.connection import Connection
from bascule.wire.http2.events import Event

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/t.T/Echo"),
    (":authority", "test"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


def raw(kind: int, flags: int = 0, stream_id: int = 0, payload: bytes = b"") -> bytes:
    """Any frame at all, also impossible ones."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big") + payload


def settings(**values: int) -> bytes:
    names = {
        "header_table_size": 1,
        "enable_push": 2,
        "max_concurrent_streams": 3,
        "initial_window_size": 4,
        "max_frame_size": 5,
    }
    return raw(frames.SETTINGS, 0, 0, b"".join(struct.pack(">HI", names[k], v) for k, v in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    return raw(frames.WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def data(stream_id: int, payload: bytes, end_stream: bool = False) -> bytes:
    return raw(frames.DATA, int(end_stream), stream_id, payload)


def block(headers: list[tuple[str, str]] | None = None) -> bytes:
    """A header block by a fresh encoder, so it never relies on the table of the decoder."""
    return bytes(Encoder().encode([(n, v, True) for n, v in (headers or REQUEST)]))


def request(stream_id: int, end_stream: bool = False, headers: list[tuple[str, str]] | None = None) -> bytes:
    flags = frames.END_HEADERS | (frames.END_STREAM if end_stream else 0)
    return raw(frames.HEADERS, flags, stream_id, block(headers))


def decoded(payload: bytes, decoder: Decoder) -> list[tuple[str, str]]:
    return [(str(name), str(value)) for name, value in decoder.decode(payload)]


@dataclass
class Frame:
    kind: int
    flags: int
    stream_id: int
    payload: bytes


def parse(output: bytes) -> list[Frame]:
    """What a connection wrote, frame by frame (not by the code under test)."""
    found: list[Frame] = []
    position = len(frames.PREFACE) if output.startswith(frames.PREFACE) else 0
    while position < len(output):
        length = int.from_bytes(output[position : position + 3], "big")
        kind, flags = output[position + 3], output[position + 4]
        stream_id = int.from_bytes(output[position + 5 : position + 9], "big")
        payload = output[position + 9 : position + 9 + length]
        assert len(payload) == length, "the output ends in the middle of a frame"
        found.append(Frame(kind, flags, stream_id, payload))
        position += 9 + length
    return found


class Server:
    """A server connection after its handshake."""

    def __init__(self, **peer_settings: int) -> None:
        self.connection = Connection(client=False)
        self.now = 100.0
        self.feed(frames.PREFACE + settings(**peer_settings))
        self.output()

    def feed(self, *pieces: bytes) -> list[Event]:
        received = b"".join(pieces)
        consumed, events = self.connection.receive(received, 0, len(received), self.now)
        assert consumed == len(received)
        return events

    def output(self, most: int = 1 << 30) -> list[Frame]:
        found: list[Frame] = []
        while self.connection.has_output:
            found += parse(self.connection.take(most)[0])
        return found

    def error_code(self) -> int | None:
        """The code the connection ended with, as GOAWAY says it."""
        error = self.connection.error
        if error is None:
            return None
        goaways = [frame for frame in self.output() if frame.kind == frames.GOAWAY]
        assert int.from_bytes(goaways[-1].payload[4:8], "big") == error.code
        return error.code
