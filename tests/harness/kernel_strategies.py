"""Inputs for the kernels that are mostly right and then bent: protobuf, NATS lines, batches, records, frames."""

from __future__ import annotations

import struct

from hypothesis import strategies as st

from bascule.wire.pb import api_pb2
from tests.harness.kernel_inputs import MAGIC, SUBJECT, checked_envelope, envelope, http2_frame, pack

TEXT = st.text(max_size=6) | st.sampled_from(
    ["", "subject", "reply", "é", "\ufffd", "\x00", "in.box", "own.s1", "own.u2"]
)
RAW = st.binary(max_size=8) | TEXT.map(str.encode)
BAD_UTF8 = st.sampled_from(
    [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b"a\xf0\x9f\x98z", b"\x80"]
)
SUBJECTS = st.sampled_from([SUBJECT, b"a", b"a.b", b"own.s1", b"own.u2", b"cluster.raft", "é.x".encode()]) | BAD_UTF8
INT64 = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-2, 6)
POLICIES = st.sampled_from([0, 0, 0, 1, 1, 2, 3, -1, 255, 256, -(1 << 31)])


@st.composite
def mutated(draw: st.DrawFn, source: st.SearchStrategy[bytes]) -> bytes:
    """Often the source itself; else with a few bytes changed, removed, doubled or put in."""
    data = bytearray(draw(source))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 1, 2, 4]))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.integers(0, 4))
        if kind == 0 and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == 1 and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == 2:
            del data[at : at + draw(st.integers(1, 4))]
        elif kind == 3:
            data[at:at] = draw(st.binary(min_size=1, max_size=3) | st.sampled_from([b"\x00", b"\r\n", b"\xff\xff"]))
        else:
            del data[at:]
    return bytes(data)


@st.composite
def varints(draw: st.DrawFn, values: st.SearchStrategy[int] | None = None) -> bytes:
    """Sometimes longer than needed, sometimes too long, sometimes with bits that do not fit."""
    value = draw(values if values is not None else INT64) & ((1 << 64) - 1)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    for _ in range(draw(st.sampled_from([0] * 12 + [1, 2, 3, 4, 5, 8, 9, 10]))):
        out[-1] |= 0x80
        out.append(0)
    if draw(st.integers(0, 19)) == 0:
        out[-1] |= draw(st.integers(0, 0x7F))
    return bytes(out)


@st.composite
def wire_fields(draw: st.DrawFn, depth: int = 3) -> bytes:
    """One protobuf field: known or not, of a fitting wire type or not."""
    number = draw(st.integers(1, 13) | st.sampled_from([0, 14, 15, 16, 2000, (1 << 29) - 1]))
    wire_type = draw(st.sampled_from([0, 0, 0, 1, 2, 2, 2, 2, 3, 4, 5, 6, 7] if depth else [0, 2, 2]))
    tag = draw(varints(st.just(number << 3 | wire_type)))
    if wire_type == 0:
        return tag + draw(varints())
    if wire_type == 1:
        return tag + draw(st.binary(min_size=8, max_size=8))
    if wire_type == 2:
        nested = st.lists(wire_fields(depth - 1), max_size=3).map(b"".join) if depth else RAW
        content = draw(RAW | BAD_UTF8 | nested | map_entries())
        return tag + draw(varints(st.just(len(content)))) + content
    if wire_type == 3:
        inner = draw(st.lists(wire_fields(depth - 1), max_size=2).map(b"".join))
        end = draw(varints(st.just((number if draw(st.integers(0, 9)) else number + 1) << 3 | 4)))
        return tag + inner + end
    return tag + (draw(st.binary(min_size=4, max_size=4)) if wire_type == 5 else b"")


def map_entries() -> st.SearchStrategy[bytes]:
    return st.builds(lambda key, value: b"\x0a%c%b\x12%c%b" % (len(key), key, len(value), value), RAW, RAW)


HEADERS = st.dictionaries(TEXT, RAW, max_size=3)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    message = api_pb2.Message(
        offset=draw(INT64),
        key=draw(RAW),
        value=draw(RAW),
        stream=draw(TEXT),
        partition=draw(st.integers(-2, 5)),
        headers=draw(HEADERS),
        ackInbox=draw(TEXT),
        correlationId=draw(TEXT),
    )
    message.ackPolicy = draw(POLICIES)  # type: ignore[assignment]
    return message.SerializeToString()


@st.composite
def publish_requests(draw: st.DrawFn) -> bytes:
    request = api_pb2.PublishRequest(
        key=draw(RAW),
        value=draw(RAW),
        stream=draw(st.sampled_from(["s", "s", "occ", "é", ""])),
        partition=draw(st.integers(-1, 4)),
        headers=draw(HEADERS),
        ackInbox=draw(TEXT),
        correlationId=draw(TEXT),
        expectedOffset=draw(INT64),
    )
    request.ackPolicy = draw(POLICIES)  # type: ignore[assignment]
    return request.SerializeToString()


@st.composite
def acks(draw: st.DrawFn) -> bytes:
    ack = api_pb2.Ack(stream=draw(TEXT), msgSubject=draw(TEXT), offset=draw(INT64), correlationId=draw(TEXT))
    ack.ackError = draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4, 5, -1]))  # type: ignore[assignment]
    ack.ackPolicy = draw(POLICIES)  # type: ignore[assignment]
    return ack.SerializeToString()


def protobuf(valid: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """A valid message, with odd fields before and after it, and then bent."""
    odd = st.lists(wire_fields(), max_size=2).map(b"".join)
    deep = st.sampled_from([99, 100, 101]).map(lambda depth: b"\xa3\x06" * depth + b"\xa4\x06" * depth)
    mixed = st.tuples(odd, valid, odd).map(b"".join)
    return st.one_of(valid, mixed, mutated(mixed), mutated(valid), deep, st.binary(max_size=24))


def envelopes(payloads: st.SearchStrategy[bytes], message_type: int) -> st.SearchStrategy[bytes]:
    valid = payloads.map(lambda payload: envelope(payload, message_type))
    checked = payloads.map(lambda payload: checked_envelope(payload, message_type))
    odd = st.builds(
        lambda version, start, flags, kind, payload: MAGIC + bytes((version, start, flags, kind)) + payload,
        st.integers(0, 1),
        st.integers(0, 14),
        st.integers(0, 3),
        st.integers(0, 2),
        payloads,
    )
    return st.one_of(valid, valid, checked, odd, mutated(valid), mutated(checked), st.binary(max_size=12))


def batches(payloads: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    replies = st.just(b"") | SUBJECTS
    return st.lists(st.tuples(SUBJECTS, replies, payloads), max_size=5).map(lambda items: pack(*items))


BLANKS = st.sampled_from([b" ", b" ", b" ", b"\t", b" \t "])
LINE_ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n"])


@st.composite
def nats_items(draw: st.DrawFn) -> bytes:
    """One item a NATS server may send."""
    verb = draw(st.sampled_from([b"MSG", b"MSG", b"msg", b"HMSG", b"HmSg", b"PING", b"+ok", b"-ERR", b"INFO", b"WHAT"]))
    end = draw(LINE_ENDS)
    if verb.upper() not in (b"MSG", b"HMSG"):
        return verb + draw(st.just(b"") | st.tuples(BLANKS, RAW).map(b"".join)) + end
    payload = draw(st.binary(max_size=20))
    words = [verb, draw(SUBJECTS), b"%d" % draw(st.integers(0, 4))]
    words += draw(st.lists(SUBJECTS, max_size=1))
    if verb.upper() == b"HMSG":
        words.append(b"%d" % draw(st.integers(0, len(payload))))
    words.append(b"%d" % len(payload))
    return draw(BLANKS).join(words) + end + payload + b"\r\n"


NATS_STREAMS = st.lists(nats_items(), max_size=6).map(b"".join)

http2_frames = st.builds(
    http2_frame,
    st.sampled_from([0, 0, 0, 0, 1, 3, 8]),
    st.sampled_from([0, 0, 1, 8, 9, 4]),
    st.integers(0, 3) | st.just(0x80000001),
    st.binary(max_size=12) | st.binary(max_size=6).map(lambda data: bytes((len(data) // 2,)) + data),
)


def grpc_frames(payloads: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    framed = st.builds(
        lambda flag, payload: struct.pack(">BI", flag, len(payload)) + payload,
        st.sampled_from([0, 0, 0, 0, 0, 0, 0, 1]),
        payloads,
    )
    return st.lists(framed, max_size=4).map(b"".join)
