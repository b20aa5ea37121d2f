"""Pending acks: one bound for a broker, whose are dropped over it, and what is done about calls that are over."""

import random

import pytest

from bascule.core.partition.pendingacks import Gone, PendingAcks, PendingAcksBound
from bascule.limits import GONE_CALLS_AT_ONCE, PENDING_BATCH_BYTES, PENDING_SWEEP_BYTES
from bascule.wire.pendingacks import decode_gone, encode_gone
from tests.harness.kernel_inputs import built_twins, pack_pending

KIB = 1024


def pending(size: int, inbox: bytes = b"ns.ack.b.s1-7") -> bytes:
    """One ack that takes exactly so many bytes."""
    return pack_pending(1, inbox, policy=1, correlation=b"c" * (size - len(pack_pending(1, inbox))))


def fill(
    holder: PendingAcks, count: int, size: int = KIB - PENDING_BATCH_BYTES, first: int = 1
) -> list[tuple[str, int]]:
    """So many batches that wait for the in-sync set."""
    dropped = []
    for end in range(first, first + count):
        dropped += holder.add(end, b"", pending(size))
        holder.promised(end)
    return dropped


def stand_still(bound: PendingAcksBound) -> None:
    bound.tick()
    bound.tick()


def test_the_bound_is_one_for_all_partitions() -> None:
    bound = PendingAcksBound(64 * KIB)
    holders = [PendingAcks(f"s/{number}", bound) for number in range(8)]
    dropped = []
    for end in range(1, 100):
        for holder in holders:
            dropped += fill(holder, 1, first=end)
            assert bound.nbytes <= 64 * KIB
            assert bound.nbytes == sum(item.nbytes for item in holders)
    assert sum(nbytes for _, nbytes in dropped) + bound.nbytes == 99 * 8 * KIB


def test_the_largest_holder_loses_its_oldest_acks() -> None:
    bound = PendingAcksBound(64 * KIB)
    small, large = PendingAcks("small", bound), PendingAcks("large", bound)
    fill(small, 8)
    ((name, nbytes),) = fill(large, 57)
    assert (name, nbytes) == ("large", 17 * KIB)
    assert (small.nbytes, large.nbytes) == (8 * KIB, 40 * KIB)
    sendable: list[bytes] = []
    large.committed(17, sendable)
    assert sendable == []
    large.committed(19, sendable)
    assert len(sendable) == 2


def test_partitions_that_commit_keep_their_acks_while_others_stand_still() -> None:
    """Many partitions that stand still hold little each; one that commits has a burst under way, and is the largest."""
    bound = PendingAcksBound(64 * KIB)
    stuck = [PendingAcks(f"stuck/{number}", bound) for number in range(40)]
    busy = PendingAcks("busy", bound)
    for holder in stuck:
        fill(holder, 1)
    fill(busy, 10)
    stand_still(bound)
    busy.committed(5, [])
    bound.tick()
    dropped = fill(busy, 30, first=11)
    assert dropped
    assert all(name.startswith("stuck/") for name, _ in dropped)
    sendable: list[bytes] = []
    busy.committed(40, sendable)
    assert len(sendable) == 35


def test_what_waits_for_the_disk_is_dropped_last_and_bounded_too() -> None:
    bound = PendingAcksBound(64 * KIB)
    holder = PendingAcks("s/0", bound)
    for end in range(1, 200):
        holder.add(end, pending(KIB - PENDING_BATCH_BYTES), b"")
        assert bound.nbytes <= 64 * KIB
    retained = holder.promised(200)
    assert 47 <= len(retained) <= 64
    assert (holder.nbytes, bound.nbytes) == (0, 0)


def test_a_leader_acks_what_it_owes_and_nothing_twice() -> None:
    """Random histories: the counts are right at every step, and every ack is paid, lost, dropped or held."""
    for seed in range(40):
        chance = random.Random(seed)
        bound = PendingAcksBound(chance.choice((20, 200)) * KIB)
        holders = [PendingAcks(str(number), bound) for number in range(chance.randint(1, 4))]
        ends, promised = dict.fromkeys(holders, 0), dict.fromkeys(holders, 0)
        added = out = 0
        for _ in range(300):
            holder = chance.choice(holders)
            step = chance.random()
            if step < 0.5:
                ends[holder] += 1
                leader = pending(100) if chance.random() < 0.5 else b""
                to_all = pending(chance.randint(100, 2000)) if chance.random() < 0.7 or not leader else b""
                added += len(leader) + len(to_all)
                batches = sum(len(item._unpromised) + len(item._uncommitted) for item in holders) + 1
                dropped = sum(nbytes for _, nbytes in holder.add(ends[holder], leader, to_all))
                left = sum(len(item._unpromised) + len(item._uncommitted) for item in holders)
                out += dropped - (batches - left) * PENDING_BATCH_BYTES
            elif step < 0.75:
                promised[holder] = max(promised[holder], chance.randint(0, ends[holder]))
                out += sum(map(len, holder.promised(promised[holder])))
            elif step < 0.9:
                sendable: list[bytes] = []
                holder.committed(chance.randint(0, promised[holder]), sendable)
                out += sum(map(len, sendable))
            elif step < 0.95:
                out += len(holder.failed(promised[holder]))
                ends[holder] = promised[holder]
            else:
                bound.tick()
            assert bound.nbytes == sum(item.nbytes for item in holders) <= bound.most
            held = [batch for item in holders for batch in (*item._unpromised, *item._uncommitted)]
            inside = sum(len(batch.leader) + len(batch.all) for batch in held)
            assert bound.nbytes == inside + len(held) * PENDING_BATCH_BYTES
            assert added == out + inside


def test_who_leads_no_more_holds_nothing() -> None:
    bound = PendingAcksBound(64 * KIB)
    holder, other = PendingAcks("s/0", bound), PendingAcks("s/1", bound)
    fill(holder, 20)
    holder.add(21, pending(500), b"")
    fill(other, 3)
    holder.close()
    assert (holder.nbytes, bound.nbytes) == (0, 3 * KIB)
    holder.close()
    assert bound.nbytes == 3 * KIB


# --- calls that are over --------------------------------------------------------------------------------------------


def gone(*tokens: bytes, number: int = 1) -> Gone:
    return Gone(b"ns.ack.", dict.fromkeys(tokens), number)


def forgotten(bound: PendingAcksBound, over: Gone) -> int:
    """How many bytes."""
    before = bound.nbytes
    assert not bound.forget(over)
    return before - bound.nbytes


def test_what_waits_for_a_call_that_is_over_is_dropped_where_nothing_moves() -> None:
    bound = PendingAcksBound(1 << 20)
    stuck, busy = PendingAcks("stuck", bound), PendingAcks("busy", bound)
    for end in range(1, 11):
        mine, theirs = pending(200, b"ns.ack.b.sMINE-7"), pending(200, b"ns.ack.other.sTHEIRS-7")
        stuck.add(end, b"", mine + theirs if end % 2 else mine)
        stuck.promised(end)
    stand_still(bound)
    busy.add(1, b"", pending(200, b"ns.ack.b.sMINE-7"))
    busy.promised(1)
    assert forgotten(bound, gone(b"sMINE")) == 10 * 200 + 5 * PENDING_BATCH_BYTES
    assert forgotten(bound, gone(b"sMINE")) == 0
    sendable: list[bytes] = []
    stuck.committed(10, sendable)
    assert sendable == [pending(200, b"ns.ack.other.sTHEIRS-7")] * 5
    assert stuck.nbytes == 0
    assert busy.nbytes == 200 + PENDING_BATCH_BYTES


def test_late_messages_of_a_call_that_is_over_are_dropped_too() -> None:
    bound = PendingAcksBound(1 << 20)
    holder = PendingAcks("s/0", bound)
    fill(holder, 2, size=300)
    stand_still(bound)
    assert forgotten(bound, gone(b"sNOBODY")) == 0
    holder.add(3, b"", pending(300, b"ns.ack.b.sNOBODY-1"))
    holder.promised(3)
    assert forgotten(bound, gone(b"sNOBODY")) == 300 + PENDING_BATCH_BYTES
    assert forgotten(bound, gone(b"sNOBODY", b"s1", number=2)) == 2 * (300 + PENDING_BATCH_BYTES)
    assert bound.nbytes == 0


def test_a_look_for_calls_that_are_over_is_bounded() -> None:
    bound = PendingAcksBound(4 * PENDING_SWEEP_BYTES)
    holder = PendingAcks("s/0", bound)
    chunk = pending(1000) * 1000
    for end in range(1, 3 * PENDING_SWEEP_BYTES // len(chunk)):
        holder.add(end, b"", chunk)
        holder.promised(end)
    stand_still(bound)
    more = [True]
    while more[-1]:
        before = bound.nbytes
        more.append(bound.forget(gone(b"s1")))
        assert before - bound.nbytes <= PENDING_SWEEP_BYTES + 2 * len(chunk)
    assert bound.nbytes == 0
    assert len(more) in (3, 4)


@pytest.mark.parametrize("kernels", built_twins())
@pytest.mark.parametrize(
    ("inbox", "dropped"),
    [
        (b"ns.ack.b1.sabc", True),
        (b"ns.ack.b1.sabc-7", True),
        (b"ns.ack.b1.sabc-7-8", True),
        (b"ns.ack.b1.sabcd-7", False),
        (b"ns.ack.b1.sab-7", False),
        (b"ns.ack.b1.-sabc", False),
        (b"ns.ack.sabc", True),
        (b"ns.ack.", False),
        (b"ns.acks.sabc", False),
        (b"other.ack.b1.sabc", False),
        (b"sabc", False),
    ],
)
def test_an_inbox_is_of_a_call_by_its_last_token(kernels: object, inbox: bytes, dropped: bool) -> None:
    before, after = pack_pending(1, b"in.box", correlation=b"c"), pack_pending(2, b"in.box")
    retained = kernels.drop_gone(before + 3 * pack_pending(7, inbox, policy=1) + after, b"ns.ack.", {b"sabc": None})  # type: ignore[attr-defined]
    assert retained == (before + after if dropped else before + 3 * pack_pending(7, inbox, policy=1) + after)


def test_tokens_of_calls_that_have_ended_are_sent_with_a_checksum() -> None:
    tokens = [b"s%d" % number for number in range(GONE_CALLS_AT_ONCE)]
    told = encode_gone(tokens)
    assert decode_gone(told) == tokens
    assert decode_gone(encode_gone([b"u1"])) == [b"u1"]
    short = encode_gone([b"sABC", b"uDEF"])
    for position in range(len(short)):
        for bit in range(8):
            bent = bytearray(short)
            bent[position] ^= 1 << bit
            assert decode_gone(bytes(bent)) == []
    assert all(decode_gone(short[:end]) == [] for end in range(len(short)))
    assert decode_gone(encode_gone([*tokens, b"one too many"])) == []
    assert decode_gone(encode_gone([b"x" * 65])) == []
    assert decode_gone(encode_gone([])) == []
