"""What the simulator found, each in the fewest steps that show it."""

import asyncio
import errno
import random

import pytest

from bascule.errors import LogError, Status, UnknownOutcome
from bascule.log.commandlog import CommandLog
from bascule.log.commitlog import CommitLog
from bascule.node.api.publish import Publisher
from bascule.node.partition.sender import MessageSender
from bascule.sim.cluster import Builder
from bascule.sim.host import Host
from bascule.sim.scenario import scenario
from bascule.sim.trace import Trace
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import make_scheduler, open_bench
from bascule.testing.loop import VirtualClock, VirtualLoop, run
from bascule.testing.records import encode, values
from bascule.wire.pb import api_pb2 as api


def one_host(nats: MemoryNats) -> Host:
    builder = Builder(scenario(1, brokers=1), on_controller=lambda term, name: None)
    return Host("one", nats, Trace(asyncio.get_running_loop()), 1, builder)


async def opened(disk: MemoryDisk, segment_max_bytes: int = 1 << 20) -> CommitLog:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    scheduler = make_scheduler(disk, VirtualClock(loop))
    return (await open_bench(disk, segment_max_bytes, folder="p/0", scheduler=scheduler)).log


async def append(log: CommitLog, count: int, size: int = 100) -> None:
    log.append(*encode([bytes(size)] * count, log.end, log.last_timestamp + 1))
    await log.flushed()


async def offsets(log: CommitLog, start: int = 0) -> list[int]:
    log.set_visible_end(log.promised_end)
    reader = log.reader(start)
    found = []
    while (records := await reader.read()) is not None:
        found += [offset for offset, _ in values(records)]
    return found


def test_a_bit_of_an_index_that_flips_after_its_first_use_leaves_nothing_out() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        log = await opened(disk, segment_max_bytes=20_000)
        for _ in range(20):
            await append(log, 20)
        path = next(path for path in disk.paths() if path.endswith(".index"))
        everything = list(range(400))
        assert await offsets(log) == everything
        for position in range(0, len(disk.content(path)), 5):
            disk.flip(path, position, position % 8)
            for start in (0, 60, 130):
                assert await offsets(log, start) == everything[start:]
            backwards = log.reverse_reader(399)
            found = []
            while (records := await backwards.read(2000)) is not None:
                found += [offset for offset, _ in values(records)]
            assert found == everything[::-1]
            await log.flushed()  # an index that was found out is made anew

    run(main())


def test_records_whose_sync_failed_are_not_recovered_from_the_page_cache() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        log = await opened(disk)
        await append(log, 3)
        disk.fail_at(disk.steps + 2)  # the write goes well, its sync does not
        await append(log, 2)
        assert log.failed
        again = await opened(disk)  # the process was killed and started again: the page cache still has them
        recovered = await offsets(again)
        disk.crash()
        assert await offsets(await opened(disk)) == recovered == [0, 1, 2]

    run(main())


def test_a_command_whose_sync_failed_leaves_no_hole_behind_later_ones() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        log = CommandLog(disk, "metadata")
        await log.open()
        await log.append(1, b"one")
        disk.fail_at(disk.steps + 2)
        with pytest.raises(LogError, match="could not be stored"):
            await log.append(2, b"two")
        log = CommandLog(disk, "metadata")
        _, _, commands = await log.open()
        following = commands[-1][0] + 1
        await log.append(following, b"later")
        disk.crash()
        assert (await CommandLog(disk, "metadata").open())[2] == [(1, b"one"), (2, b"later")]

    run(main())


def test_a_refused_publish_leaves_nothing_behind() -> None:
    async def main() -> None:
        host = one_host(MemoryNats())
        host.boot()
        await asyncio.sleep(1)
        create = api.CreateStreamRequest(name="s", subject="s")
        create.optimisticConcurrencyControl.value = True
        assert (await host.call("CreateStream", create, 5))[0] is Status.OK
        assert host.broker is not None
        broker = host.broker
        sender = MessageSender(broker.environment, broker.manager.refusal, broker.client.resume_stream)
        publisher = Publisher(broker.gate, broker.environment, sender)
        depths = []
        for _ in range(5):
            request = api.PublishRequest(stream="s", expectedOffset=7)
            with pytest.raises(UnknownOutcome, match="incorrect expected offset") as caught:
                await publisher.publish(request, MemoryCall())
            depths.append(len(caught.traceback))
        assert depths == [depths[0]] * 5, "each error holds the frames of its own call alone"

    run(main())


def test_a_stream_made_while_the_disk_fails_is_there_once_the_disk_works() -> None:
    async def main() -> None:
        host = one_host(MemoryNats())
        host.boot()
        await asyncio.sleep(1)
        host.disk.injected_error = lambda path: errno.EIO if path.startswith("streams/s@") else None
        await host.call("CreateStream", api.CreateStreamRequest(name="s", subject="s", partitions=2), 2)
        host.disk.injected_error = None
        await asyncio.sleep(10)
        for partition in range(2):
            publish = api.PublishRequest(stream="s", partition=partition, value=b"v")
            assert (await host.call("Publish", publish, 5))[0] is Status.OK

    run(main())


def test_no_partition_of_a_stream_goes_on_when_its_files_cannot_be_removed() -> None:
    async def main() -> None:
        nats = MemoryNats()
        host = one_host(nats)
        host.boot()
        await asyncio.sleep(1)
        create = api.CreateStreamRequest(name="s", subject="s", partitions=3)
        assert (await host.call("CreateStream", create, 5))[0] is Status.OK
        for partition in range(3):
            publish = api.PublishRequest(stream="s", partition=partition, value=b"v")
            assert (await host.call("Publish", publish, 5))[0] is Status.OK
        host.disk.injected_error = lambda path: errno.EIO if path.startswith("streams/") else None
        status, _, _ = await host.call("DeleteStream", api.DeleteStreamRequest(name="s"), 5)
        assert status is Status.OK
        assert host.broker is not None
        await host.broker.changes.until_carried_out()
        assert [host.broker.replicas.find("s", partition) for partition in range(3)] == [None] * 3
        routed = nats.routed
        nats.publish(b"s.2", b"nobody listens")
        assert nats.routed == routed
        host.power_off(random.Random(1))

    run(main())
