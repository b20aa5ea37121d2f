"""Raft under chance: messages are delayed, dropped, doubled and reordered, servers crash and come back with what they
persisted. The safety claims of the paper hold in every history, and once the faults stop a command is committed.
"""

import random
from dataclasses import dataclass, field

import pytest

from bascule.core.raft.machine import NotLeaderError, Raft, RaftConfig
from bascule.core.raft.messages import Entry, EntryKind, HardState, Membership, Message, Snapshot
from bascule.errors import Unavailable

SERVERS = ("a", "b", "c", "d", "e")


@dataclass
class Server:
    id: str
    membership: Membership
    hard_state: HardState = HardState()
    snapshot: Snapshot | None = None
    entries: list[Entry] = field(default_factory=list)
    applied: list[bytes] = field(default_factory=list)
    applied_index: int = 0
    raft: Raft | None = None

    def start(self, chance: random.Random) -> None:
        snapshot = self.snapshot or Snapshot(0, 0, self.membership)
        self.applied = snapshot.data.split(b",") if snapshot.data else []
        self.applied_index = snapshot.index
        config = RaftConfig(self.id, snapshot_chunk_bytes=16, max_append_bytes=200)
        self.raft = Raft(config, self.hard_state, snapshot, self.entries, chance.randint)


class Cluster:
    def __init__(self, seed: int, count: int) -> None:
        self.chance = random.Random(seed)
        membership = Membership(SERVERS[:count])
        self.servers = {name: Server(name, membership) for name in SERVERS[:count]}
        self.network: list[Message] = []
        self.cut: set[str] = set()
        self.leaders: dict[int, str] = {}
        self.history: list[tuple[int, bytes]] = []
        self.committed: dict[int, Entry] = {}
        self.proposed = 0
        for server in self.servers.values():
            server.start(self.chance)

    def pump(self, server: Server) -> None:
        raft = server.raft
        while raft and (ready := raft.ready()):
            if ready.hard_state:
                server.hard_state = ready.hard_state
            if ready.snapshot:
                server.snapshot = ready.snapshot
                server.entries = []
                server.applied = ready.snapshot.data.split(b",") if ready.snapshot.data else []
                server.applied_index = ready.snapshot.index
            if ready.entries:
                first = ready.entries[0].index
                server.entries = [entry for entry in server.entries if entry.index < first] + ready.entries
            self.network += ready.messages
            for entry in ready.committed:
                self.apply(server, entry)
            raft.advance(ready)
            if raft.is_leader:
                known = self.leaders.setdefault(raft.term, raft.id)
                assert known == raft.id, f"two leaders in term {raft.term}"

    def apply(self, server: Server, entry: Entry) -> None:
        assert entry.index == server.applied_index + 1, "applied out of order"
        known = self.committed.setdefault(entry.index, entry)
        assert known == entry, f"index {entry.index} was committed with two contents"
        server.applied_index = entry.index
        if entry.kind is EntryKind.COMMAND:
            server.applied.append(entry.data)

    def turn(self, faults: bool) -> None:
        chance = self.chance
        for server in self.servers.values():
            if server.raft is None:
                if chance.random() < 0.1 or not faults:
                    server.start(chance)
                continue
            if faults and chance.random() < 0.01:
                server.raft = None
                continue
            server.raft.tick()
            if server.raft.is_leader and chance.random() < 0.5:
                self.propose(server)
            self.pump(server)
            self.maybe_compact(server)
        if faults and chance.random() < 0.05:
            self.cut = set(chance.sample(sorted(self.servers), chance.randint(0, len(self.servers) // 2)))
        self.deliver(faults)

    def propose(self, server: Server) -> None:
        assert server.raft is not None
        self.proposed += 1
        try:
            server.raft.propose(b"%d" % self.proposed)
            if self.chance.random() < 0.02 and len(self.servers) > 1:
                others = [name for name in self.servers if name != server.id]
                server.raft.transfer(self.chance.choice(others))
        except NotLeaderError:
            pass

    def maybe_compact(self, server: Server) -> None:
        raft = server.raft
        if raft and self.chance.random() < 0.05 and raft.log.applied > raft.log.snapshot.index:
            snapshot = raft.compact(raft.log.applied, b",".join(server.applied))
            server.snapshot = snapshot
            server.entries = [entry for entry in server.entries if entry.index > snapshot.index]
            raft.compacted(snapshot)

    def deliver(self, faults: bool) -> None:
        chance = self.chance
        waiting, self.network = self.network, []
        if faults:
            chance.shuffle(waiting)
        for message in waiting:
            if faults and chance.random() < 0.1:
                continue
            if faults and chance.random() < 0.2:
                self.network.append(message)
                continue
            if faults and chance.random() < 0.05:
                self.network.append(message)
            server = self.servers[message.target]
            separated = (message.source in self.cut) != (message.target in self.cut)
            if server.raft is not None and not (faults and separated):
                server.raft.step(message)
                self.pump(server)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(12))
def test_safety_under_faults_and_progress_after_them(seed: int, count: int) -> None:
    cluster = Cluster(seed * 10 + count, count)
    for _ in range(400):
        cluster.turn(faults=True)
    cluster.cut = set()
    for _ in range(100):
        cluster.turn(faults=False)
    leaders = [server for server in cluster.servers.values() if server.raft and server.raft.is_leader]
    assert len(leaders) == 1
    before = max(cluster.committed)
    for _ in range(50):
        cluster.turn(faults=False)
    assert max(cluster.committed) > before
    applied = [server.applied for server in cluster.servers.values()]
    longest = max(applied, key=len)
    assert all(each == longest[: len(each)] for each in applied)
    assert all(len(each) > len(longest) - 50 for each in applied)


@pytest.mark.parametrize("seed", range(6))
def test_servers_join_and_leave_one_by_one_while_commands_flow(seed: int) -> None:
    cluster = Cluster(seed, 3)
    for name in SERVERS[3:]:
        cluster.servers[name] = Server(name, Membership())
        cluster.servers[name].start(cluster.chance)
    goal = Membership(("c", "d", "e"))
    for turn in range(600):
        cluster.turn(faults=turn < 300)
        for server in cluster.servers.values():
            raft = server.raft
            if raft is None or not raft.is_leader:
                continue
            missing = [name for name in goal.voters if name not in raft.membership.voters]
            extra = [name for name in raft.membership.voters if name not in goal.voters]
            try:
                if missing and missing[0] not in raft.membership.learners:
                    raft.propose_membership(raft.membership.with_learner(missing[0]))
                elif missing:
                    raft.propose_membership(raft.membership.with_voter(missing[0]))
                elif extra:
                    raft.propose_membership(raft.membership.without(extra[0]))
            except Unavailable:
                pass
    for name in goal.voters:
        raft = cluster.servers[name].raft
        assert raft is not None
        assert raft.membership == goal
    assert any(server.raft and server.raft.is_leader for name, server in cluster.servers.items() if name in goal.voters)
