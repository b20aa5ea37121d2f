"""Targets: an HTTP/2 connection in both roles, and the header blocks it decodes.

Whatever arrives, `receive` answers with events: a violation is a ConnectionFailed that carries an Http2Error, and
nothing is ever raised. How the bytes were split into reads changes nothing. What a connection holds stays within its
bounds, whatever a peer sends.
"""

from __future__ import annotations

import gc
import struct
import sys
from types import BuiltinFunctionType, FunctionType, ModuleType

import hpack

from bascule import limits
from bascule.errors import Http2Error
from bascule.wire.http2 import frames
from bascule.wire.http2.connection import Connection
from bascule.wire.http2.events import ConnectionFailed, DataReceived, Event, HeadersReceived, StreamReset
from bascule.wire.http2.headers import HeaderDecoder, literal_block
from tools.fuzzing import inputs
from tools.fuzzing.chance import NUMBERS, Chance
from tools.fuzzing.target import FindingError, Target, require

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/proto.API/Publish"),
    (":authority", "test"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]
RESPONSE = [(":status", "200"), ("content-type", "application/grpc")]
TRAILERS = [("grpc-status", "0")]
ODD_FIELDS = [("connection", "close"), ("Upper", "x"), (":path", ""), ("x", "a\nb"), (":status", "099"), ("", "")]
OK = literal_block(RESPONSE)
STREAM_IDS = (0, 1, 1, 1, 3, 3, 5, 2, 7, 9, (1 << 31) - 1, (1 << 31) + 1)
COMPARED_BYTES = 30_000
"""Longer inputs can be floods, and when a flood is noticed depends on how much of it one read holds."""
HELD_BYTES = 512 * limits.KIB
HELD_BYTES_PER_STREAM = 2 * limits.KIB


# --- what arrives -----------------------------------------------------------------------------------------


def header_block(chance: Chance, encoder: hpack.Encoder, client: bool) -> bytes:
    if chance.one_in(12):
        return chance.blob(30)
    fields = list(chance.choice((RESPONSE, TRAILERS) if client else (REQUEST, REQUEST, TRAILERS)))
    large = chance.one_in(40)
    if chance.one_in(4):
        size = chance.choice((5_000, 20_000, 60_000) if large else (1, 5, 200))
        fields.append((chance.choice(("grpc-timeout", "x-a", "x-b")), "v" * size))
    if chance.one_in(8):
        fields.insert(chance.randint(0, len(fields)), chance.choice(ODD_FIELDS))
    if chance.one_in(6):
        encoder.header_table_size = chance.choice((0, 100, 4_096))
    return bytes(encoder.encode(fields, huffman=chance.one_in(2) and not large))


def headers_frames(chance: Chance, encoder: hpack.Encoder, client: bool) -> bytes:
    """HEADERS, perhaps padded, with a priority, or continued."""
    block, stream_id = header_block(chance, encoder, client), chance.choice(STREAM_IDS)
    flags = frames.END_STREAM if chance.one_in(3) else 0
    if chance.one_in(6):
        flags, block = flags | frames.PRIORITY_PRESENT, chance.randbytes(5) + block
    if chance.one_in(6):
        pad = chance.randrange(6)
        flags, block = flags | frames.PADDED, bytes((chance.lied(pad) & 0xFF,)) + block + bytes(pad)
    size = chance.choice((16_384, 16_384, 16_384, 10, 1))
    parts = [block[at : at + size] for at in range(0, len(block), size)][:40] or [b""]
    out = b""
    for number, part in enumerate(parts):
        last = frames.END_HEADERS if number + 1 == len(parts) and not chance.one_in(30) else 0
        kind, own = (frames.CONTINUATION, 0) if number else (frames.HEADERS, flags)
        out += inputs.http2_frame(chance, kind, own | last, stream_id, part)
    return out


def settings_frame(chance: Chance) -> bytes:
    values = ((1, 4_096), (2, 0), (3, 100), (4, 65_535), (5, 16_384), (6, 16_384), (1, 0), (4, 0), (5, 20_000))
    payload = b""
    for _ in range(chance.randrange(4)):
        name, value = chance.choice(values)
        odd = chance.choice(NUMBERS) if not chance.one_in(4) else chance.getrandbits(32)
        payload += struct.pack(">HI", name, value if not chance.one_in(6) else odd)
    return inputs.http2_frame(chance, frames.SETTINGS, 0 if not chance.one_in(5) else 1, 0, payload)


def any_frame(chance: Chance, encoder: hpack.Encoder, client: bool) -> bytes:
    kind = chance.choice((0, 0, 0, 1, 1, 1, 2, 3, 4, 6, 7, 8, 8, 99))
    stream_id = chance.choice(STREAM_IDS)
    if kind == frames.HEADERS:
        return headers_frames(chance, encoder, client)
    if kind == frames.SETTINGS:
        return settings_frame(chance)
    if kind == frames.DATA:
        flags, payload = chance.choice((0, 0, 1, 8, 9)), inputs.raw(chance)[:16_384]
        if flags & frames.PADDED and not chance.one_in(8):
            payload = bytes((len(payload) // 2 & 0xFF,)) + payload[:16_383]
        return inputs.http2_frame(chance, 0, flags, stream_id, payload)
    if kind == frames.WINDOW_UPDATE:
        increment = chance.choice((0, 1, 100, 65_535, (1 << 31) - 1, (1 << 32) - 1))
        return inputs.http2_frame(chance, 8, 0, stream_id, struct.pack(">I", increment))
    if kind == frames.RST_STREAM:
        return inputs.http2_frame(chance, 3, 0, stream_id, struct.pack(">I", chance.choice((0, 1, 8, 77))))
    if kind == frames.PING:
        return inputs.http2_frame(chance, 6, chance.randrange(2), 0, chance.randbytes(8))
    if kind == frames.GOAWAY:
        last = struct.pack(">II", chance.choice((0, 1, 3, (1 << 31) - 1)), chance.randrange(14))
        return inputs.http2_frame(chance, 7, 0, 0, last + chance.blob(20))
    if kind == frames.PRIORITY:
        return inputs.http2_frame(chance, 2, 0, stream_id, chance.randbytes(5))
    return inputs.http2_frame(chance, chance.randrange(256), chance.randrange(256), stream_id, chance.blob(20))


def conversation(chance: Chance, client: bool) -> bytes:
    encoder = hpack.Encoder()
    start = b"" if client or chance.one_in(30) else frames.PREFACE
    if not chance.one_in(30):
        start += inputs.http2_frame(chance, frames.SETTINGS, 0, 0, b"")
    out = start + chance.joined(lambda: any_frame(chance, encoder, client), 12)
    if chance.one_in(60):
        out += any_frame(chance, encoder, client) * chance.choice((50, 700, 3_000))
    return out[: limits.MIB]


# --- what must hold ---------------------------------------------------------------------------------------


def connection(client: bool) -> Connection:
    made = Connection(client)
    if client:
        for _ in range(3):
            made.open_stream(REQUEST)
        made.send_data(1, b"request")
        made.take(1_000)
    return made


def check_connection(data: bytes, chance: Chance, client: bool) -> None:
    _converse(connection(client), data, chance)
    if len(data) <= COMPARED_BYTES:
        whole, pieces = connection(client), connection(client)
        meant = _meaning(whole, _receive(whole, data, [len(data)]))
        in_pieces = _meaning(pieces, _receive(pieces, data, chance.cuts(len(data))))
        if meant != in_pieces:
            raise FindingError(
                f"split into pieces it means something else\n  whole:  {meant!r}\n  pieces: {in_pieces!r}"[:3_000]
            )


def _receive(one: Connection, data: bytes, ends: list[int]) -> list[Event]:
    """Feed it and do nothing else."""
    position, events = 0, list[Event]()
    for end in ends:
        position, more = one.receive(data[:end], position, end, 5.0)
        events += more
    return events


def _meaning(one: Connection, events: list[Event]) -> object:
    """The events, merged so that they do not depend on the reads. After an error only the error counts: how much of the
    data before it was reported depends on the reads."""
    if one.error is not None:
        return one.error.code
    merged: list[object] = []
    run: dict[int, tuple[bytes, bool]] = {}
    for event in events:
        if isinstance(event, DataReceived):
            before = run.get(event.stream_id, (b"", False))
            run[event.stream_id] = (before[0] + event.data, before[1] or event.end_stream)
        else:
            merged += [run, event] if run else [event]
            run = {}
    streams = {s.id: (s.send_window, s.remote_closed, s.local_closed) for s in one.streams.values()}
    return [*merged, run, streams, one.peer, one.going_away]


def _converse(one: Connection, data: bytes, chance: Chance) -> None:
    """Feed it, answer like the code above would, read now and then."""
    position, now = 0, 5.0
    for end in chance.cuts(len(data)):
        position, events = one.receive(data[:end], position, end, now)
        now += chance.choice((0.0, 0.0, 0.001, 2.0))
        require(end - limits.HTTP2_MAX_FRAME_BYTES - 9 <= position <= end, "an unread rest of more than one frame")
        for event in events:
            _answer(one, event, chance)
        failed = any(isinstance(event, ConnectionFailed) for event in events)
        require(not failed or isinstance(one.error, Http2Error), "failed without an Http2Error")
        if not chance.one_in(4):
            _read(one, chance)
    _check_bounds(one)
    for _ in range(1_000):
        if not one.has_output:
            break
        _read(one, chance)
    require(not one.has_output, "the output never ends")
    require(one.error is None or one.finished, "an ended connection is not finished")


def _answer(one: Connection, event: Event, chance: Chance) -> None:
    if isinstance(event, StreamReset):
        require(event.stream_id not in one.streams, "a stream that was reset is still there")
    if isinstance(event, HeadersReceived) and not one.client and not chance.one_in(3):
        one.send_headers(event.stream_id, OK)
        one.send_data(event.stream_id, bytes(chance.choice((0, 6, 70_000))))
    if isinstance(event, DataReceived):
        one.grant(event.stream_id, event.flow)
    if isinstance(event, DataReceived | HeadersReceived):
        action = chance.randrange(12)
        if action == 0:
            one.reset_stream(event.stream_id, 8)
        elif action == 1:
            one.trim(event.stream_id, lambda buffer, position: len(buffer))
        elif action == 2 and one.client and one.can_open:
            one.open_stream(REQUEST)
        elif action == 3:
            one.go_away()
        elif event.end_stream or action == 4:
            one.end_stream(event.stream_id, OK if not one.client else None)


def _read(one: Connection, chance: Chance) -> None:
    """Its output is whole frames of a size the peer allows."""
    written = one.take(chance.choice((100, 100_000)))[0]
    position = len(frames.PREFACE) if written.startswith(frames.PREFACE) else 0
    while position < len(written):
        length = int.from_bytes(written[position : position + 3], "big")
        require(length <= one.peer.max_frame, "a frame larger than the peer allows")
        position += 9 + length
    require(position == len(written), "the output ends inside a frame")


def _check_bounds(one: Connection) -> None:
    require(len(one.streams) <= limits.HTTP2_MAX_CONCURRENT_STREAMS, "more streams than announced")
    queued = sum(stream.queued_bytes for stream in one.streams.values())
    bound = HELD_BYTES + len(one.streams) * HELD_BYTES_PER_STREAM + 2 * queued
    held = held_bytes(one)
    require(held <= bound, f"it holds {held} bytes with {len(one.streams)} streams, more than {bound}")


def held_bytes(root: object) -> int:
    """Everything that hangs on it, code and classes apart."""
    seen: dict[int, object] = {id(root): root}
    queue, total = [root], 0
    while queue:
        one = queue.pop()
        total += sys.getsizeof(one)
        for other in gc.get_referents(one):
            if id(other) not in seen and not isinstance(other, type | ModuleType | FunctionType | BuiltinFunctionType):
                seen[id(other)] = other
                queue.append(other)
    return total


def check_blocks(data: bytes, chance: Chance) -> None:
    """Header blocks in a row: only Http2Error comes out, and remembering blocks changes nothing."""
    decoder, plain = HeaderDecoder(), hpack.Decoder(max_header_list_size=4 * limits.HTTP2_MAX_HEADER_LIST_BYTES)
    position = 0
    while position < len(data):
        end = position + 2 + int.from_bytes(data[position : position + 2], "big")
        block, position = data[position + 2 : end], end
        try:
            decoded = decoder.decode(block)
        except Http2Error:
            return
        expected = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in plain.decode(block, raw=True)]
        require(decoded == expected, "a header block is read otherwise than by a decoder that remembers none")


def _blocks(chance: Chance) -> bytes:
    encoder = hpack.Encoder()
    blocks = [header_block(chance, encoder, chance.one_in(2)) for _ in range(chance.randint(1, 6))]
    blocks += [chance.choice(blocks) for _ in range(chance.randrange(4))]
    return b"".join(len(block).to_bytes(2, "big") + block for block in blocks if len(block) < 1 << 16)


WORDS = (
    frames.PREFACE,
    frames.window_update(0, 1),
    frames.rst_stream(1, 8),
    inputs.http2_frame(Chance("settings"), frames.SETTINGS, 0, 0, b""),
    frames.ping(bytes(8), ack=False),
    b"\x00\x00\x00\x00\x01\x00\x00\x00\x01",
    OK,
    b"\x3f\xe1\x1f",  # a table of 4096 bytes
    b"\x20",  # a table of none
)
TARGETS = (
    Target("http2_server", lambda c: conversation(c, False), lambda d, c: check_connection(d, c, False), WORDS),
    Target("http2_client", lambda c: conversation(c, True), lambda d, c: check_connection(d, c, True), WORDS),
    Target("header_blocks", _blocks, check_blocks, WORDS),
)
