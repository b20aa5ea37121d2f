"""Room on a full disk for changes of the metadata, whenever they come; and files that did not fit."""

import asyncio
import errno
from pathlib import Path

import pytest

from bascule.log.commandlog import CommandLog
from bascule.log.disk import FileDisk
from bascule.log.index import FileIndex
from bascule.ports import Write
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import open_bench
from bascule.testing.loop import run


@pytest.mark.parametrize("restarted", [False, True])
def test_room_is_reserved_for_the_metadata_after_a_snapshot_too(restarted: bool) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        log = CommandLog(disk, "raft")
        await log.open()
        for index in (1, 2, 3):
            await log.append(index, b"command")
        await log.snapshot(3, b"state")
        disk.capacity_bytes = disk.used_bytes
        if restarted:
            disk.crash()
            log = CommandLog(disk, "raft")
            assert (await log.open())[0] == 3
        for index in (4, 5):
            await log.append(index, b"command")
        disk.crash()
        assert await CommandLog(disk, "raft").open() == (3, b"state", [(4, b"command"), (5, b"command")])

    run(scenario())


def test_a_file_made_for_commands_that_did_not_come_is_no_reason_to_reject_the_one_before() -> None:
    """The end of that one is damaged, and the snapshot has everything that was in it."""

    async def scenario() -> None:
        disk = MemoryDisk()
        log = CommandLog(disk, "raft")
        await log.open()
        for index in (1, 2):
            await log.append(index, b"command")
        await log.snapshot(2, b"state")
        (path,) = (path for path in disk.paths() if path.endswith("1.commands"))
        disk.flip(path, len(disk.content(path)) - 1, 1)
        log = CommandLog(disk, "raft")
        assert await log.open(known=2) == (2, b"state", [])
        await log.append(3, b"command")

    run(scenario())


def test_an_index_that_did_not_fit_is_written_when_it_does() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, segment_max_bytes=100)
        await bench.store([b"x" * 100])
        # There is room for another record, and not for an index.
        disk.capacity_bytes = disk.used_bytes + bench.log.segments[0].appended.size + 30
        await bench.store([b"y" * 100])
        await bench.log.flushed()
        index = bench.log.segments[0].index_path
        assert bench.log.failed is None
        assert index not in disk.paths()
        disk.heal()
        bench.log.appender.store_index(bench.log.segments[0])
        await bench.log.flushed()
        assert index in disk.paths()
        assert isinstance(bench.log.segments[0].index, FileIndex)

    run(scenario())


def test_a_real_file_that_could_not_be_written_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario() -> None:
        disk = FileDisk(tmp_path)
        disk.lock()
        with monkeypatch.context() as patch:
            patch.setattr("bascule.log.disk._write_all", full)
            (error,) = await disk.commit([Write("file", 0, [b"abc"], create=True)], sync=True)
            assert error is not None
            assert error.errno == errno.ENOSPC
        assert await disk.size("file") is None
        assert await disk.commit([Write("file", 0, [b"abc"], create=True)], sync=True) == [None]
        assert await disk.read("file", 0, 3) == b"abc"
        disk.close()

    asyncio.run(scenario())
