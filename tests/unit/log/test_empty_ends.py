"""Logs that end in files without a readable record: their names say that there was one."""

import asyncio
import random

import pytest

from bascule.log.commitlog import CommitLog
from bascule.log.index import Footer, encode_footer
from bascule.log.segment import index_path, segment_path
from bascule.log.tail import Tail
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, Bench, open_bench, start_ends
from bascule.testing.loop import run
from tests.harness.ended_logs import segments

SEGMENT_BYTES = 60
"""One record in each segment."""
COUNT = 6


async def emptied(first: int, end: int) -> tuple[MemoryDisk, Bench]:
    """What a power loss without sync leaves: the names of these files, and nothing in them."""
    disk = MemoryDisk()
    bench = await open_bench(disk, SEGMENT_BYTES, ends=await start_ends(disk), replicated=True)
    for number in range(COUNT):
        await bench.store([b"%d" % number * 30])
    await asyncio.sleep(1)
    disk.kill(random.Random(1))
    for path in segments(disk)[first:end]:
        disk.put(path, b"")
    return disk, await open_bench(disk, SEGMENT_BYTES, ends=await start_ends(disk), replicated=True)


async def missing(log: CommitLog) -> list[int]:
    return [segment.base for segment in log.damaged]


def test_a_truncation_removes_every_file_at_the_end_that_has_no_record() -> None:
    """Else the next one written there would have the name of one that is there, and what they held is not asked for."""

    async def scenario() -> None:
        disk, bench = await emptied(2, 5)
        log = bench.log
        assert (log.end, await missing(log)) == (COUNT, [2, 3, 4])
        log.segments.visible_end = 0
        await log.truncate(5)
        assert (log.end, await missing(log)) == (2, [])
        for number in (2, 3):
            await bench.store([b"%d" % number * 30])
        assert [offset for offset, _ in await bench.read_all()] == [0, 1, 2, 3]
        disk.crash()
        bench = await open_bench(disk, SEGMENT_BYTES, ends=await start_ends(disk), replicated=True)
        assert (bench.log.end, bench.log.tail, await missing(bench.log)) == (4, Tail.SUSPECT, [])

    run(scenario())


def test_a_failed_write_does_not_take_the_marks_of_missing_records_along() -> None:
    async def scenario() -> None:
        disk, bench = await emptied(3, COUNT)
        log = bench.log
        assert (log.end, await missing(log)) == (COUNT - 1, [3, 4]), "the last name says where the one before ended"
        disk.fail_at(disk.steps + 1, times=100)
        bench.append([b"never stored"])
        await log.flushed()
        assert log.failed is not None
        disk.heal()
        await log.reopen()
        assert (log.end, await missing(log)) == (COUNT - 1, [3, 4])
        await bench.store([b"next" * 10])
        assert [offset for offset, _ in await bench.read_all()] == [0, 1, 2, 5]

    run(scenario())


def test_an_only_copy_without_a_record_begins_again_behind_what_is_lost_and_leaves_no_files(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, SEGMENT_BYTES * 3)
        for number in range(COUNT):
            await bench.store([b"%d" % number * 30])
        await bench.close()
        first, *others = segments(disk)
        for path in others:
            await disk.remove(path)
        end = 4  # of the last segment that has an index: it shows how far the log was promised
        disk.put(first, b"damage" * 8)
        bench = await open_bench(disk)
        assert (bench.log.end, segments(disk)) == (end, [segment_path(FOLDER, end)])
        await bench.store([b"one more"])
        await bench.close()
        files = disk.paths()
        for _ in range(2):
            caplog.clear()
            again = await open_bench(disk)
            assert [offset for offset, _ in await again.read_all()] == [end]
            await again.close()
            assert not [record for record in caplog.records if record.levelname == "ERROR"]
            assert disk.paths() == files

    run(scenario())


def test_an_empty_file_before_others_goes_with_its_index() -> None:
    """As earlier releases left them. An index alone is a sign of a lost segment."""

    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk)
        await bench.store([b"one", b"two"])
        await bench.close()
        (path,) = segments(disk)
        later = segment_path(FOLDER, 2)
        disk.put(later, b"")
        bench = await open_bench(disk)
        await bench.store([b"three"])
        await bench.close()
        disk.put(path, b"")
        disk.put(index_path(FOLDER, 0), encode_footer(Footer(0, -1, 0, 0, -1, 0, 0, 0), b""))
        again = await open_bench(disk)
        assert [offset for offset, _ in await again.read_all()] == [2]
        assert [each for each in disk.paths() if each in (path, index_path(FOLDER, 0))] == []

    run(scenario())
