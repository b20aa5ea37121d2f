"""A cluster of Raft machines under chance, and the safety claims of the paper watched at every step.

Messages are delayed, dropped, doubled and reordered; the network splits; servers crash with a write under way, lose all
they stored, come and go as members; logs are compacted; peers' messages arrive while a Ready is being persisted.
Drivers do what a broker's driver does: let joiners in as learners, promote them when they have caught up, let a server
that lost its state in anew.

`python -m tests.harness.raft_cluster --seeds 1000 --first 1` runs many; a failure names its seed, and
`--seeds 1 --first N --trace` shows what led to it.
"""

import argparse
import hashlib
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from bascule.core.raft.machine import Raft, RaftConfig
from bascule.core.raft.ready import Ready
from bascule.errors import BasculeError
from bascule.wire.raft import decode_message, encode_message
from bascule.wire.raft_messages import Entry, EntryKind, HardState, Membership, Message, Snapshot

POOL = ("a", "b", "c", "d", "e", "f")


@dataclass(frozen=True)
class Chances:
    """Of each thing to happen, per server and turn or per message."""

    crash: float = 0.01
    restart: float = 0.1
    wipe: float = 0.1  # of a crash
    split: float = 0.05
    drop: float = 0.1
    delay: float = 0.2
    duplicate: float = 0.05
    compact: float = 0.05
    slow_persist: float = 0.2
    propose: float = 0.5
    transfer: float = 0.01
    change: float = 0.02
    read: float = 0.1
    tick: float = 1.0
    nudge: float = 0.0  # to campaign
    crash_leader: float = 0.01
    crash_in_write: float = 0.0  # per Ready that is slow to persist
    crash_after_send: float = 0.0  # per Ready that promised something
    election_ticks: int = 10
    append_bytes: int = 200


ROUGH = Chances(crash=0.03, split=0.1, drop=0.2, propose=0.3, slow_persist=0.4, restart=0.3)
DUELS = Chances(
    crash=0, crash_leader=0, restart=1, split=0.02, drop=0, delay=0.3, propose=0.3, transfer=0.4, tick=0.5,
    crash_in_write=0.05, crash_after_send=0.3, election_ticks=5,
)  # fmt: skip
"""Leadership is handed about: several candidates a term, and voters that crash after their vote."""
SLOW_DISKS = Chances(
    crash=0, crash_leader=0, restart=1, split=0.1, drop=0, delay=0.3, propose=0.3, transfer=0.1, tick=0.5,
    slow_persist=0.4, crash_in_write=0.2, crash_after_send=0.1, election_ticks=5,
)  # fmt: skip
"""Servers crash with a write under way."""
FALLING_LEADERS = Chances(
    crash=0, crash_leader=0.3, restart=0.1, split=0, drop=0, delay=0.3, propose=0.3, transfer=0, nudge=0.3,
    slow_persist=0, election_ticks=4, append_bytes=1,
)  # fmt: skip
"""Leaders live for a few turns, and entries travel one by one: logs diverge as in the paper's figures 7 and 8."""
CALM = Chances(
    crash=0, crash_leader=0, restart=1, wipe=0, split=0, drop=0, delay=0, duplicate=0, slow_persist=0, transfer=0,
    change=0,
)  # fmt: skip


@dataclass
class Server:
    id: str
    hard_state: HardState
    snapshot: Snapshot
    entries: list[Entry] = field(default_factory=list)
    raft: Raft | None = None
    under_way: Ready | None = None
    applied: list[bytes] = field(default_factory=list)
    applied_index: int = 0
    incarnations: int = 0

    def start(self, chance: random.Random, chances: Chances) -> None:
        self.applied = _commands(self.snapshot)
        self.applied_index = self.snapshot.index
        config = RaftConfig(
            self.id,
            election_ticks=chances.election_ticks,
            heartbeat_ticks=min(2, chances.election_ticks // 2),
            max_append_bytes=chances.append_bytes,
            snapshot_chunk_bytes=48,
            trailing_entries=5,
        )
        self.raft = Raft(config, self.hard_state, self.snapshot, self.entries, chance.randint)

    def persist(self, ready: Ready) -> None:
        if ready.hard_state:
            self.hard_state = ready.hard_state
        if ready.snapshot:
            self.snapshot, self.entries = ready.snapshot, []
        if ready.entries:
            first = ready.entries[0].index
            self.entries = [entry for entry in self.entries if entry.index < first] + ready.entries

    def persist_cut_short(self, ready: Ready, chance: random.Random) -> None:
        """The crash came during the write: it is there whole, or it is not."""
        if chance.random() < 0.5:
            self.persist(ready)

    def compact(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.entries = [entry for entry in self.entries if entry.index > snapshot.index]


def _commands(snapshot: Snapshot) -> list[bytes]:
    return snapshot.data.split(b",") if snapshot.data else []


class Safety:
    """What must hold in every history. The names are those of the paper's figure 3."""

    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        self.committed: dict[int, tuple[Entry, int]] = {}  # entry, term of the leader that committed it
        self._entries: dict[tuple[int, int], tuple[Entry, int]] = {}  # (index, term): entry, term of the one before
        self._seen: dict[str, tuple[Raft, int, int, int]] = {}  # raft, leader of which term, last index, commit

    @property
    def end(self) -> int:
        """The last committed index."""
        return max(self.committed, default=0)

    def observe(self, raft: Raft) -> None:
        known, was_leader, last, commit = self._seen.get(raft.id, (raft, 0, 0, 0))
        if known is not raft:
            was_leader, last, commit = 0, 0, 0
        log = raft.log
        if raft.is_leader:
            if was_leader != raft.term:
                self._election_safety(raft)
                self._leader_completeness(raft)
            else:
                assert log.last_index >= last, f"leader append-only: {raft.id} cut its log from {last}"
        assert log.commit >= commit, f"{raft.id}: the commit index went back from {commit} to {log.commit}"
        led = raft.is_leader or was_leader == raft.term  # a leader that left with this commit
        self._commits(raft, max(commit, log.base_index), led)
        self._seen[raft.id] = (raft, raft.term if raft.is_leader else 0, log.last_index, log.commit)

    def _election_safety(self, raft: Raft) -> None:
        known = self.leaders.setdefault(raft.term, raft.id)
        assert known == raft.id, f"election safety: {known} and {raft.id} both lead in term {raft.term}"

    def _leader_completeness(self, raft: Raft) -> None:
        for index, (entry, term) in self.committed.items():
            if term < raft.term and index > raft.log.base_index:
                held = raft.log.term_at(index)
                assert held == entry.term, (
                    f"leader completeness: {raft.id} leads in {raft.term} without entry {index}, committed in {term}"
                )

    def stored(self, server: str, entries: list[Entry], before: int) -> None:
        """Log matching, by induction: an index and a term name one entry, with one term before it."""
        for entry in entries:
            known = self._entries.setdefault((entry.index, entry.term), (entry, before))
            assert known == (entry, before), f"log matching: {server} differs at {entry.index} of term {entry.term}"
            assert before <= entry.term, f"log matching: terms go back at {entry.index} of {server}"
            before = entry.term

    def _commits(self, raft: Raft, start: int, led: bool) -> None:
        for entry in raft.log.slice(start + 1, raft.log.commit + 1):
            known = self.committed.get(entry.index)
            if known is None:
                assert led, f"{raft.id} took {entry.index} as committed before any leader did"
                self.committed[entry.index] = (entry, raft.term)
            else:
                assert known[0] == entry, f"state machine safety: {entry.index} is committed with two contents"


class Cluster:
    def __init__(
        self,
        seed: int,
        founders: int,
        chances: Chances | None = None,
        *,
        spares: int = 0,
        bug: str = "",
        make: Callable[[str, HardState, Snapshot], Server] = Server,
    ) -> None:
        self.make = make
        self.chance = random.Random(seed)
        self.chances = chances or Chances()
        self.bug = bug
        self.safety = Safety()
        self.network: list[Message] = []
        self.cut: list[str] = []
        self.trace: list[str] | None = None
        self.proposed = self.served = self.crashes = self.wipes = self.changes = self.snapshots = 0
        self._read_bounds: dict[int, int] = {}
        membership = Membership(POOL[:founders])
        self.servers = {name: make(name, HardState(), Snapshot(0, 0, membership)) for name in POOL[:founders]}
        for name in POOL[founders : founders + spares]:
            self.servers[name] = self._blank(name, 1)
        for server in self.servers.values():
            server.start(self.chance, self.chances)

    def _blank(self, name: str, number: int) -> Server:
        server = self.make(name, HardState(incarnation=f"incarnation{number}"), Snapshot(0, 0, Membership()))
        server.incarnations = number
        return server

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(text)

    def live(self) -> Iterator[tuple[Server, Raft]]:
        for server in list(self.servers.values()):
            if server.raft is not None:
                yield server, server.raft

    # --- one turn -----------------------------------------------------------------------------------------------

    def turn(self, chances: Chances) -> None:
        chance = self.chance
        for server in list(self.servers.values()):
            if server.raft is None:
                if chance.random() < chances.restart:
                    self.say(f"start {server.id}")
                    server.start(chance, self.chances)
                continue
            if chance.random() < (chances.crash_leader if server.raft.is_leader else chances.crash):
                self.crash(server, chances)
                continue
            if chance.random() < chances.tick:
                server.raft.tick()
            if chance.random() < chances.nudge and server.raft.leader == "":
                server.raft.campaign()
            if server.raft.is_leader:
                self.lead(server, server.raft, chances)
            self.pump(server, chances)
            if server.raft is not None and chance.random() < chances.compact:
                self.compact(server)
        if chance.random() < chances.split:
            names = sorted(self.servers)
            self.cut = chance.sample(names, chance.randint(0, len(names) // 2))
            self.say(f"cut {self.cut}")
        self.deliver(chances)

    def crash(self, server: Server, chances: Chances) -> None:
        self.crashes += 1
        if server.under_way is not None:
            server.persist_cut_short(server.under_way, self.chance)
        server.under_way = server.raft = None
        self.say(f"crash {server.id}")
        if self.chance.random() < chances.wipe and self.may_lose(server):
            self.wipes += 1
            self.say(f"wipe {server.id}")
            self.servers[server.id] = self._blank(server.id, server.incarnations + 1)

    def may_lose(self, server: Server) -> bool:
        """One server's state at a time, out of three voters at least: more is more than Raft survives."""
        memberships = [self.stored_membership(other) for other in self.servers.values()]
        for membership in memberships:
            if server.id in membership.voters and len(membership.voters) < 3:
                return False
            for voter in membership.voters:
                if voter in self.servers and self.is_amnesiac(membership, voter):
                    return False
        return True

    def is_amnesiac(self, membership: Membership, name: str) -> bool:
        return membership.incarnation_of(name) != self.servers[name].hard_state.incarnation

    @staticmethod
    def stored_membership(server: Server) -> Membership:
        if server.raft is not None:
            return server.raft.membership
        return Raft(RaftConfig("x"), HardState(), server.snapshot, server.entries, lambda low, high: low).membership

    def lead(self, server: Server, raft: Raft, chances: Chances) -> None:
        chance = self.chance
        try:
            if chance.random() < chances.propose:
                count = chance.choice((1, 1, 1, 5))
                commands = [b"%d" % (self.proposed + number) for number in range(count)]
                self.proposed += count
                raft.propose_many(commands)
            if chance.random() < chances.read:
                context = len(self._read_bounds)
                self._read_bounds[context] = self.safety.end
                raft.read(context)
            if chance.random() < chances.transfer:
                raft.transfer(chance.choice(raft.membership.voters))
            change = self.next_change(raft, chances)
            if change is not None:
                raft.propose_membership(change)
                self.changes += 1
                self.say(f"{raft.id} proposes {change}")
        except BasculeError:
            pass

    def next_change(self, raft: Raft, chances: Chances) -> Membership | None:
        """What the driver of a leader would do now: mend first, then what chance brings."""
        membership = raft.membership
        for name in membership.everyone:
            if self.is_amnesiac(membership, name):
                return membership.with_learner(name, self.servers[name].hard_state.incarnation)
        ready = [name for name in membership.learners if raft.caught_up(name)]
        if len(membership.voters) == 1 and len(ready) > 1:
            return membership.with_voter(ready[0]).with_voter(ready[1])
        if ready and (len(membership.voters) > 1 or self.chance.random() < 0.1):
            return membership.with_voter(ready[0])
        if self.chance.random() >= chances.change:
            return None
        outside = [name for name in self.servers if name not in membership.everyone]
        if outside and self.chance.random() < 0.6:
            name = self.chance.choice(outside)
            return membership.with_learner(name, self.servers[name].hard_state.incarnation)
        if len(membership.voters) > 1:
            return membership.without(self.chance.choice(membership.voters))
        return None

    # --- the driver ---------------------------------------------------------------------------------------------

    def pump(self, server: Server, chances: Chances) -> None:
        raft = server.raft
        assert raft is not None
        self.safety.observe(raft)
        while True:
            if server.under_way is None:
                ready = raft.ready()
                if not ready:
                    return
                server.under_way = ready
                if self.bug == "ack-before-persist":
                    self.network += ready.messages
                    ready.messages = []
            if self.chance.random() < chances.slow_persist:
                if self.chance.random() < chances.crash_in_write:
                    self.crash(server, chances)
                return
            spoke = bool(server.under_way.hard_state or server.under_way.entries) and bool(server.under_way.messages)
            self.finish(server, raft)
            if spoke and self.chance.random() < chances.crash_after_send:
                self.crash(server, chances)
                return

    def finish(self, server: Server, raft: Raft) -> None:
        ready, server.under_way = server.under_way, None
        assert ready is not None
        if self.bug == "vote-not-persisted" and ready.hard_state:
            server.persist(replace(ready, hard_state=replace(ready.hard_state, vote="")))
        else:
            server.persist(ready)
        if ready.entries:
            position = server.entries.index(ready.entries[0])
            before = server.entries[position - 1].term if position else server.snapshot.term
            self.safety.stored(server.id, ready.entries, before)
        self.network += [decode_message(encode_message(message)) for message in ready.messages]
        if ready.snapshot:
            self.snapshots += 1
            server.applied, server.applied_index = _commands(ready.snapshot), ready.snapshot.index
        for entry in ready.committed:
            self.apply(server, entry)
        raft.advance(ready)
        for context, index in ready.reads:
            self.served += 1
            bound = self._read_bounds[context]
            assert index >= bound, f"a read at {index} misses what was committed up to {bound} before it was asked for"
        self.safety.observe(raft)

    def apply(self, server: Server, entry: Entry) -> None:
        assert entry.index == server.applied_index + 1, f"{server.id} applied {entry.index} out of order"
        assert self.safety.committed[entry.index][0] == entry, f"state machine safety: {server.id} at {entry.index}"
        server.applied_index = entry.index
        if entry.kind is EntryKind.COMMAND:
            server.applied.append(entry.data)

    def compact(self, server: Server) -> None:
        raft = server.raft
        if raft is None or server.under_way is not None or server.applied_index <= raft.log.snapshot.index:
            return
        snapshot = raft.compact(server.applied_index, b",".join(server.applied))
        server.compact(snapshot)
        raft.compacted(snapshot)

    def deliver(self, chances: Chances) -> None:
        chance = self.chance
        waiting, self.network = self.network, []
        if chances.delay:
            chance.shuffle(waiting)
        for message in waiting:
            if chance.random() < chances.drop:
                continue
            if chance.random() < chances.delay:
                self.network.append(message)
                continue
            if chance.random() < chances.duplicate:
                self.network.append(message)
            server = self.servers[message.target]
            separated = (message.source in self.cut) != (message.target in self.cut)
            if server.raft is not None and not separated:
                self.say(f"{message}")
                server.raft.step(message)
                self.pump(server, chances)

    # --- whole runs ---------------------------------------------------------------------------------------------

    def run(self, turns: int) -> None:
        """Faults, then calm: by its end the cluster works, and all its members know the same."""
        self.run_faults(turns)
        self.cut = []
        for _ in range(150):
            self.turn(CALM)
        before = self.safety.end
        for _ in range(60):
            self.turn(CALM)
        assert self.safety.end > before + 10, f"liveness: {self.safety.end - before} entries in 60 calm turns"
        leader = max((raft for _, raft in self.live() if raft.is_leader), key=lambda raft: raft.term)
        for name in leader.membership.everyone:
            server = self.servers[name]
            assert server.applied_index > self.safety.end - 30, f"liveness: {name} is at {server.applied_index}"
            assert not self.is_amnesiac(leader.membership, name), f"liveness: {name} was not let in again"
            longest = self.servers[leader.id].applied
            shared = min(len(longest), len(server.applied))
            assert server.applied[:shared] == longest[:shared], f"state machine safety: {name} and {leader.id}"

    def run_faults(self, turns: int) -> None:
        for _ in range(turns):
            self.turn(self.chances)

    def digest(self) -> str:
        history = repr(sorted((index, entry) for index, (entry, _) in self.safety.committed.items()))
        return hashlib.sha256(history.encode()).hexdigest()[:16]


def build(seed: int, bug: str = "") -> Cluster:
    """The kind of cluster and of conditions follow from the seed."""
    chance = random.Random(f"conditions {seed}")
    founders = chance.choice((1, 2, 3, 3, 3, 5, 5))
    chances = chance.choice((Chances(), ROUGH, DUELS, SLOW_DISKS, FALLING_LEADERS))
    if founders == 1 and chance.random() < 0.7:  # one becomes three, and more
        return Cluster(seed, founders, replace(chances, wipe=0.0, change=max(chances.change, 0.05)), spares=5, bug=bug)
    if founders < 3 or chance.random() < 0.3:
        return Cluster(seed, founders, replace(chances, change=0.0, wipe=0.0), bug=bug)
    return Cluster(seed, founders, chances, spares=6 - founders if chance.random() < 0.6 else 0, bug=bug)


def run_seed(seed: int, turns: int = 300, bug: str = "") -> Cluster:
    cluster = build(seed, bug)
    cluster.run(turns)
    return cluster


def main() -> int:
    parser = argparse.ArgumentParser(description="Raft under chance, seed by seed")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--bug", default="")
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    began, failures, totals = time.monotonic(), 0, [0] * 7
    for seed in range(options.first, options.first + options.seeds):
        cluster = build(seed, options.bug)
        cluster.trace = [] if options.trace else None
        try:
            cluster.run(options.turns)
        except AssertionError as error:
            failures += 1
            print("\n".join((cluster.trace or [])[-4000:]))
            print(
                f"seed {seed}: {error}\n  python -m tests.harness.raft_cluster --first {seed} --seeds 1 --trace",
                flush=True,
            )
            if not str(error):
                raise
        counts = [cluster.safety.end, len(cluster.safety.leaders), cluster.crashes, cluster.wipes]
        counts += [cluster.changes, cluster.snapshots, cluster.served]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
    names = ("commits", "elections", "crashes", "wipes", "changes", "snapshots", "reads")
    figures = " ".join(f"{name}={total}" for name, total in zip(names, totals, strict=True))
    print(f"seeds={options.seeds} {figures} violations={failures} seconds={time.monotonic() - began:.0f}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
