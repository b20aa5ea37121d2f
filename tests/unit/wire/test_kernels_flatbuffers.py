"""Messages of the FlatBuffers draft, on both twins, judged by the official library: what they ask for, and that nothing
that is bent is followed out of its bytes."""

import struct
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bascule.wire.envelope import MsgType, encode
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pure.accept import pending_acks
from tests.harness.drafts import draft, drafted_envelope, read
from tests.harness.kernel_inputs import NOW, ORIGIN, SUBJECT, built_twins, pack, parse_messages
from tests.harness.kernel_strategies import mutated

TWINS = built_twins()


def taken(kernels: ModuleType, *payloads: bytes, occ: bool = False, option: bool = True) -> Any:
    tail = kernels.record_tail(ORIGIN, SUBJECT, b"")
    batch = pack(*((SUBJECT, b"", payload) for payload in payloads))
    return kernels.encode_records(batch, ORIGIN, SUBJECT, tail, 0, 9, NOW, 0, 1 << 20, occ, b"", None, option)


@pytest.fixture(params=TWINS, ids=lambda twin: twin.__name__)
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    twin: ModuleType = request.param
    return twin


def test_everything_that_a_draft_message_asks_for_is_done(kernels: ModuleType) -> None:
    payload = drafted_envelope(
        key=b"k",
        value=b"v\x00",
        headers=[("h", b"1"), ("é", b""), ("subject", b"not mine")],
        policy=1,
        timestamp=77,
        ack_inbox="in.box",
        correlation_id="c1",
        subject="elsewhere",
        reply="nor there",
    )
    records, count, _, _, leader, every, errors, _ = taken(kernels, payload, drafted_envelope(policy=2), b"plain")
    first, second, third = parse_messages(records)
    assert (first.key, first.value, first.timestamp, first.subject) == (b"k", b"v\x00", NOW, SUBJECT.decode())
    assert dict(first.headers) == {"subject": SUBJECT, "reply": b"", "h": b"1", "é": b""}
    assert (second.value, third.value, count) == (b"v", b"plain", 3)
    (ack,) = pending_acks(every)
    assert (ack[0], ack[2], ack[4], ack[6]) == (0, 1, b"in.box", b"c1")
    assert (leader, errors) == (b"", b"")


def test_without_the_option_a_draft_message_is_a_plain_one(kernels: ModuleType) -> None:
    payload = drafted_envelope(value=b"v", ack_inbox="in.box")
    records, *_, leader, every, _, _ = taken(kernels, payload, option=False)
    assert (parse_messages(records)[0].value, leader, every) == (payload, b"", b"")


def test_the_released_protocol_wins(kernels: ModuleType) -> None:
    """Its envelopes are understood as ever; and type 1, which is Replication in the draft, is an ack."""
    message = api.Message(value=b"released", key=b"k").SerializeToString()
    ack = encode(MsgType.ACK, draft(value=b"v"))
    records, *_ = taken(kernels, encode(MsgType.PUBLISH, message), encode(MsgType.PUBLISH, b""), ack)
    assert [each.value for each in parse_messages(records)] == [b"released", b"", ack]


def test_expected_offsets_checksums_and_absent_fields(kernels: ModuleType) -> None:
    payloads = [
        drafted_envelope(value=b"a", offset=-1, crc=True),
        drafted_envelope(value=None, offset=1),
        drafted_envelope(value=b"c", offset=1, ack_inbox="i"),
        drafted_envelope(value=b"d", headers=[], offset=2),
    ]
    records, *_, errors, taken_count = taken(kernels, *payloads, occ=True)
    assert [each.value for each in parse_messages(records)] == [b"a", b"", b"d"]
    assert ([each[3] for each in pending_acks(errors)], taken_count) == ([2], 3)
    damaged = bytearray(payloads[0])
    damaged[-1] ^= 1
    assert parse_messages(taken(kernels, bytes(damaged))[0])[0].value == damaged


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x04",
        u32(0),
        u32(0xFFFFFFFF),
        u32(4, 0x80000000),
        u32(8, 0, 4),
        draft()[:-4],
        draft(value=b"xyz" * 20)[:-4],
        draft()[:20],
        draft(value=b"x" * 100)[:60],
        u32(4) + struct.pack("<i", -4) + struct.pack("<HH", 4, 4),
        u32(4) + struct.pack("<i", 0) + struct.pack("<HH", 5, 4),
    ],
)
def test_what_is_bent_is_a_plain_message(kernels: ModuleType, content: bytes) -> None:
    payload = encode(MsgType.PUBLISH, content)
    if content:
        assert parse_messages(taken(kernels, payload)[0])[0].value == payload


@pytest.mark.parametrize("field", ["ack_inbox", "correlation_id", "subject", "reply"])
def test_text_that_is_not_utf8_makes_a_plain_message(kernels: ModuleType, field: str) -> None:
    texts: dict[str, Any] = {field: "XYZ"}
    content = draft(value=b"v", **texts).replace(b"XYZ", b"\xff\xfeZ")
    payload = encode(MsgType.PUBLISH, content)
    assert parse_messages(taken(kernels, payload)[0])[0].value == payload
    named = encode(MsgType.PUBLISH, draft(headers=[("XYZ", b"")]).replace(b"XYZ", b"\xff\xfeZ"))
    assert parse_messages(taken(kernels, named)[0])[0].value == named


def shared_headers(count: int, nbytes: int) -> bytes:
    """A vector of headers, all of which are one table."""
    content = bytearray(draft(headers=[("h", b"x" * nbytes)] + [("", b"")] * (count - 1)))
    expected = u32(count)
    at = content.index(expected) + 4
    target = at + int.from_bytes(content[at : at + 4], "little")
    for number in range(count):
        content[at + 4 * number : at + 4 * number + 4] = u32(target - at - 4 * number)
    return bytes(content)


def test_what_a_buffer_refers_to_often_is_not_stored_often(kernels: ModuleType) -> None:
    fits, large = shared_headers(1000, 5), shared_headers(1000, 5000)
    payload = encode(MsgType.PUBLISH, large)
    assert read(large)[3] == [(b"h", b"x" * 5000)] * 1000, "the library follows it"
    assert parse_messages(taken(kernels, payload)[0])[0].value == payload
    assert parse_messages(taken(kernels, encode(MsgType.PUBLISH, fits))[0])[0].value == b"v"
    many = encode(MsgType.PUBLISH, draft(headers=[("h", b"")] * 4097))
    assert parse_messages(taken(kernels, many)[0])[0].value == many


CONTENTS = st.binary(max_size=9)
TEXTS = st.text(max_size=5)
DRAFTS = st.builds(
    draft,
    value=st.none() | CONTENTS,
    key=st.none() | CONTENTS,
    headers=st.none() | st.lists(st.tuples(TEXTS, CONTENTS), max_size=3),
    offset=st.integers(-(1 << 63), (1 << 63) - 1),
    policy=st.integers(0, 255),
    ack_inbox=TEXTS,
    correlation_id=TEXTS,
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(mutated(DRAFTS))
@example(draft())
def test_what_is_taken_of_a_bent_buffer_is_what_the_official_library_reads(content: bytes) -> None:
    payload = encode(MsgType.PUBLISH, content)
    answers = [taken(twin, payload) for twin in TWINS]
    assert all(answer == answers[0] for answer in answers)
    (stored,) = parse_messages(answers[0][0])
    if stored.value == payload:
        return
    try:
        released = api.Message.FromString(content)
        assert stored.value == released.value
        return
    except Exception:  # the protobuf library's own class for a message that is none
        pass
    _, key, value, headers, *_ = read(content)
    assert (stored.key, stored.value) == (key, value)
    expected = {(name or b"").decode(): said for name, said in headers}
    assert dict(stored.headers) == {**expected, "subject": SUBJECT, "reply": b""}


@settings(max_examples=100, deadline=None)
@given(DRAFTS)
def test_whatever_the_official_library_writes_is_understood(content: bytes) -> None:
    (stored,) = parse_messages(taken(TWINS[0], encode(MsgType.PUBLISH, content))[0])
    _, key, value, *_ = read(content)
    assert (stored.key, stored.value) == (key, value)
