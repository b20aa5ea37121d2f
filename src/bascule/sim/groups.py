"""Consumers of one group, which join, fetch their assignments, report a coordinator that they do not reach, leave, and
go silent for too long. They subscribe to a stream that stays, and to one that is deleted and created again.

In one epoch a partition is assigned to one consumer, whoever answers. When the faults are over, and everybody stays,
every partition is assigned within a bound.
"""

import asyncio

from bascule.errors import Status
from bascule.sim.cluster import CONSUMER_TIMEOUT_S, COORDINATOR_TIMEOUT_S
from bascule.sim.history import StreamInfo
from bascule.sim.world import World
from bascule.wire.pb import api_pb2 as api

GROUP = "group"
CONSUMERS = 3
CALL_S = 1.0
SETTLE_BOUND_S = 40.0
"""After the last fault."""
Place = tuple[str, int]


class Groups:
    def __init__(self, world: World, stream: str, churned: str, replication: int, min_isr: int) -> None:
        """`churned` is a stream that comes and goes."""
        self._world = world
        self._stream = StreamInfo(stream, f"grouped.{stream}", 4, replication, min_isr)
        self._churned = churned
        self._readers: dict[tuple[int, Place], str] = {}
        """By epoch and partition, the consumer that it is assigned to."""
        self._consumers = [Consumer(world, self, f"c{number}") for number in range(CONSUMERS)]

    async def run(self) -> None:
        await self._world.create(self._stream)
        await asyncio.gather(*(consumer.run() for consumer in self._consumers))
        await self._check_assigned()

    def streams(self, both: bool) -> list[str]:
        return [self._stream.name, self._churned] if both else [self._stream.name]

    def assigned(self, consumer: str, answer: api.FetchConsumerGroupAssignmentsResponse) -> list[Place]:
        places = [(each.stream, number) for each in answer.assignments for number in each.partitions]
        for place in places:
            other = self._readers.setdefault((answer.epoch, place), consumer)
            if other != consumer:
                text = f"in epoch {answer.epoch} {place[0]}/{place[1]} is assigned to {other} and to {consumer}"
                self._world.checker.violate("assigned", text)
        return places

    async def _check_assigned(self) -> None:
        """I9: each of the partitions has a reader."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + SETTLE_BOUND_S
        wanted = [(self._stream.name, number) for number in range(self._stream.partitions)]
        while True:
            for consumer in self._consumers:
                await consumer.round()
            epochs = {consumer.answered for consumer in self._consumers}
            read = [place for consumer in self._consumers for place in consumer.places if place[0] == self._stream.name]
            if len(epochs) == 1 and sorted(read) == wanted:
                return
            if loop.time() > deadline_s:
                text = (
                    f"{SETTLE_BOUND_S} s after the last fault the consumers of a group read {sorted(read)} at {epochs}"
                )
                self._world.checker.violate("I9", text)
                return
            await asyncio.sleep(0.2)


class Consumer:
    def __init__(self, world: World, groups: Groups, name: str) -> None:
        self.places: list[Place] = []
        self.answered = 0
        """The epoch of its assignments; 0 if it has none."""
        self._world = world
        self._groups = groups
        self._name = name
        self._chance = world.chance(f"consumer {name}")
        self._joined = False
        self._coordinator = ""
        self._epoch = 0
        self._contact_s = 0.0

    async def run(self) -> None:
        world, chance = self._world, self._chance
        while world.publishing:
            await self.round()
            await world.pause(chance, 0.2)
            if chance.random() < 0.05:
                await self._leave()
            elif chance.random() < 0.03:
                await asyncio.sleep(CONSUMER_TIMEOUT_S * chance.uniform(0.5, 2.0))

    async def round(self) -> None:
        """What a consumer does: it joins, or fetches its assignments."""
        await (self._fetch() if self._joined else self._join())

    async def _join(self) -> None:
        request = api.JoinConsumerGroupRequest(groupId=GROUP, consumerId=self._name)
        request.streams.extend(self._groups.streams(both=self._chance.random() < 0.5))
        status, text, answers = await self._world.call("JoinConsumerGroup", request, CALL_S)
        if status is Status.OK:
            answer = api.JoinConsumerGroupResponse.FromString(answers[0])
            self._enter(answer.coordinator, answer.epoch)
        elif "already a member" in text:  # an earlier try has succeeded
            await self._look()
        else:
            await asyncio.sleep(0.1)

    def _enter(self, coordinator: str, epoch: int) -> None:
        self._joined = True
        self._coordinator, self._epoch = coordinator, epoch
        self._contact_s = asyncio.get_running_loop().time()

    async def _fetch(self) -> None:
        host = self._world.cluster.hosts.get(self._coordinator)
        if host is None:
            await self._look()
            return
        request = api.FetchConsumerGroupAssignmentsRequest(groupId=GROUP, consumerId=self._name, epoch=self._epoch)
        status, text, answers = await host.call("FetchConsumerGroupAssignments", request, CALL_S)
        if self._world.cluster.founded_another(host):
            return
        if status is Status.OK:
            answer = api.FetchConsumerGroupAssignmentsResponse.FromString(answers[0])
            self.places, self.answered = self._groups.assigned(self._name, answer), answer.epoch
            self._contact_s = asyncio.get_running_loop().time()
        elif "not a member" in text:
            self._forget()
        else:
            await self._look()

    async def _look(self) -> None:
        """Ask any broker who coordinates; report the coordinator that does not answer."""
        self._world.trace.note("group", f"{self._name} looks for its coordinator, {self._coordinator} was it")
        request = api.FetchMetadataRequest(streams=[self._groups.streams(both=False)[0]], groups=[GROUP])
        status, _, answers = await self._world.call("FetchMetadata", request, CALL_S)
        if status is not Status.OK:
            return
        (found,) = api.FetchMetadataResponse.FromString(b"".join(answers)).groupMetadata
        if found.error or not found.coordinator:
            self._forget()
            return
        changed = (found.coordinator, found.epoch) != (self._coordinator, self._epoch)
        self._joined, self._coordinator, self._epoch = True, found.coordinator, found.epoch
        silent_s = asyncio.get_running_loop().time() - self._contact_s
        if not changed and silent_s > COORDINATOR_TIMEOUT_S:
            report = api.ReportConsumerGroupCoordinatorRequest(
                groupId=GROUP, consumerId=self._name, coordinator=self._coordinator, epoch=self._epoch
            )
            await self._world.call("ReportConsumerGroupCoordinator", report, CALL_S)

    async def _leave(self) -> None:
        request = api.LeaveConsumerGroupRequest(groupId=GROUP, consumerId=self._name)
        status, _, _ = await self._world.call("LeaveConsumerGroup", request, CALL_S)
        if status in (Status.OK, Status.NOT_FOUND, Status.FAILED_PRECONDITION):
            self._forget()

    def _forget(self) -> None:
        self._joined, self.places, self.answered = False, [], 0
