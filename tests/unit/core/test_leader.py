"""The leader machine: what it appends, when it pays which ack, and what it says when its log fails."""

import struct

from bascule.core.partition.insync import InSync
from bascule.core.partition.leader import (
    Append,
    Arrived,
    DropAcks,
    Effect,
    Expose,
    Failed,
    Fetched,
    Identity,
    Leader,
    Promised,
    Reopened,
    Replicate,
    SendAcks,
    SetBeingRemoved,
    SetReadonly,
)
from bascule.errors import AckError
from bascule.limits import MAX_PARTITION_PRODUCERS, PENDING_ACK_BYTES
from bascule.types import Epoch
from bascule.wire.envelope import MsgType, encode
from bascule.wire.kernels import ProducerTable, decode_records
from bascule.wire.pb import api_pb2 as api
from bascule.wire.producers import numbered, producer_prefix
from bascule.wire.record import origin
from tests.harness.batches import batch, envelope

PENDING = struct.Struct("<qqBBHHI")


def leader(isr: tuple[str, ...] = ("me",), min_isr: int = 1, *, occ: bool = False, limit: int = 1000) -> Leader:
    identity = Identity(origin("orders", 0), b"orders", Epoch(3), limit, occ, b"cluster.")
    return Leader(identity, InSync("me", isr, isr, min_isr, 0), 0, 0)


def acks(effect: Effect) -> list[tuple[int, int, int, bytes]]:
    """(offset, policy, error, correlation id) of each."""
    assert isinstance(effect, SendAcks)
    found, position = [], 0
    while position < len(effect.pending):
        offset, _, policy, error, inbox, subject, correlation = PENDING.unpack_from(effect.pending, position)
        position += PENDING.size + inbox + subject + correlation
        found.append((offset, policy, error, effect.pending[position - correlation : position]))
    return found


def offsets(effect: Effect) -> list[int]:
    assert isinstance(effect, Append)
    return [record[0] for record in decode_records(effect.records, 0, len(effect.records), 1000)[1]]


def test_nothing_is_acked_or_shown_before_the_log_promises() -> None:
    machine = leader()
    effects = machine.step(Arrived(batch(b"plain", envelope(b"v"), envelope(b"w", policy=1)), now=100))
    assert [type(effect) for effect in effects] == [Append, Replicate]
    assert offsets(effects[0]) == [0, 1, 2]
    assert machine.in_sync.hw_end == 0
    paid, shown = machine.step(Promised(3))
    assert [(offset, policy) for offset, policy, _, _ in acks(paid)] == [(1, 0), (2, 1)]
    assert shown == Expose(3)


def test_acks_of_batches_synced_together_keep_their_order() -> None:
    machine = leader()
    for number in range(3):
        machine.step(Arrived(batch(envelope(b"v", correlation=str(number))), now=number))
    effects = machine.step(Promised(3))
    assert [correlation for *_, correlation in acks(effects[0])] == [b"0", b"1", b"2"]
    assert machine.step(Promised(3)) == []


def test_a_promise_of_part_pays_only_that_part() -> None:
    machine = leader()
    machine.step(Arrived(batch(envelope(b"v"), envelope(b"v")), now=1))
    machine.step(Arrived(batch(envelope(b"v")), now=2))
    assert len(acks(machine.step(Promised(2))[0])) == 2
    assert len(acks(machine.step(Promised(3))[0])) == 1


def test_with_two_replicas_leader_acks_come_first_and_all_acks_wait_for_the_other() -> None:
    machine = leader(isr=("me", "peer"))
    machine.step(Arrived(batch(envelope(b"v", policy=0), envelope(b"w", policy=1)), now=1))
    (paid,) = machine.step(Promised(2))
    assert [(offset, policy) for offset, policy, _, _ in acks(paid)] == [(0, 0)]
    assert machine.in_sync.hw_end == 0


def test_a_leader_on_its_way_out_acks_nothing_that_its_successor_may_lack() -> None:
    """Both policies wait for the whole in-sync set, also what was taken before; one that stays acks as before."""
    machine = leader(isr=("me", "peer"))
    machine.step(Arrived(batch(envelope(b"v", policy=0), envelope(b"w", policy=1)), now=1))
    machine.step(SetBeingRemoved(True))
    machine.step(Arrived(batch(envelope(b"x", policy=0)), now=2))
    assert machine.step(Promised(3)) == []
    paid, shown = machine.step(Fetched("peer", 2, 2, now=3))
    assert [(offset, policy) for offset, policy, _, _ in acks(paid)] == [(0, 0), (1, 1)]
    assert shown == Expose(2)
    paid, _ = machine.step(Fetched("peer", 3, 3, now=4))
    assert [(offset, policy) for offset, policy, _, _ in acks(paid)] == [(2, 0)]
    machine.step(SetBeingRemoved(False))
    machine.step(Arrived(batch(envelope(b"y", policy=0)), now=5))
    assert [(offset, policy) for offset, policy, _, _ in acks(machine.step(Promised(4))[0])] == [(3, 0)]


def test_below_min_isr_nothing_commits_but_leader_acks_go_out() -> None:
    machine = leader(min_isr=2)
    machine.step(Arrived(batch(envelope(b"v", policy=0), envelope(b"w", policy=1)), now=1))
    (paid,) = machine.step(Promised(2))
    assert [(offset, policy) for offset, policy, _, _ in acks(paid)] == [(0, 0)]


def test_expected_offsets_that_follow_each_other_stay_one_batch() -> None:
    machine = leader(occ=True)
    payloads = [envelope(b"v", expected=number, correlation=str(number)) for number in range(5)]
    wrong = envelope(b"x", expected=1, correlation="wrong")
    append, _, refused = machine.step(Arrived(batch(*payloads[:3], wrong, *payloads[3:]), now=1))
    assert offsets(append) == [0, 1, 2, 3, 4]
    assert acks(refused) == [(0, 0, AckError.INCORRECT_OFFSET, b"wrong")]


def test_messages_of_the_clusters_own_subjects_are_never_stored() -> None:
    assert leader().step(Arrived(batch(b"x", subject=b"cluster.raft"), now=1)) == []


def test_too_large_is_refused_and_the_rest_is_stored() -> None:
    append, _, refused = leader(limit=100).step(Arrived(batch(envelope(bytes(200)), envelope(b"small")), now=1))
    assert offsets(append) == [0]
    assert [error for _, _, error, _ in acks(refused)] == [AckError.TOO_LARGE]


def test_readonly_drops_silently() -> None:
    machine = leader()
    machine.step(SetReadonly(True))
    assert machine.step(Arrived(batch(envelope(b"v")), now=1)) == []
    machine.step(SetReadonly(False))
    assert offsets(machine.step(Arrived(batch(envelope(b"v")), now=1))[0]) == [0]


def test_a_failed_log_tells_everyone_who_waits_and_gives_no_offset_twice() -> None:
    machine = leader()
    machine.step(Arrived(batch(envelope(b"v", correlation="safe")), now=1))
    machine.step(Promised(1))
    machine.step(Arrived(batch(envelope(b"v", correlation="lost")), now=2))
    (refused,) = machine.step(Failed(promised_end=1))
    assert acks(refused) == [(0, 0, AckError.UNKNOWN, b"lost")]
    (refused,) = machine.step(Arrived(batch(b"plain", envelope(b"v", correlation="late")), now=3))
    assert acks(refused) == [(0, 0, AckError.UNKNOWN, b"late")]
    machine.step(Reopened(end=1, last_timestamp=2))
    assert offsets(machine.step(Arrived(batch(b"again"), now=4))[0]) == [1]


def test_timestamps_strictly_increase_even_when_the_clock_steps_back() -> None:
    machine = leader()
    first = machine.step(Arrived(batch(b"a", b"b"), now=1000))[0]
    second = machine.step(Arrived(batch(b"c"), now=10))[0]
    assert isinstance(first, Append)
    assert isinstance(second, Append)
    stamps = [
        record[3]
        for effect in (first, second)
        for record in decode_records(effect.records, 0, len(effect.records), 10)[1]
    ]
    assert stamps == [1000, 1001, 1002]


def test_acks_that_wait_are_bounded_and_their_loss_is_said() -> None:
    machine = leader(isr=("me", "gone"), limit=1 << 22)
    big = [envelope(b"v", policy=1, correlation="c" * 1024)] * 1000
    dropped: list[DropAcks] = []
    for number in range(70):
        dropped += [item for item in machine.step(Arrived(batch(*big), now=number)) if isinstance(item, DropAcks)]
        assert machine.pending.nbytes <= PENDING_ACK_BYTES
    stored = sum(item.nbytes for item in dropped) + machine.pending.nbytes
    assert 70 * 1000 * 1024 < stored < 70 * 1000 * 1100
    assert 1 <= len(dropped) <= 2


def numbered_message(sequence: int, policy: int) -> bytes:
    message = api.Message(
        offset=-1,
        value=b"v",
        ackInbox="inbox",
        correlationId=str(sequence),
        producer=numbered(producer_prefix(1, 1, 7, 0), sequence),
    )
    message.ackPolicy = policy  # type: ignore[assignment]
    return encode(MsgType.PUBLISH, message.SerializeToString())


def idempotent(isr: tuple[str, ...]) -> Leader:
    identity = Identity(origin("orders", 0), b"orders", Epoch(3), 1000, False, b"cluster.")
    return Leader(identity, InSync("me", isr, isr, 1, 0), 0, 0, producers=ProducerTable(7, 0, MAX_PARTITION_PRODUCERS))


def test_an_ack_of_a_duplicate_waits_until_what_it_repeats_is_committed() -> None:
    """Its record may be lost with this leader until then."""
    machine = idempotent(("me", "b"))
    machine.step(Arrived(batch(numbered_message(0, 1)), now=1))
    assert machine.step(Arrived(batch(numbered_message(0, 1), numbered_message(0, 0)), now=2)) == []
    (paid,) = machine.step(Promised(1))
    assert [(offset, policy) for offset, policy, _, _ in acks(paid)] == [(0, 0)]
    paid, _ = machine.step(Fetched("b", 1, 1, now=3))
    assert [(offset, policy) for offset, policy, _, _ in acks(paid)] == [(0, 1), (0, 1)]
    (paid,) = machine.step(Arrived(batch(numbered_message(0, 1), numbered_message(0, 0)), now=4))
    assert sorted((offset, policy) for offset, policy, _, _ in acks(paid)) == [(0, 0), (0, 1)]
    machine.step(Arrived(batch(numbered_message(1, 1)), now=5))
    assert machine.step(Arrived(batch(numbered_message(0, 1)), now=6)) == []
    assert (machine.end, machine.pending.nbytes > 0) == (2, True)


def test_what_a_leader_may_not_store_leaves_nothing_with_its_producers() -> None:
    machine = idempotent(("me",))
    (refused,) = machine.arrived(batch(numbered_message(0, 1)), 1, may_store=False)
    assert [error for _, _, error, _ in acks(refused)] == [AckError.UNKNOWN]
    machine.step(Failed(0))
    (refused,) = machine.step(Arrived(batch(numbered_message(0, 1)), now=2))
    assert [error for _, _, error, _ in acks(refused)] == [AckError.UNKNOWN]
    assert machine.producers is not None
    assert len(machine.producers) == 0
