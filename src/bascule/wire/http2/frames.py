"""The frames of HTTP/2 (RFC 9113 section 6): their numbers, and how the small ones are written.

DATA frames are not here: they touch every byte, so `kernels.frame_data` writes and `kernels.scan_frames` reads them.
"""

import struct
from enum import IntEnum
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

ACK: Final = 0x1
END_STREAM: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY_PRESENT: Final = 0x20

BAD_PADDING: Final = 0xFF
"""Not a flag of the protocol: how `scan_frames` marks a DATA frame whose padding is longer than the frame."""

HEADER: Final = struct.Struct(">HBBBI")
"""Of a frame: its length in two parts, type, flags, stream."""
HEADER_BYTES: Final = HEADER.size
MAX_WINDOW: Final = (1 << 31) - 1
MAX_STREAM_ID: Final = (1 << 31) - 1


class ErrorCode(IntEnum):
    """What RST_STREAM and GOAWAY carry."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


def error_name(code: int) -> str:
    """The name of an error code, or its number when the peer made one up."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"


Frame = tuple[int, int, int, bytes, int]
"""Type, flags, stream, payload and bytes of flow control, as `kernels.scan_frames` gives them."""

_FRAME = struct.Struct(">HBBBI")
_U32 = struct.Struct(">I")
_GOAWAY = struct.Struct(">II")


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    length = len(payload)
    return _FRAME.pack(length >> 8, length & 0xFF, kind, flags, stream_id) + payload


def rst_stream(stream_id: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _U32.pack(code))


def ping(payload: bytes, ack: bool) -> bytes:
    return frame(PING, ACK if ack else 0, 0, payload)


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, _U32.pack(increment))


def goaway(last_stream_id: int, code: int, reason: bytes) -> bytes:
    return frame(GOAWAY, 0, 0, _GOAWAY.pack(last_stream_id, code) + reason)


def headers(stream_id: int, block: bytes, end_stream: bool, max_frame: int) -> bytes:
    """A header block as HEADERS and, if it is long, CONTINUATION frames."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= max_frame:
        return frame(HEADERS, flags | END_HEADERS, stream_id, block)
    parts = [frame(HEADERS, flags, stream_id, block[:max_frame])]
    for start in range(max_frame, len(block), max_frame):
        last = start + max_frame >= len(block)
        kind_flags = END_HEADERS if last else 0
        parts.append(frame(CONTINUATION, kind_flags, stream_id, block[start : start + max_frame]))
    return b"".join(parts)
