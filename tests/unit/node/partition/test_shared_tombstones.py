"""Tombstones go in streams with several replicas, and a deleted key returns nowhere, whatever a replica comes back
with."""

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from bascule.core.metadata.commands import ClearedEnd, TellCleared
from bascule.core.metadata.streams import Partition
from bascule.core.metadata.tombstones import told
from bascule.errors import Status
from bascule.node.membership.controllerclient import ControllerClient
from bascule.node.membership.peers import Peers
from bascule.node.partition.replica import Replica
from bascule.testing.bus import MemoryNats
from bascule.testing.keyed import Stored, newest, stored_in
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import another, answer, partitions_of
from tests.harness.members import Member, leader_of, three, until

STREAM: dict[str, Any] = {
    "segmentMaxBytes": api.NullableInt64(value=400),
    "cleanerInterval": api.NullableInt64(value=1_000),
    "compactEnabled": api.NullableBool(value=True),
    "compactTombstoneDelay": api.NullableInt64(value=3_000),
}
GONE = b"gone"
"""The key that is deleted."""


def replica_of(member: Member) -> Replica:
    replica = member.broker.replicas.find("s", 0)
    assert replica is not None
    return replica


def item_of(members: dict[str, Member]) -> Partition:
    return replica_of(leader_of(members, "s")).partition


async def records_of(member: Member) -> list[Stored]:
    """All that its log has."""
    replica, found = replica_of(member), b""
    reader = replica.log.reader(replica.log.start, uncommitted=True)
    while (records := await reader.read()) is not None:
        found += records
    return stored_in(found)


async def offsets_of(member: Member, key: bytes = GONE) -> list[int]:
    return [each.offset for each in await records_of(member) if each.message.key == key]


async def publish(member: Member, key: bytes, value: bytes = b"v", tombstone: bool = False) -> None:
    request = api.PublishRequest(stream="s", key=key, value=b"" if tombstone else value, ackPolicy=api.ALL)
    if tombstone:
        request.headers["bascule-tombstone"] = b""
    async with asyncio.timeout(30.0):
        while (await member.call("Publish", request, 2.0))[0] is not Status.OK:
            await asyncio.sleep(0.2)


async def publish_others(member: Member, count: int = 40) -> None:
    for number in range(count):
        await publish(member, b"k%d" % (number % 5), b"v%d" % number)


async def brokers(**fields: Any) -> dict[str, Member]:
    members = await three(MemoryNats())
    request = api.CreateStreamRequest(name="s", subject="s", partitions=1, replicationFactor=3, **{**STREAM, **fields})
    assert (await members["a"].call("CreateStream", request))[0] is Status.OK
    await until(lambda: all(each.broker.replicas.find("s", 0) for each in members.values()))
    return members


async def eventually(condition: Callable[[], Awaitable[bool]], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.5)


async def key_is_gone(*members: Member) -> bool:
    return all([not await offsets_of(each) for each in members])


def follower_of(members: dict[str, Member]) -> Member:
    leader = leader_of(members, "s")
    return next(each for each in members.values() if each is not leader)


async def in_sync(members: dict[str, Member], count: int = 3) -> None:
    await until(lambda: len(item_of(members).isr) == count, 60.0)


def test_a_tombstone_goes_from_all_replicas_after_its_delay() -> None:
    async def main() -> None:
        members = await brokers(compactTombstoneDelay=api.NullableInt64(value=20_000))
        leader = leader_of(members, "s")
        await publish(leader, GONE)
        await publish_others(leader)
        await publish(leader, GONE, tombstone=True)
        await publish_others(leader)
        await until(lambda: item_of(members).tombstones_end > 41)
        await asyncio.sleep(10.0)
        for member in members.values():
            assert await offsets_of(member) == [41], "whoever has read what it deletes has that long to read it"
        await asyncio.sleep(25.0)
        for member in members.values():
            assert GONE not in newest(await records_of(member))
            values = {each.name: each.values for each in member.broker.environment.metrics.read()}
            assert values["bascule_compacted_tombstones_total"][""] == 1
            assert member.fatal == ""

    run(main())


def test_a_replica_that_is_away_holds_tombstones_and_goes_on_when_it_is_back() -> None:
    async def main() -> None:
        members = await brokers()
        away = follower_of(members)
        leader = leader_of(members, "s")
        await publish(leader, GONE)
        await publish_others(leader)
        await until(lambda: replica_of(away).log.visible_end == 41)
        away.kill(random.Random(1))
        await in_sync(members, 2)
        await publish(leader, GONE, tombstone=True)
        await publish_others(leader)
        await asyncio.sleep(60.0)
        assert item_of(members).tombstones_end <= 41
        for member in members.values():
            assert member is away or await offsets_of(member) == [41]
        await away.start()
        await in_sync(members)
        await publish_others(leader)  # what it was fed is one segment, to which records are appended
        await eventually(lambda: key_is_gone(*members.values()))
        assert [path for path in away.disk.paths() if path.startswith("quarantine/")] == []

    run(main())


def test_a_replica_that_lost_its_disk_gets_no_key_that_was_deleted() -> None:
    async def main() -> None:
        members = await brokers()
        leader, wiped = leader_of(members, "s"), follower_of(members)
        await publish(leader, GONE)
        await publish_others(leader)
        await publish(leader, GONE, tombstone=True)
        await publish_others(leader)
        await eventually(lambda: key_is_gone(*members.values()))
        end = item_of(members).tombstones_end
        wiped.kill(random.Random(1))
        wiped.wipe()
        await wiped.start()
        await until(lambda: wiped.broker.replicas.find("s", 0) is not None)
        await in_sync(members)
        assert await key_is_gone(wiped)
        assert replica_of(wiped).cleared.said.end >= end
        await publish(leader, b"other", tombstone=True)
        await publish_others(leader)
        await until(lambda: item_of(members).tombstones_end > end, 60.0)

    run(main())


def test_a_replica_that_comes_back_with_an_old_copy_of_its_disk_begins_anew() -> None:
    """It has the key, and would never get its tombstone."""

    async def main() -> None:
        members = await brokers()
        leader, old = leader_of(members, "s"), follower_of(members)
        await publish(leader, GONE)
        await publish_others(leader, 3)
        await until(lambda: replica_of(old).log.visible_end == 4)
        stored = copy.deepcopy(old.disk)
        stored.crash(random.Random(1))
        await publish(leader, GONE, tombstone=True)
        await publish_others(leader)
        await eventually(lambda: key_is_gone(*members.values()))
        old.kill(random.Random(1))
        await in_sync(members, 2)
        old.disk = stored
        await old.start()
        await until(lambda: old.broker.replicas.find("s", 0) is not None)
        await in_sync(members)
        assert await key_is_gone(old)
        quarantined = [path for path in old.disk.paths() if path.startswith("quarantine/")]
        assert quarantined, "what it had is there for a human"
        await publish_others(leader)
        assert newest(await records_of(old)).keys() == newest(await records_of(leader)).keys()

    run(main())


async def two_replicas() -> tuple[Member, Member, Member]:
    """The leader, its follower, and a broker that has no replica."""
    members = await three(MemoryNats())
    request = api.CreateStreamRequest(name="s", subject="s", partitions=1, replicationFactor=2, **STREAM)
    assert (await members["a"].call("CreateStream", request))[0] is Status.OK
    item = partitions_of(members["a"])[0]
    leader = members[item.leader]
    follower = members[next(name for name in item.replicas if name != leader.name)]
    third = another(members, leader.name, follower.name)
    await until(lambda: follower.broker.replicas.find("s", 0) is not None)
    return leader, follower, third


def test_a_replica_keeps_its_old_records_until_a_leader_is_there() -> None:
    """They may be all that is left: an administrator may have it lead."""

    async def main() -> None:
        leader, old, third = await two_replicas()
        await publish(leader, GONE)
        await publish_others(leader, 3)
        await until(lambda: replica_of(old).log.visible_end == 4)
        stored = copy.deepcopy(old.disk)
        stored.crash(random.Random(1))
        await publish(leader, GONE, tombstone=True)
        await publish_others(leader)
        await eventually(lambda: key_is_gone(leader, old))
        old.kill(random.Random(1))
        await until(lambda: partitions_of(third)[0].isr == (leader.name,))
        leader.kill(random.Random(1))
        old.disk = stored
        await old.start()
        await until(lambda: old.broker.replicas.find("s", 0) is not None)
        await asyncio.sleep(20.0)
        assert await offsets_of(old) == [0]
        assert [path for path in old.disk.paths() if path.startswith("quarantine/")] == []
        await leader.start()
        await until(lambda: len(partitions_of(third)[0].isr) == 2, 60.0)
        assert await key_is_gone(leader, old)

    run(main())


def test_after_an_election_with_accepted_loss_the_others_begin_anew_and_tombstones_go_again() -> None:
    async def main() -> None:
        full, short, third = await two_replicas()
        await publish(third, GONE)
        await publish_others(third)
        await publish(third, GONE, tombstone=True)
        await publish_others(third)
        await eventually(lambda: key_is_gone(full, short))
        short.kill(random.Random(1))
        await until(lambda: partitions_of(third)[0].isr == (full.name,))
        await publish(third, b"lost")
        full.kill(random.Random(3))
        await short.start()
        await asyncio.sleep(3.0)
        shown = await answer(third, "ElectLeader", admin.ElectLeaderRequest(stream="s"))
        accepted = admin.ElectLeaderRequest(stream="s", acceptLoss=True, inSync=shown.inSync, replica=short.name)
        assert (await answer(third, "ElectLeader", accepted)).done
        await until(lambda: replica_of(short).leading is not None)
        assert replica_of(short).partition.tombstones_end == 0
        await full.start()
        await until(lambda: len(partitions_of(third)[0].isr) == 2, 60.0)
        assert await key_is_gone(full, short)
        assert b"lost" not in newest(await records_of(full))
        assert replica_of(full).cleared.said.epoch == replica_of(full).partition.tombstones_epoch > 0
        await publish(third, b"k1", tombstone=True)
        for _ in range(2):
            await publish_others_but(third, b"k1")
            await asyncio.sleep(3.0)

        async def k1_is_gone() -> bool:
            return not await offsets_of(full, b"k1") and not await offsets_of(short, b"k1")

        await eventually(k1_is_gone)

    run(main())


async def publish_others_but(member: Member, key: bytes) -> None:
    for number in range(40):
        if b"k%d" % (number % 5) != key:
            await publish(member, b"k%d" % (number % 5), b"again%d" % number)


def test_nothing_is_told_before_all_members_know_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Peers, "all_know_cleared", lambda *_: False)
            members = await brokers()
            leader = leader_of(members, "s")
            await publish(leader, GONE)
            await publish(leader, GONE, tombstone=True)
            await publish_others(leader)
            await asyncio.sleep(20.0)
            assert item_of(members).cleared == ()
        await eventually(lambda: key_is_gone(*members.values()))

    run(main())


def test_a_stream_without_tombstones_costs_no_command() -> None:
    async def main() -> None:
        members = await brokers()
        await publish_others(leader_of(members, "s"), 80)
        await asyncio.sleep(20.0)
        assert item_of(members).cleared == ()
        assert replica_of(members["a"]).cleared.said.end > 0

    run(main())


def test_a_replica_tells_only_what_is_on_its_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the metadata has of it is never more, whatever it does: nobody could go by it."""

    async def main() -> None:
        said: list[tuple[ClearedEnd, ...]] = []
        tell = ControllerClient.tell_cleared

        async def noted(client: ControllerClient, ends: tuple[ClearedEnd, ...], timeout_s: float) -> None:
            said.append(ends)
            member = next(each for each in members.values() if each.broker.client is client)
            path = f"{replica_of(member).log.folder}/compaction"
            for end in ends:
                stored = int.from_bytes(member.disk.durable(path)[12 + 24 : 12 + 32], "little")
                assert end.end <= stored
            await tell(client, ends, timeout_s)

        members = await brokers()
        monkeypatch.setattr(ControllerClient, "tell_cleared", noted)
        leader = leader_of(members, "s")
        for number in range(6):
            await publish(leader, b"d%d" % number)
            await publish(leader, b"d%d" % number, tombstone=True)
            await publish_others(leader, 20)
            await asyncio.sleep(3.0)
        assert len(said) > 6
        for member in members.values():
            known = told(item_of(members), member.name)
            progress = replica_of(member).log.compaction.progress
            assert known is not None
            assert progress is not None
            assert known.end <= progress.cleared_end

    run(main())


def flip_record(member: Member, offset: int) -> None:
    """Damage the segment that has it."""
    segment = next(each for each in replica_of(member).log.segments if each.base <= offset < each.appended.end)
    member.disk.flip(segment.path, 30, 3)


async def damaged_follower() -> tuple[dict[str, Member], Member]:
    members = await brokers()
    leader = leader_of(members, "s")
    await publish(leader, GONE)
    await publish_others(leader)
    await publish(leader, GONE, tombstone=True)
    await publish_others(leader)
    await eventually(lambda: key_is_gone(*members.values()))
    return members, follower_of(members)


def set_cleared(member: Member, end: int) -> None:
    compaction = replica_of(member).log.compaction
    assert compaction.progress is not None
    compaction.progress = compaction.progress._replace(cleared_end=end)


async def read_again(member: Member) -> None:
    replica = replica_of(member)
    reader = replica.log.reader(replica.log.start)
    while await reader.read() is not None:
        pass


def test_damage_is_not_repaired_with_records_whose_tombstones_may_be_gone() -> None:
    async def main() -> None:
        members, damaged = await damaged_follower()
        others = [each for each in members.values() if each is not damaged]
        for other in others:
            set_cleared(other, 3)
        replica = replica_of(damaged)
        wanted = await records_of(damaged)
        flip_record(damaged, replica.log.segments[0].base)
        reading = asyncio.get_running_loop().create_task(read_again(damaged))
        await until(lambda: bool(replica.log.damaged))
        await asyncio.sleep(0.9)
        assert replica.log.damaged, "nobody may give it what is missing"
        end = item_of(members).tombstones_end
        for other in others:
            set_cleared(other, end)
        await until(lambda: not replica.log.damaged)
        await reading
        assert await records_of(damaged) == wanted

    run(main())


def test_a_log_that_is_cleared_further_than_others_says_less_before_it_takes_their_records() -> None:
    async def main() -> None:
        members, damaged = await damaged_follower()
        replica, end = replica_of(damaged), item_of(members).tombstones_end
        progress = replica.log.compaction.progress
        assert progress is not None
        replica.log.compaction.progress = progress._replace(cleared_end=progress.cleared_end + 1_000)
        await until(lambda: told(item_of(members), damaged.name).end > 1_000)  # type: ignore[union-attr]
        flip_record(damaged, replica.log.segments[0].base)
        reading = asyncio.get_running_loop().create_task(read_again(damaged))
        await until(lambda: bool(replica.log.damaged))
        await until(lambda: not replica.log.damaged)
        await reading
        known = told(item_of(members), damaged.name)
        assert known is not None
        assert end <= known.end < 1_000
        assert item_of(members).tombstones_end >= end

    run(main())


def test_a_log_of_which_nothing_was_told_is_repaired_at_once_whatever_others_removed() -> None:
    async def main() -> None:
        members = await brokers()
        leader = leader_of(members, "s")
        await publish_others(leader, 80)
        await asyncio.sleep(5.0)
        damaged = follower_of(members)
        replica = replica_of(damaged)
        for other in members.values():
            if other is not damaged:
                set_cleared(other, 0)
        flip_record(damaged, replica.log.segments[0].base)
        reading = asyncio.get_running_loop().create_task(read_again(damaged))
        await reading
        assert not replica.log.damaged
        assert [path for path in damaged.disk.paths() if path.startswith("quarantine/")], "it was repaired"
        assert item_of(members).cleared == ()

    run(main())


def test_a_replica_follows_only_when_the_metadata_says_no_more_of_it_than_is_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A late request of its former log would say that it is cleared further: tombstones could go of what it is fed."""

    async def main() -> None:
        members = await brokers()
        leader, wiped = leader_of(members, "s"), follower_of(members)
        await publish(leader, GONE)
        await publish(leader, GONE, tombstone=True)
        await publish_others(leader)
        await eventually(lambda: key_is_gone(*members.values()))
        wiped.kill(random.Random(1))
        wiped.wipe()
        await in_sync(members, 2)
        tells = ControllerClient.tell_cleared
        blocked: list[ClearedEnd] = []

        async def held(client: ControllerClient, ends: tuple[ClearedEnd, ...], timeout_s: float) -> None:
            if client is wiped.broker.client:
                blocked.extend(ends)
                return
            await tells(client, ends, timeout_s)

        with monkeypatch.context() as patch:
            patch.setattr(ControllerClient, "tell_cleared", held)
            await wiped.start()
            await until(lambda: wiped.broker.replicas.find("s", 0) is not None)
            await asyncio.sleep(10.0)
            assert await records_of(wiped) == [], "nothing is fed before that"
            assert blocked
            assert TellCleared(wiped.name, (blocked[0],)).ends[0].end == item_of(members).tombstones_end
        await in_sync(members)
        assert await key_is_gone(wiped)

    run(main())
