"""The promised ends in the page cache: exact after a killed process, of no use after a power loss."""

import asyncio
import errno
import random
from pathlib import Path

import pytest

from bascule import limits
from bascule.log import cachedends
from bascule.log.cachedends import CachedEnds, name_of
from bascule.log.disk import FileDisk
from bascule.log.promised import PromisedEnds
from bascule.log.sync import SyncMode
from bascule.log.tail import Tail
from bascule.ports import Write
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import Bench, open_bench, start_ends, stop_ends
from bascule.testing.loop import run
from tests.harness.segments import last_segment

LONG_S = 10.0
"""Much longer than promises take to be in the synced file."""


async def a_boot(disk: MemoryDisk, replicated: bool = True, mode: str = "group") -> tuple[PromisedEnds, Bench]:
    ends = await start_ends(disk)
    return ends, await open_bench(disk, ends=ends, replicated=replicated, mode=SyncMode(mode))


async def named(disk: MemoryDisk, replicated: bool = True, mode: str = "group") -> Bench:
    """A log that an earlier boot had recorded already."""
    ends, bench = await a_boot(disk, replicated, mode)
    await bench.store([b"0"])
    await stop_ends(ends, bench)
    return (await a_boot(disk, replicated, mode))[1]


async def killed() -> MemoryDisk:
    """Two records, promised and on record, and then the end of the process."""
    disk = MemoryDisk()
    bench = await named(disk)
    await bench.store([b"1"])
    await ends_written()
    disk.kill(random.Random(1))
    return disk


async def ends_written() -> None:
    await asyncio.sleep(LONG_S)


def cut_the_last_off(disk: MemoryDisk, size: int) -> None:
    """Exactly between two records: nothing in the file shows it."""
    path = last_segment(disk)
    disk.shorten(path, len(disk.content(path)) - size)


async def size_of_one_more(bench: Bench, disk: MemoryDisk, first: bool = False) -> int:
    before = 0 if first else len(disk.content(last_segment(disk)))
    await bench.store([b"1"])
    return len(disk.content(last_segment(disk))) - before


@pytest.mark.parametrize("replicated", [True, False])
@pytest.mark.parametrize("mode", ["group", "os"])
def test_a_record_promised_the_moment_before_a_kill_is_missed(mode: str, replicated: bool) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await named(disk, replicated, mode)
        size = await size_of_one_more(bench, disk)
        disk.kill(random.Random(1))
        cut_the_last_off(disk, size)
        _, bench = await a_boot(disk, replicated, mode)
        assert bench.log.tail is Tail.SHORT
        if not replicated:
            await bench.store([b"next"])
            assert await bench.read_all() == [(0, b"0"), (2, b"next")], "the lost offset is not given again"

    run(scenario())


def test_what_was_never_promised_may_be_torn_without_making_a_log_suspect() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await named(disk)
        await bench.store([b"1"])
        path = last_segment(disk)
        disk.kill(random.Random(1))
        disk.put(path, disk.content(path) + b"\0\0\0\1 the rest of a write")
        for _ in range(3):
            _, bench = await a_boot(disk)
            assert (bench.log.tail, bench.log.end) == (Tail.SURE, 2)
            disk.kill(random.Random(1))

    run(scenario())


def test_after_a_power_loss_the_last_promises_may_be_missing_until_the_log_is_verified() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await named(disk)
        size = await size_of_one_more(bench, disk)
        disk.crash(random.Random(1))
        cut_the_last_off(disk, size)
        for _ in range(3):
            ends, bench = await a_boot(disk)
            assert (bench.log.tail, bench.log.end) == (Tail.LIKELY, 1)
            disk.kill(random.Random(1))  # that this boot ended while the page cache was there changes nothing
        ends, bench = await a_boot(disk)
        await stop_ends(ends, bench)
        _, bench = await a_boot(disk)
        tails = [bench.log.tail]
        bench.log.record.verify()
        assert [*tails, bench.log.tail] == [Tail.LIKELY, Tail.SURE], "nor does a clean shutdown"
        await ends_written()
        disk.kill(random.Random(1))
        assert (await a_boot(disk))[1].log.tail is Tail.SURE

    run(scenario())


def test_the_first_promise_of_a_new_log_is_known_before_its_name_is_on_record() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        _, bench = await a_boot(disk)
        size = await size_of_one_more(bench, disk, first=True)
        disk.kill(random.Random(1))
        for cut in (False, True):
            again = disk.copy()
            if cut:
                cut_the_last_off(again, size)
            assert (await a_boot(again))[1].log.tail is (Tail.SHORT if cut else Tail.SURE)

    run(scenario())


def test_a_truncation_lowers_the_end_before_the_log_is_shorter() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await named(disk)
        for number in range(1, 9):
            await bench.store([b"%d" % number])
        bench.log.segments.visible_end = 0
        await bench.log.truncate(4)
        disk.kill(random.Random(1))
        _, bench = await a_boot(disk)
        assert (bench.log.tail, bench.log.end) == (Tail.SURE, 4)

    run(scenario())


def test_a_write_that_failed_promises_nothing() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await named(disk)
        path = last_segment(disk)
        await bench.store([b"1"])
        disk.injected_error = lambda each: errno.EIO if each == path else None
        await bench.store([b"2"])
        assert bench.failures
        disk.heal()
        disk.kill(random.Random(1))
        _, bench = await a_boot(disk)
        assert (bench.log.tail, bench.log.end) in [(Tail.SURE, 2), (Tail.SURE, 3)]

    run(scenario())


@pytest.mark.parametrize("when", ["promise", "store"])
def test_where_the_file_cannot_be_written_the_next_start_does_not_believe_it(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await named(disk)
        disk.injected_error = lambda each: errno.EIO if each == cachedends.FILE else None
        if when == "promise":
            size = await size_of_one_more(bench, disk)
        else:
            await bench.log.record.forget_above(0)
        await ends_written()
        disk.injected_error = None
        assert "promised-ends.cached: cannot be written" in caplog.text
        if when == "store":
            size = await size_of_one_more(bench, disk)
        disk.kill(random.Random(1))
        cut_the_last_off(disk, size)
        _, bench = await a_boot(disk)
        assert bench.log.tail is (Tail.SHORT if when == "promise" else Tail.LIKELY), "the synced file has the first one"

    run(scenario())


def test_a_bit_that_flips_is_never_taken_for_a_promise() -> None:
    async def scenario() -> None:
        disk = await killed()
        content = disk.content(cachedends.FILE)
        for at in range(110):
            for bit in range(8):
                harmed = disk.copy()
                harmed.put(cachedends.FILE, content)
                harmed.flip(cachedends.FILE, at, bit)
                _, again = await a_boot(harmed)
                assert again.log.tail in (Tail.SURE, Tail.LIKELY)
        for cut in range(110):
            harmed = disk.copy()
            harmed.put(cachedends.FILE, content[:cut])
            assert (await a_boot(harmed))[1].log.tail in (Tail.SURE, Tail.LIKELY)

    run(scenario())


def test_a_file_that_is_older_than_the_synced_one_is_not_believed() -> None:
    """Under the same boot id: a file system that went back, or a machine that does not tell its boots apart."""

    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await named(disk)
        older = disk.content(cachedends.FILE)
        await bench.store([b"1"])
        await ends_written()
        disk.kill(random.Random(1))
        disk.put(cachedends.FILE, older)
        assert (await a_boot(disk))[1].log.tail is Tail.LIKELY

    run(scenario())


def test_more_logs_than_there_is_room_for_are_only_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        disk = await killed()
        assert (await a_boot(disk))[1].log.tail is Tail.LIKELY

    monkeypatch.setattr(limits, "CACHED_ENDS", 1)
    run(scenario())


def test_on_a_real_disk_the_end_is_in_the_file_before_the_commit_returns(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = FileDisk(tmp_path)
        disk.lock()
        ends = CachedEnds(disk)
        ends.name(2, name_of("log2"))
        await ends.begin(7, {1: (name_of("log1"), 10), 900: (name_of("log900"), 4)})
        writes = [
            Write(f"log{number}", 0, [b"x"], create=True, promise=ends.promise(number, end))
            for number, end in ((1, 11), (2, 5), (900, 6))
        ]
        missing = Write("not there", 0, [b"x"], promise=ends.promise(3, 99))
        errors = await disk.commit([*writes, missing], sync=True)
        assert [error is None for error in errors] == [True, True, True, False]
        found = await CachedEnds(disk).read(7)
        assert [found.get(name_of(f"log{number}")) for number in (1, 2, 3, 900)] == [11, 5, None, 6]
        assert not await CachedEnds(disk).read(8), "of another generation"
        disk.os_boot = "another boot"
        assert not await CachedEnds(disk).read(7)
        disk.os_boot = ""
        assert not await CachedEnds(disk).read(7)
        disk.close()

    asyncio.run(scenario())
