"""Everything one run shares: the brokers, the bus, the history, and the way clients find their broker."""

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from bascule.errors import Status
from bascule.sim.checkers import Checker
from bascule.sim.cluster import Builder, Cluster
from bascule.sim.history import History, StreamInfo
from bascule.sim.host import Answer, Host
from bascule.sim.scenario import Scenario
from bascule.sim.trace import Part, Trace
from bascule.testing.bus import MemoryNats
from bascule.wire.pb import api_pb2 as api

RETRY_S = 0.2
NEEDS_RESTART = "then restart the broker"


class World:
    def __init__(self, scenario: Scenario, trace: Trace, builder: Builder) -> None:
        self.scenario = scenario
        self.trace = trace
        self.history = History(scenario.chance("history"))
        self.checker = Checker(self.history, trace)
        self.checker.keeps_order = not scenario.harsh
        self.checker.repeats = scenario.harsh
        self.nats = MemoryNats(weather=scenario.weather())
        self.cluster = Cluster(scenario.seed, scenario.brokers, self.nats, trace, builder)
        self.publishing = True
        self.reading = True
        self._tasks: list[asyncio.Task[Any]] = []

    def chance(self, purpose: str) -> random.Random:
        return self.scenario.chance(purpose)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(coroutine))

    async def finished(self) -> None:
        """Wait for all that was started since the last time; a client that failed is a fault of the simulator."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            await task

    # --- streams ------------------------------------------------------------------------------------------------

    def host(self, part: Part) -> Host:
        return self.cluster.host_of(self.history.streams[part.stream])

    def parts(self) -> list[Part]:
        return [part for stream in self.history.streams.values() for part in stream.parts()]

    async def call(self, part: Part, method: str, request: Any, timeout_s: float) -> Answer:
        return await self.host(part).call(method, request, timeout_s)

    async def create(self, stream: StreamInfo) -> None:
        """Until it is there, whatever happens to the broker."""
        self.history.streams[stream.name] = stream
        request = api.CreateStreamRequest(name=stream.name, subject=stream.subject, partitions=stream.partitions)
        if stream.optimistic:
            request.optimisticConcurrencyControl.value = True
        host = self.cluster.host_of(stream)
        while True:
            status, text, _ = await host.call("CreateStream", request, 5.0)
            self.trace.note("create", f"{stream.name} #{stream.incarnation}: {status.name} {text}")
            if status in (Status.OK, Status.ALREADY_EXISTS):
                return
            await self._see_to(host, text)

    async def delete(self, stream: StreamInfo) -> None:
        host = self.cluster.host_of(stream)
        while True:
            status, text, _ = await host.call("DeleteStream", api.DeleteStreamRequest(name=stream.name), 5.0)
            self.trace.note("delete", f"{stream.name} #{stream.incarnation}: {status.name} {text}")
            if status in (Status.OK, Status.NOT_FOUND):
                return
            await self._see_to(host, text)

    async def _see_to(self, host: Host, text: str) -> None:
        """What an operator does who reads this answer."""
        await asyncio.sleep(RETRY_S)
        if NEEDS_RESTART in text and not host.paused:
            self.trace.note("heal", f"the operator restarts {host.name}")
            await host.stop()
            host.boot()

    # --- time ---------------------------------------------------------------------------------------------------

    async def pause(self, chance: random.Random, mean_s: float) -> None:
        await asyncio.sleep(chance.uniform(0, 2 * mean_s))
