"""The kernel that makes records of messages, on both twins."""

from __future__ import annotations

import struct
from types import ModuleType

import google_crc32c
import pytest

from bascule.limits import MAX_RECORD_BYTES
from bascule.testing.records import split
from bascule.wire.pb import api_pb2
from bascule.wire.record import Record, origin
from tests.harness.kernel_inputs import (
    MAGIC,
    NOW,
    ORIGIN,
    SUBJECT,
    checked_envelope,
    encode,
    envelope,
    frame,
    pack,
    pack_pending,
    parse_messages,
)

# --- records ----------------------------------------------------------------------------------------------


def test_a_plain_message_is_stored_whole(kernels: ModuleType) -> None:
    batch = pack((SUBJECT, b"", b"\x00\xffplain"), (SUBJECT, b"", b""))
    records, count, next_offset, last_timestamp, *pending = encode(kernels, batch, next_offset=5)
    assert (count, next_offset, last_timestamp, pending) == (2, 7, NOW + 1, [b"", b"", b""])
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
    records, count, *_, leader_pending, all_pending, errors = encode(kernels, pack((SUBJECT, b"", payload)))
    assert (count, leader_pending, all_pending, errors) == (1, b"", b"", b"")
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
def test_bad_utf8_in_subjects_is_repaired_and_stored_raw_in_the_header(kernels: ModuleType, raw: bytes) -> None:
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


def test_acks_are_pending_by_policy(kernels: ModuleType) -> None:
    batch = pack(
        (SUBJECT, b"", asking("in.leader", 0, correlationId="c1")),
        (b"sensor.\xff", b"", asking("in.all", 1)),
        (SUBJECT, b"", asking("in.none", 2)),
        (SUBJECT, b"", asking("in.odd", 9)),
        (SUBJECT, b"", asking("in.odd", -1)),
    )
    _, count, _, _, leader_pending, all_pending, errors = encode(kernels, batch, next_offset=10)
    assert (count, errors) == (5, b"")
    assert leader_pending == pack_pending(10, b"in.leader", correlation=b"c1")
    expected = bytearray(pack_pending(11, b"in.all", policy=1, subject="sensor.\ufffd".encode()))
    struct.pack_into("<q", expected, 8, NOW + 1)
    assert all_pending == expected


@pytest.mark.parametrize(
    "inbox",
    ["", "a b", "a\r\nPUB x 0", "a\tb", "a\x7f", "a.*", "a.>", "a*b", ".a", "a.", "a..b", "a\x00", "x" * 1025],
)
def test_an_inbox_that_nobody_may_publish_to_gets_no_ack(kernels: ModuleType, inbox: str) -> None:
    batch = pack((SUBJECT, b"", asking(inbox)))
    _, count, _, _, *pending = encode(kernels, batch)
    assert (count, pending) == (1, [b"", b"", b""])
    _, count, _, _, *pending = encode(kernels, batch, max_bytes=3)
    assert (count, pending) == (0, [b"", b"", b""])


@pytest.mark.parametrize("inbox", ["x" * 1024, "é.ü", "_INBOX.a.b", "a$-"])
def test_other_inboxes_do(kernels: ModuleType, inbox: str) -> None:
    assert encode(kernels, pack((SUBJECT, b"", asking(inbox))))[4] == pack_pending(0, inbox.encode())


@pytest.mark.parametrize(("length", "owes"), [(1024, True), (1025, False), (500_000, False)])
def test_a_correlation_id_over_its_bound_gets_no_ack(kernels: ModuleType, length: int, owes: bool) -> None:
    message = api_pb2.Message(value=b"v", ackInbox="in.box", correlationId="c" * length)
    batch = pack((SUBJECT, b"", envelope(message.SerializeToString())))
    expected = pack_pending(0, b"in.box", correlation=b"c" * length) if owes else b""
    records, count, *_, leader_pending, _, _ = encode(kernels, batch)
    assert (count, parse_messages(records)[0].value, leader_pending) == (1, b"v", expected)
    errors = encode(kernels, batch, max_bytes=3)[6]
    assert errors == (pack_pending(0, b"in.box", correlation=b"c" * length, error=3) if owes else b"")


@pytest.mark.parametrize(("policy", "pending_policy"), [(0, 0), (1, 1), (2, 2), (3, 2), (300, 2), (-1, 2)])
def test_a_message_too_large_is_refused_whatever_its_policy(
    kernels: ModuleType, policy: int, pending_policy: int
) -> None:
    large = asking("in.box", policy, value=b"x" * 100)
    batch = pack((SUBJECT, b"", large), (SUBJECT, b"", b"x" * 1000), (SUBJECT, b"", b"small"))
    records, count, *_, leader_pending, all_pending, errors = encode(kernels, batch, max_bytes=len(large) - 1)
    assert (count, parse_messages(records)[0].offset, leader_pending, all_pending) == (1, 0, b"", b"")
    assert errors == pack_pending(0, b"in.box", policy=pending_policy, error=3)
    assert encode(kernels, pack((SUBJECT, b"", large)), max_bytes=len(large))[1] == 1


def test_a_record_that_no_reader_would_take_is_refused(kernels: ModuleType) -> None:
    value = bytes(MAX_RECORD_BYTES - 200)
    assert encode(kernels, pack((SUBJECT, b"", asking(value=value))), max_bytes=1 << 30)[1] == 1
    *_, last_timestamp, _, _, errors = encode(
        kernels, pack((SUBJECT, b"", asking(value=value + bytes(190)))), max_bytes=1 << 30, last_timestamp=3
    )
    assert (last_timestamp, errors) == (3, pack_pending(0, b"in.box", error=3))


def test_expected_offsets_are_checked_under_optimistic_concurrency(kernels: ModuleType) -> None:
    batch = pack(
        (SUBJECT, b"", asking("in.stale", 2, offset=4)),
        (SUBJECT, b"", asking("in.right", 0, offset=5)),
        (SUBJECT, b"", asking("in.any", 0, offset=-1)),
        (SUBJECT, b"", asking("in.zero", 0)),
        (SUBJECT, b"", b"plain"),
    )
    _, count, next_offset, _, leader_pending, _, errors = encode(kernels, batch, next_offset=5, occ=True)
    assert (count, next_offset) == (2, 7)
    assert errors == pack_pending(0, b"in.stale", policy=2, error=2) + pack_pending(0, b"in.zero", error=2)
    assert leader_pending.startswith(pack_pending(5, b"in.right"))
    assert encode(kernels, batch, next_offset=5)[1] == 5
    assert encode(kernels, pack((SUBJECT, b"", b"plain")), occ=True)[1] == 1


@pytest.mark.parametrize("broken", [b"\x01", pack((b"s", b"", b"value"))[:-1], pack((b"s", b"", b"v")) + b"\x00" * 7])
def test_a_broken_batch_is_an_error_of_ours(kernels: ModuleType, broken: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        encode(kernels, broken)
    with pytest.raises(ValueError, match=r"\w"):
        kernels.ack_responses(broken)


def test_a_decoded_record_is_named(kernels: ModuleType) -> None:
    records = encode(kernels, pack((SUBJECT, b"r", b"v")))[0]
    record = Record._make(kernels.decode_records(records, 0, len(records), 9)[1][0])
    assert (record.offset, record.value, record.stream, record.reply_subject) == (0, b"v", "readings", "r")
    assert record.headers == {"subject": SUBJECT, "reply": b"r"}
    assert kernels.record_tail(ORIGIN, SUBJECT, b"r") in records


# --- framed messages, without NATS ------------------------------------------------------------------------


def write(
    kernels: ModuleType, framed: bytes, max_bytes: int = 1000, most: int = 100
) -> tuple[bytes, int, int, int, int]:
    tail = kernels.record_tail(ORIGIN, SUBJECT, b"")
    answer: tuple[bytes, int, int, int, int] = kernels.encode_messages(
        framed, SUBJECT, tail, 7, 258, NOW, NOW + 3, max_bytes, most, False
    )
    return answer


def test_framed_messages_become_the_records_that_envelopes_become(kernels: ModuleType) -> None:
    bodies = [
        api_pb2.Message(key=b"k", value=b"v", headers={"h": b"1"}).SerializeToString(),
        api_pb2.Message(value=b"w", offset=3, stream="x", ackInbox="i").SerializeToString(),
        b"",
    ]
    batch = pack(*((SUBJECT, b"", envelope(body)) for body in bodies))
    expected = encode(kernels, batch, next_offset=7, epoch=258, last_timestamp=NOW + 3)[:4]
    assert write(kernels, b"".join(map(frame, bodies))) == (*expected, 0)


def test_own_headers_of_a_framed_message_are_replaced(kernels: ModuleType) -> None:
    message = api_pb2.Message(headers={"subject": b"x", "reply": b"y", "h": b"1"})
    records, *_ = write(kernels, frame(message.SerializeToString()))
    (stored,) = parse_messages(records)
    assert dict(stored.headers) == {"subject": SUBJECT, "reply": b"", "h": b"1"}


GOOD = frame(b"\x1a\x01v")


@pytest.mark.parametrize(
    ("framed", "number", "problem"),
    [
        (GOOD + b"\0\0\0\0", 1, 1),
        (GOOD + b"\0\0\0\0\x02\x1a", 1, 1),
        (b"\1\0\0\0\0", 0, 1),
        (GOOD + GOOD + frame(b"\xff"), 2, 2),
        (frame(b"\x2a\x01\xff"), 0, 2),
        (frame(b"\x4a\x03\x0a\x01\xff"), 0, 2),
        (GOOD + frame(b"\x1a\x7f" + b"x" * 127), 1, 3),
        (GOOD * 101, 100, 4),
        (GOOD + frame(b"\x4a\x00" * 4097), 1, 5),
        (frame(b"\x4a\x00" * 4096) * 33, 32, 5),
    ],
)
def test_of_framed_messages_all_are_taken_or_none(
    kernels: ModuleType, framed: bytes, number: int, problem: int
) -> None:
    assert write(kernels, framed, max_bytes=len(framed) if problem == 5 else 100) == (b"", number, 7, NOW + 3, problem)


# --- atomic batches ---------------------------------------------------------------------------------------


def atomic(kernels: ModuleType, values: list[bytes], offset: int = 7, most: int | None = None) -> list[bytes]:
    """The records of an atomic batch, one by one."""
    framed = b"".join(frame(api_pb2.Message(value=value, key=value[:1]).SerializeToString()) for value in values)
    tail = kernels.record_tail(ORIGIN, SUBJECT, b"")
    count = len(values) if most is None else most
    records, *_, problem = kernels.encode_messages(framed, SUBJECT, tail, offset, 258, NOW, 0, 1000, count, True)
    assert not problem
    return split(records)


def test_records_of_an_atomic_batch_say_their_place_behind_the_timestamp(kernels: ModuleType) -> None:
    first, second = atomic(kernels, [b"a", b""])
    assert first[5:].startswith(b"\x08\x07\x12\x01a\x1a\x01a\x20")
    for index, record in enumerate((first, second)):
        (stored,) = parse_messages(record)
        at = record.index(b"\x92\x7d\x04" + struct.pack("<HH", index, 2))
        assert record[at + 7 :].startswith(b"\x2a\x08readings")
        assert (stored.offset, stored.stream) == (7 + index, "readings")


def test_an_atomic_batch_is_open_until_its_last_record(kernels: ModuleType) -> None:
    plain = split(write(kernels, GOOD * 2)[0])
    batch = atomic(kernels, [b"a" * 200, b"b", b""], offset=9)
    other = atomic(kernels, [b"c", b"d"], offset=12)
    one = atomic(kernels, [b"e"], offset=14)
    everything = [*plain, *batch, *other, *one]
    expected = [(-1, 0)] * 2 + [(9, 2), (9, 1), (-1, 0), (12, 1), (-1, 0), (-1, 0)]
    for number, (first, missing) in enumerate(expected, 1):
        records = b"".join(everything[:number])
        begins = sum(map(len, everything[: {9: 2, 12: 5}.get(first, number)]))
        assert kernels.open_batch(records, 0, len(records)) == (begins, first, missing)
        assert kernels.open_batch(b"??" + records, 2, 2 + len(records)) == (2 + begins, first, missing)
    assert kernels.open_batch(batch[1], 0, len(batch[1])) == (0, 9, 1)
    assert kernels.open_batch(b"", 0, 0) == (0, -1, 0)


def test_what_a_publisher_writes_never_looks_like_a_place_in_a_batch(kernels: ModuleType) -> None:
    place = b"\x92\x7d\x04\x00\x00\x05\x00"
    message = api_pb2.Message(key=place, value=place, headers={"h": place, "\u0492": place})
    records, *_ = write(kernels, frame(message.SerializeToString() + place))
    assert kernels.open_batch(records, 0, len(records)) == (len(records), -1, 0)
    records = encode(kernels, pack((SUBJECT, place, envelope(message.SerializeToString() + place))))[0]
    assert kernels.open_batch(records, 0, len(records)) == (len(records), -1, 0)


def test_a_producer_field_before_the_place_is_skipped(kernels: ModuleType) -> None:
    (record, _) = atomic(kernels, [b"a", b"b"])
    at = record.index(b"\x92\x7d\x04")
    covered = record[5:at] + b"\x8a\x7d\x03xyz" + record[at:-4]
    made = frame(covered + struct.pack("<I", google_crc32c.value(covered)))
    assert kernels.scan_records(made, 0, len(made), 0)[1] == 1
    assert kernels.open_batch(made, 0, len(made)) == (0, 7, 1)
