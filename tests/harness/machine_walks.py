"""Walks through the machines of `core`: every state meets every input, many times, from a fixed seed, and what
follows is written down. The diagrams must show that, no more and no less.
"""

import random
from functools import cache
from unittest import mock

from bascule.core.liveness import Liveness
from bascule.core.partition import follower as f
from bascule.core.partition import insync
from bascule.core.partition import leader as le
from bascule.core.partition.epochs import EpochHistory
from bascule.core.partition.insync import InSync
from bascule.core.partition.pendingacks import PendingAcks, PendingAcksBound
from bascule.core.raft.machine import Raft, RaftConfig, Role
from bascule.core.raft.state import State
from bascule.errors import BasculeError
from bascule.testing.records import encode
from bascule.types import Epoch
from bascule.wire import raft_messages as rm
from bascule.wire.pendingacks import pending_ack
from bascule.wire.record import origin
from bascule.wire.replication import Answer, Kind
from tests.harness.batches import batch, envelope
from tests.harness.diagrams import Edge

# --- Raft ----------------------------------------------------------------------------------------------------------

_LEADER_HEARD = rm.AppendRequest | rm.Heartbeat | rm.SnapshotRequest


class RaftWalk:
    """One server, its peers played by chance. Every change of its role is noted with the input that made it."""

    def __init__(self, voters: tuple[str, ...], chance: random.Random, seen: set[Edge]) -> None:
        snapshot = rm.Snapshot(1, 1, rm.Membership(voters))
        self.cause, self.newer = "", False
        self._chance, self._seen = chance, seen
        self._raft = Raft(
            RaftConfig("a", election_ticks=3), rm.HardState(1, "", 1), snapshot, [], lambda low, high: low
        )

    def note(self, before: Role, after: Role) -> None:
        cause = "newer term" if self.newer and after is Role.FOLLOWER else self.cause
        if before is not after:
            self._seen.add((before.value, cause, after.value))

    def go(self) -> None:
        raft, chance = self._raft, self._chance
        self.newer = False
        match chance.randrange(8):
            case 0 | 1:
                self.cause = "tick"
                raft.tick()
            case 2:
                self.cause = "advance"
                if ready := raft.ready():
                    raft.advance(ready)
            case 3 if raft.committed_in_own_term:
                self.cause = "advance"
                try:
                    raft.propose_membership(raft.membership.without("a"))
                except BasculeError:
                    pass
            case _ if len(raft.membership.everyone) > 1 or "a" not in raft.membership.everyone:
                self._hear(self._message())

    def _hear(self, message: rm.Message) -> None:
        self.cause = "leader heard" if isinstance(message, _LEADER_HEARD) else type(message).__name__
        self.newer = message.term > self._raft.term
        self._raft.step(message)

    def _message(self) -> rm.Message:
        raft, chance = self._raft, self._chance
        log, term = raft.log, raft.term + chance.choice((-1, 0, 0, 0, 1))
        ends = (chance.choice("bc"), "a", term)
        yes, pre = chance.random() < 0.5, chance.random() < 0.5
        match chance.randrange(9):
            case 0:
                return rm.VoteRequest(*ends, log.last_index, log.last_term + yes, pre=pre)
            case 1 | 2 | 3:
                asked = raft.term + (pre and yes)
                return rm.VoteReply(*ends[:2], chance.choice((asked, asked, term)), granted=yes, pre=pre)
            case 4:
                return rm.AppendReply(*ends, match=log.last_index)
            case 5:
                return rm.HeartbeatReply(*ends, round=0)
            case 6:
                return rm.TimeoutNow(*ends)
            case 7:
                return rm.SnapshotRequest(*ends, rm.Snapshot(1, 1, raft.membership), 0, 0)
            case _:
                if yes:
                    return rm.AppendRequest(*ends, log.snapshot.index, log.snapshot.term, 0)
                return rm.Heartbeat(*ends, 0, 0, 0)


@cache
def raft_edges(walks: int = 500, length: int = 60) -> set[Edge]:
    seen: set[Edge] = set()
    walk: RaftWalk | None = None
    roles: dict[State, Role] = {}

    def assign(state: State, role: Role) -> None:
        if state in roles and walk is not None:
            walk.note(roles[state], role)
        roles[state] = role

    with mock.patch.object(State, "role", property(roles.__getitem__, assign), create=True):
        for number in range(walks):
            chance = random.Random(number)
            walk = RaftWalk(("a", "b", "c")[: 1 + number % 3], chance, seen)
            for _ in range(length):
                walk.go()
    return seen


# --- a partition's leader, and its in-sync set ---------------------------------------------------------------------

LAG = 100
ISRS = (("me",), ("me", "b"), ("me", "c"), ("me", "b", "c"))


class LeaderWalk:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        identity = le.Identity(origin("orders", 0), b"orders", Epoch(3), 1000, False, b"", LAG)
        self.in_sync = InSync("me", ("me", "b", "c"), chance.choice(ISRS), chance.choice((1, 2)), 0)
        self.in_sync.start_watching(0)
        self.machine = le.Leader(identity, self.in_sync, 0, 0, PendingAcks("orders/0", PendingAcksBound(1000)))
        self._now = 0
        self._promised = 0

    def event(self) -> le.Event:
        chance, machine = self._chance, self.machine
        self._now += chance.choice((1, 1, 40, LAG))
        end = chance.choice((machine.end, machine.end, chance.randint(0, machine.end)))
        kind = chance.choice((le.Promised, le.Fetched, le.Arrived, *le.Event.__args__))
        if kind is le.Arrived:
            made = [envelope(b"v"), envelope(b"v", policy=1), envelope(b"v" * 2000), envelope(b"v", policy=2), b"plain"]
            return le.Arrived(batch(*chance.sample(made, chance.randint(1, 3))), self._now)
        if kind is le.Promised:
            self._promised = max(self._promised, end)
            return le.Promised(self._promised)
        if kind is le.Failed:
            return le.Failed(self._promised)
        if kind is le.Reopened and machine.failed:
            return le.Reopened(max(self._promised, end), 0)
        if kind is le.SetReadonly:
            return le.SetReadonly(chance.random() < 0.3)
        if kind is le.Fetched:
            return le.Fetched(chance.choice("bc"), end, chance.randint(0, end), self._now)
        if kind is le.IsrChanged:
            isr = chance.choice(ISRS)
            eligible = tuple(each for each in "bc" if each not in isr and chance.random() < 0.5)
            return le.IsrChanged(isr, ("me", "b", "c"), self._now, eligible)
        if kind is le.Confirmed:
            return le.Confirmed(pending_ack(0, 0, 1, b"in.box", b"c"), chance.random() < 0.5)
        if kind is le.DiskFailing:
            return le.DiskFailing(chance.choice("bc"), end, self._now)
        if kind is le.ShrinkFailed:
            return le.ShrinkFailed(chance.choice("bc"), self._now)
        if kind is le.ExpandFailed:
            return le.ExpandFailed(chance.choice("bc"), chance.random() < 0.5, self._now)
        return le.Tick(self._now, tuple((each, self._now) for each in "bc" if chance.random() < 0.3))

    @property
    def place(self) -> str:
        """Of b, as the leader sees it."""
        machine = self.in_sync
        inside, leaving, joining = "b" in machine.isr, "b" in machine._asked_out, "b" in machine._asked_in
        assert not (leaving and not inside and "b" not in machine._eligible)
        assert not (joining and inside)
        return "asked in" if joining else "out" if not inside else "asked out" if leaving else "in"


@cache
def leader_walks(walks: int = 600, length: int = 80) -> tuple[set[Edge], set[Edge]]:
    """Events to effects; and how a replica's place in the in-sync set changes."""
    seen: set[Edge] = set()
    places: set[Edge] = set()
    with mock.patch.object(insync, "ASK_AGAIN_FIRST_NS", 1):
        for number in range(walks):
            walk = LeaderWalk(random.Random(number))
            for _ in range(length):
                event, before = walk.event(), walk.place
                effects = walk.machine.step(event)
                seen |= {(type(event).__name__, "", type(effect).__name__) for effect in effects}
                asked = [
                    effect
                    for effect in effects
                    if isinstance(effect, le.AskShrink | le.AskExpand) and effect.replica == "b"
                ]
                cause = type(asked[0] if asked else event).__name__
                if walk.place != before:
                    places.add((before.replace(" ", "_"), cause, walk.place.replace(" ", "_")))
    return seen, places


# --- a follower ----------------------------------------------------------------------------------------------------


def follower_edges(walks: int = 300, length: int = 40) -> tuple[set[Edge], set[Edge]]:
    """Events to effects; and when it is truncating its log."""
    seen: set[Edge] = set()
    states: set[Edge] = set()
    for number in range(walks):
        chance = random.Random(number)
        epochs = EpochHistory([(1, 0)])
        machine = f.Follower(7, 0, Epoch(2), epochs, 4, 4, 0)
        for _ in range(length):
            event, before = _follower_event(chance, machine, epochs), machine.truncating
            effects = machine.step(event)
            seen |= {(type(event).__name__, "", type(effect).__name__) for effect in effects}
            if machine.truncating != before:
                cause = type(effects[0] if effects else event).__name__
                states.add(
                    (
                        "truncating" if before else "following",
                        cause,
                        "truncating" if machine.truncating else "following",
                    )
                )
    return seen, states


def _follower_event(chance: random.Random, machine: f.Follower, epochs: EpochHistory) -> f.Event:
    if machine.truncating and chance.random() < 0.5:
        return f.Truncated(max(0, machine.end - 1))
    if chance.random() < 0.3:
        return f.Promised(chance.randint(0, machine.end))
    if chance.random() < (0.5 if machine.failed else 0.05):
        ends_at = f.Reopened if machine.failed else f.Failed
        return ends_at(min(machine.end, machine.promised_end))
    kind = chance.choice((Kind.DATA, Kind.DATA, Kind.DIVERGED, Kind.REFUSED))
    records = encode([b"x"], machine.end, epoch=2)[0] if chance.random() < 0.6 else b""
    if records and chance.random() < 0.2:
        records = records[:-1] + bytes([records[-1] ^ 1])
    position = (machine.end, epochs.last_epoch)
    cut_to = chance.randint(0, machine.end)
    takes = f.BeginAnew if chance.random() < 0.05 else f.Answered
    return takes(Answer(7, 0, kind, Epoch(2), chance.randint(0, 9), 99, *position, 1, cut_to, records))


# --- liveness ------------------------------------------------------------------------------------------------------


def liveness_edges(walks: int = 100, length: int = 60) -> set[Edge]:
    seen: set[Edge] = set()
    for number in range(walks):
        chance, now = random.Random(number), 0
        machine = Liveness(LAG)

        def state(machine: Liveness = machine) -> str:
            if "b" not in machine._sessions:
                return "unknown"
            return "dead" if not machine.alive("b") else "undecided" if machine.undecided("b") else "alive"

        for _ in range(length):
            now += chance.choice((1, LAG // 2, 2 * LAG))
            before = state()
            cause = _live(machine, chance, now)
            if state() != before or cause == "another boot":
                seen.add((before, cause, state()))
    return seen


def _live(machine: Liveness, chance: random.Random, now: int) -> str:
    match chance.randrange(6):
        case 0:
            machine.begin({"b": now - chance.choice((0, LAG))}, now)
            return "begin"
        case 1 | 2:
            return "another boot" if machine.heard("b", chance.choice(("x", "x", "x", "y")), now) else "heard"
        case 3:
            machine.left("b")
            return "left"
        case _:
            machine.expired(now)
            return "expired"


def names_of(union: object) -> set[str]:
    """Of the classes of a union."""
    return {each.__name__ for each in union.__args__}  # type: ignore[attr-defined]
