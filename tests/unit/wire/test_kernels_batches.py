"""Atomic batches that NATS delivers in one envelope, on both twins: all of it is stored or nothing, with one ack."""

import struct
from types import ModuleType
from typing import Any

import pytest

from bascule.limits import ATOMIC_MESSAGE_BYTES, MAX_PARTITION_PRODUCERS, PRODUCER_WINDOW
from bascule.testing.records import split
from bascule.wire.envelope import MsgType, encode
from bascule.wire.grpc import frame
from bascule.wire.pb import api_pb2 as api
from bascule.wire.producers import REFUSALS, numbered, producer_prefix
from bascule.wire.pure.accept import pending_acks
from tests.harness.batches import envelope
from tests.harness.kernel_inputs import built_twins, parse_messages

SUBJECT = b"s"
GAP, UNKNOWN, FENCED, DUPLICATE, OVERLAP, EMPTY, BENT, LONG = REFUSALS
INCORRECT, TOO_LARGE = 2, 3


def framed(*values: bytes) -> bytes:
    return b"".join(frame(api.Message(value=value, key=b"k").SerializeToString()) for value in values)


def batch(*values: bytes, messages: bytes | None = None, crc: bool = False, **fields: Any) -> bytes:
    fields = {"ackInbox": "inbox", "ackPolicy": api.ALL, "offset": -1, **fields}
    content = framed(*values) if messages is None else messages
    return encode(MsgType.BATCH, api.Message(value=content, **fields).SerializeToString(), crc=crc)


def of(sequence: int, id: int = 1, epoch: int = 3, creation: int = 7) -> bytes:
    return numbered(producer_prefix(id, epoch, creation, 1), sequence)


class Log:
    """A leader's end of a partition."""

    def __init__(self, kernels: ModuleType) -> None:
        self.kernels = kernels
        self.table = kernels.ProducerTable(7, 1, MAX_PARTITION_PRODUCERS)
        self.end = self.timestamp = self.taken = 0
        self.records = b""

    def take(self, *payloads: bytes, max_bytes: int = 1 << 20, occ: bool = False, reply: bytes = b"") -> list[Any]:
        """Offsets that are acked, then errors."""
        tail = self.kernels.record_tail(b"", SUBJECT, b"")
        head = SUBJECT + reply
        delivered = [struct.pack("<HHI", 1, len(reply), len(each)) + head + each for each in payloads]
        records, count, self.end, self.timestamp, leader, acked, errors, self.taken = self.kernels.encode_records(
            b"".join(delivered), b"", SUBJECT, tail, self.end, 9, 1000, self.timestamp, max_bytes, occ, b"", self.table
        )
        assert len(parse_messages(records)) == count
        self.records += records
        offsets = [each[0] for each in pending_acks(leader + acked)]
        return [*offsets, *(("error", each[3]) for each in pending_acks(errors))]

    @property
    def stored(self) -> list[tuple[int, bytes]]:
        return [(message.offset, message.value) for message in parse_messages(self.records)]


@pytest.fixture(params=built_twins(), ids=lambda twin: twin.__name__)
def log(request: pytest.FixtureRequest) -> Log:
    return Log(request.param)


@pytest.mark.parametrize("crc", [False, True])
def test_the_messages_of_an_envelope_are_stored_together_and_acked_once_with_the_first_offset(
    log: Log, crc: bool
) -> None:
    assert log.take(b"plain", batch(b"a", b"b", b"", crc=crc), envelope(b"after", policy=1)) == [4, 1][::-1]
    assert log.stored == [(0, b"plain"), (1, b"a"), (2, b"b"), (3, b""), (4, b"after")]
    assert log.taken == 3
    places = [log.records.count(b"\x92\x7d\x04" + struct.pack("<HH", index, 3)) for index in range(4)]
    assert places == [1, 1, 1, 0]
    stamps = [message.timestamp for message in parse_messages(log.records)]
    assert stamps == sorted(set(stamps))


def test_its_messages_are_stored_as_others_of_the_subject_are(log: Log) -> None:
    log.take(
        batch(messages=frame(api.Message(key=b"k", value=b"v", headers={"h": b"1"}).SerializeToString())), reply=b"r"
    )
    (stored,) = parse_messages(log.records)
    assert (stored.key, stored.value, stored.subject, stored.replySubject) == (b"k", b"v", "s", "r")
    assert dict(stored.headers) == {"subject": b"s", "reply": b"r", "h": b"1"}


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (batch(messages=b""), EMPTY),
        (batch(messages=framed(b"a", b"b")[:-1]), BENT),
        (batch(messages=framed(b"a") + b"\0\0\0\0"), BENT),
        (batch(messages=framed(b"a") + b"\1\0\0\0\0"), BENT),
        (batch(messages=framed(b"a") + frame(b"\xff\xff")), BENT),
        (batch(messages=framed(b"a") + frame(b"\x2a\x01\xff")), BENT),
        (batch(messages=frame(b"") * 16_385), LONG),
        (batch(messages=framed(b"a") + frame(b"\x4a\x00" * 4097)), LONG),
        (batch(*[b"x" * 3000] * 4), TOO_LARGE),
        (batch(*[b""] * 300), TOO_LARGE),
    ],
)
def test_a_batch_that_is_not_as_it_should_be_leaves_nothing_and_takes_no_number(
    log: Log, payload: bytes, error: int
) -> None:
    limit = 10_000 if error == TOO_LARGE else 1 << 20
    log.take(b"before")
    known = log.table.snapshot()
    assert log.take(payload, batch(b"good", producer=of(0)), max_bytes=limit) == [1, ("error", error)]
    assert log.take(batch(b"again", producer=of(1)), max_bytes=limit) == [2]
    assert [value for _, value in log.stored] == [b"before", b"good", b"again"]
    assert known == b""


@pytest.mark.parametrize("kernels", built_twins(), ids=lambda twin: twin.__name__)
@pytest.mark.parametrize("reply", [b"", b"r"])
def test_all_streams_that_listen_on_a_subject_take_a_batch_or_none_does(kernels: ModuleType, reply: bytes) -> None:
    """Their names are in each record, and their offsets and numbers are longer or shorter."""
    payload = batch(*[b"x" * 20] * 60, producer=of(0))
    subject = b"some.subject"

    def taken(max_bytes: int, origin: bytes, end: int, known: bool) -> bool:
        own = kernels.record_tail(origin, subject, b"")
        delivered = struct.pack("<HHI", len(subject), len(reply), len(payload)) + subject + reply + payload
        table = kernels.ProducerTable(7, 1, MAX_PARTITION_PRODUCERS) if known else None
        _, count, *_ = kernels.encode_records(
            delivered, origin, subject, own, end, 9, 1000, 0, max_bytes, False, b"", table
        )
        return bool(count)

    least = 60 * (5 + 25 + len(kernels.record_tail(b"", subject, reply)) + ATOMIC_MESSAGE_BYTES)
    for origin, end, known in [(b"\x2a\x01s", 0, True), (b"\x2a\xc8\x01" + b"n" * 200, 1 << 62, False)]:
        assert taken(least, origin, end, known)
        assert not taken(least - 1, origin, end, known)


def test_what_is_no_such_envelope_is_a_plain_message(log: Log) -> None:
    good = batch(b"a", b"b", crc=True)
    bent = [good[:-1], good[:8], good[:4] + b"\1" + good[5:], batch(b"a")[:-3], encode(MsgType.BATCH, b"\xff")]
    assert log.take(*bent) == []
    assert [value for _, value in log.stored] == bent


def test_an_expected_offset_is_that_of_its_first_message(log: Log) -> None:
    assert log.take(batch(b"a", b"b", offset=0), batch(b"c", offset=1), occ=True) == [0, ("error", INCORRECT)]
    assert log.take(batch(b"c", b"d", offset=2), batch(b"e", offset=-1), occ=True) == [2, 4]


def test_a_batch_of_a_producer_is_stored_once_and_whole(log: Log) -> None:
    first, second = batch(b"a", b"b", producer=of(0)), batch(b"c", b"d", b"e", producer=of(2))
    assert log.take(first, second, first, second, second) == [0, 2, 0, 2, 2]
    assert log.take(batch(b"x", b"y", producer=of(6))) == [("error", GAP)]
    assert log.take(batch(b"x", b"y", b"z", producer=of(4))) == [("error", OVERLAP)]
    assert log.take(batch(b"x", b"y", producer=of(1, id=2))) == [("error", UNKNOWN)]
    assert [value for _, value in log.stored] == [b"a", b"b", b"c", b"d", b"e"]
    assert [struct.unpack("<Q", each.producer[-8:])[0] for each in parse_messages(log.records)] == [0, 1, 2, 3, 4]
    assert log.table.duplicates == 3


def test_batches_and_messages_of_a_producer_have_one_row_of_numbers(log: Log) -> None:
    def single(sequence: int) -> bytes:
        message = api.Message(value=b"v", ackInbox="i", ackPolicy=api.ALL, offset=-1, producer=of(sequence))
        return encode(MsgType.PUBLISH, message.SerializeToString())

    assert log.take(single(0), batch(b"a", b"b", producer=of(1)), single(2), single(3)) == [0, 1, 2, 3]
    assert log.take(batch(b"0", b"a", producer=of(0)), single(1), batch(b"b", producer=of(2))) == [0, 1, 2]
    assert log.take(b"between", single(4), b"between", single(5), batch(b"x", b"y", producer=of(4))) == [
        5,
        7,
        ("error", OVERLAP),
    ]


def test_a_batch_that_compaction_has_left_a_part_of_is_a_duplicate_when_it_is_sent_again(log: Log) -> None:
    """As a leader that was fed from there knows it: by the records that are left."""
    six = batch(b"a", b"b", b"c", b"d", b"e", b"f", producer=of(0))
    assert log.take(b"before", six, b"between", batch(b"g", b"h", producer=of(6))) == [1, 8]
    records = split(log.records)
    for left, answers in (
        ((2, 3, 6, 8, 9), [("error", DUPLICATE), 8, ("error", OVERLAP)]),
        ((6, 9), [("error", DUPLICATE)] * 3),
        ((1, 2, 3, 4, 5, 6, 9), [1, ("error", DUPLICATE), ("error", DUPLICATE)]),
        ((9,), [("error", DUPLICATE)] * 3),
    ):
        fed = Log(log.kernels)
        for number in left:
            log.kernels.observe_producers(fed.table, records[number], 0, len(records[number]))
        fed.end = 10
        assert (
            fed.take(six) + fed.take(batch(b"g", b"h", producer=of(6))) + fed.take(batch(b"f", b"g", producer=of(5)))
            == answers
        )


def test_epochs_fence_batches_too(log: Log) -> None:
    assert log.take(batch(b"a", producer=of(0)), batch(b"b", b"c", producer=of(0, epoch=4))) == [0, 1]
    assert log.take(batch(b"d", producer=of(1)), batch(b"d", producer=of(1, epoch=5))) == [
        ("error", FENCED),
        ("error", GAP),
    ]


def test_sequences_do_not_wrap(log: Log) -> None:
    last = (1 << 63) - 1
    restored = struct.pack("<QQQqI", 1, 3, last - 2, 1000, 0)
    log.table.restore(restored)
    assert log.take(batch(b"a", b"b", b"c", producer=of(last - 2))) == [("error", GAP)]
    assert log.take(batch(b"a", b"b", producer=of(last - 2)), batch(b"c", producer=of(last))) == [0, ("error", GAP)]
    assert log.take(batch(b"c", producer=of((1 << 64) - 1))) == [("error", GAP)]


def test_a_batch_below_the_window_is_known_to_be_stored(log: Log) -> None:
    assert log.take(batch(b"a", b"b", b"c", producer=of(0)))
    for sequence in range(3, PRODUCER_WINDOW + 2, 4096):
        log.take(batch(*[b""] * min(4096, PRODUCER_WINDOW + 2 - sequence), producer=of(sequence)))
    assert log.take(batch(b"a", b"b", b"c", producer=of(0)), batch(b"c", b"", producer=of(2))) == [
        2,
        ("error", DUPLICATE),
    ]


def test_an_archive_stores_a_copy_and_ignores_the_number(log: Log) -> None:
    copied = batch(b"a", b"b", producer=of(5, creation=8))
    assert log.take(copied, copied) == [0, 2]
    assert [value for _, value in log.stored] == [b"a", b"b"] * 2
    assert all(not message.producer for message in parse_messages(log.records))


def test_a_follower_knows_what_its_leader_knows_of_batches(log: Log) -> None:
    log.take(
        batch(b"a", b"b", producer=of(0)), b"between", batch(b"c", b"d", producer=of(2)), batch(b"e", producer=of(0, 9))
    )
    follower = log.kernels.ProducerTable(7, 1, MAX_PARTITION_PRODUCERS)
    log.kernels.observe_producers(follower, log.records, 0, len(log.records))
    assert (follower.snapshot(), follower.end) == (log.table.snapshot(), log.end)


def test_a_table_that_is_not_ready_leaves_the_outcome_open(log: Log) -> None:
    log.table.ready = False
    assert log.take(batch(b"a", producer=of(0)), batch(b"b")) == [0, ("error", 1)]


@pytest.mark.parametrize(
    ("count", "producer", "expected"),
    [
        (2, of(0), (2, 0)),
        (3, of(0), (2, 7)),
        (2, of(0, creation=8), (0, 8)),
        (2, b"x" * 20, (0, 8)),
        (2, b"", (0, 8)),
        (2, of(1), (0, UNKNOWN)),
    ],
)
def test_framed_messages_of_a_producer_are_all_that_were_announced(
    log: Log, count: int, producer: bytes, expected: tuple[int, int]
) -> None:
    tail = log.kernels.record_tail(b"", SUBJECT, b"")
    settings = (0, 9, 1000, 0, 1 << 20)

    def write() -> tuple[bytes, int, int, int, int]:
        answer: tuple[bytes, int, int, int, int] = log.kernels.encode_messages(
            framed(b"a", b"b"), SUBJECT, tail, *settings, count, True, producer, log.table
        )
        return answer

    records, found, end, _, problem = write()
    assert (found, problem) == expected
    assert len(parse_messages(records)) == end == (0 if problem else 2)
    assert len(log.table) == (0 if problem else 1)
    if not problem:
        assert write() == (b"", 0, 0, 0, -1)
