"""A log that cannot be opened stops its own partition, and no other one of its stream."""

import asyncio
import errno
import random
from collections.abc import Callable

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.nats import pub
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import answer, create, publish
from tests.harness.broker import Node
from tests.harness.members import leader_of, three, until


def _unreadable(partition: int) -> Callable[[str], int | None]:
    def error(path: str) -> int | None:
        return errno.EIO if path.startswith("streams/s@") and f"/{partition}" in path else None

    return error


async def _publish(node: Node, partition: int) -> tuple[Status, str]:
    request = api.PublishRequest(stream="s", partition=partition, value=b"y", ackPolicy=api.ALL)
    status, text, _ = await node.call("Publish", request)
    return status, text


def test_the_other_partitions_of_its_stream_are_led_after_a_start() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        node = await Node(disk, MemoryNats()).start()
        await node.call("CreateStream", api.CreateStreamRequest(name="s", subject="s", partitions=3))
        for partition in range(3):
            assert (await _publish(node, partition))[0] is Status.OK
        node.power_off(random.Random(1))
        disk.injected_error = _unreadable(2)
        node = await Node(disk, MemoryNats(), seed=2).start()
        for partition in range(2):
            assert (await _publish(node, partition))[0] is Status.OK
        status, text = await _publish(node, 2)
        assert status is Status.INTERNAL, "as every refusal of a partition that takes no writes"
        assert "its log cannot be opened" in text
        disk.injected_error = None
        deadline = asyncio.get_running_loop().time() + 30.0
        while (await _publish(node, 2))[0] is not Status.OK:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.5)

    run(main())


def test_another_replica_leads_instead_and_the_others_learn_what_changes() -> None:
    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats)
        await create(members, partitions=3)
        for partition in range(3):
            await publish(members["a"], b"x", partition)
        broken = leader_of(members, "s", 2)
        led = next(number for number in range(3) if leader_of(members, "s", number) is broken)
        other = next(number for number in range(3) if number != led)
        pause = api.PauseStreamRequest(name="s", partitions=[led])
        assert (await members["a"].call("PauseStream", pause, 20.0))[0] is Status.OK
        broken.disk.injected_error = _unreadable(led)
        await answer(members["a"], "ResumeStream", admin.ResumeStreamRequest(stream="s", partitions=[led]), 20.0)
        await until(lambda: leader_of(members, "s", led) is not broken, 30.0)
        await publish(members["a"], b"taken by the next leader", led)
        readonly = api.SetStreamReadonlyRequest(name="s", partitions=[other], readonly=True)
        assert (await members["a"].call("SetStreamReadonly", readonly, 20.0))[0] is Status.OK
        leader = leader_of(members, "s", other)
        replica = leader.broker.replicas.find("s", other)
        assert replica is not None
        end = replica.log.end
        nats.connect("plain publisher").send(pub(b"s" + (b".%d" % other if other else b""), b"after it", b""))
        await asyncio.sleep(5.0)
        assert replica.log.end == end

    run(main())
