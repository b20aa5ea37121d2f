"""Paused partitions: nothing is stored, read or open; a publish, or a subscription that says so, resumes them."""

import asyncio
import random
from typing import Any

import pytest

from bascule.core.metadata.streams import Stream
from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node
from tests.harness.led import apart, replicated
from tests.harness.members import leader_of, until
from tests.harness.pausing import partitions_of, pause, set_readonly, subscribe


def delay_changes(node: Any) -> None:
    """Its disk is slow: what the metadata changes shows late."""
    take_roles, close_paused = node.broker.manager.take_roles, node.broker.manager.close_paused

    async def late(stream: Stream, partitions: tuple[int, ...]) -> None:
        await asyncio.sleep(0.5)
        await close_paused(stream, partitions)

    async def later(stream: Stream, partitions: tuple[int, ...]) -> None:
        await asyncio.sleep(0.5)
        await take_roles(stream, partitions)

    node.broker.manager.close_paused, node.broker.manager.take_roles = late, later


async def one(**fields: Any) -> Node:
    node = await Node(MemoryDisk(), MemoryNats()).start()
    await node.create("s", **fields)
    return node


def test_a_paused_partition_has_nothing_open_and_a_publish_resumes_it() -> None:
    async def main() -> None:
        node = await one(partitions=2)
        for number in (0, 1):
            await node.publish("s", b"%d" % number, partition=number)
        await pause(node)
        assert not len(node.broker.replicas)
        assert [item.paused for item in (await partitions_of(node)).values()] == [True, True]
        node.nats.publish(b"s", b"lost")
        await asyncio.sleep(0.1)
        assert (await node.publish("s", b"more", partition=0)).offset == 1
        assert [item.paused for item in (await partitions_of(node)).values()] == [False, True]
        assert await node.read("s") == [(0, b"0"), (1, b"more")]

    run(main())


def test_a_partition_is_closed_when_the_pause_is_answered_however_long_the_broker_has_led() -> None:
    async def main() -> None:
        node = await one()
        await asyncio.sleep(60)  # no lease of anybody runs any more
        delay_changes(node)
        await pause(node)
        assert not len(node.broker.replicas)
        assert (await node.publish("s", b"resumes")).offset == 0
        await set_readonly(node, True)
        status, text, _ = await node.call("Publish", api.PublishRequest(stream="s", value=b"x"))
        assert (status, text) == (Status.FAILED_PRECONDITION, "readonly partition: 0")

    run(main())


def test_the_broker_that_answered_knows_of_the_pause_itself() -> None:
    """Also if it has no replica: a publish there would else go to NATS, where nobody listens."""

    async def main() -> None:
        led = await apart()
        others = [member for member in led.members.values() if member is not led.leader]
        for other in others:
            delay_changes(other)
        for number in range(10):
            other = others[number % 2]
            await pause(other)
            assert (await other.publish("s", b"x")).offset == number
            await set_readonly(other, True)
            status, _, _ = await other.call("Publish", api.PublishRequest(stream="s", value=b"x"))
            assert status is Status.FAILED_PRECONDITION
            await set_readonly(other, False)

    run(main())


def test_resume_all_resumes_every_partition_that_is_paused() -> None:
    async def main() -> None:
        node = await one(partitions=3)
        await pause(node, 0, 2, resume_all=True)
        await pause(node, 1)
        await node.publish("s", b"x", partition=1)
        assert [item.paused for item in (await partitions_of(node)).values()] == [True, False, True]
        await node.publish("s", b"x", partition=2)
        assert [item.paused for item in (await partitions_of(node)).values()] == [False, False, False]

    run(main())


def test_what_a_subscription_to_a_paused_partition_is_told() -> None:
    async def main() -> None:
        node = await one()
        await pause(node)
        closed = (Status.FAILED_PRECONDITION, "commit log was closed", 5)
        assert await subscribe(node, startPosition=api.EARLIEST) == closed, "it is empty"
        await node.publish("s", b"one")
        await pause(node)
        assert await subscribe(node, startPosition=api.NEW_ONLY) == closed
        assert await subscribe(node, startPosition=api.OFFSET, startOffset=1) == closed, "it is past the end"
        refused = (Status.INTERNAL, "Failed to create stream reader: segment has been closed", 0)
        assert await subscribe(node, startPosition=api.EARLIEST) == refused
        stop = {"startPosition": api.EARLIEST, "stopPosition": api.STOP_LATEST}
        status, text, size = await subscribe(node, resume=True, **stop)
        assert (status, text) == (Status.RESOURCE_EXHAUSTED, "Stop offset reached")
        assert size > 5
        assert not (await partitions_of(node))[0].paused

    run(main())


def test_subscribers_end_when_the_partition_is_paused_also_far_behind() -> None:
    async def main() -> None:
        node = await one()
        for _ in range(5):
            await node.publish("s", b"x")
        reading = asyncio.create_task(subscribe(node, startPosition=api.EARLIEST))
        await asyncio.sleep(0.5)
        await pause(node)
        status, text, size = await reading
        assert (status, text) == (Status.FAILED_PRECONDITION, "commit log was closed")
        assert size > 5

    run(main())


def test_a_subscriber_with_more_to_read_waits_while_something_holds_up_the_pause() -> None:
    """It waits, it does not look again and again: that would be a busy loop for as long as the disk is slow."""

    async def main() -> None:
        node: Any = await one()
        for number in range(3):
            await node.publish("s", b"%d" % number)
        call = MemoryCall(None)
        call.taking = False
        call.request(api.SubscribeRequest(stream="s", startPosition=api.EARLIEST).SerializeToString())
        assert node.process is not None
        reading = node.process.start(call.run(node.methods["/proto.API/Subscribe"]))
        await until(lambda: call.queued_bytes > 0)
        replica = node.broker.replicas.find("s", 0)
        assert replica is not None
        end = replica._end

        async def late() -> None:
            await asyncio.sleep(1.0)
            await end()

        replica._end = late
        pausing = asyncio.ensure_future(pause(node))
        await until(lambda: replica.paused)
        call.taking = True
        call.take()
        assert await reading == (Status.FAILED_PRECONDITION, "commit log was closed")
        await pausing

    run(main())


def test_pauses_outlive_restarts_and_have_their_times() -> None:
    async def main() -> None:
        node = await one()
        await node.publish("s", b"one")
        before = (await partitions_of(node))[0].pauseTimestamps
        assert (before.firstTimestamp, before.latestTimestamp) == (0, 0)
        await pause(node)
        paused = (await partitions_of(node))[0]
        assert 0 < paused.pauseTimestamps.firstTimestamp == paused.pauseTimestamps.latestTimestamp
        for seed in range(6):
            node.power_off(random.Random(seed))
            node = await Node(node.disk, MemoryNats(), seed=seed + 2).start()
            again = (await partitions_of(node))[0]
            assert again.paused
            assert again.pauseTimestamps == paused.pauseTimestamps
            assert not len(node.broker.replicas)
        await node.publish("s", b"two")
        resumed = (await partitions_of(node))[0]
        assert resumed.pauseTimestamps.firstTimestamp == paused.pauseTimestamps.firstTimestamp
        assert resumed.pauseTimestamps.latestTimestamp > paused.pauseTimestamps.latestTimestamp
        assert await node.read("s") == [(0, b"one"), (1, b"two")]

    run(main())


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (api.PauseStreamRequest(name="none"), (Status.NOT_FOUND, "stream not found")),
        (api.PauseStreamRequest(name="none", partitions=[0]), (Status.NOT_FOUND, "stream does not exist")),
        (api.PauseStreamRequest(name="s", partitions=[1]), (Status.NOT_FOUND, "partition does not exist")),
        (api.PauseStreamRequest(name="s", partitions=[-1]), (Status.NOT_FOUND, "partition does not exist")),
        (api.SetStreamReadonlyRequest(name="none"), (Status.NOT_FOUND, "stream not found")),
        (api.SetStreamReadonlyRequest(name="none", partitions=[0]), (Status.NOT_FOUND, "stream does not exist")),
        (api.SetStreamReadonlyRequest(name="s", partitions=[0, 7]), (Status.NOT_FOUND, "partition does not exist")),
    ],
)
def test_what_does_not_exist(request_: Any, expected: tuple[Status, str]) -> None:
    async def main() -> None:
        node = await one()
        method = type(request_).__name__.removesuffix("Request")
        assert (await node.call(method, request_))[:2] == expected
        item = (await partitions_of(node))[0]
        assert not item.paused
        assert not item.readonly

    run(main())


def test_a_readonly_partition_takes_nothing_and_is_not_resumed_by_a_publish() -> None:
    async def main() -> None:
        node = await one(partitions=2)
        await node.publish("s", b"one")
        reading = asyncio.create_task(subscribe(node, startPosition=api.EARLIEST))
        await asyncio.sleep(0.5)
        await set_readonly(node, True, 0)
        assert (await reading)[:2] == (Status.RESOURCE_EXHAUSTED, "End of readonly partition")
        refused = (Status.FAILED_PRECONDITION, "readonly partition: 0")
        publish = api.PublishRequest(stream="s", value=b"x", ackPolicy=api.ALL)
        assert (await node.call("Publish", publish))[:2] == refused
        await pause(node, 0)
        assert (await node.call("Publish", publish))[:2] == refused
        item = (await partitions_of(node))[0]
        assert (item.paused, item.readonly) == (True, True)
        assert item.readonlyTimestamps.firstTimestamp > 0
        await node.publish("s", b"other", partition=1)
        node = await restarted(node)
        item = (await partitions_of(node))[0]
        assert (item.paused, item.readonly) == (True, True)
        status, text, _ = await subscribe(node, startPosition=api.EARLIEST, resume=True)
        assert (status, text) == (Status.RESOURCE_EXHAUSTED, "Stop offset reached")
        node.nats.publish(b"s", b"dropped")
        await asyncio.sleep(0.1)
        await set_readonly(node, False)
        assert (await node.publish("s", b"two")).offset == 1

    run(main())


async def restarted(node: Node) -> Node:
    node.power_off(random.Random(1))
    return await Node(node.disk, MemoryNats(), seed=7).start()


def test_idle_partitions_are_paused_but_not_under_a_subscriber_if_that_is_asked_for() -> None:
    async def main() -> None:
        time = {"autoPauseTime": api.NullableInt64(value=2_000)}
        node = await one(**time, autoPauseDisableIfSubscribers=api.NullableBool(value=True))
        reading = asyncio.create_task(subscribe(node, startPosition=api.NEW_ONLY))
        await asyncio.sleep(2.9)
        assert not (await partitions_of(node))[0].paused
        reading.cancel()
        for _ in range(4):
            await node.publish("s", b"busy")
            await asyncio.sleep(1.0)
        assert not (await partitions_of(node))[0].paused
        await asyncio.sleep(4.0)
        assert (await partitions_of(node))[0].paused
        assert (await node.publish("s", b"back")).offset == 4

    run(main())


# --- three brokers ---------------------------------------------------------------------------------------------------


def test_any_broker_pauses_and_any_publish_resumes_with_every_replica_in_sync() -> None:
    async def main() -> None:
        led = await replicated()
        for member in led.members.values():
            await pause(member)
            for each in led.members.values():
                assert not len(each.broker.replicas), each.name
                assert (await partitions_of(each))[0].paused
            await member.publish("s", member.name.encode())
        assert [len(item.isr) for item in (await partitions_of(led.leader)).values()] == [3]
        assert await leader_of(led.members, "s").read("s") == [b"first", b"a", b"b", b"c"]

    run(main())


def test_a_paused_partition_gets_another_leader_and_loses_nothing() -> None:
    async def main() -> None:
        led = await replicated()
        await pause(led.other)
        led.leader.kill()
        del led.members[led.leader.name]
        await asyncio.sleep(5.0)
        for member in led.members.values():
            assert (await partitions_of(member))[0].paused
        await led.other.publish("s", b"second")
        assert await leader_of(led.members, "s").read("s") == [b"first", b"second"]
        await led.leader.start()
        led.members[led.leader.name] = led.leader
        await until(lambda: len(led.other.broker.cluster.metadata.streams["s"].partitions[0].isr) == 3)

    run(main())


def test_after_set_readonly_returns_nothing_is_taken_not_even_by_a_leader_that_cannot_know() -> None:
    async def main() -> None:
        led = await apart(1)
        led.leader.buses[0].disconnect()
        asked = api.SetStreamReadonlyRequest(name="s", readonly=True)
        assert (await led.other.call("SetStreamReadonly", asked, 20.0))[0] is Status.OK
        replica = led.leader.broker.replicas.find("s", 0)
        assert replica is not None
        assert not replica.partition.readonly
        before = replica.log.end
        led.nats.publish(b"s", b"late")
        await asyncio.sleep(1.0)
        assert replica.log.end == before

    run(main())
