"""Streams administered on brokers in memory: resumed, held, described with what their leaders know."""

import asyncio

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import answer, controller_of, create, partitions_of, refused
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
