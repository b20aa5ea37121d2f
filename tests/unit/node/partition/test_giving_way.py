"""Three brokers in memory: after a power loss the leader finds that a follower has more than it has itself, and gives
way to it. Whether it stays eligible depends on what is known about its own log."""

import asyncio

import pytest

from bascule.core.metadata.codec import decode
from bascule.core.metadata.commands import ChangeLeader, Command, GiveWay
from bascule.errors import BasculeError
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.types import Epoch
from bascule.wire.pb import api_pb2 as api
from bascule.wire.raft_messages import EntryKind
from tests.harness.administration import controller_of
from tests.harness.members import REPLICATION, Member, followers, item_of, leader_of, three, until
from tests.harness.replicas import logs

COUNT = 10
VALUES = [b"%d" % number for number in range(COUNT)]


async def without_power() -> tuple[dict[str, Member], Member, Member, Member]:
    """In sync are the leader and one follower, the third replica is behind. The follower has a record that the leader
    had not synced when all lost their power: `poorer` is named leader, `richer` has more."""
    members = await three(MemoryNats())
    request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
    request.minIsr.value = 2
    await members["a"].call("CreateStream", request)
    poorer, (richer, behind) = leader_of(members, "s"), followers(members)
    behind.buses[REPLICATION].disconnect()
    await until(lambda: behind.name not in item_of(members).isr)
    for value in VALUES:
        await poorer.publish("s", value)
    await asyncio.sleep(1)
    poorer.disk.sync_delay_s = 60.0
    asking = asyncio.ensure_future(
        poorer.call("Publish", api.PublishRequest(stream="s", value=b"more", ackPolicy=api.ALL))
    )
    await until(lambda: end_of(richer) == COUNT + 1)
    await asyncio.sleep(0.1)
    poorer.disk.crash(None)  # nothing of the write under way is kept, whatever another power loss would keep
    for member in members.values():
        member.kill()
    asking.cancel()
    poorer.disk.sync_delay_s = 0.0
    return members, poorer, richer, behind


def end_of(member: Member) -> int:
    replica = member.broker.replicas.find("s", 0)
    return -1 if replica is None else replica.log.promised_end


async def given_way(members: dict[str, Member], richer: Member) -> None:
    """All start again, until `richer` is named leader: nobody has caught up with it yet."""
    await asyncio.gather(*(member.start() for member in members.values()))
    await until(lambda: any(member.broker.controller.active for member in members.values()))
    async with asyncio.timeout(30):
        while item_of(members).leader != richer.name:
            await asyncio.sleep(0.001)


def commands(members: dict[str, Member]) -> list[Command]:
    log = controller_of(members).broker.cluster.raft.raft.log
    entries = log.slice(log.snapshot.index + 1, log.commit + 1)
    return [decode(entry.data) for entry in entries if entry.kind is EntryKind.COMMAND]


def test_a_leader_that_gives_way_with_all_it_promised_leads_if_the_other_disk_is_lost() -> None:
    async def main() -> None:
        members, poorer, richer = (await without_power())[:3]
        await given_way(members, richer)
        assert (item_of(members).isr, item_of(members).eligible) == ((richer.name,), (poorer.name,))
        given = [each for each in commands(members) if isinstance(each, GiveWay | ChangeLeader)]
        assert given == [ChangeLeader("s", 0, poorer.name, given[0].leader_epoch, (richer.name,))], (
            "brokers of earlier versions know this one, and apply it as this version does"
        )
        richer.kill()
        richer.wipe()
        richer.seed = False
        await richer.start()
        await until(lambda: len(item_of(members).isr) == 3)
        assert (await poorer.read("s"))[:COUNT] == VALUES

    run(main())


def test_one_that_gave_way_and_is_eligible_waits_for_the_other_before_it_leads() -> None:
    """Its file may have been truncated between two records, which nothing shows: what the other one has in addition may
    be what it lost."""

    async def main() -> None:
        members, poorer, richer, _ = await without_power()
        await given_way(members, richer)
        assert item_of(members).eligible == (poorer.name,)
        richer.kill()
        await until(lambda: item_of(members).leader == poorer.name)
        await asyncio.sleep(30)
        replica = poorer.broker.replicas.find("s", 0)
        assert replica is not None
        assert (replica.leading, replica.repair.waits_for) == (None, (richer.name,))
        await richer.start()
        await until(lambda: len(item_of(members).isr) == 3)
        assert (await leader_of(members, "s").read("s"))[: COUNT + 1] == [*VALUES, b"more"]

    run(main())


def test_a_leader_whose_log_may_lack_something_is_not_eligible_when_it_gives_way() -> None:
    """Its tail is torn, where a promised record may have been."""

    async def main() -> None:
        members, poorer, richer = (await without_power())[:3]
        path = logs(poorer)[-1]
        data = poorer.disk.content(path)
        poorer.disk.put(path, data + data[-20:])
        await given_way(members, richer)
        assert (item_of(members).isr, item_of(members).eligible) == ((richer.name,), ())
        (given,) = [each for each in commands(members) if isinstance(each, GiveWay | ChangeLeader)]
        assert isinstance(given, GiveWay)

    run(main())


def test_a_leader_gives_way_to_nobody_who_has_died_meanwhile() -> None:
    async def main() -> None:
        members, poorer, richer, behind = await without_power()
        await asyncio.gather(poorer.start(), behind.start())
        await asyncio.sleep(5)
        item = item_of(members)
        with pytest.raises(BasculeError, match=f"{richer.name} is not alive, or about to stop"):
            await poorer.broker.client.give_way("s", item, richer.name, True)
        assert item_of(members) == item

    run(main())


def test_what_a_leader_asked_before_the_partition_changed_is_refused() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        leader, (other, _) = leader_of(members, "s"), followers(members)
        item = item_of(members)
        with pytest.raises(BasculeError, match="the partition has changed since epoch"):
            await leader.broker.client.give_way("s", item._replace(epoch=Epoch(item.epoch - 1)), other.name, True)
        assert item_of(members) == item
        await leader.broker.client.give_way("s", item, other.name, True)
        assert item_of(members).leader == other.name

    run(main())
