"""Records deleted before an offset, on brokers in memory: gone on every replica, refused where they must stay."""

import asyncio
from typing import Any

from bascule.errors import Status
from bascule.node.api.deletion import KNOWN_S
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import answer, ask, create, refused
from tests.harness.members import Member, followers, leader_of, three, until


async def with_messages(count: int, **fields: Any) -> dict[str, Member]:
    members = await three(MemoryNats())
    request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3, **fields)
    assert (await members["a"].call("CreateStream", request))[0] is Status.OK
    for number in range(count):
        await members["a"].publish("s", b"%03d" % number)
    return members


def before(offset: int, **fields: Any) -> admin.DeleteRecordsRequest:
    return admin.DeleteRecordsRequest(stream="s", before=offset, **fields)


def starts(members: dict[str, Member]) -> set[int]:
    found = [member.broker.replicas.find("s", 0) for member in members.values()]
    return {replica.log.start for replica in found if replica is not None}


def test_what_is_below_the_offset_is_gone_everywhere_also_within_a_segment() -> None:
    async def main() -> None:
        members = await with_messages(10)
        for member in members.values():
            dry = await answer(member, "DeleteRecords", before(4, dryRun=True))
            assert (dry.previousStart, dry.start) == (0, 4)
        assert starts(members) == {0}
        done = await answer(members["b"], "DeleteRecords", before(4))
        assert (done.previousStart, done.start) == (0, 4)
        values = await leader_of(members, "s").read("s")
        assert values == [b"%03d" % number for number in range(4, 10)], "when it is answered its leader knows"
        await until(lambda: starts(members) == {4})
        again = await answer(members["c"], "DeleteRecords", before(2))
        assert (again.previousStart, again.start) == (4, 4), "a start is never lowered"
        everything = await answer(members["c"], "DeleteRecords", before(10))
        assert everything.start == 10
        assert (await members["a"].publish("s", b"next")).offset == 10
        assert await leader_of(members, "s").read("s") == [b"next"]

    run(main())


def test_what_is_not_committed_and_what_is_held_is_not_deleted() -> None:
    async def main() -> None:
        members = await with_messages(10)
        asked = members["b"]
        text = await refused(asked, "DeleteRecords", before(11))
        assert text.startswith("offset 11 is past the end of partition 0, which is 10"), text
        hold = admin.SetHoldRequest(stream="s", name="archive", offset=3)
        await answer(members["a"], "SetHold", hold)
        text = await refused(asked, "DeleteRecords", before(4))
        assert text.startswith("hold 'archive' keeps partition 0 from offset 3 on"), text
        assert text == await refused(asked, "DeleteRecords", before(4, dryRun=True))
        assert (await answer(asked, "DeleteRecords", before(3))).start == 3
        assert "no such stream" in await refused(asked, "DeleteRecords", admin.DeleteRecordsRequest(stream="t"))
        assert "no such partition" in await refused(asked, "DeleteRecords", before(1, partition=7))
        cursors = admin.DeleteRecordsRequest(stream="__cursors", before=1)
        assert "cursors are not deleted" in await refused(asked, "DeleteRecords", cursors)

    run(main())


def test_a_paused_partition_is_resumed_first() -> None:
    async def main() -> None:
        members = await with_messages(3)
        assert (await members["a"].call("PauseStream", api.PauseStreamRequest(name="s")))[0] is Status.OK
        status, text, _ = await ask(members["a"], "DeleteRecords", before(1))
        assert status is Status.UNAVAILABLE
        assert "must be resumed first" in text

    run(main())


def test_what_has_expired_is_deleted_on_demand() -> None:
    async def main() -> None:
        few: dict[str, Any] = {
            "segmentMaxBytes": api.NullableInt64(value=1),
            "retentionMaxMessages": api.NullableInt64(value=4),
        }
        members = await with_messages(10, **few)
        expired = admin.DeleteRecordsRequest(stream="s", expired=True)
        done = await answer(members["c"], "DeleteRecords", expired)
        assert (done.previousStart, done.start) == (0, 6)
        await until(lambda: starts(members) == {6})
        assert (await answer(members["a"], "DeleteRecords", expired)).start == 6

    run(main())


def test_what_has_expired_in_an_active_segment_that_is_too_old_goes_on_demand() -> None:
    """Its file, too, on every replica; the cleaner would have rolled it, and removed it a round later."""

    async def main() -> None:
        age: dict[str, Any] = {
            "retentionMaxAge": api.NullableInt64(value=5_000),
            "segmentMaxAge": api.NullableInt64(value=2_000),
            "cleanerInterval": api.NullableInt64(value=3_600_000),
        }
        members = await with_messages(10, **age)
        expired = admin.DeleteRecordsRequest(stream="s", expired=True)
        await asyncio.sleep(3.0)
        assert (await answer(members["b"], "DeleteRecords", expired)).start == 0, "its records are young"
        await asyncio.sleep(4.0)
        dry = await answer(
            members["b"], "DeleteRecords", admin.DeleteRecordsRequest(stream="s", expired=True, dryRun=True)
        )
        assert (dry.previousStart, dry.start) == (0, 10)
        assert starts(members) == {0}
        done = await answer(members["b"], "DeleteRecords", expired)
        assert (done.previousStart, done.start) == (0, 10)
        await until(lambda: starts(members) == {10})
        await asyncio.sleep(1.0)
        for member in members.values():
            assert [
                path for path in member.disk.paths() if path.startswith("streams/s@") and path.endswith(".log")
            ] == []
        assert (await members["a"].publish("s", b"next")).offset == 10
        for member in members.values():
            member.kill()
        for member in members.values():
            await member.start()
        await until(lambda: starts(members) == {10})
        assert (await members["a"].publish("s", b"last")).offset == 11

    run(main())


def test_without_limits_nothing_has_expired() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members)
        await members["a"].publish("s", b"kept")
        done = await answer(members["b"], "DeleteRecords", admin.DeleteRecordsRequest(stream="s", expired=True))
        assert (done.previousStart, done.start) == (0, 0)

    run(main())


def test_no_live_replica_serves_what_is_deleted_once_it_is_answered() -> None:
    async def main() -> None:
        members = await with_messages(10)
        late = next(each for each in followers(members) if not each.broker.controller.active)
        late.disk.sync_delay_s = 0.5  # it learns of the new start later than the others
        await answer(leader_of(members, "s"), "DeleteRecords", before(8))
        assert await late.read("s", replica=True) == [b"008", b"009"]

    run(main())


def test_a_replica_that_is_not_reached_is_waited_for_no_longer_than_a_moment() -> None:
    async def main() -> None:
        members = await with_messages(10)
        late = next(each for each in followers(members) if not each.broker.controller.active)
        late.disk.sync_delay_s = 60.0
        loop = asyncio.get_running_loop()
        began = loop.time()
        await answer(leader_of(members, "s"), "DeleteRecords", before(8))
        assert loop.time() - began < KNOWN_S + 2.0

    run(main())
