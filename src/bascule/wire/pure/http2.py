"""HTTP/2 frames and gRPC messages: split, merged and written, whatever they mean."""

from __future__ import annotations

import struct

from bascule.wire.pure.protobuf import Buffer, window

_FRAME_HEADER_BYTES = 9
_MAX_FRAME_BYTES = (1 << 24) - 1
_DATA = 0
_END_STREAM, _PADDED = 0x1, 0x8
_BAD_PADDING = 0xFF

Event = tuple[int, int, int, bytes, int]
"""Type, flags, stream id, payload, flow-controlled length."""


class _Run:
    """DATA frames between two other frames, merged per stream."""

    def __init__(self) -> None:
        self._events: list[tuple[int, list[bytes], int, int]] = []
        self._open: dict[int, int] = {}

    def add(self, stream_id: int, data: bytes, flow: int, end_stream: int) -> None:
        index = self._open.get(stream_id)
        if index is None:
            index = self._open[stream_id] = len(self._events)
            self._events.append((stream_id, [], 0, 0))
        _, parts, total, _ = self._events[index]
        parts.append(data)
        self._events[index] = (stream_id, parts, total + flow, end_stream)
        if end_stream:
            del self._open[stream_id]

    def take(self) -> list[Event]:
        events = [(_DATA, end, stream_id, b"".join(parts), flow) for stream_id, parts, flow, end in self._events]
        self._events, self._open = [], {}
        return events


def scan_frames(buffer: Buffer, start: int, end: int, max_frame: int) -> tuple[int, list[Event], int]:
    """(consumed, events, length of a frame that is too long or 0)."""
    source = window(buffer, start, end)
    events: list[Event] = []
    run = _Run()
    position = oversized = 0
    while len(source) - position >= _FRAME_HEADER_BYTES:
        high, low, frame_type, flags, stream_id = struct.unpack_from(">BHBBI", source, position)
        length = high << 16 | low
        if length > max_frame:
            oversized = length
            break
        after = position + _FRAME_HEADER_BYTES + length
        if after > len(source):
            break
        payload = source[position + _FRAME_HEADER_BYTES : after]
        position = after
        stream_id &= 0x7FFFFFFF
        if frame_type != _DATA:
            events += run.take()
            events.append((frame_type, flags, stream_id, payload, 0))
            continue
        if flags & _PADDED:
            if not payload or payload[0] >= length:
                events += run.take()
                events.append((_DATA, _BAD_PADDING, stream_id, b"", 0))
                break
            payload = payload[1 : length - payload[0]]
        run.add(stream_id, payload, length, flags & _END_STREAM)
    return start + position, events + run.take(), oversized


def frame_data(stream_id: int, data: Buffer, max_frame: int, end_stream: bool) -> bytes:
    """DATA frames of at most `max_frame` bytes each."""
    if not 1 <= max_frame <= _MAX_FRAME_BYTES:
        raise ValueError(f"DATA frames of {max_frame} bytes cannot be: HTTP/2 allows 1 to {_MAX_FRAME_BYTES}")
    source = bytes(data)
    if not source and not end_stream:
        return b""
    frames = []
    for position in range(0, len(source) or 1, max_frame):
        chunk = source[position : position + max_frame]
        last = end_stream and position + max_frame >= len(source)
        length = len(chunk)
        frames.append(struct.pack(">BHBBI", length >> 16, length & 0xFFFF, _DATA, int(last), stream_id) + chunk)
    return b"".join(frames)


def split_messages(data: Buffer, start: int, end: int, max_message: int) -> tuple[int, list[tuple[int, bytes]], int]:
    """(consumed, (compressed flag, message) each, length of a message that is too long or 0)."""
    source = window(data, start, end)
    messages: list[tuple[int, bytes]] = []
    position = 0
    while len(source) - position >= 5:
        flag, length = struct.unpack_from(">BI", source, position)
        if length > max_message:
            return start + position, messages, length
        after = position + 5 + length
        if after > len(source):
            break
        messages.append((flag, source[position + 5 : after]))
        position = after
    return start + position, messages, 0
