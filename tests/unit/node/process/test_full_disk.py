"""A disk without a free byte: a broker starts on it, serves reads, and says why it takes no writes; changes of the
metadata go on while what is kept for them lasts, and then are refused with the reason."""

import asyncio
import errno
import random
from pathlib import Path

import pytest

from bascule import limits
from bascule.errors import Status
from bascule.log.commandlog import CommandLog
from bascule.log.disk import FileDisk
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node

COUNT = 10


async def on_a_full_disk(disk: MemoryDisk) -> Node:
    """A broker that ran while there was room, and started again when there is none."""
    node = await Node(disk, MemoryNats()).start()
    await node.create("s")
    for number in range(COUNT):
        await node.publish("s", b"%d" % number)
    await asyncio.sleep(1)
    node.power_off(random.Random(1))
    disk.capacity_bytes = disk.used_bytes
    async with asyncio.timeout(60):
        return await Node(disk, MemoryNats(), seed=2).start()


async def refused(node: Node, stream: str = "s") -> str:
    request = api.PublishRequest(stream=stream, value=b"x", ackPolicy=api.ALL)
    status, text, _ = await node.call("Publish", request)
    assert status is not Status.OK
    return text


def test_a_broker_started_on_it_serves_reads_and_says_why_it_takes_no_writes() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        node = await on_a_full_disk(disk)
        assert [value for _, value in await node.read("s")] == [b"%d" % number for number in range(COUNT)]
        await refused(node)
        assert "No space left" in await refused(node)
        assert "writes go on by themselves" in await refused(node)
        disk.heal()
        await asyncio.sleep(60)
        assert (await node.publish("s", b"and on")).offset == COUNT

    run(scenario())


def test_streams_are_made_as_long_as_there_is_room_for_metadata_and_then_refused_with_the_reason() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        node = await on_a_full_disk(disk)
        loop = asyncio.get_running_loop()
        for number in range(100_000):
            began = loop.time()
            request = api.CreateStreamRequest(name=f"s{number}", subject=f"s{number}")
            status, text, _ = await node.call("CreateStream", request, 30.0)
            if status is not Status.OK:
                break
        assert number > 5
        assert loop.time() - began < 2.0
        assert "No space left" in text
        assert "whether the change was made is not known" in text
        status, text, _ = await node.call("CreateStream", api.CreateStreamRequest(name="t", subject="t"), 30.0)
        assert (status, text.startswith("nothing was changed: ")) == (Status.INTERNAL, True)
        assert len(await node.read("s")) == COUNT
        disk.heal()
        await asyncio.sleep(10)
        await node.create("t")

    run(scenario())


def test_a_partition_that_cannot_be_opened_does_not_keep_the_others_from_starting() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        node = await Node(disk, MemoryNats()).start()
        for name in ("good", "bad"):
            await node.create(name)
            await node.publish(name, b"x")
        await asyncio.sleep(1)
        node.power_off(random.Random(1))
        disk.injected_error = lambda path: errno.EIO if path.startswith("streams/bad@") else None
        node = await Node(disk, MemoryNats(), seed=2).start()
        assert len(await node.read("good")) == 1
        disk.heal()
        await asyncio.sleep(20)
        assert len(await node.read("bad")) == 1

    run(scenario())


def test_what_is_reserved_is_there_on_a_real_disk(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FileDisk(tmp_path)
        log = CommandLog(disk, "raft")
        await log.open()
        await log.append(1, b"x")
        (path,) = (tmp_path / "raft").iterdir()
        if path.stat().st_blocks * 512 < limits.METADATA_RESERVE_BYTES:
            pytest.skip("this file system reserves nothing")
        assert path.stat().st_size < 100
        for number in range(2, 12):
            await log.append(number, bytes(10_000))
            assert path.stat().st_blocks * 512 - path.stat().st_size >= limits.METADATA_RESERVE_BYTES // 2 - 4096
        again = CommandLog(disk, "raft")
        assert len((await again.open())[2]) == 11
        disk.close()

    asyncio.run(scenario())
