"""Whole brokers in memory: what a clean stop and the promised ends mean to them."""

import asyncio
import random

import pytest

from bascule.errors import CorruptError, Status
from bascule.log import cleanshutdown
from bascule.log.promised import PromisedEnds
from bascule.log.raftlog import RaftStorage
from bascule.log.sync import GROUP, SyncMode
from bascule.log.tail import Tail
from bascule.node.process import identity
from bascule.node.process.recover import recover
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import nothing_is_fatal
from bascule.testing.loop import run
from bascule.testing.records import record_starts
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from bascule.wire.raft_messages import Entry, HardState, Membership, Snapshot
from tests.harness.administration import another, answer, create, partitions_of, publish, two_replicas
from tests.harness.broker import Node, SeededRandom
from tests.harness.members import Member, three, until
from tests.harness.segments import last_segment
from tests.harness.stops import stop

COUNT = 10


async def filled(disk: MemoryDisk, nats: MemoryNats) -> Node:
    node = await Node(disk, nats).start()
    await node.create("s")
    for number in range(COUNT):
        await node.publish("s", b"%d" % number)
    return node


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "power loss"])
@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_an_acked_offset_is_never_given_to_another_message(clean: bool, damage: str) -> None:
    async def main() -> None:
        disk, nats = MemoryDisk(), MemoryNats()
        node = await filled(disk, nats)
        await asyncio.sleep(0.2)
        if clean:
            await stop(node)
        else:
            node.power_off(random.Random(1))
        path = last_segment(disk)
        data = bytearray(disk.content(path))
        if damage == "flip":
            data[-20] ^= 1
        else:
            del data[record_starts(bytes(data))[-1] :]
        disk.put(path, bytes(data))
        node = await Node(disk, nats, seed=2).start()
        expected = [(number, b"%d" % number) for number in range(COUNT - 1)]
        assert await node.read("s") == expected
        assert (await node.publish("s", b"new")).offset == COUNT
        assert await node.read("s") == [*expected, (COUNT, b"new")]

    run(main())


def test_a_partition_whose_folder_is_gone_goes_on_behind_it() -> None:
    async def main() -> None:
        disk, nats = MemoryDisk(), MemoryNats()
        node = await filled(disk, nats)
        await stop(node)
        await disk.remove(last_segment(disk).rpartition("/")[0])
        node = await Node(disk, nats, seed=2).start()
        assert (await node.publish("s", b"new")).offset == COUNT
        assert await node.read("s") == [(COUNT, b"new")]

    run(main())


def test_a_deleted_stream_leaves_nothing_on_record() -> None:
    async def main() -> None:
        disk, nats = MemoryDisk(), MemoryNats()
        node = await Node(disk, nats).start()
        for name in ("s", "t"):
            await node.create(name)
            await node.publish(name, b"x")
        await asyncio.sleep(0.2)
        assert (await node.call("DeleteStream", api.DeleteStreamRequest(name="s")))[0] is Status.OK
        ends = PromisedEnds(disk.copy(), nothing_is_fatal)
        await ends.load(None)
        assert [name for name in ends.folders if name != "raft"] == [f"streams/t@{partition_index(node, 't')}/0"]
        assert not [path for path in disk.paths() if path.startswith("streams/s@")]
        await stop(node)
        shutdown = await cleanshutdown.read(disk)
        assert shutdown is not None
        assert sorted(shutdown.ends) == sorted(ends.folders)

    run(main())


def partition_index(node: Node, stream: str) -> int:
    found = node.broker.cluster.metadata.stream(stream)
    assert found is not None
    return found.creation_index


@pytest.mark.parametrize("mode", [GROUP, SyncMode("interval", 50_000_000), SyncMode("os")], ids=str)
def test_a_clean_stop_of_all_leaves_every_replica_sure(mode: SyncMode) -> None:
    async def main() -> None:
        members = await three(MemoryNats(), mode)
        await create(members, 3, 3)
        for number in range(COUNT):
            await publish(members["a"], b"%d" % number, number % 3)
        await until(lambda: all(len(item.isr) == 3 for item in partitions_of(members["a"])))
        await asyncio.sleep(1)
        for member in members.values():
            await stop(member)
        for member in members.values():
            shutdown = await cleanshutdown.read(member.disk)
            assert shutdown is not None
            assert shutdown.everything is (mode.mode != "os")
            assert len(shutdown.ends) == (4 if mode.syncs else 1)
        await asyncio.gather(*(member.start() for member in members.values()))
        for member in members.values():
            for number in range(3):
                replica = member.broker.replicas.find("s", number)
                assert replica is not None
                assert (replica.tail is Tail.SURE) == mode.syncs
            assert cleanshutdown.FILE not in member.disk.paths()

    run(main())


@pytest.mark.parametrize("name", "abc")
def test_a_replica_damaged_at_its_end_while_all_were_stopped_heals_from_the_others(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, 1, 3)
        values = [b"%d" % number for number in range(COUNT)]
        for value in values:
            await publish(members["a"], value)
        await until(lambda: len(partitions_of(members["a"])[0].isr) == 3)
        await asyncio.sleep(0.5)
        for member in members.values():
            await stop(member)
        victim = members[name]
        path = last_segment(victim.disk)
        data = victim.disk.content(path)
        victim.disk.put(path, data[:-1] + bytes([data[-1] ^ 1]))
        await asyncio.gather(*(member.start() for member in members.values()))
        assert f"ends at offset {COUNT - 1}, but everything below {COUNT} was promised" in caplog.text
        await until(lambda: len(partitions_of(victim)[0].isr) == 3)
        replica = victim.broker.replicas.find("s", 0)
        assert replica is not None
        assert replica.log.tail is Tail.SURE
        for member in members.values():
            assert await member.read("s", replica=True) == values

    run(main())


def test_who_leads_by_accepted_loss_goes_on_behind_all_that_it_knows_was_shown() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        dead, behind, third = await two_replicas(members, COUNT)
        await asyncio.sleep(1)
        behind.kill()
        dead.kill()
        path = last_segment(behind.disk)
        data = behind.disk.content(path)
        behind.disk.put(path, data[: record_starts(data)[6]])
        await behind.start()
        await asyncio.sleep(10)
        request = admin.ElectLeaderRequest(stream="s", partition=0)
        shown = await answer(third, "ElectLeader", request)
        request.acceptLoss = True
        request.inSync.extend(shown.inSync)
        assert (await answer(third, "ElectLeader", request)).done
        await until(lambda: leads(behind))
        ack = await third.publish("s", b"after")
        assert ack.offset == COUNT
        retained = [b"%d" % number for number in range(6)]
        assert await behind.read("s") == [*retained, b"after"]
        await dead.start()
        await until(lambda: len(partitions_of(third)[0].isr) == 2)
        await until(lambda: ends_of(dead) == ends_of(behind))
        assert await dead.read("s", replica=True) == [*retained, b"after"]
        # the hole is lawful: no start takes it for damage, with the stored history of epochs or without
        for member in (behind, dead):
            member.kill()
            for each in [each for each in member.disk.paths() if "/epochs" in each and member is dead]:
                await member.disk.remove(each)
            await member.start()
            replica = member.broker.replicas.find("s", 0)
            assert replica is not None
            assert not replica.log.damaged
            assert replica.log.tail is not Tail.SHORT
            await until(lambda: len(partitions_of(third)[0].isr) == 2)
        assert replica.epochs.entries == behind.broker.replicas.find("s", 0).epochs.entries  # type: ignore[union-attr]

    run(main())


def leads(member: Member) -> bool:
    replica = member.broker.replicas.find("s", 0)
    return replica is not None and replica.leading is not None


def ends_of(member: Member) -> tuple[int, bytes]:
    replica = member.broker.replicas.find("s", 0)
    assert replica is not None
    logs = [path for path in member.disk.paths() if path.startswith("streams/") and path.endswith(".log")]
    return replica.log.end, b"".join(map(member.disk.content, logs))


def test_epochs_that_speak_of_more_than_the_log_has_are_evidence() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, 1, 3)
        for number in range(3):
            await publish(members["a"], b"%d" % number)
        leader = members[partitions_of(members["a"])[0].leader]
        leader.kill()
        other = another(members, leader.name)
        await until(lambda: partitions_of(other)[0].leader != leader.name)
        await publish(other, b"under another leader")
        await asyncio.sleep(1)
        victim = another(members, leader.name, partitions_of(other)[0].leader)
        victim.kill()
        for path in ("promised-ends", "clean-shutdown"):
            await victim.disk.remove(path)
        path = last_segment(victim.disk)
        data = victim.disk.content(path)
        victim.disk.put(path, data[: record_starts(data)[3]])
        short: list[bool] = []
        await victim.start()
        replica = victim.broker.replicas.find("s", 0)
        assert replica is not None
        short.append(replica.log.tail is Tail.SHORT)
        await until(lambda: victim.broker.replicas.find("s", 0).log.end == 4)  # type: ignore[union-attr]
        assert short == [True]

    run(main())


# --- the metadata's log ---------------------------------------------------------------------------------------------


async def saved(disk: MemoryDisk, clean: bool) -> None:
    ends = PromisedEnds(disk, nothing_is_fatal)
    await ends.load(None)
    storage = RaftStorage(disk, "raft", ends.record("raft"))
    await storage.open()
    await ends.begin()
    await storage.save(HardState(), [], Snapshot(0, 0, Membership(("a",))))
    for index in range(1, 4):
        await storage.save(None, [Entry(index, 1, data=b"command %d" % index)])
    await ends.close()
    if clean:
        await cleanshutdown.leave(disk, True, ends.clean_ends())


async def opened(disk: MemoryDisk) -> int:
    clean = await cleanshutdown.read(disk)
    ends = PromisedEnds(disk, nothing_is_fatal)
    await ends.load(clean.ends if clean else None)
    storage = RaftStorage(disk, "raft", ends.record("raft"))
    _, _, entries, _ = await storage.open()
    await ends.begin()
    await cleanshutdown.remove(disk)
    return len(entries)


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "crash"])
def test_a_confirmed_change_of_the_metadata_never_vanishes_silently(clean: bool) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        await saved(disk, clean)
        (path,) = (path for path in disk.paths() if path.endswith(".commands"))
        whole = disk.content(path)
        last = whole.rindex(b"BSCC")
        harms = [whole[:size] for size in range(len(whole))]
        harms += [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in range(last, len(whole))]
        for harm in harms:
            harmed = disk.copy()
            harmed.put(path, harm)
            for _ in range(2):  # and it is not forgotten that it was refused
                with pytest.raises(CorruptError, match="move it away"):
                    await opened(harmed)
            assert harmed.content(path) == harm
            assert (cleanshutdown.FILE in harmed.paths()) is clean
        assert await opened(disk) == 3

    run(main())


def test_an_unconfirmed_rest_behind_what_was_confirmed_is_truncated() -> None:
    async def main() -> None:
        for clean in (True, False):
            disk = MemoryDisk()
            await saved(disk, clean)
            (path,) = (path for path in disk.paths() if path.endswith(".commands"))
            whole = disk.content(path)
            disk.put(path, whole + b"BSCC the rest")
            assert await opened(disk) == 3
            assert disk.content(path) == whole

    run(main())


def test_a_metadata_folder_that_was_moved_away_is_a_beginning() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        await saved(disk, True)
        await disk.remove("raft")
        assert await opened(disk) == 0
        await saved(disk, False)
        disk.crash()
        assert await opened(disk) == 3

    run(main())


def test_a_cluster_begun_anew_from_a_damaged_metadata_log_starts() -> None:
    async def main() -> None:
        disk, nats = MemoryDisk(), MemoryNats()
        await identity.load_or_create(disk, SeededRandom(1), "me")
        node = await Node(disk, nats).start()
        await node.create("s")
        await node.publish("s", b"of a stream that is lost with the last change")
        await stop(node)
        path = [path for path in disk.paths() if path.endswith(".commands")][-1]
        disk.put(path, disk.content(path)[:-1])
        with pytest.raises(CorruptError):
            await Node(disk, nats, seed=2).start()
        await recover(disk, SeededRandom(3), accept_loss=True)
        node = await Node(disk, nats, seed=4).start()
        await node.create("s")
        assert (await node.publish("s", b"new")).offset == 0
        assert [path for path in disk.paths() if path.startswith("quarantine/") and path.endswith(".log")]
        node.power_off(random.Random(1))
        node = await Node(disk, nats, seed=5).start()
        assert await node.read("s") == [(0, b"new")]

    run(main())
