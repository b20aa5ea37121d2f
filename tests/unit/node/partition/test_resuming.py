"""Who resumes or alters a stream waits for the leaders of what was resumed or altered, and for nobody else."""

import asyncio

from bascule.errors import Status
from bascule.node.controller.streamstatus import STARTED_TIMEOUT_S
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import answer, controller_of, create, partitions_of
from tests.harness.members import Member, three
from tests.harness.pausing import pause, subscribe


async def one_each() -> tuple[dict[str, Member], Member, Member]:
    """A stream with a partition on each of three brokers, the controller, and another broker."""
    members = await three(MemoryNats())
    await create(members, partitions=3, factor=1)
    controller = controller_of(members)
    return members, controller, next(each for each in members.values() if each is not controller)


def led_by(members: dict[str, Member], leader: Member) -> int:
    return next(int(item.id) for item in partitions_of(controller_of(members)) if item.leader == leader.name)


def publishing(partition: int) -> api.PublishRequest:
    return api.PublishRequest(stream="s", partition=partition, value=b"x", ackPolicy=api.ALL)


def test_beside_a_partition_that_nobody_leads_others_are_resumed_and_the_stream_is_altered() -> None:
    async def main() -> None:
        members, controller, other = await one_each()
        number = led_by(members, controller)
        other.kill()
        other.wipe()
        await asyncio.sleep(5.0)
        await other.start()
        await asyncio.sleep(20.0)
        assert "" in [item.leader for item in partitions_of(controller)]
        settings = admin.StreamSettings(retentionMaxMessages=5)
        await answer(controller, "AlterStream", admin.AlterStreamRequest(stream="s", settings=settings))
        await pause(controller, number)
        status, text, _ = await controller.call("Publish", publishing(number))
        assert status is Status.OK, text
        await pause(controller, number)
        await answer(controller, "ResumeStream", admin.ResumeStreamRequest(stream="s", partitions=[number]))
        await pause(controller, number)
        stop = {"startPosition": api.EARLIEST, "stopPosition": api.STOP_LATEST}
        status, text, _ = await subscribe(controller, partition=number, resume=True, **stop)
        assert (status, text) == (Status.RESOURCE_EXHAUSTED, "Stop offset reached")

    run(main())


def test_a_dead_leader_of_another_partition_does_not_hold_up_a_resumption() -> None:
    async def main() -> None:
        members, controller, other = await one_each()
        third = next(each for each in members.values() if each not in (controller, other))
        numbers = [led_by(members, controller), led_by(members, third)]
        other.kill()
        await asyncio.sleep(20.0)
        loop = asyncio.get_running_loop()
        for number in numbers:
            await pause(controller, number)
            began = loop.time()
            status, text, _ = await controller.call("Publish", publishing(number), 2.0)
            assert status is Status.OK, text
            assert loop.time() - began < STARTED_TIMEOUT_S / 6

    run(main())


def test_a_partition_that_cannot_be_led_yet_does_not_hold_up_others_of_its_broker() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, partitions=6, factor=1)
        controller = controller_of(members)
        leader = next(each for each in members.values() if each is not controller)
        waits, number = [item.id for item in partitions_of(controller) if item.leader == leader.name]
        replica = leader.broker.replicas.find("s", waits)
        assert replica is not None
        replica.resign()
        await pause(controller, number)
        loop = asyncio.get_running_loop()
        began = loop.time()
        status, text, _ = await controller.call("Publish", publishing(number), 2.0)
        assert status is Status.OK, text
        assert loop.time() - began < STARTED_TIMEOUT_S / 6

    run(main())
