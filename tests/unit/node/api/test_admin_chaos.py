"""Five brokers in memory, administered and killed at random while somebody publishes: what was acked by all is there in
the end, in order, and nobody is stuck half-way.
"""

import asyncio
import random
from typing import Any

import pytest

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import ask, partitions_of
from tests.harness.members import Member, until

PARTITIONS = 3
STEPS = 14


class Chaos:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.nats = MemoryNats()
        self.members: dict[str, Member] = {}
        self.acked: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.number = 0
        self.factor = self.chance.choice((2, 3))
        self.story: list[str] = []

    async def found(self) -> None:
        for name in "abcde":
            self.members[name] = await Member(name, self.nats, seed=name == "a").start()
        await until(lambda: len(self.members["a"].broker.cluster.raft.membership.voters) == 5)
        request = api.CreateStreamRequest(name="s", subject="s", partitions=PARTITIONS, replicationFactor=self.factor)
        assert (await self.members["a"].call("CreateStream", request))[0] is Status.OK

    @property
    def living(self) -> list[Member]:
        return [member for member in self.members.values() if member.process is not None]

    @property
    def healthy(self) -> bool:
        """Everybody is alive, and everything is in sync: one may fail without loss."""
        if len(self.living) < len(self.members):
            return False
        items = partitions_of(self.living[0])
        return all(len(item.isr) == len(item.replicas) for item in items)

    async def publish_on(self) -> None:
        while True:
            partition, value = self.number % PARTITIONS, b"%d" % self.number
            self.number += 1
            member = self.living[self.number % len(self.living)]
            request = api.PublishRequest(stream="s", value=value, ackPolicy=api.ALL, partition=partition)
            publishing = asyncio.ensure_future(member.call("Publish", request, 0.5))
            try:
                # A client of a broker that dies never gets an answer.
                status, _, _ = await asyncio.wait_for(asyncio.shield(publishing), 2.0)
            except TimeoutError:
                continue
            if status is Status.OK:
                self.acked[partition].append(value)
            await asyncio.sleep(0.02)

    async def step(self) -> None:
        name = self.chance.choice(sorted(self.members))
        what = self.chance.choice(("drain", "undrain", "remove", "kill", "remove", "drain"))
        self.story.append(f"{what} {name}")
        if what == "kill":
            await until(lambda: self.healthy, 60)
            self.members[name].kill(self.chance)
            await asyncio.sleep(self.chance.random() * 4)
            await self.members[name].start()
        elif what == "remove":
            await self.remove(name)
        else:
            await self.order("DrainBroker" if what == "drain" else "UndrainBroker", name, self.chance.random() < 0.3)

    async def remove(self, name: str) -> None:
        """Drained, removed, wiped, and let in again; sometimes the controller is struck meanwhile."""
        await until(lambda: self.healthy, 60)
        status, _, _ = await self.order("DrainBroker", name, False)
        if status is not Status.OK:
            return
        strike = self.chance.random() < 0.5
        deadline = asyncio.get_running_loop().time() + 120
        while True:
            status, text, response = await self.order("RemoveBroker", name, strike)
            strike = False
            if status is Status.OK and response.done:
                break
            assert asyncio.get_running_loop().time() < deadline, (status, text)
            await asyncio.sleep(0.5)
        victim = self.members[name]
        if victim.process is not None:
            victim.kill(self.chance)
        victim.disk, victim.seed = MemoryDisk(), False
        await victim.start()

    async def order(self, method: str, name: str, strike: bool) -> tuple[Status, str, Any]:
        """Asked of somebody else; the controller may die of it, and is started again."""
        request = getattr(admin, f"{method}Request")(broker=name)
        others = [member for member in self.living if member.name != name]
        struck = next((member for member in others if member.broker.cluster.raft.is_leader), None)
        if not strike or struck is None or not self.healthy or len(others) < 2:
            return await ask(self.chance.choice(others), method, request, 10.0)
        entry = self.chance.choice([member for member in others if member is not struck])
        asking = asyncio.ensure_future(ask(entry, method, request, 10.0))
        for _ in range(self.chance.randrange(60)):
            await asyncio.sleep(0)
        self.story.append(f"controller {struck.name} dies")
        struck.kill(self.chance)
        answer = await asking
        await struck.start()
        return answer

    async def settle(self) -> None:
        for member in self.members.values():
            if member.process is None:
                await member.start()
        await until(lambda: self.healthy, 120)


@pytest.mark.parametrize("seed", [0, 3, 21])
def test_whatever_is_ordered_and_whoever_dies_acked_messages_are_there(seed: int) -> None:
    async def main() -> None:
        chaos = Chaos(seed)
        await chaos.found()
        publishing = asyncio.ensure_future(chaos.publish_on())
        try:
            for _ in range(STEPS):
                await chaos.step()
                await asyncio.sleep(chaos.chance.random())
        except BaseException:
            print("\n".join(chaos.story))
            raise
        publishing.cancel()
        await chaos.settle()
        assert sum(map(len, chaos.acked)) > 50
        for partition in range(PARTITIONS):
            item = partitions_of(chaos.living[0])[partition]
            assert item.unclean_epoch == 0
            await until(lambda leader=item.leader, p=partition: leads(chaos.members[leader], p))
            got = await chaos.members[item.leader].read("s", partition)
            known = set(chaos.acked[partition])
            assert [value for value in got if value in known] == chaos.acked[partition], chaos.story

    run(main())


def leads(member: Member, partition: int) -> bool:
    replica = member.broker.replicas.find("s", partition)
    return replica is not None and replica.leading is not None
