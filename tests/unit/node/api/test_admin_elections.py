"""Unclean elections in memory: told before they happen, done only by who accepts the loss, whoever dies meanwhile."""

import asyncio

import pytest

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from tests.harness.administration import (
    another,
    answer,
    ask,
    controller_of,
    create,
    partitions_of,
    publish,
    refused,
    two_replicas,
)
from tests.harness.members import Member, five, three, until


async def left_behind(members: dict[str, Member]) -> tuple[Member, Member, Member]:
    """A leader with ten messages that its follower, which is away, lacks: (follower, leader, third)."""
    leader, behind, third = await two_replicas(members, 10)
    behind.kill()
    await until(lambda: partitions_of(third)[0].isr == (leader.name,))
    for number in range(10, 20):
        await publish(third, b"%d" % number)
    return behind, leader, third


async def parted(members: dict[str, Member]) -> tuple[Member, Member, Member]:
    """Two copies, of which the living one lacks ten messages that the dead leader had acked: (behind, dead, third)."""
    behind, dead, third = await left_behind(members)
    dead.kill()
    await behind.start()
    await asyncio.sleep(3)
    return behind, dead, third


def test_a_leader_out_of_sync_is_elected_only_by_who_accepts_the_loss() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        behind, dead, third = await parted(members)
        request = admin.ElectLeaderRequest(stream="s", partition=0)
        shown = await answer(third, "ElectLeader", request)
        assert (shown.done, shown.leader, shown.leaderEnd) == (False, behind.name, 10)
        assert "not known to any live broker" in shown.statement
        assert partitions_of(third)[0].leader == dead.name
        status = await answer(third, "ClusterStatus", admin.ClusterStatusRequest())
        assert status.offlineCount == 1
        request.acceptLoss = True
        request.inSync.extend(shown.inSync)
        elected = await answer(third, "ElectLeader", request)
        assert (elected.done, elected.leader) == (True, behind.name)
        item = partitions_of(third)[0]
        assert (item.leader, item.isr) == (behind.name, (behind.name,))
        assert item.unclean_epoch == item.leader_epoch
        await publish(third, b"after")
        assert (await answer(third, "ElectLeader", request)).done, "asking again is no second election"
        assert partitions_of(third)[0].leader_epoch == item.leader_epoch
        await dead.start()
        await until(lambda: len(partitions_of(third)[0].isr) == 2)
        expected = [*(b"%d" % number for number in range(10)), b"after"]
        assert await behind.read("s") == expected
        await asyncio.sleep(1)
        assert await dead.read("s", replica=True) == expected

    run(main())


@pytest.mark.parametrize("turns", [4, 8, 12, 16, 20, 24, 32, 48])
def test_an_election_whose_controller_dies_is_finished_by_asking_again(turns: int) -> None:
    async def main() -> None:
        members = await five(MemoryNats())
        behind, dead, third = await parted(members)
        shown = await answer(third, "ElectLeader", admin.ElectLeaderRequest(stream="s"))
        controller = controller_of(members)
        entry = another(members, controller.name, behind.name, dead.name)
        request = admin.ElectLeaderRequest(stream="s", acceptLoss=True, inSync=shown.inSync, replica=behind.name)
        assert entry.process is not None
        asking = asyncio.ensure_future(entry.process.start(ask(entry, "ElectLeader", request)))
        for _ in range(turns):
            await asyncio.sleep(0)
        if controller is not behind:
            controller.kill()
        status, text, _ = await asking
        if status is not Status.OK:
            status, text, _ = await ask(entry, "ElectLeader", request)
        assert status is Status.OK, text
        await publish(entry, b"after")
        item = partitions_of(entry)[0]
        assert (item.leader, item.leader_epoch) == (behind.name, item.unclean_epoch)
        assert await behind.read("s") == [*(b"%d" % number for number in range(10)), b"after"]

    run(main())


def test_an_old_leader_that_was_only_partitioned_gives_up_even_what_it_had_exposed() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        behind, old, third = await left_behind(members)
        for bus in old.buses:
            bus.disconnect()
        await behind.start()
        await asyncio.sleep(3)
        request = admin.ElectLeaderRequest(stream="s", partition=0, acceptLoss=True)
        assert (await answer(third, "ElectLeader", request)).done
        await publish(third, b"after")
        for bus in old.buses:
            bus.reconnect()
        await until(lambda: len(partitions_of(third)[0].isr) == 2)
        await asyncio.sleep(1)
        assert await old.read("s", replica=True) == [*(b"%d" % number for number in range(10)), b"after"]

    run(main())


def test_elections_that_make_no_sense_are_refused() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, 1, 3)
        text = await refused(members["a"], "ElectLeader", admin.ElectLeaderRequest(stream="s", acceptLoss=True))
        assert "needs no such election" in text
        text = await refused(members["a"], "ElectLeader", admin.ElectLeaderRequest(stream="x"))
        assert text == "no such stream: x"
        text = await refused(members["a"], "ElectLeader", admin.ElectLeaderRequest(stream="s", partition=5))
        assert "no such partition" in text

    run(main())


def test_an_election_by_what_was_seen_before_is_refused() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        _, _, third = await parted(members)
        request = admin.ElectLeaderRequest(stream="s", acceptLoss=True, inSync=["x"])
        assert "look again, then decide" in await refused(third, "ElectLeader", request)
        request = admin.ElectLeaderRequest(stream="s", acceptLoss=True, replica=third.name)
        assert "is no replica of it" in await refused(third, "ElectLeader", request)

    run(main())
