"""A stream of many partitions: its roles are taken some at a time, at the price of all at once."""

import asyncio

from bascule.core.metadata.state import PartitionsChanged
from bascule.errors import Status
from bascule.limits import ROLES_SLICE
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.envelope import MsgType, decode_checked
from bascule.wire.nats import messages
from bascule.wire.pb import api_pb2 as api
from bascule.wire.replication import decode_request
from tests.harness.members import Member, three, until

PARTITIONS = 6 * ROLES_SLICE
CREATE = api.CreateStreamRequest(name="s", subject="s", partitions=PARTITIONS, replicationFactor=3)


class Spy:
    """Counts what followers ask their leaders for."""

    def __init__(self, nats: MemoryNats) -> None:
        self.full = 0
        self.positions = 0
        nats.connect("spy").subscribe(b">", self._on_batch)

    def _on_batch(self, batch: bytes, count: int) -> None:
        for message in messages(batch):
            payload = decode_checked(message.payload, MsgType.REPLICATION_REQUEST)
            if payload is not None:
                request = decode_request(payload)
                self.full += request.full
                self.positions += len(request.positions)


def in_roles(members: dict[str, Member]) -> bool:
    return all(
        sum(replica.leading is not None for replica in member.broker.replicas.values()) == PARTITIONS / 3
        for member in members.values()
    )


def test_leaders_are_asked_once_for_what_many_roles_need() -> None:
    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats)
        spy = Spy(nats)
        assert (await members["a"].call("CreateStream", CREATE, timeout_s=30.0))[0] is Status.OK
        await until(lambda: in_roles(members))
        await asyncio.sleep(1.0)
        assert spy.full <= 6 * 6, "six pairs of brokers, a few times each, however many slices there were"
        assert spy.positions <= 12 * 2 * PARTITIONS
        for partition in range(0, PARTITIONS, 7):
            await members["b"].publish("s", b"v", partition=partition)

    run(main())


def test_reports_of_other_partitions_go_on_while_roles_are_taken() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="first", subject="first", replicationFactor=3)
        assert (await members["a"].call("CreateStream", request))[0] is Status.OK
        await members["a"].publish("first", b"before")
        creating = asyncio.ensure_future(members["a"].call("CreateStream", CREATE, timeout_s=30.0))
        published = 0
        while not creating.done():
            await members["b"].publish("first", b"%d" % published)
            published += 1
            await asyncio.sleep(0.001)  # or no time would pass
        assert creating.result()[0] is Status.OK
        assert published > 1
        assert len(await members["a"].read("first", replica=True)) == published + 1

    run(main())


def test_a_stream_deleted_while_its_roles_are_taken_leaves_nobody_in_one() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        for turns in range(0, 60, 6):
            creating = asyncio.ensure_future(members["a"].call("CreateStream", CREATE, timeout_s=30.0))
            await until(lambda: members["b"].broker.cluster.metadata.stream("s"))
            for _ in range(turns):
                await asyncio.sleep(0)
            deleted = await members["b"].call("DeleteStream", api.DeleteStreamRequest(name="s"), timeout_s=30.0)
            assert deleted[0] is Status.OK
            await creating
            await until(lambda: not any(member.broker.replicas._open for member in members.values()))

    run(main())


def test_a_thousand_changes_at_once_let_others_in_between() -> None:
    """As when a broker comes back and is let into a thousand in-sync sets."""

    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
        assert (await members["a"].call("CreateStream", request))[0] is Status.OK
        broker = members["a"].broker
        await broker.changes.until_carried_out()
        stream = broker.cluster.metadata.streams["s"]
        for _ in range(1000):
            broker.changes.queue.enqueue([PartitionsChanged(stream, (0,))])
        turns = 0
        while broker.replicas.behind:
            turns += 1
            await asyncio.sleep(0)
        assert turns >= 1000 / ROLES_SLICE

    run(main())
