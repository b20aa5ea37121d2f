"""One unary gRPC call over one socket, with nothing of ours in it but the proto files.

The process-level tests wait for brokers with it. It shares no code with the broker's own HTTP/2, so a broker
that answers it is really there, and it puts no thread, event loop or gRPC library into the test process.

Known to be small: no TLS, no flow control (answers stay below the 64 KiB every peer may send unasked).
"""

import socket
import struct
from dataclasses import dataclass

from hpack import Decoder, Encoder

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, GOAWAY = 0, 1, 4, 6, 7
ACK = END_STREAM = 1
END_HEADERS = 4
STREAM_ID = 1
MAX_ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True)
class Answer:
    """How the call ended. `message` is empty unless `status` is 0."""

    status: int
    text: str
    message: bytes


def call(host: str, port: int, path: str, request: bytes, timeout_s: float = 5.0) -> Answer:
    """Raises OSError when there is no connection or it ends before the answer."""
    headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", f"{host}:{port}"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    block = Encoder().encode(headers)
    framed = struct.pack(">BI", 0, len(request)) + request
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        connection.sendall(
            PREFACE
            + _frame(SETTINGS, 0, 0, b"")
            + _frame(HEADERS, END_HEADERS, STREAM_ID, block)
            + _frame(DATA, END_STREAM, STREAM_ID, framed)
        )
        return _answer(connection)


def _answer(connection: socket.socket) -> Answer:
    decoder = Decoder()
    fields: dict[str, str] = {}
    body = b""
    while True:
        kind, flags, stream_id, payload = _read_frame(connection)
        if kind == SETTINGS and not flags & ACK:
            connection.sendall(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            connection.sendall(_frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            raise ConnectionAbortedError("the server said GOAWAY before it answered")
        elif kind == DATA and stream_id == STREAM_ID:
            body += payload
        elif kind == HEADERS and stream_id == STREAM_ID:
            fields.update((_text(name), _text(value)) for name, value in decoder.decode(payload))
        if stream_id == STREAM_ID and kind in (DATA, HEADERS) and flags & END_STREAM:
            return Answer(int(fields.get("grpc-status", "2")), fields.get("grpc-message", ""), body[5:])


def _frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream_id) + payload


def _read_frame(connection: socket.socket) -> tuple[int, int, int, bytes]:
    head = _read_exactly(connection, 9)
    length = int.from_bytes(head[:3], "big")
    if length > MAX_ANSWER_BYTES:
        raise ConnectionAbortedError(f"a frame of {length} bytes: not an HTTP/2 answer to a small call")
    kind, flags, stream_id = struct.unpack(">BBI", head[3:])
    return kind, flags, stream_id & 0x7FFFFFFF, _read_exactly(connection, length)


def _read_exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            raise ConnectionResetError("the server closed the connection before it answered")
        data += piece
    return data


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
