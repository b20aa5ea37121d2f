"""Three brokers in memory that are one cluster, and what a test asks of them."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from bascule.core.metadata.streams import Partition
from bascule.errors import Status
from bascule.log.sync import GROUP, SyncMode
from bascule.node.config.broker import BrokerSettings
from bascule.node.process.assemble import assemble
from bascule.node.process.broker import Broker
from bascule.node.runtime.ports import Ports
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import SimulatedProcess, VirtualClock, VirtualLoop
from bascule.wire.kernels import decode_records
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import DEFAULTS, SeededRandom, make_process, split

CONTROL, REPLICATION = 0, 3
"""Which of its connections a broker uses for what."""


class Member:
    def __init__(
        self,
        name: str,
        nats: MemoryNats,
        *,
        seed: bool = False,
        mode: SyncMode = GROUP,
        peers: tuple[str, ...] = (),
        max_quorum: int = 0,
        **settings: Any,
    ) -> None:
        """`settings` are those of `BrokerSettings` that are to be other than here."""
        self.settings = settings
        self.name = name
        self.mode = mode
        self.nats = nats
        self.seed = seed
        self.peers = peers
        self.max_quorum = max_quorum
        self.fatal = ""
        """Why the broker said that it cannot go on."""
        self.ends: list[str] = []
        """All such reasons of this start, and each time an administrator stopped it."""
        self.disk = MemoryDisk()
        self.host, self.port = name, 9292
        self.boots = 0
        self.process: SimulatedProcess | None = None
        self.broker: Broker

    async def start(self) -> "Member":
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.boots += 1
        self.process = SimulatedProcess(loop)
        await self.process.start(self._start(loop))
        return self

    async def _start(self, loop: VirtualLoop) -> None:
        clock = VirtualClock(loop)
        chance = SeededRandom(hash_of(self.name) + self.boots)
        self.buses = [
            self.nats.connect(purpose, self.name) for purpose in ("control", "streams", "publishes", "replication")
        ]
        settings: dict[str, Any] = {
            "broker_id": self.name,
            "namespace": "ns",
            "seed": self.seed,
            "peers": self.peers,
            "max_quorum": self.max_quorum,
            "snapshot_threshold": 50,
            "min_replication_factor": 0,
            "fetch_timeout_s": 3.0,
            "sync": self.mode,
            "defaults": DEFAULTS,
        }
        self.fatal, self.ends = "", []
        process = make_process(self._end, lambda: self.ends.append("stopped"))
        ports = Ports(self.disk, clock, chance, self, *self.buses)
        self.broker = await assemble(BrokerSettings(**{**settings, **self.settings}), ports, process)
        await self.broker.start()
        self.methods: Mapping[str, Any] = self.broker.methods

    def _end(self, reason: str) -> None:
        self.fatal = self.fatal or reason
        self.ends.append(reason)

    def wipe(self) -> None:
        """Its disk is lost while it is down; its configuration stays."""
        assert self.process is None, "kill it first"
        self.disk = MemoryDisk()

    def kill(self, chance: random.Random | None = None, power: bool = True) -> None:
        """The machine loses power; or its process is killed, and what it wrote is there."""
        assert self.process is not None
        self.process.kill()
        self.process = None
        for bus in self.buses:
            bus.disconnect()
        lose = self.disk.crash if power else self.disk.kill
        lose(chance or random.Random(1))

    async def call(self, method: str, request: Any, timeout_s: float | None = 5.0) -> tuple[Status, str, list[bytes]]:
        call = MemoryCall(timeout_s)
        call.request(request.SerializeToString())
        assert self.process is not None
        status, text = await self.process.start(call.run(self.methods[f"/proto.API/{method}"]))
        return status, text, split(bytes(call.responses))

    async def publish(self, stream: str, value: bytes, partition: int = 0, timeout_s: float = 5.0) -> api.Ack:
        request = api.PublishRequest(stream=stream, value=value, ackPolicy=api.ALL, partition=partition)
        status, text, responses = await self.call("Publish", request, timeout_s)
        assert status is Status.OK, (status, text)
        return api.PublishResponse.FromString(responses[0]).ack

    async def read(self, stream: str, partition: int = 0, replica: bool = False) -> list[bytes]:
        """To the newest; of a `replica`, to the end of its own log."""
        request = api.SubscribeRequest(
            stream=stream,
            partition=partition,
            startPosition=api.EARLIEST,
            stopPosition=api.STOP_LATEST,
            readISRReplica=replica,
        )
        if replica:
            own = self.broker.replicas.find(stream, partition)
            assert own is not None, "it has a replica"
            request.stopPosition, request.stopOffset = api.STOP_OFFSET, own.log.end - 1
        call = MemoryCall(5.0)
        call.request(request.SerializeToString())
        assert self.process is not None
        status, text = await self.process.start(call.run(self.methods["/proto.API/Subscribe"]))
        assert (status, text) == (Status.RESOURCE_EXHAUSTED, "Stop offset reached"), (status, text)
        frames = bytes(call.responses[5:])
        return [record[2] for record in decode_records(frames, 0, len(frames), 1 << 30)[1]]


def within(members: dict[str, Member], words: str) -> bytes:
    """A subject of their cluster."""
    return next(iter(members.values())).broker.cluster.subjects.within(words)


def hash_of(name: str) -> int:
    return sum(name.encode()) * 1009


async def three(nats: MemoryNats, mode: SyncMode = GROUP, **settings: Any) -> dict[str, Member]:
    members = {name: Member(name, nats, seed=name == "a", mode=mode, **settings) for name in "abc"}
    for member in members.values():
        await member.start()
    await until(lambda: all(len(m.broker.cluster.raft.membership.voters) == 3 for m in members.values()))
    return members


async def five(nats: MemoryNats) -> dict[str, Member]:
    members = await three(nats)
    for name in "de":
        members[name] = await Member(name, nats).start()
    await until(lambda: len(members["a"].broker.cluster.raft.membership.voters) == 5)
    return members


async def until(condition: Any, timeout_s: float = 30.0) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "that never happened"
        await asyncio.sleep(0.02)


def followers(members: dict[str, Member]) -> list[Member]:
    """Those that do not lead `s`."""
    leader = leader_of(members, "s")
    return [member for member in members.values() if member is not leader]


def item_of(members: dict[str, Member], stream: str = "s") -> Partition:
    """Its first partition, as the living broker that knows most has it."""
    known = [m.broker.cluster.metadata for m in members.values() if m.process is not None]
    item = max(known, key=lambda metadata: metadata.index).partition(stream, 0)
    assert item is not None
    return item


def leader_of(members: dict[str, Member], stream: str, partition: int = 0) -> Member:
    for member in members.values():
        if member.process is not None:
            known = member.broker.cluster.metadata.partition(stream, partition)
            if known is not None:
                return members[known.leader]
    raise AssertionError("nobody knows the stream")


def isr(members: dict[str, Member]) -> tuple[str, ...]:
    for member in members.values():
        if member.process is not None:
            known = member.broker.cluster.metadata.partition("s", 0)
            if known is not None:
                return known.isr
    return ()
