"""Streams administered on brokers in memory: resumed, held, described with what their leaders know."""

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import answer, ask, controller_of, create, partitions_of, refused
from tests.harness.broker import Node
from tests.harness.members import Member, three, until


async def with_messages(count: int) -> dict[str, Member]:
    """Three brokers, and so many messages in partition 0 of stream `s`."""
    members = await three(MemoryNats())
    await create(members)
    for number in range(count):
        await members["a"].publish("s", b"message %d" % number)
    return members


def hold(offset: int = 0, name: str = "archive", partition: int = 0) -> admin.SetHoldRequest:
    return admin.SetHoldRequest(stream="s", partition=partition, name=name, offset=offset)


async def described(member: Member) -> list[admin.PartitionDescription]:
    response = await answer(member, "DescribeStream", admin.DescribeStreamRequest(stream="s"))
    return list(response.partitions)


def test_a_hold_is_set_raised_shown_everywhere_and_removed() -> None:
    async def main() -> None:
        members = await with_messages(5)
        at_start = admin.SetHoldRequest(stream="s", name="archive", atStart=True)
        assert (await answer(members["b"], "SetHold", at_start)).offset == 0
        assert (await answer(members["c"], "SetHold", hold(3))).offset == 3
        await answer(members["a"], "SetHold", hold(5, "backup"))
        for member in members.values():
            await until(lambda member=member: len(partitions_of(member)[0].holds) == 2)
            first, second, _ = await described(member)
            archive, backup = first.holds
            assert (archive.name, archive.offset, archive.heldMessages) == ("archive", 3, 2)
            assert (backup.name, backup.offset, backup.heldMessages) == ("backup", 5, 0)
            leader = next(each for each in first.replicas if each.broker == first.leader)
            assert archive.heldBytes == leader.bytes > 0, "a segment is kept whole"
            assert archive.setTimestamp > 0
            assert not second.holds
        gone = admin.RemoveHoldRequest(stream="s", name="archive")
        await answer(members["b"], "RemoveHold", gone)
        assert [each.name for each in partitions_of(members["b"])[0].holds] == ["backup"]
        assert "there is no hold 'archive'" in await refused(members["b"], "RemoveHold", gone)

    run(main())


def test_a_hold_that_cannot_be_is_refused_with_the_reason() -> None:
    async def main() -> None:
        members = await with_messages(2)
        await answer(members["a"], "SetHold", hold(2))
        asked = members["b"]
        assert "never lowered" in await refused(asked, "SetHold", hold(1))
        past = await refused(asked, "SetHold", hold(3))
        assert past.startswith("offset 3 is past the end of partition 0, which is 2"), past
        assert "from 1 to" in await refused(asked, "SetHold", hold(0, ""))
        assert "no such partition: stream s has 3" in await refused(asked, "SetHold", hold(partition=3))
        nowhere = admin.SetHoldRequest(stream="nowhere", name="h")
        assert "no such stream: nowhere" in await refused(asked, "SetHold", nowhere)
        assert [each.offset for each in partitions_of(members["a"])[0].holds] == [2]

    run(main())


def test_a_hold_stays_when_the_controller_and_the_leader_die() -> None:
    async def main() -> None:
        members = await with_messages(3)
        await answer(members["a"], "SetHold", hold(1))
        dead = controller_of(members)
        dead.kill()
        others = [member for member in members.values() if member is not dead]
        await until(lambda: all(partitions_of(each)[0].leader != dead.name for each in others))
        first, *_ = await described(others[0])
        assert [(each.name, each.offset, each.heldMessages) for each in first.holds] == [("archive", 1, 2)]

    run(main())


def test_a_hold_is_removed_once_whenever_its_controller_dies() -> None:
    """The next controller is asked for the same operation: that the hold is gone is what was asked for, no error."""

    async def main() -> None:
        members = await with_messages(1)
        for turns in range(0, 24, 3):
            await until(
                lambda: any(m.process is not None and m.broker.cluster.raft.is_leader for m in members.values())
            )
            victim = controller_of(members)
            asked = next(member for member in members.values() if member is not victim)
            await answer(asked, "SetHold", hold(0))
            removing = asyncio.create_task(
                ask(asked, "RemoveHold", admin.RemoveHoldRequest(stream="s", name="archive"))
            )
            for _ in range(turns):
                await asyncio.sleep(0)
            victim.kill()
            status, text, _ = await removing
            assert status is Status.OK, f"controller killed after {turns} turns: {text}"
            assert partitions_of(asked)[0].holds == ()
            await victim.start()
            again = admin.RemoveHoldRequest(stream="s", name="archive")
            assert "there is no hold 'archive'" in await refused(asked, "RemoveHold", again), "another operation"

    run(main())


def test_a_description_has_sizes_segments_and_times() -> None:
    async def main() -> None:
        members = await with_messages(4)
        first, second, _ = await described(members["c"])
        for replica in first.replicas:
            assert (replica.start, replica.end, replica.segments) == (0, 4, 1)
            assert 0 < replica.firstTimestamp <= replica.lastTimestamp
            assert replica.bytes > 4 * len(b"message 0")
        assert {(each.bytes, each.firstTimestamp, each.lastTimestamp) for each in second.replicas} == {(0, 0, 0)}

    run(main())


def test_a_paused_stream_is_resumed_by_an_administrator() -> None:
    async def main() -> None:
        members = await with_messages(1)
        asked = members["b"]
        assert (await asked.call("PauseStream", api.PauseStreamRequest(name="s")))[0] is Status.OK
        assert all(each.paused for each in await described(asked))
        await answer(asked, "ResumeStream", admin.ResumeStreamRequest(stream="s", partitions=[0, 0]))
        assert [each.paused for each in partitions_of(asked)] == [False, True, True]
        await answer(asked, "ResumeStream", admin.ResumeStreamRequest(stream="s"))
        assert not any(each.paused for each in partitions_of(asked))
        assert (await asked.publish("s", b"more")).offset == 1
        assert "no such stream" in await refused(asked, "ResumeStream", admin.ResumeStreamRequest(stream="t"))
        await asyncio.sleep(0)

    run(main())


def settings(**given: int) -> admin.AlterStreamRequest:
    return admin.AlterStreamRequest(stream="s", settings=admin.StreamSettings(**given))  # type: ignore[arg-type]


def test_settings_are_altered_on_every_replica_and_reset() -> None:
    async def main() -> None:
        members = await with_messages(2)
        before = [(item.leader, item.leader_epoch) for item in partitions_of(members["a"])]
        altered = await answer(members["b"], "AlterStream", settings(segmentMaxBytes=1, autoPauseTime=3_600_000))
        assert (altered.settings.segmentMaxBytes, altered.settings.minIsr) == (1, 1)
        assert not altered.settings.HasField("retentionMaxAge")
        assert [(item.leader, item.leader_epoch) for item in partitions_of(members["b"])] == before, "nobody need stop"
        for number in range(2):
            await members["a"].publish("s", b"more %d" % number)
        first, *_ = await described(members["a"])
        leader = next(each for each in first.replicas if each.broker == first.leader)
        assert leader.segments == 3, "each record has a segment of its own from now on"
        back = admin.AlterStreamRequest(stream="s", reset=["segmentMaxBytes", "autoPauseTime"])
        altered = await answer(members["c"], "AlterStream", back)
        assert [field.name for field, _ in altered.settings.ListFields()] == ["minIsr"]

    run(main())


def test_settings_are_altered_once_whenever_their_controller_dies() -> None:
    async def main() -> None:
        members = await with_messages(0)
        for turns in range(0, 24, 4):
            await until(
                lambda: any(m.process is not None and m.broker.cluster.raft.is_leader for m in members.values())
            )
            victim = controller_of(members)
            asked = next(member for member in members.values() if member is not victim)
            altering = asyncio.create_task(ask(asked, "AlterStream", settings(retentionMaxAge=turns + 1)))
            for _ in range(turns):
                await asyncio.sleep(0)
            victim.kill()
            status, text, response = await altering
            assert status is Status.OK, f"controller killed after {turns} turns: {text}"
            assert response.settings.retentionMaxAge == turns + 1
            await victim.start()

    run(main())


def test_altered_retention_is_used_by_the_next_round_of_the_cleaner() -> None:
    async def main() -> None:
        members = await with_messages(20)
        await asyncio.sleep(10)
        assert [item.start for item in partitions_of(members["a"])] == [0, 0, 0]
        await answer(members["b"], "AlterStream", settings(segmentMaxBytes=1, cleanerInterval=1_000))
        for number in range(20):
            await members["a"].publish("s", b"more %d" % number)
        await asyncio.sleep(10)
        assert partitions_of(members["a"])[0].start == 0, "nothing has expired"
        await answer(members["c"], "AlterStream", settings(retentionMaxMessages=5))
        for member in members.values():
            await until(lambda member=member: partitions_of(member)[0].start == 35)
        assert (await members["a"].read("s"))[0] == b"more 15"

    run(main())


def test_another_min_isr_holds_for_all_that_is_published_after_the_answer() -> None:
    async def main() -> None:
        members = await with_messages(1)
        epochs = [item.leader_epoch for item in partitions_of(members["a"])]
        await answer(members["a"], "AlterStream", settings(minIsr=3))
        now = partitions_of(members["a"])
        assert all(item.leader_epoch > epoch for item, epoch in zip(now, epochs, strict=True))
        assert (await members["b"].publish("s", b"all three")).offset == 1
        victim = next(name for name in members if name != now[0].leader and name != controller_of(members).name)
        members[victim].kill()
        asked = next(member for name, member in members.items() if name != victim)
        await until(lambda: len(partitions_of(asked)[0].isr) == 2)
        request = api.PublishRequest(stream="s", value=b"too few", ackPolicy=api.ALL)
        assert (await asked.call("Publish", request, 2.0))[0] is Status.DEADLINE_EXCEEDED
        await answer(asked, "AlterStream", settings(minIsr=2))
        assert victim not in partitions_of(asked)[0].eligible, "it lacks what is committed from now on"
        await asked.publish("s", b"enough")
        assert (await asked.read("s"))[-1] == b"enough"

    run(main())


async def alter(node: Node, request: admin.AlterStreamRequest) -> None:
    call = MemoryCall(5.0)
    call.request(request.SerializeToString())
    methods: Mapping[str, Any] = node.methods
    status, text = await call.run(methods["/bascule.v1.Admin/AlterStream"])
    assert status is Status.OK, text


def paused(node: Node) -> bool:
    stream = node.broker.cluster.metadata.stream("s")
    assert stream is not None
    return stream.partitions[0].paused


def segments_of(node: Node) -> int:
    replica = node.broker.replicas.find("s", 0)
    assert replica is not None
    return len(replica.log.segments)


async def expecting(node: Node, offset: int) -> tuple[Status, str]:
    request = api.PublishRequest(stream="s", value=b"v", expectedOffset=offset, ackPolicy=api.ALL)
    status, text, _ = await node.call("Publish", request)
    return status, text


def test_altered_settings_are_used_at_once_and_after_a_restart() -> None:
    async def main() -> None:
        disk, nats = MemoryDisk(), MemoryNats()
        node = await Node(disk, nats).start()
        await node.create("s")
        await node.publish("s", b"first")
        assert (await expecting(node, 7))[0] is Status.OK, "nobody looks at it"
        await alter(node, settings(optimisticConcurrencyControl=True, segmentMaxBytes=1, autoPauseTime=2_000))
        for boot in (2, 3):
            assert await expecting(node, 7) == (Status.UNKNOWN, "incorrect expected offset")
            segments = segments_of(node)
            assert (await expecting(node, len(await node.read("s"))))[0] is Status.OK
            assert segments_of(node) == segments + 1, "each record has a segment of its own"
            await until(lambda node=node: paused(node))
            node.power_off(random.Random(1))
            node = await Node(disk, nats, seed=boot).start()
            assert paused(node)
            await node.call("Publish", api.PublishRequest(stream="s", value=b"resumes it", expectedOffset=0))
            await until(lambda node=node: not paused(node))
        await alter(node, settings(autoPauseTime=0))
        await asyncio.sleep(10)
        assert not paused(node)

    run(main())


def test_settings_that_cannot_be_are_refused_with_the_reason() -> None:
    async def main() -> None:
        members = await with_messages(0)
        asked = members["b"]
        index = asked.broker.cluster.metadata.index
        assert "can never be met: a partition has 3 replicas" in await refused(asked, "AlterStream", settings(minIsr=4))
        assert "cannot be negative" in await refused(asked, "AlterStream", settings(retentionMaxAge=-1))
        assert "encryption" in await refused(asked, "AlterStream", settings(encryption=1))
        assert "nothing to alter" in await refused(asked, "AlterStream", settings())
        unknown = admin.AlterStreamRequest(stream="s", reset=["colour"])
        assert "no stream setting is called colour" in await refused(asked, "AlterStream", unknown)
        both = settings(segmentMaxBytes=7)
        both.reset.append("segmentMaxBytes")
        assert "both set and reset" in await refused(asked, "AlterStream", both)
        nowhere = admin.AlterStreamRequest(stream="nowhere", reset=["minIsr"])
        assert "no such stream" in await refused(asked, "AlterStream", nowhere)
        own = admin.AlterStreamRequest(stream="__cursors", reset=["minIsr"])
        assert "Stream is reserved" in await refused(asked, "AlterStream", own)
        assert all(item.epoch <= index for item in partitions_of(asked))

    run(main())
