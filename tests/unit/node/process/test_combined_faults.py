"""Faults of a log that meet: each is harmless alone, and so must they be together."""

import asyncio
import errno
from collections.abc import Sequence

import pytest

from bascule.errors import LogError, Status
from bascule.log import ballast, cleanshutdown, promised
from bascule.log.index import read_footer
from bascule.log.raftlog import RaftStorage
from bascule.log.sync import SyncMode
from bascule.log.tail import Tail
from bascule.node.partition import epochs as stored_epochs
from bascule.node.partition.filewatch import FileWatch
from bascule.ports import Seen, Write
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, open_bench, start_ends, stop_ends
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from bascule.wire.raft_messages import HardState, Membership, Snapshot
from tests.harness.administration import create, partitions_of, publish
from tests.harness.broker import Node
from tests.harness.members import three, until

FIRST = f"{FOLDER}/{0:020}.log"


async def stored(disk: MemoryDisk, count: int = 10) -> None:
    """A replicated log with that many records, left by a clean shutdown."""
    ends = await start_ends(disk)
    bench = await open_bench(disk, ends=ends, replicated=True)
    for number in range(count):
        await bench.store([b"%d" % number])
    await stop_ends(ends, bench)


async def tail_of_a_boot(disk: MemoryDisk) -> Tail:
    """What a start finds, which is not verified before the next clean shutdown."""
    ends = await start_ends(disk)
    bench = await open_bench(disk, ends=ends, replicated=True)
    tail = bench.log.tail
    await stop_ends(ends, bench)
    return tail


def test_a_clean_stop_makes_no_log_sure_of_which_too_little_was_on_record() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        await stored(disk)
        await disk.remove(cleanshutdown.FILE)
        await disk.remove(promised.FILE)
        assert [await tail_of_a_boot(disk) for _ in range(3)] == [Tail.SUSPECT] * 3

    run(main())


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "crash"])
def test_another_file_than_a_clean_shutdown_left_stays_suspect(clean: bool) -> None:
    async def main() -> None:
        disk, other = MemoryDisk(), MemoryDisk()
        await stored(disk)
        bench = await open_bench(other)
        for number in range(10):
            await bench.store([b"%d" % (9 - number)])
        await bench.close()
        disk.put(FIRST, other.content(FIRST))
        assert await tail_of_a_boot(disk) is Tail.SUSPECT
        if not clean:
            await disk.remove(cleanshutdown.FILE)
        assert await tail_of_a_boot(disk) is Tail.SUSPECT

    run(main())


def test_a_clean_shutdown_does_not_verify_what_was_suspect() -> None:
    """A log that is short stays so, also if the file that says it is lost before the next start."""

    async def main() -> None:
        disk = MemoryDisk()
        await stored(disk)
        disk.shorten(FIRST, len(disk.content(FIRST)) // 2)
        assert await tail_of_a_boot(disk) is Tail.SHORT
        await disk.remove(promised.FILE)
        assert [await tail_of_a_boot(disk) for _ in range(2)] == [Tail.SUSPECT] * 2

    run(main())


def test_a_deleted_stream_frees_a_full_disk() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        node = await Node(disk, MemoryNats()).start()
        for name in ("big", "small"):
            await node.create(name)
            await node.publish(name, bytes(100_000))
        await asyncio.sleep(1)
        await node.create("more")
        await asyncio.sleep(1)
        disk.capacity_bytes = disk.used_bytes
        publish = api.PublishRequest(stream="small", value=bytes(1000), ackPolicy=api.ALL)
        status, _, _ = await node.call("Publish", publish)
        assert status is not Status.OK
        await asyncio.sleep(5)
        status, text, _ = await node.call("DeleteStream", api.DeleteStreamRequest(name="big"), 30.0)
        assert status is Status.OK, text
        await asyncio.sleep(1)
        assert not [path for path in disk.paths() if "big@" in path]
        await asyncio.sleep(60)
        await node.publish("small", bytes(1000))

    run(main())


def test_epochs_of_a_log_whose_folder_is_gone_can_be_forgotten() -> None:
    async def main() -> None:
        await stored_epochs.forget(MemoryDisk(), FOLDER)

    run(main())


def test_no_index_is_written_during_a_truncation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index could not be stored when its segment was sealed, and is tried again when that is the last one."""

    async def main() -> None:
        disk = MemoryDisk()
        ends = await start_ends(disk)
        bench = await open_bench(disk, segment_max_bytes=500, ends=ends, replicated=True)
        disk.injected_error = lambda path: errno.ENOSPC if path.endswith(".index") else None
        for number in range(30):
            await bench.store([bytes([number]) * 50])
        disk.injected_error = None
        log = bench.log
        log.segments.visible_end = 0
        assert len(log.segments) > 3
        commit = disk.commit

        async def slow(writes: Sequence[Write], sync: bool) -> list[OSError | None]:
            await asyncio.sleep(1)
            return await commit(writes, sync)

        monkeypatch.setattr(bench.scheduler, "_commit", slow)
        cut = log.segments[1].base + 2
        await log.truncate(cut)
        await log.flushed()
        for path in [path for path in disk.paths() if path.endswith(".index")]:
            found = await read_footer(disk, path)
            segment = next((each for each in log.segments if each.index_path == path), None)
            assert found is not None
            assert segment is not None
            assert found[0] == segment.footer()
        await bench.close()
        bench = await open_bench(disk, ends=await start_ends(disk), replicated=True)
        assert (bench.log.end, bench.log.tail) == (cut, Tail.LIKELY)

    run(main())


def test_a_replica_whose_broker_lost_power_under_relaxed_sync_stays_suspect_after_a_clean_stop() -> None:
    """It was not verified when it was stopped."""

    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats, SyncMode("interval", 50_000_000))
        await create(members, partitions=1)
        await publish(members["a"], b"x")
        await until(lambda: all(len(item.isr) == 3 for item in partitions_of(members["a"])))
        for member in members.values():
            member.kill()
        for name in ("a", "b"):
            await members[name].start()
        await until(lambda: members["a"].broker.replicas.find("s", 0) is not None)
        replica = members["a"].broker.replicas.find("s", 0)
        assert replica is not None
        assert (replica.verification.verified, replica.log.clean_end()) == (False, None)

    run(main())


def test_every_partition_of_a_deleted_stream_ends_though_one_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        node = await Node(disk, MemoryNats()).start()
        await node.create("s", partitions=3)
        replicas = [node.broker.replicas.find("s", number) for number in range(3)]

        async def fails() -> None:
            raise LogError("cannot be read")

        for replica in replicas:
            assert replica is not None
            await node.publish("s", b"x", partition=replica.partition.id)
        assert replicas[0] is not None
        monkeypatch.setattr(replicas[0].log, "delete", fails)
        assert (await node.call("DeleteStream", api.DeleteStreamRequest(name="s"), 30.0))[0] is Status.OK
        assert [replica.log.waiters.ended for replica in replicas if replica] == ["deleted"] * 3
        names = [path for path in disk.paths() if path.endswith(".log")]
        assert [name.split("/")[2] for name in names] == ["0"]

    run(main())


def test_a_log_whose_files_are_changed_for_long_does_not_keep_others_from_being_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        busy = await open_bench(disk)
        other = await open_bench(disk, folder="streams/test@1/1", scheduler=busy.scheduler)
        storage = RaftStorage(disk, "raft")
        await storage.open()
        await storage.save(HardState(), [], Snapshot(0, 0, Membership(("a",))))
        watch = FileWatch(disk, busy.scheduler, storage, list, on_gone=lambda: None)
        for bench in (busy, other):
            await bench.store([b"x"])
        await watch.check()
        look = disk.look

        async def look_and_change(paths: Sequence[str]) -> list[Seen | None]:
            if not busy.log.segments.changing.locked():
                await busy.log.segments.changing.acquire()
            return await look(paths)

        monkeypatch.setattr(disk, "look", look_and_change)
        for bench in (busy, other):
            await bench.store([b"y"])
            disk.vanish(bench.log.folder)
        async with asyncio.timeout(1):
            for _ in range(3):
                await watch.check()
        assert (len(busy.failures), len(other.failures)) == (0, 1)
        monkeypatch.undo()
        busy.log.segments.changing.release()
        await watch.check()
        assert len(busy.failures) == 1

    run(main())


def test_a_log_with_a_short_file_takes_writes_again_after_a_failure_under_relaxed_sync() -> None:
    """What was promised and not synced is copied, as much of it as there is."""

    async def main() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, mode=SyncMode("interval", 3_600_000_000_000), replicated=True)
        for number in range(10):
            await bench.store([b"%d" % number])
        disk.shorten(FIRST, len(disk.content(FIRST)) // 2)
        disk.injected_error = lambda path: errno.ENOSPC
        bench.append([b"refused"])
        await bench.log.flushed()
        assert len(bench.failures) == 1
        disk.heal()
        await bench.log.reopen(heals=True)
        assert len(bench.log.damaged) == 1
        await bench.store([b"and on"])
        assert (await bench.read_all())[-1] == (10, b"and on")

    run(main())


def test_nothing_of_a_replica_goes_on_when_it_is_closed() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        replica = node.broker.replicas.find("s", 0)
        assert replica is not None
        steps: list[str] = []

        async def repair() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(1)
                steps.append("put back")

        replica.spawn(repair())
        await asyncio.sleep(1)
        await replica.close()
        assert steps == ["put back"]

    run(main())


def test_what_is_reserved_for_a_start_is_given_up_for_a_full_disk_alone() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        await ballast.keep(disk)

        async def fails() -> None:
            raise OSError(errno.EIO, "the disk fails")

        with pytest.raises(OSError, match="the disk fails"):
            await ballast.with_room(disk, fails)
        assert ballast.FILE in disk.paths()

    run(main())
