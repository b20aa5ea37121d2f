"""Whom replicas would wait for before they lead: what a restart still knows of it."""

import asyncio
import errno
import random

import pytest

from bascule.log.checkpoint import write_checkpoint
from bascule.node.partition.awaited import FILE, RETRY_S, AwaitedReplicas
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from tests.harness.broker import Node


async def loaded(disk: MemoryDisk) -> AwaitedReplicas:
    awaited = AwaitedReplicas(disk)
    await awaited.load()
    return awaited


def test_what_was_noted_is_durable_a_moment_later_and_what_was_forgotten_is_gone() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        awaited = await loaded(disk)
        awaited.note((7, 0), ["b", "c"])
        awaited.note((7, 1), ["b"])
        awaited.note((8, 0), ["c"])
        awaited.forget((7, 1))
        await asyncio.sleep(1)
        disk.crash(random.Random(1))
        again = await loaded(disk)
        assert [again.of(key) for key in ((7, 0), (7, 1), (8, 0))] == [("b", "c"), (), ("c",)]
        again.keep([(8, 0), (9, 0)])
        again.note((8, 0), [])
        await again.close()
        last = await loaded(disk)
        assert [last.of(key) for key in ((7, 0), (8, 0))] == [(), ()]

    run(main())


def test_a_boot_that_ends_before_all_is_on_record_begins_where_the_one_before_it_had_ended() -> None:
    """What it has learnt meanwhile, such as who has left, is news for the next one, too."""

    async def main() -> None:
        disk = MemoryDisk()
        assert await (await loaded(disk)).begin(5, clean=False) == 5
        disk.crash(random.Random(1))
        second = await loaded(disk)
        assert await second.begin(9, clean=False) == 5
        second.note((7, 0), ["b"])
        second.complete()
        await asyncio.sleep(1)
        disk.crash(random.Random(1))
        third = await loaded(disk)
        assert (third.of((7, 0)), await third.begin(12, clean=True)) == (("b",), 12)
        assert await (await loaded(disk)).begin(13, clean=False) == 13, "after a clean shutdown nothing is unknown"

    run(main())


def test_a_disk_that_takes_no_writes_is_tried_again() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        awaited = await loaded(disk)
        disk.injected_error = lambda path: errno.ENOSPC
        assert await awaited.begin(5, clean=False) == 5
        awaited.note((7, 0), ["b"])
        await asyncio.sleep(3 * RETRY_S)
        disk.heal()
        assert (await loaded(disk)).of((7, 0)) == ()
        await asyncio.sleep(2 * RETRY_S)
        assert (await loaded(disk)).of((7, 0)) == ("b",)

    run(main())


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"index": 1, "records": {"x": ["b"]}}'])
def test_a_file_that_cannot_be_read_is_said_and_nothing_else(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        await write_checkpoint(disk, FILE, content)
        assert (await loaded(disk)).of((7, 0)) == ()

    run(main())
    assert "it is not known whom replicas waited for" in caplog.text


def test_a_partition_with_one_replica_waits_for_nobody() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        await node.publish("s", b"1")
        node.power_off(random.Random(1))
        node = await Node(node.disk, node.nats, seed=2).start()
        await asyncio.sleep(1)
        replica = node.broker.replicas.find("s", 0)
        assert replica is not None
        assert node.broker.environment.awaited.of(replica.key) == ()
        assert await node.read("s") == [(0, b"1")]

    run(main())


def test_whom_a_replica_would_have_waited_for_is_forgotten_when_its_log_is_verified() -> None:
    """With the first message that it acks alone it has what they lack: it must not wait for them again."""

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        replica = node.broker.replicas.find("s", 0)
        assert replica is not None
        awaited = node.broker.environment.awaited
        awaited.note(replica.key, ["b"])
        replica.verification.confirm()
        assert awaited.of(replica.key) == ()

    run(main())
