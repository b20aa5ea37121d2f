"""The kernels for idempotent producers, on both twins: what is stored once, what is refused, what is known of it."""

import struct
from types import ModuleType
from typing import Any

import pytest

from bascule.limits import (
    MAX_PARTITION_PRODUCERS,
    MAX_PRODUCER_RUNS,
    PRODUCER_EXPIRY_NS,
    PRODUCER_WINDOW,
)
from bascule.wire.pb import api_pb2 as api
from bascule.wire.producers import REFUSALS, last_offsets, numbered, producer_prefix
from bascule.wire.pure.accept import pending_acks
from tests.harness.batches import batch
from tests.harness.kernel_inputs import built_twins

TWINS = built_twins()
DROPPED = MAX_PARTITION_PRODUCERS // 8
CREATION, PARTITION = 7, 1
GAP, UNKNOWN, FENCED, DUPLICATE, OVERLAP, EMPTY, BENT, LONG = REFUSALS


def message(id: int, sequence: int, epoch: int = 3, **fields: Any) -> bytes:
    producer = numbered(producer_prefix(id, epoch, CREATION, PARTITION), sequence)
    made = api.Message(
        offset=-1, value=b"v", ackInbox="inbox", ackPolicy=api.ALL, producer=fields.pop("producer", producer), **fields
    )
    return b"\xb9\x0e\x43\xb4\0\x08\0\0" + made.SerializeToString()


class Log:
    """A leader's end of a partition."""

    def __init__(self, kernels: ModuleType) -> None:
        self.kernels = kernels
        self.table = kernels.ProducerTable(CREATION, PARTITION, MAX_PARTITION_PRODUCERS)
        self.end = self.timestamp = 0
        self.records = b""

    def take(self, *payloads: bytes, now: int = 1000) -> tuple[list[int], list[int]]:
        """The offsets that are acked, and the errors."""
        tail = self.kernels.record_tail(b"", b"s", b"")
        records, _, self.end, self.timestamp, leader, acked, errors, _ = self.kernels.encode_records(
            batch(*payloads, subject=b"s"),
            b"",
            b"s",
            tail,
            self.end,
            9,
            now,
            self.timestamp,
            1 << 20,
            False,
            b"",
            self.table,
        )
        self.records += records
        assert not leader
        return [each[0] for each in pending_acks(acked)], [each[3] for each in pending_acks(errors)]


@pytest.fixture(params=TWINS, ids=lambda twin: twin.__name__)
def log(request: pytest.FixtureRequest) -> Log:
    return Log(request.param)


def test_a_sequence_is_stored_once_also_within_one_batch(log: Log) -> None:
    assert log.take(message(1, 0), message(1, 0), message(1, 1), message(1, 0)) == ([0, 0, 1, 0], [])
    assert log.take(message(1, 1), message(1, 3), message(2, 1), message(1, 2)) == ([1, 2], [GAP, UNKNOWN])
    assert (log.end, log.table.end, log.table.duplicates) == (3, 3, 3)


def test_epochs_begin_at_0_and_fence_older_ones(log: Log) -> None:
    assert log.take(message(1, 0, 5), message(1, 1, 5)) == ([0, 1], [])
    assert log.take(message(1, 2, 6), message(1, 0, 4), message(1, 0, 6)) == ([2], [GAP, FENCED])
    assert log.take(message(1, 2, 5), message(1, 1, 6)) == ([3], [FENCED])


def test_the_whole_window_is_known_with_its_offsets_and_what_is_below_is_not_stored_again(log: Log) -> None:
    count = PRODUCER_WINDOW + 10
    stored = {(id, sequence): 2 * sequence + id - 1 for sequence in range(count) for id in (1, 2)}
    log.take(*(message(id, sequence) for id, sequence in stored))
    assert log.table.runs == 2 * PRODUCER_WINDOW
    for sequence in (10, 11, 5000, count - 1):
        assert log.take(message(1, sequence), message(2, sequence)) == ([2 * sequence, 2 * sequence + 1], [])
    assert log.take(message(1, 9), message(2, 0)) == ([], [DUPLICATE, DUPLICATE])
    assert log.take(message(1, count)) == ([2 * count], [])
    assert log.take(message(1, 10), message(1, 11)) == ([22], [DUPLICATE])


def test_one_producer_alone_is_one_run_however_much_it_stores(log: Log) -> None:
    log.take(*(message(1, sequence) for sequence in range(3 * PRODUCER_WINDOW)))
    assert (log.table.runs, len(log.table.snapshot())) == (1, 36 + 16)
    assert log.take(message(1, 2 * PRODUCER_WINDOW)) == ([2 * PRODUCER_WINDOW], [])


def test_a_follower_that_observes_and_one_that_restores_know_the_same(log: Log) -> None:
    for round in range(20):
        log.take(*(message(id, sequence) for id in (1, 2, 3) for sequence in range(round * 3, round * 3 + id)))
    follower = log.kernels.ProducerTable(CREATION, PARTITION, MAX_PARTITION_PRODUCERS)
    log.kernels.observe_producers(follower, log.records, 0, len(log.records))
    assert (follower.snapshot(), follower.end) == (log.table.snapshot(), log.end)
    restored = log.kernels.ProducerTable(CREATION, PARTITION, MAX_PARTITION_PRODUCERS)
    restored.restore(follower.snapshot())
    assert restored.snapshot() == follower.snapshot()
    for bad in (b"x", follower.snapshot()[:-1], follower.snapshot() * 2):
        with pytest.raises(ValueError, match="not the producers"):
            restored.restore(bad)
        assert len(restored) == 0


def test_a_hole_in_what_is_observed_is_not_stored_again_either(log: Log) -> None:
    """Damaged records were left out."""
    sizes = []
    for sequence in range(6):
        log.take(message(1, sequence))
        sizes.append(len(log.records))
    follower = Log(log.kernels)
    left = log.records[: sizes[1]] + log.records[sizes[3] :]
    log.kernels.observe_producers(follower.table, left, 0, len(left))
    follower.end = 6
    assert follower.take(message(1, 1), message(1, 2), message(1, 3), message(1, 4)) == ([1, 4], [DUPLICATE, DUPLICATE])
    assert follower.take(message(1, 6)) == ([6], [])


def test_what_is_about_another_partition_or_not_a_number_is_ignored(log: Log) -> None:
    for creation, partition in ((8, PARTITION), (CREATION, 0)):
        other = numbered(producer_prefix(1, 3, creation, partition), 5)
        log.take(message(1, 0, producer=other))
    for bad in (b"", b"x", b"\xff" * 40, numbered(producer_prefix(1, 3, CREATION, PARTITION), 5) + b"x"):
        log.take(message(1, 0, producer=bad))
    assert (log.end, len(log.table)) == (6, 0)
    _, messages, _ = log.kernels.split_messages(log.records, 0, len(log.records), 1 << 20)
    assert not any(api.Message.FromString(each).producer for _, each in messages)


def test_a_record_has_what_its_producer_said_and_a_value_cannot_pretend_to_be_it(log: Log) -> None:
    said = numbered(producer_prefix(9, 3, CREATION, PARTITION), 0)
    field = b"\x8a\x7d" + bytes((len(said),)) + said
    log.take(message(0, 0, producer=b"", headers={"h": field, "": b"\x20\x01" + field}, key=field))
    assert len(log.table) == 0
    follower = log.kernels.ProducerTable(CREATION, PARTITION, MAX_PARTITION_PRODUCERS)
    log.kernels.observe_producers(follower, log.records, 0, len(log.records))
    assert len(follower) == 0
    log.records = b""
    log.take(message(9, 0))
    assert api.Message.FromString(log.records[5:]).producer == said
    assert log.kernels.scan_records(log.records, 0, len(log.records), 0)[1] == 1


def test_a_table_that_is_not_ready_refuses_producers_and_nothing_else(log: Log) -> None:
    log.table.ready = False
    assert log.take(message(1, 0), message(1, 0, producer=b"")) == ([0], [1])
    log.table.ready = True
    assert log.take(message(1, 0)) == ([1], [])


def test_the_number_of_producers_is_bounded_and_the_least_recent_go_many_at_once(log: Log) -> None:
    log.take(*(message(id, 0) for id in range(1, MAX_PARTITION_PRODUCERS + 1)))
    log.take(message(1, 1))
    assert len(log.table) == MAX_PARTITION_PRODUCERS
    log.take(message(1 << 40, 0))
    assert len(log.table) == MAX_PARTITION_PRODUCERS - DROPPED + 1
    last = DROPPED + 1  # of those that are gone: the first one was used again
    assert log.take(message(1, 1), message(2, 1), message(last, 1), message(last + 1, 0)) == (
        [MAX_PARTITION_PRODUCERS, last],
        [UNKNOWN, UNKNOWN],
    )
    ids = range(1 << 41, (1 << 41) + 2 * MAX_PARTITION_PRODUCERS)
    assert log.take(*(message(id, 0) for id in ids))[1] == []
    assert MAX_PARTITION_PRODUCERS - DROPPED < len(log.table) <= MAX_PARTITION_PRODUCERS
    assert log.take(message(ids[-1], 0), message(ids[0], 1)) == ([log.end - 1], [UNKNOWN])


@pytest.mark.parametrize("most", [1, 2, 7, 8, 20])
def test_a_table_may_have_another_bound(log: Log, most: int) -> None:
    log.table = log.kernels.ProducerTable(CREATION, PARTITION, most)
    log.take(*(message(id, 0) for id in range(1, most + 1)))
    assert len(log.table) == most
    log.take(message(most + 1, 0))
    assert len(log.table) == most - max(1, most // 8) + 1
    copy = log.kernels.ProducerTable(CREATION, PARTITION, most)
    copy.restore(log.table.snapshot())
    log.table.take(copy)
    assert log.take(message(most + 1, 1), message(1, 1)) == ([most + 1], [UNKNOWN])
    assert log.take(*(message(id, 0) for id in range(1, most + 1)))[1] == []
    assert len(log.table) <= most


def test_a_producer_that_was_not_used_for_long_is_forgotten(log: Log) -> None:
    log.take(message(1, 0), message(2, 0))
    log.take(message(2, 1), now=2 * 10**9)
    late = 1001 + PRODUCER_EXPIRY_NS
    assert log.take(message(1, 1), message(2, 2), now=late) == ([3], [UNKNOWN])
    assert log.take(message(1, 0), now=late) == ([4], [])
    log.table.expire(3 * late)
    assert (len(log.table), log.table.snapshot()) == (0, b"")


def test_over_the_bound_of_runs_the_older_half_of_each_producer_goes(log: Log) -> None:
    count, each = 128, MAX_PRODUCER_RUNS // 128
    stored = []
    for id in range(1, count + 1):
        stored.append(struct.pack("<QQQqI", id, 3, each, 1, each))
        stored += [struct.pack("<qII", 2 * sequence, sequence, 1) for sequence in range(each)]
    log.table.restore(b"".join(stored))
    log.end = 2 * each
    assert log.table.runs == MAX_PRODUCER_RUNS
    assert log.take(message(1, 0)) == ([0], [])
    assert log.take(message(2, each)) == ([2 * each], [])
    assert log.table.runs == MAX_PRODUCER_RUNS // 2 + 1
    assert log.take(message(1, 0), message(1, each - 1)) == ([2 * each - 2], [DUPLICATE])


def test_publish_requests_carry_it_on(log: Log) -> None:
    def route(content: bytes, partition: int = PARTITION) -> tuple[bytes, list[bytes]]:
        request = api.PublishRequest(stream="s", value=b"v", producer=content, partition=partition)
        data = request.SerializeToString()
        frame = b"\0" + len(data).to_bytes(4, "big") + data
        routes = {b"s": [(b"s", 0, b"", CREATION)] * (PARTITION + 2)}
        _, commands, _, _, exceptions, _ = log.kernels.route_publishes(
            frame, 0, len(frame), routes, b"inbox", 1 << 20, 1 << 20
        )
        assert exceptions in ([], [data])
        return commands, exceptions

    said = numbered(producer_prefix(9, 3, CREATION, PARTITION), 4)
    for content in (said, b""):
        commands, exceptions = route(content)
        payload = commands.partition(b"\r\n")[2][8:-2]
        assert api.Message.FromString(payload).producer == content
        assert exceptions == []
    elsewhere = [
        numbered(producer_prefix(9, 3, CREATION - 1, PARTITION), 4),
        numbered(producer_prefix(9, 3, CREATION, PARTITION + 1), 4),
        said[:-1],
        b"x",
        b"x" * 49,
    ]
    assert [route(content)[0] for content in elsewhere] == [b""] * 5, "its leader would ignore it: Python refuses it"
    assert route(said, PARTITION + 1)[0] == b""


def test_each_refusal_has_its_text_in_a_publish_response(log: Log) -> None:
    log.take(message(1, 0))
    for error, text in REFUSALS.items():
        pending = bytearray(26) + b"own.s1"
        pending[17], pending[18] = error, 6
        _, ((_, frames, _),) = log.kernels.encode_acks(bytes(pending), b"", b"s", 5, b"own.", 1000)
        response = api.PublishResponse.FromString(frames[5:])
        assert (response.asyncError.code, response.asyncError.message) == (error, text)


def test_a_table_says_where_a_producer_goes_on_and_where_its_messages_are(log: Log) -> None:
    table = log.table
    assert table.scope == (CREATION, PARTITION)
    assert table.expected(1, 3, 1000) == 0
    log.take(message(1, 0), message(2, 0), message(1, 1))
    assert [table.expected(1, epoch, 1000) for epoch in (2, 3, 4)] == [-1, 2, 0]
    assert table.expected(1, 3, 1000 + PRODUCER_EXPIRY_NS) == 2
    assert table.expected(1, 3, 1010 + PRODUCER_EXPIRY_NS) == 0
    assert [table.offset_of(1, 3, sequence) for sequence in (0, 1, 2)] == [0, 2, -1]
    assert (table.offset_of(1, 4, 0), table.offset_of(3, 3, 0)) == (-1, -1)


def test_the_last_record_of_each_producer_below_a_bound_is_known_or_it_is_said_that_it_is_not(log: Log) -> None:
    log.take(message(1, 0), message(2, 0), message(1, 1), message(1, 2), message(2, 1))
    assert last_offsets(log.table.snapshot(), 5) == [3, 4]
    assert last_offsets(log.table.snapshot(), 4) == [3, 1]
    assert last_offsets(log.table.snapshot(), 3) == [2, 1]
    assert last_offsets(log.table.snapshot(), 1) is None, "2 may have stored something before, under another epoch"
    log.take(message(1, 0, 8))
    assert last_offsets(log.table.snapshot(), 5) is None
