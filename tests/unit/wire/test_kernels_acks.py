"""The kernels for acks, on both twins: encoded for NATS, framed for calls, forwarded."""

from __future__ import annotations

from types import ModuleType

import pytest

from bascule.wire.pb import api_pb2
from bascule.wire.record import ack_prefix
from tests.harness.kernel_inputs import (
    NOW,
    SUBJECT,
    checked_envelope,
    envelope,
    frame,
    pack,
    pack_pending,
    pub_payloads,
    unframe,
)

PREFIX = ack_prefix("readings", "sensor.readings")


# --- acks -------------------------------------------------------------------------------------------------


def test_acks_go_out_as_envelopes_to_their_inboxes(kernels: ModuleType) -> None:
    pending = pack_pending(0, b"in.a", correlation=b"c") + pack_pending(7, b"in.b", policy=1, subject=b"other")
    commands, local = kernels.encode_acks(pending, PREFIX, SUBJECT, NOW + 9, b"", 1000)
    assert local == []
    (first_inbox, first), (second_inbox, second) = pub_payloads(commands)
    assert (first_inbox, second_inbox) == (b"in.a", b"in.b")
    common = {"stream": "readings", "partitionSubject": "sensor.readings"}
    times = {"receptionTimestamp": NOW, "commitTimestamp": NOW + 9}
    ack = api_pb2.Ack(msgSubject="sensor.readings", ackInbox="in.a", correlationId="c", **common, **times)  # type: ignore[arg-type]
    assert first == envelope(ack.SerializeToString(), 1)
    ack = api_pb2.Ack(msgSubject="other", offset=7, ackInbox="in.b", ackPolicy="ALL", **common, **times)  # type: ignore[arg-type]
    assert second == envelope(ack.SerializeToString(), 1)


def test_an_ack_larger_than_nats_takes_is_left_out(kernels: ModuleType) -> None:
    pending = pack_pending(0, b"in.a", correlation=b"c" * 500) + pack_pending(1, b"in.b")
    commands, _ = kernels.encode_acks(pending, PREFIX, SUBJECT, NOW, b"", 200)
    assert [inbox for inbox, _ in pub_payloads(commands)] == [b"in.b"]
    (_, payload) = pub_payloads(commands)[0]
    assert kernels.encode_acks(pending, PREFIX, SUBJECT, NOW, b"", len(payload))[0] == commands
    assert kernels.encode_acks(pending, PREFIX, SUBJECT, NOW, b"", len(payload) - 1)[0] == b""


def test_error_acks_carry_the_error_and_too_large_no_commit_time(kernels: ModuleType) -> None:
    pending = pack_pending(0, b"in.a", error=2) + pack_pending(0, b"in.a", error=3)
    commands, _ = kernels.encode_acks(pending, PREFIX, SUBJECT, NOW, b"", 1000)
    acks = [api_pb2.Ack.FromString(payload[8:]) for _, payload in pub_payloads(commands)]
    assert [(ack.ackError, ack.commitTimestamp) for ack in acks] == [(2, NOW), (3, 0)]


def test_acks_for_this_process_become_frames_per_call(kernels: ModuleType) -> None:
    pending = b"".join(
        (
            pack_pending(1, b"own.s1", correlation=b"c1"),
            pack_pending(2, b"own.u2"),
            pack_pending(3, b"own."),
            pack_pending(4, b"own.s1"),
        )
    )
    commands, local = kernels.encode_acks(pending, PREFIX, SUBJECT, NOW, b"own.", 1)
    assert commands == b""
    assert [(token, count) for token, _, count in local] == [(b"s1", 2), (b"u2", 1)]
    first, second = [api_pb2.PublishResponse.FromString(payload) for payload in unframe(local[0][1])]
    assert (first.correlationId, first.ack.offset, first.ack.correlationId) == ("c1", 1, "c1")
    assert (second.correlationId, second.ack.offset, second.HasField("asyncError")) == ("", 4, False)
    (ack,) = [api_pb2.Ack.FromString(payload) for payload in unframe(local[1][1])]
    assert (ack.offset, ack.ackInbox, ack.stream) == (2, "own.u2", "readings")


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (1, 0, "unknown error"),
        (2, 5, "incorrect expected offset"),
        (3, 1, "message exceeds max replication size"),
        (4, 6, "encryption failed on partition"),
        (77, 0, "unknown error"),
    ],
)
def test_an_error_ack_becomes_an_async_error_with_an_empty_ack(
    kernels: ModuleType, error: int, code: int, text: str
) -> None:
    expected = api_pb2.PublishResponse(ack=api_pb2.Ack(), correlationId="c")
    expected.asyncError.code = code  # type: ignore[assignment]
    expected.asyncError.message = text
    pending = pack_pending(0, b"own.s", error=error, correlation=b"c")
    ((_, frames, _),) = kernels.encode_acks(pending, PREFIX, SUBJECT, NOW, b"own.", 1000)[1]
    assert frames == frame(expected.SerializeToString())
    commands, _ = kernels.encode_acks(pending, PREFIX, SUBJECT, NOW, b"", 1000)
    ((_, payload),) = pub_payloads(commands)
    assert kernels.ack_responses(pack((b"ns.ack.b1.s", b"", payload))) == [(b"s", b"readings", frames, 1)]


def test_acks_from_nats_are_forwarded_by_the_last_token(kernels: ModuleType) -> None:
    ack = api_pb2.Ack(stream="s", offset=3, correlationId="c").SerializeToString() + b"\xf8\x01\x05"
    batch = pack(
        (b"ns.ack.b1.s1", b"", envelope(ack, 1)),
        (b"ns.ack.b1.u9", b"", checked_envelope(ack, 1)),
        (b"ns.ack.b1.s1", b"", envelope(ack, 0)),
        (b"ns.ack.b1.s1", b"", envelope(b"\x0a\x01\xff", 1)),
        (b"ns.ack.b1.s1", b"", envelope(ack, 1, crc=7)),
        (b"ns.ack.b1.s1", b"", b"junk"),
        (b"bare", b"", envelope(b"", 1)),
    )
    response = b"\x0a" + bytes((len(ack),)) + ack + b"\x1a\x01c"
    assert kernels.ack_responses(batch) == [
        (b"s1", b"s", frame(response), 1),
        (b"u9", b"s", frame(ack), 1),
        (b"bare", b"", frame(b"\x0a\x00"), 1),
    ]


def test_acks_from_nats_are_told_apart_by_the_stream_that_sent_them(kernels: ModuleType) -> None:
    def ack(stream: str, offset: int, **fields: int) -> bytes:
        return api_pb2.Ack(stream=stream, offset=offset, **fields).SerializeToString()  # type: ignore[arg-type]

    sent = [(token, stream) for stream in ("a", "ab", "a.b", "", "é") for token in (b"s1-7", b"s1-71", b"s2-7")]
    order = [sent[index * 7 % len(sent)] for index in range(4 * len(sent))]
    batch = pack(
        *((b"ns.ack.b1." + token, b"", envelope(ack(stream, n), 1)) for n, (token, stream) in enumerate(order))
    )
    forwarded = {(token, stream.decode()): frames for token, stream, frames, _ in kernels.ack_responses(batch)}
    assert list(forwarded) == order[: len(sent)]
    for key, frames in forwarded.items():
        answers = [api_pb2.PublishResponse.FromString(payload).ack for payload in unframe(frames)]
        assert [answer.offset for answer in answers] == [n for n, other in enumerate(order) if other == key]
        assert {answer.stream for answer in answers} == {key[1]}


def test_only_acks_that_somebody_waits_for_are_counted(kernels: ModuleType) -> None:
    pending = b"".join(pack_pending(0, b"own.s1", policy=policy, error=3) for policy in (0, 1, 2, 255))
    ((_, frames, count),) = kernels.encode_acks(pending, PREFIX, SUBJECT, NOW, b"own.", 1000)[1]
    assert (len(unframe(frames)), count) == (4, 2)
    acks = [api_pb2.Ack(stream="s", ackPolicy=policy, ackError=3) for policy in (0, 1, 2, 7, -1)]  # type: ignore[arg-type]
    batch = pack(*((b"own.s1", b"", envelope(ack.SerializeToString(), 1)) for ack in acks))
    ((_, _, frames, count),) = kernels.ack_responses(batch)
    assert (len(unframe(frames)), count) == (5, 2)


def test_an_ack_that_no_client_could_read_in_a_response_is_dropped(kernels: ModuleType) -> None:
    def nested(depth: int) -> bytes:
        return pack((b"ack.s1", b"", envelope(b"\xa3\x06" * depth + b"\xa4\x06" * depth, 1)))

    ((_, _, frames, _),) = kernels.ack_responses(nested(99))
    api_pb2.PublishResponse.FromString(unframe(frames)[0])
    assert kernels.ack_responses(nested(100)) == []


def test_broken_pending_acks_are_an_error_of_ours(kernels: ModuleType) -> None:
    pending = pack_pending(0, b"in.a", correlation=b"c")
    for cut in range(1, len(pending)):
        with pytest.raises(ValueError, match=r"\w"):
            kernels.encode_acks(pending[:cut], PREFIX, SUBJECT, NOW, b"", 1000)


# --- read by clients --------------------------------------------------------------------------------------


def response(ack: api_pb2.Ack, again: str | None = None) -> bytes:
    return api_pb2.PublishResponse(
        ack=ack, correlationId=ack.correlationId if again is None else again
    ).SerializeToString()


FULL_ACK = api_pb2.Ack(
    stream="readings",
    partitionSubject="sensor.readings",
    msgSubject="sensor.a",
    offset=7,
    ackInbox="in.a",
    correlationId="0123",
    ackPolicy="ALL",
    receptionTimestamp=NOW,
    commitTimestamp=NOW + 9,
)


def test_plain_acks_are_read_and_everything_else_is_handed_on(kernels: ModuleType) -> None:
    lean = api_pb2.Ack(stream="readings", offset=-1, correlationId="5", receptionTimestamp=-2)
    failed = api_pb2.PublishResponse(ack=api_pb2.Ack(), correlationId="6")
    failed.asyncError.message = "no"
    messages = [response(FULL_ACK), failed.SerializeToString(), response(lean, again="")]
    data = b"".join(map(frame, messages))
    answers = [
        (123, "readings", 7, "sensor.a", 1, NOW, NOW + 9),
        messages[1],
        (5, "readings", -1, "", 0, -2, 0),
    ]
    assert kernels.decode_responses(data, 0, len(data), 1000) == (len(data), answers, 1, 0)
    assert kernels.decode_responses(b"xx" + data, 2, len(data) + 1, 1000)[:2] == (
        2 + len(data) - len(frame(messages[2])),
        answers[:2],
    )
    assert kernels.decode_responses(data, 0, len(data), 20) == (0, [], 0, len(messages[0]))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x0a\x00",
        b"\x0a\x80",
        response(FULL_ACK, again="124"),
        response(FULL_ACK) + b"\x1a\x040123",
        response(FULL_ACK) + b"\x12\x00",
        response(FULL_ACK) + b"\x1a",
        b"\x8a\x00" + response(FULL_ACK)[1:],
        response(api_pb2.Ack(stream="s")),
        response(api_pb2.Ack(stream="s", correlationId="-1")),
        response(api_pb2.Ack(stream="s", correlationId="1_0")),
        response(api_pb2.Ack(stream="s", correlationId="1" * 16)),
        response(api_pb2.Ack(stream="s", correlationId="\u0661")),
        response(api_pb2.Ack(stream="s", correlationId="1", ackError=1)),  # type: ignore[arg-type]
        response(api_pb2.Ack(stream="s", correlationId="1", ackPolicy=3)),  # type: ignore[arg-type]
        b"\x0a\x06\x0a\x01\xff\x32\x011",
    ],
)
def test_what_is_no_plain_ack_is_left_to_a_whole_parser(kernels: ModuleType, message: bytes) -> None:
    data = frame(message)
    assert kernels.decode_responses(data, 0, len(data), 1000) == (len(data), [message], 1, 0)
