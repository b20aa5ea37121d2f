"""Everything one run shares: the brokers, the bus, the history, and how clients find their broker: a client asks any
broker who leads a partition, and asks again when that broker turns out not to lead it."""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from bascule.core.metadata.state import Metadata
from bascule.core.metadata.streams import ACTIVITY, Partition
from bascule.errors import Status
from bascule.sim import knobs
from bascule.sim.checkers import Checker
from bascule.sim.cluster import Cluster
from bascule.sim.history import History, StreamInfo
from bascule.sim.host import Answer, Host
from bascule.sim.omniscience import Omniscience
from bascule.sim.plan import Scenario
from bascule.sim.trace import Part, Trace
from bascule.testing.bus import MemoryNats
from bascule.wire.pb import api_pb2 as api

RETRY_S = 0.2
NEEDS_RESTART = "then restart the broker"
ASK_TIMEOUT_S = 1.0
WRONG_BROKER = (Status.FAILED_PRECONDITION, Status.UNAVAILABLE, Status.NOT_FOUND, Status.DEADLINE_EXCEEDED)

Change = tuple[str, str]
"""The method, and the name of the stream."""
REPORTED = ("CreateStream", "DeleteStream", "PauseStream", "SetStreamReadonly")
"""The activity stream has an event of each. It has none of what only this server can do."""


class World:
    def __init__(self, scenario: Scenario, trace: Trace) -> None:
        self.scenario = scenario
        self.trace = trace
        self.history = History(scenario.chance("history"), scenario.value_bytes)
        self.checker = Checker(self.history, trace)
        self.checker.keeps_order = not scenario.harsh
        self.checker.repeats = scenario.harsh
        self.checker.producers_known = knobs.producers_known(scenario.knobs)
        self.nats = MemoryNats(scenario.max_payload, scenario.conditions())
        self.cluster = Cluster(scenario, self.nats, trace)
        self.omniscience = Omniscience(self.cluster, self.checker, scenario.sync.relaxed)
        self.publishing = True
        self.reading = True
        self.stays_paused = False
        """The faults are over, and what is paused stays so until its replicas have caught up."""
        self.changes: Counter[Change] = Counter()
        """What was carried out, and must be reported by the activity stream."""
        self._tasks: list[asyncio.Task[Any]] = []
        self._chance = scenario.chance("clients")
        self._leaders: dict[Part, str] = {}
        """By partition, the leader that clients have cached."""

    def chance(self, purpose: str) -> random.Random:
        return self.scenario.chance(purpose)

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(coroutine))

    async def finished(self) -> None:
        """Wait for all tasks that were started since the last call; a client that failed is a bug of the simulator."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            await task

    # --- brokers ----------------------------------------------------------------------------------------------

    def some_host(self) -> Host:
        """A broker that serves, if there is one: clients know every address, and try another one if a connection is
        refused."""
        serving = self.cluster.serving()
        return self._chance.choice(serving) if serving else self.cluster.any_host(self._chance)

    async def leader(self, part: Part) -> Host:
        """The leader, as far as a client can know; any broker if no answer names one."""
        if known := self.cluster.hosts.get(self._leaders.get(part, "")):
            return known
        host = self.some_host()
        if len(self.cluster.hosts) == 1:
            return host
        request = api.FetchMetadataRequest(streams=[part.stream])
        status, _, answers = await host.call("FetchMetadata", request, ASK_TIMEOUT_S)
        if status is Status.OK:
            for stream in api.FetchMetadataResponse.FromString(answers[0]).streamMetadata:
                leader = stream.partitions[part.number].leader if part.number in stream.partitions else ""
                if leader in self.cluster.hosts:
                    self._leaders[part] = leader
                    return self.cluster.hosts[leader]
        return host

    def note_status(self, part: Part, status: Status) -> None:
        """Forget the cached leader if this status says that the broker is not the leader."""
        if status in WRONG_BROKER:
            self._leaders.pop(part, None)

    async def call(self, method: str, request: Any, timeout_s: float) -> Answer:
        """A call that any broker takes."""
        return await self.some_host().call(method, request, timeout_s)

    async def call_leader(self, part: Part, method: str, request: Any, timeout_s: float) -> Answer:
        host = await self.leader(part)
        answer = await host.call(method, request, timeout_s)
        self.note_status(part, answer[0])
        return answer

    # --- streams ------------------------------------------------------------------------------------------------

    def newest_start(self, part: Part) -> int:
        """Where the partition begins, by the newest metadata that any broker has, or had when it ended."""
        return max(host.last_start_of(part) for host in self.cluster.hosts.values())

    def newest_partition(self, part: Part) -> Partition | None:
        """As the broker has it that knows most; nobody but the simulator can ask for that."""
        known = [
            item
            for host in self.cluster.hosts.values()
            if host.broker is not None
            and (item := host.broker.cluster.metadata.partition(part.stream, part.number)) is not None
        ]
        return max(known, key=lambda item: item.epoch, default=None)

    def log_end(self, part: Part, item: Partition) -> int | None:
        """Where the log of its leader ends, open or paused; None if that broker is down, or has no such log."""
        host = self.cluster.hosts.get(item.leader)
        if host is None or host.broker is None:
            return None
        stream = host.broker.cluster.metadata.stream(part.stream)
        summary = host.broker.replicas.summary(stream, part.number) if stream is not None else None
        return None if summary is None else summary.end

    def parts(self) -> list[Part]:
        return [part for stream in self.history.streams.values() for part in stream.parts()]

    async def create(self, stream: StreamInfo) -> None:
        """Try until the stream exists, whatever happens to the brokers."""
        self.history.streams[stream.name] = stream
        request = api.CreateStreamRequest(
            name=stream.name,
            subject=stream.subject,
            partitions=stream.partitions,
            replicationFactor=stream.replication,
        )
        request.minIsr.value = stream.min_isr
        if stream.optimistic:
            request.optimisticConcurrencyControl.value = True
        await self.change("CreateStream", request, stream, (Status.OK, Status.ALREADY_EXISTS))

    async def delete(self, stream: StreamInfo) -> bool:
        """True if a broker deleted it; False if it did not exist any more."""
        self.omniscience.deletes(stream.name)
        request = api.DeleteStreamRequest(name=stream.name)
        return await self.change("DeleteStream", request, stream, (Status.OK, Status.NOT_FOUND)) is Status.OK

    async def change(self, method: str, request: Any, stream: StreamInfo, done: tuple[Status, ...]) -> Status:
        while True:
            host, reported = self.some_host(), method in REPORTED and self._reports()
            status, text, _ = await host.call(method, request, 5.0)
            self.trace.note("change", f"{method} {stream.name} #{stream.incarnation}: {status.name} {text}")
            if status in done and not self.cluster.founded_another(host):
                if status is Status.OK and reported:
                    self.changes[method, stream.name] += 1
                return status
            await self._see_to(host, text)

    def _reports(self) -> bool:
        """Whether there is an activity stream, as a member knows."""
        return any(
            host.broker is not None
            and host.broker.cluster.metadata.stream(ACTIVITY) is not None
            and not self.cluster.founded_another(host)
            for host in self.cluster.hosts.values()
        )

    async def _see_to(self, host: Host, text: str) -> None:
        """Do what an operator does who reads this answer."""
        await asyncio.sleep(RETRY_S)
        if NEEDS_RESTART in text and not host.paused:
            self.trace.note("heal", f"the operator restarts {host.name}")
            await host.stop()
            host.boot()

    @property
    def missing(self) -> str:
        """Why the cluster is not complete: brokers that do not serve, replicas that are not in sync, or lack files that
        were removed. "" if it is."""
        controller = self.cluster.controller
        if not self.cluster.complete or controller is None or controller.broker is None:
            serving = ", ".join(host.name for host in self.cluster.serving())
            return f"members are missing, or there is no controller; serving are {serving}"
        return "; ".join([*_behind(controller.broker.cluster.metadata), *self.omniscience.incomplete()])

    @property
    def paused_and_behind(self) -> str | None:
        """Paused partitions of which not all replicas are in sync; None while the cluster is not complete."""
        controller = self.cluster.controller
        if not self.cluster.complete or controller is None or controller.broker is None:
            return None
        return "; ".join(_behind(controller.broker.cluster.metadata, only_paused=True))

    # --- time ---------------------------------------------------------------------------------------------------

    @staticmethod
    def now_s() -> float:
        return asyncio.get_running_loop().time()

    async def pause(self, chance: random.Random, mean_s: float) -> None:
        """Clients wait between two rounds."""
        await asyncio.sleep(chance.uniform(0, 2 * mean_s) * self.scenario.pace)


def _behind(metadata: Metadata, only_paused: bool = False) -> list[str]:
    return [
        f"{stream.name}/{item.id} has {', '.join(item.isr)} of {', '.join(item.replicas)}, led by {item.leader}"
        for stream in metadata.streams.values()
        for item in stream
        if item.under_replicated and (item.paused or not only_paused)
    ]
