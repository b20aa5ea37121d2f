"""The kernels between NATS and the log, on both twins: parsing, records, acks, publishes."""

from __future__ import annotations

import struct
from types import ModuleType

import google_crc32c
import pytest

from bascule.errors import NatsProtocolError
from bascule.limits import MAX_RECORD_BYTES
from bascule.wire.pb import api_pb2
from bascule.wire.record import Record, ack_prefix, origin
from tests.kernel_inputs import (
    MAGIC,
    NOW,
    ORIGIN,
    SUBJECT,
    checked_envelope,
    encode,
    envelope,
    frame,
    pack,
    pack_owed,
    parse_messages,
    twin,
    unframe,
)

PREFIX = ack_prefix("readings", "sensor.readings")


@pytest.fixture(params=["pure", "compiled"])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    return twin(request.param)


def split(
    kernels: ModuleType, data: bytes, max_line: int = 4096, max_payload: int = 1 << 20
) -> tuple[int, int, list[tuple[int, int, bytes]], list[tuple[bytes, bytes]]]:
    result: tuple[int, int, list[tuple[int, int, bytes]], list[tuple[bytes, bytes]]] = kernels.split_nats(
        data, 0, len(data), max_line, max_payload
    )
    return result


# --- crc32c -----------------------------------------------------------------------------------------------


def test_crc_is_castagnolis_and_can_be_extended(kernels: ModuleType) -> None:
    assert kernels.crc32c(b"123456789") == 0xE3069283
    assert kernels.crc32c(b"") == 0
    assert kernels.crc32c(b"6789", kernels.crc32c(b"12345")) == 0xE3069283
    assert kernels.crc32c(memoryview(bytearray(b"123456789"))) == 0xE3069283
    assert kernels.crc32c(bytes(range(256)) * 33) == google_crc32c.value(bytes(range(256)) * 33)


# --- split_nats -------------------------------------------------------------------------------------------


def test_messages_are_grouped_by_subscription_in_order(kernels: ModuleType) -> None:
    data = b"MSG a 7 2\r\nx1\r\nMSG b 3 r.1 2\r\nx2\r\nMSG a 7 0\r\n\r\n"
    consumed, needed, batches, controls = split(kernels, data)
    assert (consumed, needed, controls) == (len(data), 0, [])
    assert batches == [(7, 2, pack((b"a", b"", b"x1"), (b"a", b"", b""))), (3, 1, pack((b"b", b"r.1", b"x2")))]


def test_nats_headers_are_dropped(kernels: ModuleType) -> None:
    data = b"HMSG a 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\nhmsg a 1 r 12 12\r\nNATS/1.0\r\n\r\n\r\n"
    consumed, _, batches, _ = split(kernels, data)
    assert consumed == len(data)
    assert batches == [(1, 2, pack((b"a", b"", b"hi"), (b"a", b"r", b"")))]


def test_control_lines_come_with_their_argument(kernels: ModuleType) -> None:
    data = b"INFO \t{\"a\": 1} \r\nping\r\nPONG\n+OK\r\n-ERR 'Slow Consumer'\r\n"
    consumed, _, batches, controls = split(kernels, data)
    assert (consumed, batches) == (len(data), [])
    assert controls == [
        (b"INFO", b'{"a": 1}'),
        (b"PING", b""),
        (b"PONG", b""),
        (b"+OK", b""),
        (b"-ERR", b"'Slow Consumer'"),
    ]


def test_separators_are_runs_of_blanks_and_verbs_have_any_case(kernels: ModuleType) -> None:
    assert split(kernels, b"mSg \t a\t\t1  \tr \t1 \r\nz\r\n")[2] == [(1, 1, pack((b"a", b"r", b"z")))]


@pytest.mark.parametrize("cut", range(1, len(b"PING\r\nMSG a 1 5\r\nhello\r\n")))
def test_an_incomplete_item_is_left_and_its_size_told(kernels: ModuleType, cut: int) -> None:
    data = b"PING\r\nMSG a 1 5\r\nhello\r\n"
    consumed, needed, batches, controls = split(kernels, data[:cut])
    assert batches == []
    assert (consumed, len(controls)) == ((6, 1) if cut >= 6 else (0, 0))
    assert needed == (len(data) - 6 if cut >= len(b"PING\r\nMSG a 1 5\r\n") else 0)


def test_a_window_of_the_buffer_is_parsed_in_place(kernels: ModuleType) -> None:
    buffer = bytearray(b"junkPING\r\njunk")
    assert kernels.split_nats(buffer, 4, 10, 100, 100) == (10, 0, [], [(b"PING", b"")])


@pytest.mark.parametrize(
    "data",
    [
        b"HELLO\r\n",
        b"\r\n",
        b" PING\r\n",
        b"PINGPONG\r\n",
        b"MSG a 1\r\n",
        b"MSG a 1 r x 2\r\n",
        b"MSG a x 2\r\nhi\r\n",
        b"MSG a 1 -2\r\nhi\r\n",
        b"MSG a 1 +2\r\nhi\r\n",
        b"MSG a 1 1234567890123456789\r\n",
        b"MSG a 1234567890123456789 2\r\nhi\r\n",
        b"MSG a 1 1001\r\n",
        b"HMSG a 1 3 2\r\nhi\r\n",
        b"HMSG a 1 1001 1001\r\n",
        b"HMSG a 1 2\r\nhi\r\n",
        b"MSG a 1 2\r\nhiXY",
        b"MSG a 1 2\r\nhi\n\n",
        b"MSG " + b"s" * 65_536 + b" 1 2\r\nhi\r\n",
        b"MSG a 1 " + b"s" * 65_536 + b" 2\r\nhi\r\n",
        b"INFO " + b"x" * 200_001,
    ],
)
def test_what_is_not_the_nats_protocol_ends_the_connection(kernels: ModuleType, data: bytes) -> None:
    with pytest.raises(NatsProtocolError):
        split(kernels, data, max_line=200_000, max_payload=1000)


def test_the_longest_subject_fits(kernels: ModuleType) -> None:
    subject = b"s" * 65_535
    data = b"MSG %b 999999999999999999 %b 1\r\nx\r\n" % (subject, subject)
    assert split(kernels, data, max_line=200_000)[2] == [(999_999_999_999_999_999, 1, pack((subject, subject, b"x")))]


# --- records ----------------------------------------------------------------------------------------------


def test_a_plain_message_is_stored_whole(kernels: ModuleType) -> None:
    batch = pack((SUBJECT, b"", b"\x00\xffplain"), (SUBJECT, b"", b""))
    records, count, next_offset, last_timestamp, *owed = encode(kernels, batch, next_offset=5)
    assert (count, next_offset, last_timestamp, owed) == (2, 7, NOW + 1, [b"", b"", b""])
    first, second = parse_messages(records)
    assert (first.offset, first.key, first.value, first.timestamp) == (5, b"", b"\x00\xffplain", NOW)
    assert (first.stream, first.partition, first.subject, first.replySubject) == (
        "readings",
        0,
        "sensor.readings",
        "",
    )
    assert dict(first.headers) == {"subject": SUBJECT, "reply": b""}
    assert (second.offset, second.value, second.timestamp) == (6, b"", NOW + 1)


def test_a_record_has_exactly_these_bytes(kernels: ModuleType) -> None:
    message = api_pb2.Message(key=b"k", value=b"v", headers={"h": b""})
    record = encode(kernels, pack((SUBJECT, b"", envelope(message.SerializeToString()))), epoch=258, now=300)[0]
    covered = (
        b"\x08\x00\x12\x01k\x1a\x01v\x20\xac\x02"
        b"\x2a\x08readings\x3a\x0fsensor.readings"
        b"\x4a\x1a\x0a\x07subject\x12\x0fsensor.readings\x4a\x09\x0a\x05reply\x12\x00"
        b"\x4a\x05\x0a\x01h\x12\x00\x82\x7d\x0c\x02\x01\x00\x00\x00\x00\x00\x00"
    )
    assert record == frame(covered + struct.pack("<I", google_crc32c.value(covered)))


def test_an_envelope_gives_key_value_and_headers_and_nothing_else(kernels: ModuleType) -> None:
    message = api_pb2.Message(
        offset=99,
        key=b"k",
        value=b"v",
        timestamp=1,
        stream="elsewhere",
        partition=7,
        subject="wrong",
        replySubject="wrong",
        headers={"mine": b"1", "subject": b"forged", "reply": b"forged"},
        ackInbox="in.box",
        correlationId="c",
    )
    payload = message.SerializeToString() + b"\x82\x7d\x03abc"  # a field 2000 of the publisher's own
    records = encode(kernels, pack((SUBJECT, b"", checked_envelope(payload))))[0]
    (stored,) = parse_messages(records)
    assert (stored.offset, stored.key, stored.value, stored.timestamp) == (0, b"k", b"v", NOW)
    assert (stored.stream, stored.partition, stored.subject, stored.replySubject) == (
        "readings",
        0,
        "sensor.readings",
        "",
    )
    assert dict(stored.headers) == {"mine": b"1", "subject": SUBJECT, "reply": b""}
    assert (stored.ackInbox, stored.correlationId) == ("", "")
    assert records.count(b"\x82\x7d") == 1


@pytest.mark.parametrize(
    "payload",
    [
        MAGIC + b"\x00\x08\x00",
        MAGIC + b"\x01\x08\x00\x00\x1a\x01v",
        envelope(b"\x1a\x01v", message_type=1),
        b"\xb9\x0e\x43\xb5\x00\x08\x00\x00\x1a\x01v",
        MAGIC + b"\x00\x0c\x00\x00\x1a\x01v",
        envelope(b"\x1a\x01v", crc=1),
        MAGIC + b"\x00\x08\x01\x00\x1a\x01v",
        envelope(b"\x1a\x02v"),
        envelope(b"\x2a\x01\xff"),
        envelope(b"\x2a\x01\xff\x2a\x01a"),
        envelope(b"\x4a\x03\x0a\x01\xff"),
        envelope(b"\xa3\x06" * 101 + b"\xa4\x06" * 101),
    ],
)
def test_a_damaged_envelope_is_a_plain_message(kernels: ModuleType, payload: bytes) -> None:
    records, count, *_, leader_owed, all_owed, errors = encode(kernels, pack((SUBJECT, b"", payload)))
    assert (count, leader_owed, all_owed, errors) == (1, b"", b"", b"")
    assert parse_messages(records)[0].value == payload


def test_the_header_length_without_checksum_says_where_the_payload_starts(kernels: ModuleType) -> None:
    payload = MAGIC + b"\x00\x0a\x00\x00??\x1a\x01v"
    assert parse_messages(encode(kernels, pack((SUBJECT, b"", payload)))[0])[0].value == b"v"


def test_a_reply_and_a_wildcard_subject_are_in_the_record(kernels: ModuleType) -> None:
    (stored,) = parse_messages(encode(kernels, pack((b"sensor.other", b"back.here", b"v")))[0])
    assert (stored.subject, stored.replySubject) == ("sensor.other", "back.here")
    assert dict(stored.headers) == {"subject": b"sensor.other", "reply": b"back.here"}


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff",
        b"a\xe2\x82z",
        b"\xf0\x9f\x98",
        b"\xed\xa0\x80",
        b"\xc0\x80",
        b"\xf4\x90\x80\x80",
        b"\xc3\xa9",
        b"\xe2(\xa1\xf0\x90\x80",
    ],
)
def test_bad_utf8_in_subjects_is_repaired_and_kept_raw_in_the_header(kernels: ModuleType, raw: bytes) -> None:
    (stored,) = parse_messages(encode(kernels, pack((raw, raw, b"v")))[0])
    assert stored.subject == stored.replySubject == raw.decode("utf-8", "replace")
    assert dict(stored.headers) == {"subject": raw, "reply": raw}


def test_an_empty_subject_is_not_the_partitions_own(kernels: ModuleType) -> None:
    (stored,) = parse_messages(encode(kernels, pack((b"", b"", b"v")))[0])
    assert (stored.subject, stored.headers["subject"]) == ("", b"")


def test_partition_numbers_are_in_the_tail_unless_zero(kernels: ModuleType) -> None:
    assert origin("s", 0) == b"\x2a\x01s"
    assert kernels.record_tail(origin("s", 300), b"s", b"") == (
        b"\x2a\x01s\x30\xac\x02\x3a\x01s\x4a\x0c\x0a\x07subject\x12\x01s\x4a\x09\x0a\x05reply\x12\x00"
    )


def test_timestamps_strictly_increase_when_the_clock_does_not(kernels: ModuleType) -> None:
    batch = pack(*[(SUBJECT, b"", b"v")] * 3)
    records, _, _, last_timestamp, *_ = encode(kernels, batch, now=100, last_timestamp=200)
    assert [message.timestamp for message in parse_messages(records)] == [201, 202, 203]
    assert last_timestamp == 203


def test_messages_of_the_clusters_own_subjects_are_never_stored(kernels: ModuleType) -> None:
    batch = pack((b"cluster.raft", b"", b"no"), (b"clusters", b"", b"yes"))
    records, count, *_ = encode(kernels, batch, refused_prefix=b"cluster.")
    assert (count, parse_messages(records)[0].value) == (1, b"yes")


def asking(inbox: str = "in.box", policy: int = 0, offset: int = 0, **fields: object) -> bytes:
    message = api_pb2.Message(ackInbox=inbox, ackPolicy=policy, offset=offset, **fields)  # type: ignore[arg-type]
    return envelope(message.SerializeToString())


def test_acks_are_owed_by_policy(kernels: ModuleType) -> None:
    batch = pack(
        (SUBJECT, b"", asking("in.leader", 0, correlationId="c1")),
        (b"sensor.\xff", b"", asking("in.all", 1)),
        (SUBJECT, b"", asking("in.none", 2)),
        (SUBJECT, b"", asking("in.odd", 9)),
        (SUBJECT, b"", asking("in.odd", -1)),
    )
    _, count, _, _, leader_owed, all_owed, errors = encode(kernels, batch, next_offset=10)
    assert (count, errors) == (5, b"")
    assert leader_owed == pack_owed(10, b"in.leader", correlation=b"c1")
    expected = bytearray(pack_owed(11, b"in.all", policy=1, subject="sensor.\ufffd".encode()))
    struct.pack_into("<q", expected, 8, NOW + 1)
    assert all_owed == expected


@pytest.mark.parametrize(
    "inbox",
    ["", "a b", "a\r\nPUB x 0", "a\tb", "a\x7f", "a.*", "a.>", "a*b", ".a", "a.", "a..b", "a\x00", "x" * 1025],
)
def test_an_inbox_that_nobody_may_publish_to_gets_no_ack(kernels: ModuleType, inbox: str) -> None:
    batch = pack((SUBJECT, b"", asking(inbox)))
    _, count, _, _, *owed = encode(kernels, batch)
    assert (count, owed) == (1, [b"", b"", b""])
    _, count, _, _, *owed = encode(kernels, batch, max_bytes=3)
    assert (count, owed) == (0, [b"", b"", b""])


@pytest.mark.parametrize("inbox", ["x" * 1024, "é.ü", "_INBOX.a.b", "a$-"])
def test_other_inboxes_do(kernels: ModuleType, inbox: str) -> None:
    assert encode(kernels, pack((SUBJECT, b"", asking(inbox))))[4] == pack_owed(0, inbox.encode())


@pytest.mark.parametrize(("length", "owes"), [(1024, True), (1025, False), (500_000, False)])
def test_a_correlation_id_over_its_bound_gets_no_ack(kernels: ModuleType, length: int, owes: bool) -> None:
    message = api_pb2.Message(value=b"v", ackInbox="in.box", correlationId="c" * length)
    batch = pack((SUBJECT, b"", envelope(message.SerializeToString())))
    expected = pack_owed(0, b"in.box", correlation=b"c" * length) if owes else b""
    records, count, *_, leader_owed, _, _ = encode(kernels, batch)
    assert (count, parse_messages(records)[0].value, leader_owed) == (1, b"v", expected)
    errors = encode(kernels, batch, max_bytes=3)[6]
    assert errors == (pack_owed(0, b"in.box", correlation=b"c" * length, error=3) if owes else b"")


def test_a_correlation_id_at_its_bound_is_published(kernels: ModuleType) -> None:
    request = api_pb2.PublishRequest(stream="s", correlationId="é" * 512).SerializeToString()
    assert route(kernels, frame(request), max_payload=5000)[2:5] == (1, 1, [])


@pytest.mark.parametrize(("policy", "owed_policy"), [(0, 0), (1, 1), (2, 2), (3, 2), (300, 2), (-1, 2)])
def test_a_message_too_large_is_refused_whatever_its_policy(kernels: ModuleType, policy: int, owed_policy: int) -> None:
    large = asking("in.box", policy, value=b"x" * 100)
    batch = pack((SUBJECT, b"", large), (SUBJECT, b"", b"x" * 1000), (SUBJECT, b"", b"small"))
    records, count, *_, leader_owed, all_owed, errors = encode(kernels, batch, max_bytes=len(large) - 1)
    assert (count, parse_messages(records)[0].offset, leader_owed, all_owed) == (1, 0, b"", b"")
    assert errors == pack_owed(0, b"in.box", policy=owed_policy, error=3)
    assert encode(kernels, pack((SUBJECT, b"", large)), max_bytes=len(large))[1] == 1


def test_a_record_that_no_reader_would_take_is_refused(kernels: ModuleType) -> None:
    value = bytes(MAX_RECORD_BYTES - 200)
    assert encode(kernels, pack((SUBJECT, b"", asking(value=value))), max_bytes=1 << 30)[1] == 1
    *_, last_timestamp, _, _, errors = encode(
        kernels, pack((SUBJECT, b"", asking(value=value + bytes(190)))), max_bytes=1 << 30, last_timestamp=3
    )
    assert (last_timestamp, errors) == (3, pack_owed(0, b"in.box", error=3))


def test_expected_offsets_are_checked_under_optimistic_concurrency(kernels: ModuleType) -> None:
    batch = pack(
        (SUBJECT, b"", asking("in.stale", 2, offset=4)),
        (SUBJECT, b"", asking("in.right", 0, offset=5)),
        (SUBJECT, b"", asking("in.any", 0, offset=-1)),
        (SUBJECT, b"", asking("in.zero", 0)),
        (SUBJECT, b"", b"plain"),
    )
    _, count, next_offset, _, leader_owed, _, errors = encode(kernels, batch, next_offset=5, occ=True)
    assert (count, next_offset) == (2, 7)
    assert errors == pack_owed(0, b"in.stale", policy=2, error=2) + pack_owed(0, b"in.zero", error=2)
    assert leader_owed.startswith(pack_owed(5, b"in.right"))
    assert encode(kernels, batch, next_offset=5)[1] == 5
    assert encode(kernels, pack((SUBJECT, b"", b"plain")), occ=True)[1] == 1


@pytest.mark.parametrize("broken", [b"\x01", pack((b"s", b"", b"value"))[:-1], pack((b"s", b"", b"v")) + b"\x00" * 7])
def test_a_broken_batch_is_an_error_of_ours(kernels: ModuleType, broken: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        encode(kernels, broken)
    with pytest.raises(ValueError, match=r"\w"):
        kernels.ack_responses(broken)


# --- acks -------------------------------------------------------------------------------------------------


def pub_payloads(commands: bytes) -> list[tuple[bytes, bytes]]:
    """(subject, payload) of PUB commands that fill `commands` exactly."""
    found = []
    while commands:
        line, _, rest = commands.partition(b"\r\n")
        verb, subject, length = line.split(b" ")
        assert verb == b"PUB"
        assert rest[int(length) : int(length) + 2] == b"\r\n"
        found.append((subject, rest[: int(length)]))
        commands = rest[int(length) + 2 :]
    return found


def test_acks_go_out_as_envelopes_to_their_inboxes(kernels: ModuleType) -> None:
    owed = pack_owed(0, b"in.a", correlation=b"c") + pack_owed(7, b"in.b", policy=1, subject=b"other")
    commands, local = kernels.encode_acks(owed, PREFIX, SUBJECT, NOW + 9, b"", 1000)
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
    owed = pack_owed(0, b"in.a", correlation=b"c" * 500) + pack_owed(1, b"in.b")
    commands, _ = kernels.encode_acks(owed, PREFIX, SUBJECT, NOW, b"", 200)
    assert [inbox for inbox, _ in pub_payloads(commands)] == [b"in.b"]
    (_, payload) = pub_payloads(commands)[0]
    assert kernels.encode_acks(owed, PREFIX, SUBJECT, NOW, b"", len(payload))[0] == commands
    assert kernels.encode_acks(owed, PREFIX, SUBJECT, NOW, b"", len(payload) - 1)[0] == b""


def test_error_acks_carry_the_error_and_too_large_no_commit_time(kernels: ModuleType) -> None:
    owed = pack_owed(0, b"in.a", error=2) + pack_owed(0, b"in.a", error=3)
    commands, _ = kernels.encode_acks(owed, PREFIX, SUBJECT, NOW, b"", 1000)
    acks = [api_pb2.Ack.FromString(payload[8:]) for _, payload in pub_payloads(commands)]
    assert [(ack.ackError, ack.commitTimestamp) for ack in acks] == [(2, NOW), (3, 0)]


def test_acks_for_this_process_become_frames_per_call(kernels: ModuleType) -> None:
    owed = b"".join(
        (
            pack_owed(1, b"own.s1", correlation=b"c1"),
            pack_owed(2, b"own.u2"),
            pack_owed(3, b"own."),
            pack_owed(4, b"own.s1"),
        )
    )
    commands, local = kernels.encode_acks(owed, PREFIX, SUBJECT, NOW, b"own.", 1)
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
    owed = pack_owed(0, b"own.s", error=error, correlation=b"c")
    ((_, frames, _),) = kernels.encode_acks(owed, PREFIX, SUBJECT, NOW, b"own.", 1000)[1]
    assert frames == frame(expected.SerializeToString())
    commands, _ = kernels.encode_acks(owed, PREFIX, SUBJECT, NOW, b"", 1000)
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


def test_acks_from_nats_are_kept_apart_by_the_stream_that_sent_them(kernels: ModuleType) -> None:
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
    owed = b"".join(pack_owed(0, b"own.s1", policy=policy, error=3) for policy in (0, 1, 2, 255))
    ((_, frames, count),) = kernels.encode_acks(owed, PREFIX, SUBJECT, NOW, b"own.", 1000)[1]
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


def test_broken_owed_acks_are_an_error_of_ours(kernels: ModuleType) -> None:
    owed = pack_owed(0, b"in.a", correlation=b"c")
    for cut in range(1, len(owed)):
        with pytest.raises(ValueError, match=r"\w"):
            kernels.encode_acks(owed[:cut], PREFIX, SUBJECT, NOW, b"", 1000)


# --- publishes --------------------------------------------------------------------------------------------

ROUTES: dict[bytes, list[tuple[bytes, int, bytes] | None]] = {
    b"s": [(b"subject", 0, b"-7"), None, (b"subject.2", 0, b"-7")],
    b"occ": [(b"occ", 1, b"-12")],
    b"ask": [(b"ask", 2, b"-13")],
}


def route(kernels: ModuleType, data: bytes, max_payload: int = 1000) -> tuple[int, bytes, int, int, list[bytes], int]:
    result: tuple[int, bytes, int, int, list[bytes], int] = kernels.route_publishes(
        data, 0, len(data), ROUTES, b"own.s1", max_payload, 5000
    )
    return result


def test_requests_become_pub_commands(kernels: ModuleType) -> None:
    full = api_pb2.PublishRequest(
        key=b"k",
        value=b"v",
        stream="s",
        partition=2,
        headers={"h": b"1"},
        ackInbox="ignored",
        correlationId="c",
        ackPolicy=api_pb2.ALL,
        expectedOffset=-1,
    )
    small = api_pb2.PublishRequest(stream="s", ackPolicy=api_pb2.NONE)
    data = frame(full.SerializeToString()) + frame(small.SerializeToString())
    consumed, commands, published, awaiting, exceptions, problem = route(kernels, data + data[:9])
    assert (consumed, published, awaiting, exceptions, problem) == (len(data), 2, 1, [], 0)
    (first_subject, first), (second_subject, second) = pub_payloads(commands)
    assert (first_subject, second_subject) == (b"subject.2", b"subject")
    expected = api_pb2.Message(
        offset=-1,
        key=b"k",
        value=b"v",
        stream="s",
        subject="subject.2",
        headers={"h": b"1"},
        ackInbox="own.s1-7",
        correlationId="c",
        ackPolicy=api_pb2.ALL,
    )
    assert first == envelope(expected.SerializeToString())
    expected = api_pb2.Message(stream="s", subject="subject", ackInbox="own.s1-7", ackPolicy=api_pb2.NONE)
    assert second == envelope(expected.SerializeToString())


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": "unknown"},
        {},
        {"stream": "s", "partition": 1},
        {"stream": "s", "partition": 3},
        {"stream": "s", "partition": -1},
        {"stream": "ask"},
        {"stream": "occ", "ackPolicy": 2},
        {"stream": "occ", "ackPolicy": 5},
        {"stream": "s", "value": b"x" * 200},
        {"stream": "s", "correlationId": "é" * 512 + "x"},
    ],
)
def test_what_needs_a_decision_is_handed_to_python(kernels: ModuleType, fields: dict[str, object]) -> None:
    request = api_pb2.PublishRequest(**fields).SerializeToString()  # type: ignore[arg-type]
    plain = api_pb2.PublishRequest(stream="occ", ackPolicy=api_pb2.ALL).SerializeToString()
    data = frame(plain) + frame(request) + frame(plain)
    room = 100 if "value" in fields else 5000
    consumed, commands, published, awaiting, exceptions, problem = route(kernels, data, max_payload=room)
    assert (consumed, published, awaiting, exceptions, problem) == (len(data), 2, 2, [request], 0)
    assert len(pub_payloads(commands)) == 2


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (frame(b"\x1a\x05s"), 1),
        (frame(b"\x1a\x01\xff"), 1),
        (frame(b"\x2a\x03\x0a\x01\xff"), 1),
        (b"\x00\x00\x00\x13\x89", 2),
        (b"\x01\x00\x00\x13\x89", 2),
        (b"\x01\x00\x00\x00\x01", 3),
    ],
)
def test_a_bad_request_stops_before_it(kernels: ModuleType, bad: bytes, problem: int) -> None:
    good = frame(b"\x1a\x01s")
    result = route(kernels, good + bad + good)
    assert (result[0], result[2], result[5]) == (len(good), 1, problem)


def test_a_decoded_record_is_named(kernels: ModuleType) -> None:
    records = encode(kernels, pack((SUBJECT, b"r", b"v")))[0]
    record = Record._make(kernels.decode_records(records, 0, len(records), 9)[1][0])
    assert (record.offset, record.value, record.stream, record.reply_subject) == (0, b"v", "readings", "r")
    assert record.headers == {"subject": SUBJECT, "reply": b"r"}
    assert kernels.record_tail(ORIGIN, SUBJECT, b"r") in records
