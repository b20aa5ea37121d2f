"""`cluster recover`: a cluster begun anew from one broker's folder, in memory."""

import asyncio
import logging
import random

import pytest

from bascule.core.metadata.commands import ShrinkIsr
from bascule.errors import StartError
from bascule.limits import RECOVERED_INDEX_LEAP
from bascule.log.raftlog import RaftStorage
from bascule.node.calls.subjects import succeeds
from bascule.node.process import identity
from bascule.node.process.recover import RAFT_FOLDER, Recovery, recover
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import SeededRandom
from tests.harness.founders import clusters_of, published, voters_of
from tests.harness.members import Member, leader_of, three, until


async def recovered(member: Member, *, accept_loss: bool = True) -> Recovery:
    await identity.load_or_create(member.disk, SeededRandom(1), member.name)
    return await recover(member.disk, SeededRandom(77), accept_loss=accept_loss)


@pytest.mark.parametrize("harm", ["flipped", "truncated"])
def test_a_damaged_last_save_that_was_confirmed_is_told_and_without_acceptance_nothing_changes(harm: str) -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        await asyncio.sleep(1)
        for member in members.values():
            member.kill(random.Random(1), power=False)
        disk = members["b"].disk
        await identity.load_or_create(disk, SeededRandom(1), "b")
        path = next(path for path in reversed(disk.paths()) if path.startswith("raft/") and path.endswith(".commands"))
        begins = disk.content(path).rindex(b"BSCC")
        if harm == "flipped":
            disk.flip(path, begins + 25, 1)
        else:
            disk.put(path, disk.content(path)[:begins])
        before = {path: disk.content(path) for path in disk.paths()}
        told = await recover(disk, SeededRandom(77), accept_loss=False)
        assert told.missing == 1
        assert {path: disk.content(path) for path in disk.paths()} == before
        assert (await recover(disk, SeededRandom(77), accept_loss=True)).missing == 1
        await members["b"].start()
        assert voters_of(members["b"]) == ("b",)

    run(main())


def test_one_of_three_goes_on_with_what_it_has_and_the_others_join_it_empty() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        old = clusters_of(members)
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        single = api.CreateStreamRequest(name="single", subject="single", partitions=3)
        await members["a"].call("CreateStream", single)
        for number in range(10):
            await published(members["a"], b"%d" % number)
        before = {item.leader_epoch for item in members["b"].broker.cluster.metadata.streams["s"]}
        index = members["b"].broker.cluster.raft.raft.log.last_index
        for member in members.values():
            member.kill()
        told = await recovered(members["b"], accept_loss=False)
        assert told.others == ("a", "c")
        assert "s/0" in told.whole
        assert len(told.gone) == 2, "partitions that only a and c had"
        assert told.index >= index
        assert told.missing == 0
        survivor = members["b"]
        await survivor.start()
        assert clusters_of({"b": survivor}) == old, "told, not done"
        survivor.kill()
        done = await recovered(survivor)
        await survivor.start()
        assert clusters_of({"b": survivor}) == {done.cluster}
        assert succeeds(done.cluster, done.old_cluster)
        assert voters_of(survivor) == ("b",)
        await until(
            lambda: (replica := survivor.broker.replicas.find("s", 0)) is not None and replica.leading is not None
        )
        assert await survivor.read("s") == [b"%d" % number for number in range(10)]
        item = survivor.broker.cluster.metadata.streams["s"].partitions[0]
        assert (item.leader, item.isr) == ("b", ("b",))
        assert item.leader_epoch > max(before) + RECOVERED_INDEX_LEAP
        single_leaders = [each.leader for each in survivor.broker.cluster.metadata.streams["single"]]
        assert sorted(single_leaders) == ["", "", "b"], "what nobody has any more is led by nobody"
        for name in "ac":
            members[name].wipe()
            await members[name].start()
        await until(lambda: voters_of(survivor) == ("a", "b", "c"))
        await until(lambda: len(survivor.broker.cluster.metadata.streams["s"].partitions[0].isr) == 3)
        assert await members["a"].read("s", replica=True) == [b"%d" % number for number in range(10)]

    run(main())


def test_members_of_the_old_cluster_are_refused_and_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        await published(members["a"], b"kept")
        for member in members.values():
            member.kill()
        done = await recovered(members["b"])
        await members["b"].start()
        await published(members["b"], b"new")
        coming = asyncio.ensure_future(members["c"].start())
        await asyncio.sleep(10.0)
        assert members["b"].fatal == "", "the recovered one goes on, alone as it is"
        assert "c" not in members["b"].broker.cluster.servers
        assert f"recovered this cluster as {done.cluster}" in caplog.text
        assert await leader_of({"b": members["b"]}, "s").read("s") == [b"kept", b"new"]
        await coming

    run(main())


def test_a_replica_that_was_not_in_sync_waits_for_consent() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await members["a"].call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=3))
        for number in range(5):
            await published(members["a"], b"%d" % number)
        victim = next(member for member in members.values() if member is not leader_of(members, "s"))
        controller = next(each for each in members.values() if each.broker.cluster.raft.is_leader)
        known = victim.broker.cluster.metadata
        item = known.streams["s"].partitions[0]
        shrink = ShrinkIsr("s", 0, victim.name, item.leader, item.leader_epoch, item.epoch)
        asked = asyncio.ensure_future(controller.broker.controller.proposals.propose(lambda: shrink))
        while victim.name in known.streams["s"].partitions[0].isr:
            await asyncio.sleep(0)
        for member in members.values():
            member.kill()
        asked.cancel()
        told = await recovered(victim)
        assert told.out_of_sync == ("s/0",)
        await victim.start()
        await asyncio.sleep(10.0)
        assert victim.broker.cluster.metadata.streams["s"].partitions[0].leader == ""
        replica = victim.broker.replicas.find("s", 0)
        assert replica is not None
        assert replica.leading is None

    run(main())


def test_a_folder_that_was_never_in_a_cluster_is_refused() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        with pytest.raises(StartError, match="there is nothing to recover"):
            await recover(disk, SeededRandom(1), accept_loss=True)
        await identity.load_or_create(disk, SeededRandom(1), "a")
        with pytest.raises(StartError, match="there is nothing to recover"):
            await recover(disk, SeededRandom(1), accept_loss=True)

    run(main())


@pytest.mark.parametrize("seed", range(5))
def test_a_power_loss_during_a_recovery_leaves_the_old_state_or_the_new(seed: int) -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        for member in members.values():
            member.kill()
        disk = members["a"].disk
        await identity.load_or_create(disk, SeededRandom(1), "a")
        old = (await RaftStorage(disk, RAFT_FOLDER).open())[1].membership
        done = asyncio.ensure_future(recover(disk, SeededRandom(5), accept_loss=True))
        for _ in range(seed):
            await asyncio.sleep(0)
        if not done.done():
            done.cancel()
        await asyncio.gather(done, return_exceptions=True)
        disk.crash(random.Random(seed))
        found = (await RaftStorage(disk, RAFT_FOLDER).open())[1].membership
        assert found == old or found.voters == ("a",)

    run(main())
