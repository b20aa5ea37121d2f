"""SETTINGS (RFC 9113 section 6.5): what we announce, and what the peer asked of us."""

import struct
from dataclasses import dataclass
from typing import Final

from bascule import limits
from bascule.errors import Http2Error
from bascule.wire.http2 import frames
from bascule.wire.http2.frames import ErrorCode

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

_SETTING = struct.Struct(">HI")
_FRAME_SIZES = range(1 << 14, 1 << 24)


@dataclass(slots=True)
class PeerSettings:
    """The peer's values; until it says otherwise, the protocol's defaults."""

    header_table_size: int = 4096
    max_concurrent_streams: int = frames.MAX_STREAM_ID
    initial_window: int = 65_535
    max_frame: int = 1 << 14


def announcement(client: bool) -> bytes:
    """Our SETTINGS frame."""
    values = [
        (INITIAL_WINDOW_SIZE, limits.HTTP2_STREAM_WINDOW_BYTES),
        (MAX_FRAME_SIZE, limits.HTTP2_MAX_FRAME_BYTES),
        (MAX_HEADER_LIST_SIZE, limits.HTTP2_MAX_HEADER_LIST_BYTES),
    ]
    if client:
        values.append((ENABLE_PUSH, 0))
    else:
        values.append((MAX_CONCURRENT_STREAMS, limits.HTTP2_MAX_CONCURRENT_STREAMS))
    payload = b"".join(_SETTING.pack(name, value) for name, value in values)
    return frames.frame(frames.SETTINGS, 0, 0, payload)


def acknowledgement() -> bytes:
    return frames.frame(frames.SETTINGS, frames.ACK, 0, b"")


def parse(payload: bytes, from_server: bool) -> dict[int, int]:
    """The settings of one frame. Each value is checked; of a setting named twice only the last has an effect,
    so that a frame full of window sizes costs one walk over the streams, not thousands."""
    if len(payload) % 6:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "a SETTINGS frame is not a whole number of settings")
    values: dict[int, int] = {}
    for name, value in _SETTING.iter_unpack(payload):
        if name == ENABLE_PUSH and (value > 1 or (from_server and value)):
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH cannot be {value}")
        if name == INITIAL_WINDOW_SIZE and value > frames.MAX_WINDOW:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE {value} is over 2^31-1")
        if name == MAX_FRAME_SIZE and value not in _FRAME_SIZES:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE {value} is out of its range")
        if name <= MAX_HEADER_LIST_SIZE:
            values[name] = value
    return values
