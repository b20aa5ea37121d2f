"""Raft on its storage: whole histories in which every server keeps its state in a RaftStorage on a disk that loses
power, in the middle of a write too. What is read back after each crash is what the server was promised.
"""

import asyncio
import logging
import random
from collections.abc import Iterator

import pytest

from bascule.core.raft.ready import Ready
from bascule.errors import LogError
from bascule.log.raftlog import RaftStorage
from bascule.testing.disk import MemoryDisk
from bascule.wire.raft_messages import HardState, Snapshot
from tests.harness.raft_cluster import FALLING_LEADERS, ROUGH, SLOW_DISKS, Chances, Cluster, Server


class StoredServer(Server):
    """The plain values of `Server` are what the storage should hold."""

    def __init__(
        self, name: str, hard_state: HardState, snapshot: Snapshot, loop: asyncio.AbstractEventLoop, lost: list[int]
    ) -> None:
        super().__init__(name, hard_state, snapshot)
        self.loop = loop
        self.lost = lost
        self.disk = MemoryDisk()
        self.storage = RaftStorage(self.disk, "raft")
        *_, fresh = loop.run_until_complete(self.storage.open())
        assert fresh
        loop.run_until_complete(self.storage.save(hard_state, [], snapshot))

    def start(self, chance: random.Random, chances: Chances) -> None:
        self.disk.crash(chance)
        self.storage = RaftStorage(self.disk, "raft")
        hard_state, snapshot, entries, fresh = self.loop.run_until_complete(self.storage.open())
        assert not fresh
        assert (hard_state, snapshot, entries) == (self.hard_state, self.snapshot, self.entries)
        super().start(chance, chances)

    def persist(self, ready: Ready) -> None:
        super().persist(ready)
        self.loop.run_until_complete(self.storage.save(ready.hard_state, ready.entries, ready.snapshot))

    def persist_cut_short(self, ready: Ready, chance: random.Random) -> None:
        """Power fails at one of the first steps of the write; the disk may still have taken it."""
        before = (self.hard_state, self.snapshot, self.entries)
        self.disk.fail_at(self.disk.steps + chance.randint(1, 4), times=1000)
        try:
            self.persist(ready)
        except LogError:
            self.lost[0] += 1
        self.disk.heal()
        self.disk.crash(chance)
        hard_state, snapshot, entries, _ = self.loop.run_until_complete(RaftStorage(self.disk, "raft").open())
        found = (hard_state, snapshot, entries)
        assert found in (before, (self.hard_state, self.snapshot, self.entries)), "half a save"
        self.hard_state, self.snapshot, self.entries = found

    def compact(self, snapshot: Snapshot) -> None:
        super().compact(snapshot)
        self.loop.run_until_complete(self.storage.compact(snapshot))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    logging.getLogger("bascule.log").setLevel(logging.CRITICAL)
    yield loop
    logging.getLogger("bascule.log").setLevel(logging.NOTSET)
    loop.close()


@pytest.mark.parametrize("chances", [Chances(), ROUGH, SLOW_DISKS, FALLING_LEADERS])
def test_a_cluster_on_disks_that_lose_power_keeps_every_promise(
    loop: asyncio.AbstractEventLoop, chances: Chances
) -> None:
    lost = [0]

    def make(name: str, hard_state: HardState, snapshot: Snapshot) -> Server:
        return StoredServer(name, hard_state, snapshot, loop, lost)

    for seed in range(3):
        cluster = Cluster(seed, 3, chances, spares=2, make=make)
        cluster.run(200)
        assert cluster.crashes > 2
    if chances.crash_in_write:
        assert lost[0] > 3, "no write was torn"
