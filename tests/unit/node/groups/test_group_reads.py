"""Members of consumer groups that read a partition of three brokers: one at a time, whoever leads it."""

import asyncio

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.acks import create
from tests.harness.broker import split
from tests.harness.members import Member, isr, leader_of, three, until


async def led() -> tuple[dict[str, Member], Member]:
    members = await three(MemoryNats())
    await create(members["a"], "s", "s", replicationFactor=3)
    await until(lambda: len(isr(members)) == 3)
    return members, leader_of(members, "s")


async def reading(member: Member, consumer: str = "", epoch: int = 0, reverse: bool = False) -> MemoryCall:
    """A subscription that has begun."""
    call = MemoryCall(None)
    request = api.SubscribeRequest(stream="s", startPosition=api.EARLIEST, reverse=reverse)
    if consumer:
        request.consumer.CopyFrom(api.Consumer(groupId="g", groupEpoch=epoch, consumerId=consumer))
    call.request(request.SerializeToString())
    assert member.process is not None
    member.process.start(call.run(member.methods["/proto.API/Subscribe"]))
    await until(lambda: call.responses or call.outcome)
    return call


async def hand_over(members: dict[str, Member]) -> Member:
    """Another broker leads; which one."""
    old = leader_of(members, "s")
    replica = old.broker.replicas.find("s", 0)
    assert replica is not None
    await old.broker.manager.step_down(replica)
    await until(lambda: replica.leading is None and leader_of(members, "s") is not old)
    new = leader_of(members, "s")
    await until(lambda: (found := new.broker.replicas.find("s", 0)) is not None and found.leading is not None)
    return new


def records(call: MemoryCall) -> int:
    return len(split(bytes(call.responses))) - 1


def test_a_member_that_reads_is_sent_to_the_next_leader() -> None:
    async def main() -> None:
        members, old = await led()
        one = await reading(old, "one", 5)
        await old.publish("s", b"first")
        await until(lambda: records(one) == 1)
        new = await hand_over(members)
        await until(lambda: one.outcome)
        assert one.outcome is not None
        assert one.outcome[0] is Status.UNAVAILABLE
        assert "s/0" in one.outcome[1]
        two = await reading(new, "two", 6)
        again = await reading(new, "one", 5)
        assert again.outcome == (Status.FAILED_PRECONDITION, "Consumer is not currently assigned this partition")
        await new.publish("s", b"second")
        await until(lambda: records(two) == 2)
        assert records(one) == 1

    run(main())


def test_whoever_reads_without_a_group_goes_on_at_a_leader_that_was_replaced() -> None:
    async def main() -> None:
        members, old = await led()
        alone = await reading(old)
        new = await hand_over(members)
        await new.publish("s", b"first")
        await until(lambda: records(alone) == 1)
        assert alone.outcome is None

    run(main())


def test_a_member_is_told_when_its_stream_is_paused_or_deleted_whoever_led_it() -> None:
    async def main() -> None:
        members, leader = await led()
        one = await reading(leader, "one", 5)
        status, text, _ = await leader.call("PauseStream", api.PauseStreamRequest(name="s"))
        assert status is Status.OK, text
        await until(lambda: one.outcome)
        assert one.outcome == (Status.FAILED_PRECONDITION, "commit log was closed")
        await leader.publish("s", b"resumes it")
        await asyncio.sleep(1.0)
        two = await reading(leader_of(members, "s"), "two", 6)
        status, text, _ = await leader.call("DeleteStream", api.DeleteStreamRequest(name="s"))
        assert status is Status.OK, text
        await until(lambda: two.outcome)
        assert two.outcome == (Status.NOT_FOUND, "commit log was deleted")

    run(main())
