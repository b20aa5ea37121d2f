"""No bytes of a peer fail an assertion: what it says may be refused, passed over or believed, whatever it is. Messages
are made up with numbers close to those that the machines know, well-formed and checksummed, as a broker with a bug, or
of another version, would send them."""

import random

import pytest

from bascule.core.partition import follower as f
from bascule.core.partition import leader as le
from bascule.core.partition.epochs import EpochHistory
from bascule.core.partition.insync import InSync
from bascule.core.partition.pendingacks import PendingAcks, PendingAcksBound
from bascule.core.raft.machine import Raft, RaftConfig
from bascule.core.raft.ready import Ready
from bascule.core.replication.progress import divergence
from bascule.errors import PeerError
from bascule.testing.records import encode
from bascule.types import Epoch
from bascule.wire import raft_messages as rm
from bascule.wire.raft import decode_message, encode_membership, encode_message
from bascule.wire.record import origin
from bascule.wire.replication import (
    Answer,
    FetchRequest,
    Kind,
    Position,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from tests.harness.batches import batch

WALKS = 400
STEPS = 80
LARGE = (1 << 63) - 1


def number(chance: random.Random, *known: int) -> int:
    """Close to what is known, or far off."""
    return max(0, chance.choice((0, 1, 2, LARGE, *known, *(each + chance.randint(-2, 2) for each in known))))


# --- Raft ----------------------------------------------------------------------------------------------------------


def message(chance: random.Random, raft: Raft) -> rm.Message:
    log = raft.log
    source, target = chance.choice(("b", "c", "x")), chance.choice(("a", "a", "a", "b"))
    term = min(number(chance, raft.term, raft.term, raft.term + 1), raft.term + 3)
    head = (source, target, term)
    index = number(chance, log.commit, log.last_index, log.snapshot.index)
    at = log.term_at(index) or 0
    incarnation = chance.choice(("", "i"))
    match chance.randrange(9):
        case 0 | 1:
            prev_term = chance.choice((at, at, number(chance, raft.term)))
            entries = []
            for each in range(chance.choice((0, 1, 2, 3))):
                kind = chance.choice((rm.EntryKind.COMMAND, rm.EntryKind.NOOP, rm.EntryKind.MEMBERSHIP))
                data = encode_membership(members(chance)) if kind is rm.EntryKind.MEMBERSHIP else b"x"
                entries.append(rm.Entry(index + 1 + each, max(prev_term, min(term, raft.term)), kind, data))
            return rm.AppendRequest(*head, index, prev_term, number(chance, index, log.last_index), tuple(entries))
        case 2:
            rejected = chance.random() < 0.5
            match_index = number(chance, log.last_index, log.commit)
            return rm.AppendReply(*head, match_index, rejected, number(chance, raft.term), index, incarnation)
        case 3:
            return rm.Heartbeat(*head, index, chance.choice((at, raft.term)), number(chance, 1))
        case 4:
            return rm.HeartbeatReply(*head, number(chance, 1, 5), incarnation)
        case 5:
            flags = (chance.random() < 0.3, chance.random() < 0.3)
            return rm.VoteRequest(*head, index, number(chance, log.last_term), incarnation, *flags)
        case 6:
            return rm.VoteReply(*head, chance.random() < 0.7, chance.random() < 0.5)
        case 7:
            snapshot = rm.Snapshot(index, min(term, number(chance, log.last_term)), members(chance), b"data")
            return rm.SnapshotRequest(*head, snapshot, number(chance, 0, 4), number(chance, 4, 8))
        case _:
            if chance.random() < 0.5:
                return rm.SnapshotReply(*head, index, number(chance, 4), incarnation)
            return rm.TimeoutNow(*head)


def members(chance: random.Random) -> rm.Membership:
    return chance.choice((rm.Membership(("a", "b", "c")), rm.Membership(("b",)), rm.Membership(("a", "b"), ("c",))))


def carry_out(raft: Raft, ready: Ready) -> None:
    raft.advance(ready)


@pytest.mark.parametrize("incarnation", ["", "i"])
@pytest.mark.parametrize("first", range(0, WALKS, 100))
def test_no_message_fails_an_assertion_of_raft(first: int, incarnation: str) -> None:
    """Also if its own id stands for an earlier incarnation of it."""
    leading = taken = 0
    for seed in range(first, first + 100):
        chance = random.Random(seed)
        membership = chance.choice((rm.Membership(("a", "b", "c")), rm.Membership(("a",), ("b", "c"))))
        config = RaftConfig("a", snapshot_chunk_bytes=4)
        raft = Raft(config, rm.HardState(1, "", 0, incarnation), rm.Snapshot(0, 0, membership), [], chance.randint)
        for _ in range(STEPS):
            try:
                raft.step(decode_message(encode_message(message(chance, raft))))
                taken += 1
            except PeerError:
                pass
            for _ in range(chance.choice((0, 0, 0, 1, 12))):
                raft.tick()
            if raft.is_leader:
                leading += 1
                raft.propose(b"own")
            while chance.random() < 0.8 and (ready := raft.ready()):
                carry_out(raft, ready)
    assert leading > (5 if incarnation else 100)
    assert taken > 1000


# --- a follower, and the leader of a partition ----------------------------------------------------------------------


def answer(chance: random.Random, machine: f.Follower, epochs: EpochHistory) -> Answer:
    start, epoch = number(chance, machine.end, machine.end), chance.choice((2, 2, 2, 1, 3, epochs.last_epoch))
    records = b""
    if chance.random() < 0.6:
        pieces = [encode([b"x"] * chance.randint(1, 3), min(start, 1 << 40), epoch=epoch)[0]]
        if chance.random() < 0.3:
            pieces.append(
                encode([b"y"], number(chance, min(start, 1 << 40)) % (1 << 41), epoch=chance.choice((1, 2)))[0]
            )
        records = b"".join(pieces)
    if records and chance.random() < 0.1:
        records = records[: chance.randrange(len(records))]
    ends = number(chance, machine.end, machine.hw_end), number(chance, machine.end)
    asked = (chance.choice((machine.end, start)), chance.choice((epochs.last_epoch, 0)))
    kind = chance.choice((Kind.DATA, Kind.DATA, Kind.DIVERGED, Kind.REFUSED))
    return Answer(7, 0, kind, chance.choice((2, 2, 2, 1)), *ends, *asked, epoch, number(chance, machine.end), records)


@pytest.mark.parametrize("first", range(0, WALKS, 100))
def test_no_answer_fails_an_assertion_of_a_follower(first: int) -> None:
    appends = cuts = 0
    for seed in range(first, first + 100):
        chance = random.Random(seed)
        epochs = EpochHistory([(1, 0)])
        machine = f.Follower(7, 0, Epoch(2), epochs, 4, 4, 0)
        for _ in range(STEPS):
            (told,) = decode_response(b"".join(encode_response([answer(chance, machine, epochs)])))
            before = machine.end
            for effect in machine.step(f.Answered(told)):
                appends += isinstance(effect, f.Append)
                if isinstance(effect, f.Append):
                    assert effect.next_offset - effect.count >= before, "a log would refuse it, and count as failed"
                if isinstance(effect, f.Truncate):
                    cuts += 1
                    machine.step(f.Truncated(effect.end))
            if chance.random() < 0.5:
                machine.step(f.Promised(machine.end))
    assert appends > 100
    assert cuts > 10


@pytest.mark.parametrize("first", range(0, WALKS, 100))
def test_no_request_fails_an_assertion_of_a_leader(first: int) -> None:
    for seed in range(first, first + 100):
        chance = random.Random(seed)
        identity = le.Identity(origin("s", 0), b"s", Epoch(3), 1000, False, b"", 100)
        in_sync = InSync("a", ("a", "b", "c"), chance.choice((("a",), ("a", "b"), ("a", "b", "c"))), 1, 0)
        in_sync.start_watching(0)
        machine, epochs = le.Leader(identity, in_sync, 0, 0, PendingAcks("s/0", PendingAcksBound())), EpochHistory()
        for now in range(1, 1 + STEPS):
            machine.step(le.Arrived(batch(b"x"), now))
            epochs.begin(3, machine.end)
            if chance.random() < 0.5:
                machine.step(le.Promised(machine.end))
            ends = number(chance, machine.end, in_sync.hw_end), number(chance, machine.end, in_sync.hw_end)
            made = Position(7, 0, 3, *ends, chance.choice((0, 2, 3, 4, LARGE)), chance.random() < 0.2)
            asked = FetchRequest(1, 1, 1, 1, 0, 0, chance.choice("bcx"), True, [made])
            request = decode_request(encode_request(asked))
            for position in request.positions:
                divergence(position, epochs, 0, machine.end)
                if position.failing:
                    machine.step(le.DiskFailing(request.follower, position.promised_end, now))
                else:
                    machine.step(le.Fetched(request.follower, position.end, position.promised_end, now))
            machine.step(le.Tick(now, (("b", now), ("x", now))))
            if chance.random() < 0.1:
                machine.step(le.ExpandFailed("b", chance.random() < 0.5, now))
