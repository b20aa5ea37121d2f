"""The two twins against each other, and both against upb, on inputs that are mostly right and then bent.

For any input both twins return the same or raise the same. For whatever has protobuf in it the protobuf library
is the third judge: of what is accepted, and of what the bytes mean. Where upb forgets a header entry that holds
unknown fields, it is asked about acceptance only. BASCULE_EXAMPLES asks for more examples than a quick run takes.
"""

from __future__ import annotations

import os
import struct
from itertools import accumulate
from typing import Any, TypeVar

import google_crc32c
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from bascule.errors import NatsProtocolError
from bascule.wire.envelope import MsgType, decode
from bascule.wire.pb import api_pb2
from bascule.wire.pure.protobuf import varint
from bascule.wire.record import ack_prefix
from bascule.wire.subjects import usable_subject
from tests.harness.kernel_inputs import (
    NOW,
    ORIGIN,
    SUBJECT,
    built_twins,
    frame,
    make_records,
    pack,
    pack_pending,
    parse_messages,
    twin,
    unframe,
)
from tests.harness.kernel_strategies import (
    BAD_UTF8,
    INT64,
    NATS_STREAMS,
    RAW,
    SUBJECTS,
    TEXT,
    acks,
    batches,
    envelopes,
    grpc_frames,
    http2_frames,
    messages,
    mutated,
    protobuf,
    publish_requests,
)

TWINS = built_twins()
PURE = TWINS[0]
PREFIX = ack_prefix("readings", "sensor.readings")
TAIL = PURE.record_tail(ORIGIN, SUBJECT, b"")
AnyMessage = TypeVar("AnyMessage", bound=Message)

examples = settings(
    max_examples=int(os.environ.get("BASCULE_EXAMPLES", "150")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def both(name: str, *arguments: Any) -> Any:
    """What both twins answer, or the kind of error both raise. That they agree is the point."""
    answers: list[Any] = []
    for kernels in TWINS:
        try:
            answers.append(getattr(kernels, name)(*arguments))
        except (ValueError, NatsProtocolError) as error:
            answers.append(ValueError if isinstance(error, ValueError) else NatsProtocolError)
    for answer in answers:
        note(repr(answer))
        assert answer == answers[0]
        assert repr(answer) == repr(answers[0])  # also True against 1, bytearray against bytes
    return answers[0]


def judged(kind: type[AnyMessage], payload: bytes) -> AnyMessage | None:
    """What upb makes of it: None if it refuses."""
    try:
        return kind.FromString(payload)
    except DecodeError:
        return None


def forgot_headers(message: Message, number: int) -> bool:
    """upb put a map entry aside because something in it was unknown."""
    unknown = UnknownFieldSet(message)
    fields = [unknown[index] for index in range(len(unknown))]
    return any(field.field_number == number and field.wire_type == 2 for field in fields)


def test_the_compiled_twin_takes_part() -> None:
    assert twin("compiled") in TWINS


# --- NATS -------------------------------------------------------------------------------------------------


@examples
@given(mutated(NATS_STREAMS), st.sampled_from([20, 60, 200]), st.sampled_from([5, 100]))
def test_both_twins_read_nats_alike(data: bytes, max_line: int, max_payload: int) -> None:
    both("split_nats", data, 0, len(data), max_line, max_payload)


@examples
@given(NATS_STREAMS, st.integers(1, 40))
def test_how_reads_are_split_does_not_matter(data: bytes, size: int) -> None:
    whole = both("split_nats", data, 0, len(data), 1000, 1000)
    position, end, batches_by_sid, controls = 0, 0, dict[int, bytes](), list[tuple[bytes, bytes]]()
    while end < len(data):
        end = min(end + size, len(data))
        answer = both("split_nats", data, position, end, 1000, 1000)
        if answer is NatsProtocolError:
            assert whole is NatsProtocolError
            return
        consumed, needed, deliveries, lines = answer
        assert needed == 0 or needed > end - consumed
        for sid, _, batch in deliveries:
            batches_by_sid[sid] = batches_by_sid.get(sid, b"") + batch
        controls += lines
        position = consumed
    assert whole is not NatsProtocolError
    assert (position, controls) == (whole[0], whole[3])
    assert batches_by_sid == {sid: batch for sid, _, batch in whole[2]}


# --- records ----------------------------------------------------------------------------------------------


@examples
@given(
    mutated(batches(envelopes(protobuf(messages()), 0))),
    st.sampled_from([0, 5, 300]),
    INT64.filter(lambda value: 0 <= value < 1 << 62),
    st.sampled_from([0, 7, 30, 10_000]),
    st.booleans(),
    st.sampled_from([b"", b"cluster.", b"a"]),
)
def test_both_twins_write_the_same_records(
    batch: bytes, next_offset: int, last_timestamp: int, max_bytes: int, occ: bool, refused: bytes
) -> None:
    answer = both(
        "encode_records", batch, ORIGIN, SUBJECT, TAIL, next_offset, 9, NOW, last_timestamp, max_bytes, occ, refused
    )
    if answer is not ValueError:
        records, count, end, *_ = answer
        assert end == next_offset + count
        assert both("scan_records", records, 0, len(records), next_offset)[1] == count
        for pending in answer[4:7]:
            both("encode_acks", pending, PREFIX, SUBJECT, NOW, b"own.", 120)


@examples
@given(
    st.lists(protobuf(messages()) | RAW, max_size=4).map(lambda each: b"".join(map(frame, each))) | RAW,
    st.sampled_from([0, 5, 300]),
    st.sampled_from([0, NOW, NOW + 5]),
    st.sampled_from([0, 7, 30, 10_000]),
    st.sampled_from([0, 1, 3, 1 << 40]),
    st.booleans(),
)
def test_both_twins_make_the_same_records_of_framed_messages(
    framed: bytes, next_offset: int, last_timestamp: int, max_bytes: int, most: int, atomic: bool
) -> None:
    records, count, end, _, problem = both(
        "encode_messages", framed, SUBJECT, TAIL, next_offset, 9, NOW, last_timestamp, max_bytes, most, atomic
    )
    if problem:
        assert (records, end) == (b"", next_offset)
        return
    assert end == next_offset + count
    assert both("scan_records", records, 0, len(records), next_offset)[:2] == (len(records), count)
    for stored, message in zip(parse_messages(records), parse_messages(framed), strict=True):
        assert (stored.key, stored.value) == (message.key, message.value)
    both("open_batch", records, 0, len(records))


@examples
@given(SUBJECTS, st.just(b"") | SUBJECTS, envelopes(protobuf(messages()), 0))
def test_a_record_says_what_upb_read_in_the_envelope(subject: bytes, reply: bytes, payload: bytes) -> None:
    records, *_, leader_pending, all_pending, _, _ = both(
        "encode_records", pack((subject, reply, payload)), ORIGIN, SUBJECT, TAIL, 3, 9, NOW, 0, 1000, False, b""
    )
    (stored,) = parse_messages(records)
    content = decode(payload, MsgType.PUBLISH)
    message = judged(api_pb2.Message, content) if content is not None else None
    expected = message if message is not None else api_pb2.Message(value=payload)
    assert (stored.key, stored.value, stored.offset, stored.timestamp) == (expected.key, expected.value, 3, NOW)
    assert (stored.subject, stored.replySubject) == (subject.decode(errors="replace"), reply.decode(errors="replace"))
    headers = {**expected.headers, "subject": subject, "reply": reply}
    if not forgot_headers(expected, 9):
        assert dict(stored.headers) == headers
    pending = b""
    if message is not None and usable_subject(message.ackInbox.encode()) and message.ackPolicy in (0, 1):
        pending = pack_pending(
            3,
            message.ackInbox.encode(),
            policy=message.ackPolicy,
            subject=b"" if subject == SUBJECT else subject.decode(errors="replace").encode(),
            correlation=message.correlationId.encode(),
        )
    assert leader_pending + all_pending == pending
    assert not (leader_pending and all_pending)


@examples
@given(st.binary(max_size=30) | st.lists(BAD_UTF8 | RAW, max_size=5).map(b"".join), SUBJECTS | st.just(b""))
def test_subjects_are_repaired_as_python_repairs_them(subject: bytes, reply: bytes) -> None:
    message = api_pb2.Message.FromString(both("record_tail", ORIGIN, subject, reply))
    assert message.subject == subject.decode("utf-8", "replace")
    assert message.replySubject == reply.decode("utf-8", "replace")
    assert dict(message.headers) == {"subject": subject, "reply": reply}


@examples
@given(
    st.lists(RAW, max_size=4).map(lambda values: b"".join(make_records(PURE, values, 2))),
    st.data(),
    st.sampled_from([0, 2, 3, -5]),
    st.integers(0, 3),
)
def test_both_twins_read_damaged_records_alike(
    records: bytes, data: st.DataObject, min_offset: int, start: int
) -> None:
    bent = data.draw(mutated(st.just(records)))
    start = min(start, len(bent))
    both("scan_records", bent, start, len(bent), min_offset)
    found = both("find_record", bent, start, len(bent), min_offset)
    if found >= 0:
        assert both("scan_records", bent, found, len(bent), min_offset)[1] >= 1
    both("seek_record", bent, start, len(bent), 0, data.draw(st.integers(-1, 7)))
    both("seek_record", bent, start, len(bent), 1, NOW + data.draw(st.integers(-1, 4)))
    both("reverse_records", bent, start, len(bent))
    both("index_records", bent, 77, data.draw(st.integers(0, 200)), data.draw(st.sampled_from([1, 64, 150])))
    both("decode_records", bent, start, len(bent), 3)
    both("record_columns", bent, start, len(bent), min_offset, data.draw(st.integers(0, 31)))


@examples
@given(protobuf(messages()), st.binary(max_size=4))
def test_sealed_payloads_of_any_kind_are_read_alike(fields: bytes, more: bytes) -> None:
    covered = b"\x08" + fields[1:] + b"\x82\x7d\x0c" + struct.pack("<Q", 5)
    payload = covered + struct.pack("<I", google_crc32c.value(covered))
    data = struct.pack(">BI", 0, len(payload)) + payload + more
    both("scan_records", data, 0, len(data), 0)
    both("find_record", data, 0, len(data), 0)
    both("seek_record", data, 0, len(data), 1, 1)
    both("index_records", data, 0, 1, 1)
    both("record_columns", data, 0, len(data), 0, 31)


@examples
@given(protobuf(messages()))
def test_a_client_decodes_what_upb_decodes(payload: bytes) -> None:
    data = struct.pack(">BI", 0, len(payload)) + payload
    answer = both("decode_records", data, 0, len(data), 2)
    message = judged(api_pb2.Message, payload)
    if message is None:
        assert answer is ValueError
        return
    position, ((*values, headers),) = answer
    assert position == len(data)
    assert values == [
        message.offset,
        message.key,
        message.value,
        message.timestamp,
        message.stream,
        message.partition,
        message.subject,
        message.replySubject,
    ]
    if not forgot_headers(message, 9):
        assert headers == dict(message.headers)
    users = {name: value for name, value in headers.items() if name not in ("subject", "reply")}
    assert both("decode_records", data, 0, len(data), 2, True) == (position, [(*values, users)])


@examples
@given(mutated(grpc_frames(protobuf(messages()))), st.integers(0, 4), st.booleans())
def test_both_twins_decode_streams_alike(data: bytes, limit: int, user_only: bool) -> None:
    both("decode_records", data, 0, len(data), limit, user_only)


# --- acks -------------------------------------------------------------------------------------------------


@examples
@given(mutated(batches(envelopes(protobuf(acks()), 1))))
def test_both_twins_forward_acks_alike(batch: bytes) -> None:
    both("ack_responses", batch)


@examples
@given(st.sampled_from([b"ns.s1", b"ns.u1"]), envelopes(protobuf(acks()), 1))
def test_a_response_says_what_upb_read_in_the_ack(subject: bytes, payload: bytes) -> None:
    answer = both("ack_responses", pack((subject, b"", payload)))
    content = decode(payload, MsgType.ACK)
    inside = judged(api_pb2.PublishResponse, b"\x0a" + varint(len(content)) + content) if content is not None else None
    if inside is None or content is None:
        assert answer == []
        return
    ack = inside.ack
    ((token, stream, frames, count),) = answer
    assert (token, stream, count) == (subject[3:], ack.stream.encode(), int(ack.ackPolicy in (0, 1)))
    (received,) = unframe(frames)
    if token.startswith(b"u"):
        assert received == content
        return
    response = api_pb2.PublishResponse.FromString(received)
    assert response.correlationId == ack.correlationId
    assert response.HasField("ack")
    assert response.HasField("asyncError") == (ack.ackError != 0)
    assert response.ack == (ack if ack.ackError == 0 else api_pb2.Ack())


def publish_responses() -> st.SearchStrategy[bytes]:
    """Mostly a plain ack of a message that a client has numbered."""

    def number(ack: bytes, digits: str, again: str | None, more: bytes) -> bytes:
        numbered = ack + b"\x32" + bytes((len(digits),)) + digits.encode()
        return (
            (b"\x0a" + varint(len(numbered)) + numbered)
            + (b"" if again is None else b"\x1a" + bytes((len(again),)) + again.encode())
            + more
        )

    digits = st.sampled_from(["0", "7", "0012", "123456789012345", "1234567890123456", "", "x", "-1"])
    return st.builds(number, protobuf(acks()), digits, st.none() | digits, st.sampled_from([b"", b"", b"\x12\x00"]))


@examples
@given(st.lists(publish_responses() | mutated(publish_responses()), max_size=4), st.sampled_from([40, 1000]))
def test_a_plain_ack_is_read_as_upb_reads_it(responses: list[bytes], most: int) -> None:
    data = b"".join(map(frame, responses))
    consumed, answers, others, oversized = both("decode_responses", data, 0, len(data), most)
    assert others == sum(isinstance(answer, bytes) for answer in answers)
    assert consumed == sum(5 + len(response) for response in responses[: len(answers)])
    assert oversized == next((len(each) for each in responses if len(each) > most), 0)
    for response, answer in zip(responses, answers, strict=False):
        if isinstance(answer, bytes):
            assert answer == response
            continue
        read = judged(api_pb2.PublishResponse, response)
        assert read is not None
        assert not read.HasField("asyncError")
        ack = read.ack
        times = ack.receptionTimestamp, ack.commitTimestamp
        assert answer == (int(ack.correlationId), ack.stream, ack.offset, ack.msgSubject, ack.ackPolicy, *times)
        assert (ack.ackError, read.correlationId) in ((0, ""), (0, ack.correlationId))


@examples
@given(mutated(grpc_frames(publish_responses())), st.sampled_from([0, 30, 1000]))
def test_both_twins_read_responses_alike(data: bytes, max_message: int) -> None:
    both("decode_responses", data, 0, len(data), max_message)


pending_entries = st.builds(
    lambda offset, inbox, policy, error, subject, correlation: pack_pending(
        offset, inbox, policy=policy, error=error, subject=subject, correlation=correlation
    ),
    INT64,
    SUBJECTS,
    st.integers(0, 2) | st.just(255),
    st.integers(0, 5) | st.just(255),
    st.just(b"") | SUBJECTS,
    TEXT.map(str.encode),
)


@examples
@given(
    mutated(st.lists(pending_entries, max_size=4).map(b"".join)),
    INT64,
    st.sampled_from([b"", b"own.", b"a", b"own.s1"]),
    st.sampled_from([0, 90, 1000]),
)
def test_both_twins_encode_acks_alike(pending: bytes, commit: int, local_prefix: bytes, max_payload: int) -> None:
    both("encode_acks", pending, PREFIX, SUBJECT, commit, local_prefix, max_payload)


@examples
@given(
    mutated(st.lists(pending_entries, max_size=6).map(b"".join)),
    st.sampled_from([b"", b"own.", b"a", b"own.s1"]),
    st.lists(st.sampled_from([b"", b"s1", b"u2", b"a", b"own"]), max_size=3),
)
def test_both_twins_keep_the_same_acks(pending: bytes, prefix: bytes, tokens: list[bytes]) -> None:
    both("drop_gone", pending, prefix, dict.fromkeys(tokens))


# --- publishes --------------------------------------------------------------------------------------------

ROUTES: dict[bytes, list[tuple[bytes, int, bytes, int] | None]] = {
    b"s": [(b"subject", 0, b"-1", 1), None, (b"subject.\xff", 0, b"-1", 1), (b"subject.3", 2, b"-1", 1)],
    b"occ": [(b"occ", 1, b"-22", 22)],
    "é".encode(): [("é".encode(), 0, b"", 3)],
}


@examples
@given(mutated(grpc_frames(protobuf(publish_requests()))), st.sampled_from([60, 1000]), st.sampled_from([30, 1000]))
def test_both_twins_route_alike(data: bytes, max_payload: int, max_message: int) -> None:
    both("route_publishes", data, 0, len(data), ROUTES, b"own.s1", max_payload, max_message)


@examples
@given(protobuf(publish_requests()))
def test_a_command_says_what_upb_read_in_the_request(payload: bytes) -> None:
    data = struct.pack(">BI", 0, len(payload)) + payload
    consumed, commands, published, awaiting, exceptions, problem = both(
        "route_publishes", data, 0, len(data), ROUTES, b"own.s1", 1000, 1000
    )
    request = judged(api_pb2.PublishRequest, payload)
    assert (problem, consumed) == ((1, 0) if request is None else (0, len(data)))
    if request is None:
        return
    partitions = ROUTES.get(request.stream.encode(), [])
    route = partitions[request.partition] if 0 <= request.partition < len(partitions) else None
    if route is None or route[1] == 2 or (route[1] == 1 and request.ackPolicy not in (0, 1)):
        assert (exceptions, commands) == ([payload], b"")
        return
    assert (published, awaiting, exceptions) == (1, int(request.ackPolicy in (0, 1)), [])
    line, _, rest = commands.partition(b"\r\n")
    assert line == b"PUB %b %d" % (route[0], len(rest) - 2)
    content = decode(rest[:-2], MsgType.PUBLISH)
    assert content is not None
    message = api_pb2.Message.FromString(content)
    expected = api_pb2.Message(
        offset=request.expectedOffset,
        key=request.key,
        value=request.value,
        stream=request.stream,
        subject=route[0].decode(errors="replace"),
        headers=message.headers if forgot_headers(request, 5) else request.headers,
        ackInbox="own.s1" + route[2].decode(),
        correlationId=request.correlationId,
        ackPolicy=request.ackPolicy,
    )
    assert message == expected
    assert rest.endswith(b"\r\n")


# --- HTTP/2 and gRPC --------------------------------------------------------------------------------------


@examples
@given(mutated(st.lists(http2_frames, max_size=8).map(b"".join)), st.sampled_from([4, 11, 1000]))
def test_both_twins_split_http2_frames_alike(data: bytes, max_frame: int) -> None:
    both("scan_frames", data, 0, len(data), max_frame)


@examples
@given(st.binary(max_size=60), st.integers(1, 70), st.booleans(), st.integers(0, (1 << 31) - 1))
def test_framed_data_is_read_back(data: bytes, max_frame: int, end_stream: bool, stream_id: int) -> None:
    written = both("frame_data", stream_id, data, max_frame, end_stream)
    consumed, events, oversized = both("scan_frames", written, 0, len(written), max_frame)
    assert (consumed, oversized) == (len(written), 0)
    assert events == ([(0, int(end_stream), stream_id, data, len(data))] if data or end_stream else [])


@examples
@given(mutated(grpc_frames(RAW)), st.sampled_from([0, 3, 100]))
def test_both_twins_split_grpc_messages_alike(data: bytes, max_message: int) -> None:
    both("split_messages", data, 0, len(data), max_message)


@examples
@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 0xFFFFFFFF))
def test_a_checksum_in_parts_is_the_checksum_of_the_whole(data: bytes, cut: int, value: int) -> None:
    assert both("crc32c", data[cut:], both("crc32c", data[:cut])) == google_crc32c.value(data)
    both("crc32c", data, value)


@examples
@given(
    st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=4), st.integers(-1, 3)), max_size=6),
    st.integers(1, 3),
    st.integers(0, 5),
    st.sampled_from([0, 1, 2, 3, 9]),
    st.binary(max_size=12),
)
def test_both_twins_frame_the_same_rows(
    rows: list[tuple[bytes, bytes, int]], choices: int, turn: int, bent: int, junk: bytes
) -> None:
    def column(texts: list[bytes]) -> list[bytes]:
        ends = [0, *accumulate(map(len, texts))]
        return [struct.pack(f"<{len(ends)}I", *ends), b"".join(texts)]

    buffers = [*column([row[0] for row in rows]), *column([row[1] for row in rows]), b"", b"", b"", b"", b""]
    if bent < len(buffers):
        buffers[bent] = junk
    partitions = struct.pack(f"<{len(rows)}i", *(row[2] for row in rows))
    both("frame_rows", len(rows), tuple(buffers), partitions, choices, turn)
