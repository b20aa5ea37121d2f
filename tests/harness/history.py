"""One history of three brokers in memory, from their first start to the loss of all: what it leaves on their disks, and
what they say to each other, is compared with what an earlier release left and said (`tests/vectors`).

Clients publish straight by NATS, at fixed moments of the virtual clock, so that the bytes of a log do not depend on how
long an election takes or on which tokens are drawn.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bascule.errors import Status
from bascule.testing.bus import MemoryNats, parse_commands
from bascule.testing.records import record_starts
from bascule.wire.envelope import MsgType, encode
from bascule.wire.nats import NatsMessage
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import answer, controller_of
from tests.harness.members import REPLICATION, Member, isr, leader_of, until
from tests.harness.replicas import log_bytes, logs
from tests.harness.stops import stop

NAMES = "abc"
FIRST, MISSED, LATER, LAST = range(40), range(40, 60), range(60, 80), range(80, 90)
"""The messages of `s`, by when they are published: at first, while a replica does not fetch, after it came back, and
after a broker has stopped."""
SMALL = range(12)
"""The messages of each partition of `t`."""
FILLERS = 30
"""Streams made and deleted: more commands than a snapshot of the metadata waits for."""


def message(number: int, subject: str) -> api.Message:
    return api.Message(
        key=b"key %d" % (number % 7),
        value=b"%05d " % number * (1 + number % 40),
        stream=subject,
        subject=subject,
        headers={"number": b"%d" % number},
        correlationId=f"c{number}",
        ackPolicy=api.NONE,
    )


def publish(nats: MemoryNats, number: int, subject: str) -> None:
    nats.publish(subject.encode(), encode(MsgType.PUBLISH, message(number, subject).SerializeToString()))


@dataclass
class Spoken:
    """What was sent, in order."""

    messages: list[NatsMessage] = field(default_factory=list)

    @contextmanager
    def on(self, nats: MemoryNats) -> Iterator[None]:
        route = nats.route

        def listen(host: str, commands: bytes) -> None:
            self.messages += parse_commands(commands, nats.max_payload)
            route(host, commands)

        nats.route = listen  # type: ignore[method-assign]
        try:
            yield
        finally:
            del nats.route


async def at(moment_s: float) -> None:
    """Until this moment of the virtual clock."""
    await asyncio.sleep(moment_s - asyncio.get_running_loop().time())


async def in_sync(members: dict[str, Member], count: int = 3) -> None:
    await until(lambda: len(isr(members)) == count)


class History:
    def __init__(self, variant: int = 0) -> None:
        """`variant`: other draws of chance, the same history."""
        self.nats = MemoryNats()
        self.members = {name: Member(name, self.nats, seed=name == "a") for name in NAMES}
        for member in self.members.values():
            member.boots = 100 * variant

    async def run(self) -> None:
        await self._found()
        await self._publish()
        await self._lag()
        await self._damage()
        await self._compact()
        await self._administer()
        await self._end()

    async def _call(self, method: str, request: object) -> None:
        status, text, _ = await self.members["a"].call(method, request)
        assert status is Status.OK, text

    async def _found(self) -> None:
        members = self.members
        for member in members.values():
            await member.start()
        await until(lambda: all(len(m.broker.cluster.raft.membership.voters) == 3 for m in members.values()))

    async def _publish(self) -> None:
        await at(20.0)
        await self._call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        await self._call("CreateStream", api.CreateStreamRequest(name="t", subject="t", group="g", partitions=2))
        await self._call("CreateStream", api.CreateStreamRequest(name="gone", subject="gone", replicationFactor=2))
        await in_sync(self.members)
        for number in FIRST:
            await at(30.0 + number / 10)
            publish(self.nats, number, "s")
            publish(self.nats, number, "gone")
            if number in SMALL:
                publish(self.nats, number, "t")
                publish(self.nats, number, "t.1")
        await at(35.0)
        await self._call("DeleteStream", api.DeleteStreamRequest(name="gone"))

    async def _lag(self) -> None:
        """A follower does not fetch, leaves the in-sync set, and comes back."""
        await at(40.0)
        follower = self.follower()
        follower.buses[REPLICATION].disconnect()
        for number in MISSED:
            await at(40.0 + (number - MISSED.start) / 10)
            publish(self.nats, number, "s")
        await in_sync(self.members, 2)
        await at(60.0)
        follower.buses[REPLICATION].reconnect()
        await in_sync(self.members)
        for number in LATER:
            await at(70.0 + (number - LATER.start) / 10)
            publish(self.nats, number, "s")

    async def _damage(self) -> None:
        """A follower heals from the others."""
        await at(80.0)
        follower = self.follower()
        follower.kill()
        path = logs(follower)[0]
        follower.disk.flip(path, record_starts(follower.disk.content(path))[1] + 20, 3)
        await follower.start()
        await at(100.0)
        await in_sync(self.members)
        await until(lambda: len({log_bytes(member) for member in self.members.values()}) == 1)

    async def _compact(self) -> None:
        """A broker that was away gets the metadata as a snapshot."""
        follower = self.follower()
        follower.kill(power=False)
        await at(110.0)
        for number in range(FILLERS):
            await self._call("CreateStream", api.CreateStreamRequest(name=f"f{number}", subject=f"f{number}"))
            await self._call("DeleteStream", api.DeleteStreamRequest(name=f"f{number}"))
        await at(150.0)
        await follower.start()
        await in_sync(self.members)

    async def _administer(self) -> None:
        await at(160.0)
        a = self.members["a"]
        await answer(a, "ClusterStatus", admin.ClusterStatusRequest())
        await answer(a, "DescribeStream", admin.DescribeStreamRequest(stream="s"))
        await answer(a, "DrainBroker", admin.DrainBrokerRequest(broker="c"))
        await answer(a, "UndrainBroker", admin.UndrainBrokerRequest(broker="c"))
        await at(170.0)
        await in_sync(self.members)

    async def _end(self) -> None:
        """The leader, which is the controller too, stops; another goes on; then one loses power, the last is killed."""
        await at(180.0)
        await stop(self.members["a"])
        self.members["a"].process = None
        await until(lambda: leader_of(self.members, "s") is not self.members["a"])
        await in_sync(self.members, 2)
        for number in LAST:
            await at(190.0 + (number - LAST.start) / 10)
            publish(self.nats, number, "s")
        await at(195.0)
        self.members["c"].kill()
        self.members["b"].kill(power=False)

    def follower(self) -> Member:
        """Of `s`: one that is not the controller."""
        leader, controller = leader_of(self.members, "s"), controller_of(self.members)
        return next(m for m in self.members.values() if m not in (leader, controller))


class Turmoil:
    """What brokers say to each other on worse days: a cluster is founded by a list of peers, a message is larger than
    NATS takes at once, logs part, a snapshot of the metadata is sent, a broker is drained, stopped and removed."""

    def __init__(self) -> None:
        self.nats = MemoryNats()
        self.members = {name: Member(name, self.nats, peers=tuple(NAMES)) for name in NAMES}

    async def run(self) -> None:
        await asyncio.gather(*(member.start() for member in self.members.values()))
        await until(lambda: all(len(m.broker.cluster.raft.membership.voters) == 3 for m in self.members.values()))
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
        request.minIsr.value = 2
        assert (await self.members["a"].call("CreateStream", request))[0] is Status.OK
        await in_sync(self.members)
        for member in self.members.values():
            await member.publish("s", member.name.encode())
        await self.members["a"].publish("s", b"x" * (self.nats.max_payload - 200))
        await self._part()
        await self._catch_up()
        await self._remove()

    async def _part(self) -> None:
        """A leader takes a message that it sends to nobody, and comes back when another leads."""
        leader = leader_of(self.members, "s")
        leader.buses[REPLICATION].disconnect()
        publish(self.nats, 0, "s")
        await asyncio.sleep(0.1)
        leader.kill(power=False)
        await until(lambda: leader_of(self.members, "s") is not leader)
        publish(self.nats, 1, "s")
        await asyncio.sleep(1.0)
        await leader.start()
        await in_sync(self.members)

    async def _catch_up(self) -> None:
        """A broker was away while the others took a snapshot, and forgot what it is made of."""
        away = next(m for m in self.members.values() if m not in (leader_of(self.members, "s"), self._controller))
        away.kill()
        await asyncio.sleep(3.0)  # nothing is placed on it any more
        rest = [member for member in self.members.values() if member is not away]
        asks = next(member for member in rest if member is not self._controller)
        for number in range(FILLERS):
            name = f"f{number}"
            create = api.CreateStreamRequest(name=name, subject=name)
            assert (await asks.call("CreateStream", create))[0] is Status.OK
            assert (await self._controller.call("DeleteStream", api.DeleteStreamRequest(name=name)))[0] is Status.OK
        for member in rest:
            member.kill()
        await asyncio.gather(*(member.start() for member in self.members.values()))
        await in_sync(self.members)

    async def _remove(self) -> None:
        goes = next(m for m in self.members.values() if m not in (leader_of(self.members, "s"), self._controller))
        asked = next(m for m in self.members.values() if m not in (goes, self._controller))
        await answer(asked, "DescribeStream", admin.DescribeStreamRequest(stream="s"))
        drained = await answer(asked, "DrainBroker", admin.DrainBrokerRequest(broker=goes.name, stop=True))
        assert drained.stopping
        await asyncio.sleep(1.0)
        goes.kill()
        await asyncio.sleep(3.0)
        removed = await answer(asked, "RemoveBroker", admin.RemoveBrokerRequest(broker=goes.name))
        assert removed.done
        coming = asyncio.ensure_future(goes.start())
        await until(lambda: "was removed from the cluster" in goes.fatal)
        coming.cancel()

    @property
    def _controller(self) -> Member:
        return controller_of(self.members)
