"""One broker in memory: a virtual clock, a disk with a page cache and a NATS without sockets."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from bascule.errors import Status
from bascule.log.sync import GROUP
from bascule.node.config.broker import BrokerSettings, StreamDefaults
from bascule.node.process.assemble import assemble
from bascule.node.runtime.ports import Ports, Process
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import SimulatedProcess, VirtualClock, VirtualLoop
from bascule.wire.kernels import decode_records
from bascule.wire.pb import api_pb2 as api

DEFAULTS = StreamDefaults(
    segment_max_bytes=2000,
    segment_max_age_ns=0,
    min_isr=1,
    optimistic_concurrency=False,
    max_message_bytes=1 << 20,
)


class SeededRandom:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def token(self, length: int = 22) -> str:
        return "".join(self.chance.choices("abcdef0123456789", k=length))

    def uniform(self, low: float, high: float) -> float:
        return self.chance.uniform(low, high)


def make_process(on_fatal: Callable[[str], None], on_stop: Callable[[], None] | None = None) -> Process:
    """The process of a broker in memory: nothing else of it is looked at."""
    return Process(
        on_fatal, on_stop, on_grown=lambda: None, on_files=lambda gone: None, on_role=lambda term, leads: None
    )


class Node:
    """One boot of a broker on a disk that outlives it."""

    def __init__(self, disk: MemoryDisk, nats: MemoryNats, seed: int = 1, **settings: Any) -> None:
        """`settings` are those of `BrokerSettings` that are to be other than here."""
        self.settings = settings
        self.disk = disk
        self.nats = nats
        self.seed = seed
        self.host, self.port = "localhost", 9292
        self.fatal: list[str] = []
        """Why the broker said that it cannot go on."""

    async def start(self) -> "Node":
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.process = SimulatedProcess(loop)
        return await self.process.start(self._start(loop))

    async def _start(self, loop: VirtualLoop) -> "Node":
        clock = VirtualClock(loop)
        chance = SeededRandom(self.seed)
        self.buses = [self.nats.connect(purpose) for purpose in ("control", "streams", "publishes", "replication")]
        settings: dict[str, Any] = {
            "broker_id": "me",
            "namespace": "ns",
            "seed": True,
            "peers": (),
            "max_quorum": 0,
            "snapshot_threshold": 3,
            "min_replication_factor": 0,
            "fetch_timeout_s": 3.0,
            "sync": GROUP,
            "defaults": DEFAULTS,
        }
        process = make_process(self.fatal.append)
        ports = Ports(self.disk, clock, chance, self, *self.buses)
        self.broker = await assemble(BrokerSettings(**{**settings, **self.settings}), ports, process)
        await self.broker.start()
        self.methods = self.broker.methods
        return self

    def power_off(self, chance: random.Random) -> None:
        self.process.kill()
        for bus in self.buses:
            bus.disconnect()
        self.disk.crash(chance)

    def handler(self, method: str) -> Callable[[Any], Awaitable[None]]:
        return self.methods[method if method.startswith("/") else f"/proto.API/{method}"]

    async def call(self, method: str, request: Any, timeout_s: float | None = 5.0) -> tuple[Status, str, list[bytes]]:
        call = MemoryCall(timeout_s)
        call.request(request.SerializeToString())
        status, text = await call.run(self.handler(method))
        return status, text, split(bytes(call.responses))

    async def create(self, name: str, **fields: Any) -> None:
        request = api.CreateStreamRequest(name=name, subject=name, **fields)
        assert (await self.call("CreateStream", request))[0] is Status.OK

    async def publish(self, name: str, value: bytes, **fields: Any) -> api.Ack:
        request = api.PublishRequest(stream=name, value=value, ackPolicy=api.ALL, **fields)
        status, text, responses = await self.call("Publish", request)
        assert status is Status.OK, text
        return api.PublishResponse.FromString(responses[0]).ack

    async def read(self, name: str, partition: int = 0) -> list[tuple[int, bytes]]:
        request = api.SubscribeRequest(
            stream=name, partition=partition, startPosition=api.EARLIEST, stopPosition=api.STOP_LATEST
        )
        call = MemoryCall()
        call.request(request.SerializeToString())
        status, text = await call.run(self.handler("Subscribe"))
        if text == "Stream is empty":
            return []
        assert (status, text) == (Status.RESOURCE_EXHAUSTED, "Stop offset reached")
        frames = bytes(call.responses[5:])
        return [(record[0], record[2]) for record in decode_records(frames, 0, len(frames), 1 << 30)[1]]


def split(frames: bytes) -> list[bytes]:
    found, position = [], 0
    while position < len(frames):
        size = int.from_bytes(frames[position + 1 : position + 5], "big")
        found.append(frames[position + 5 : position + 5 + size])
        position += 5 + size
    return found
