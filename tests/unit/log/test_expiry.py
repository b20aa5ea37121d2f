"""The front of a log goes in whole segments; a power loss at any step of that brings nothing back and loses nothing."""

import asyncio
import errno
import random
from contextlib import suppress

import pytest

from bascule.errors import LogError
from bascule.log.start import START_FILE, read_start
from bascule.log.sync import SyncMode
from bascule.log.tail import Tail
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, Bench, ManualClock, open_bench, start_ends, stop_ends
from bascule.testing.loop import run
from tests.harness.logs import bodies

ONE_A_SEGMENT = 1
RELAXED = SyncMode("interval", 1_000_000_000)


async def filled(disk: MemoryDisk, count: int, **settings: object) -> Bench:
    """One record a segment."""
    bench = await open_bench(disk, ONE_A_SEGMENT, **settings)  # type: ignore[arg-type]
    for number in range(count):
        await bench.store(bodies(number, 1))
    return bench


def segments_on(disk: MemoryDisk) -> list[int]:
    names = [path.removeprefix(FOLDER + "/") for path in disk.paths() if path.startswith(FOLDER)]
    return sorted(int(name.removesuffix(".log")) for name in names if name.endswith(".log"))


async def offsets(bench: Bench) -> list[int]:
    return [offset for offset, _ in await bench.read_all()]


def test_below_the_start_nothing_is_served_and_the_files_go() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, 10)
        bench.log.raise_start(6)
        assert await offsets(bench) == [6, 7, 8, 9], "at once, before the files are gone"
        assert (bench.log.start, bench.log.expires) == (6, True)
        await bench.log.expire()
        assert segments_on(disk) == [6, 7, 8, 9]
        assert not [path for path in disk.paths() if path.endswith(".index") and int(path[-26:-6]) < 6]
        assert await bench.log.offset_at_or_after(0) == 6
        assert await bench.log.offset_at_or_before(5) is None
        assert not bench.log.expires

    run(main())


async def expired(replicated: bool) -> tuple[MemoryDisk, Bench]:
    """Nothing is on record about its end but what is stored with its start."""
    disk = MemoryDisk()
    bench = await filled(disk, 10, replicated=replicated)
    bench.log.raise_start(6)
    await bench.log.expire()
    return disk, bench


@pytest.mark.parametrize("replicated", [False, True])
def test_the_end_that_is_stored_with_the_start_shows_that_the_last_records_are_gone(replicated: bool) -> None:
    async def main() -> None:
        disk, bench = await expired(replicated)
        await bench.close()
        for base in (8, 9):
            disk.vanish(f"{FOLDER}/{base:020}.log")
            disk.vanish(f"{FOLDER}/{base:020}.index")
        bench = await open_bench(disk, ONE_A_SEGMENT, replicated=replicated)
        assert bench.log.tail is Tail.SHORT
        if not replicated:
            await bench.store([b"next"])
            assert await offsets(bench) == [6, 7, 10], "lost offsets are not given again"

    run(main())


@pytest.mark.parametrize("end", [6, 8])
@pytest.mark.parametrize("power", [False, True])
def test_a_log_that_was_truncated_after_its_start_was_stored_is_not_short(power: bool, end: int) -> None:
    async def main() -> None:
        for step in range(40):
            disk, bench = await expired(replicated=True)
            bench.log.segments.visible_end = 0
            if step:
                disk.fail_at(disk.steps + step, times=1000)
            with suppress(OSError, LogError):
                await (bench.log.truncate(end) if end > 6 else bench.log.begin_at(12))
            disk.heal()
            disk.crash(random.Random(1)) if power else disk.kill(random.Random(1))
            bench = await open_bench(disk, ONE_A_SEGMENT, replicated=True)
            assert bench.log.tail is not Tail.SHORT, step

    run(main())


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("step", range(1, 16))
def test_a_power_loss_at_any_step_of_a_removal(step: int, replicated: bool) -> None:
    async def main() -> None:
        for seed in range(5):
            disk = MemoryDisk()
            bench = await filled(disk, 8, replicated=replicated)
            bench.log.raise_start(6)
            disk.fail_at(disk.steps + step)
            try:
                await bench.log.expire()
            except LogError:
                pass
            disk.heal()
            disk.crash(random.Random(seed))
            stored = (await read_start(disk, FOLDER)).start == 6
            bench = await open_bench(disk, ONE_A_SEGMENT, replicated=replicated)
            left = await offsets(bench)
            assert left == list(range(left[0], 8)), "no hole, and nothing above the start is lost"
            assert not bench.log.damaged
            assert left[0] == 6 or not stored
            await bench.store(bodies(8, 1))
            assert bench.log.end == 9

    run(main())


@pytest.mark.parametrize("replicated", [False, True])
def test_a_start_that_is_raised_during_a_removal_is_stored_before_more_goes(
    replicated: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        for seed in range(20):
            disk = MemoryDisk()
            bench = await filled(disk, 20, replicated=replicated)
            bench.log.raise_start(6)
            removal = asyncio.create_task(bench.log.expire())
            while 0 in segments_on(disk):
                await asyncio.sleep(0)
            bench.log.raise_start(15)
            while len(segments_on(disk)) > 10:
                await asyncio.sleep(1e-4)
            removal.cancel()
            disk.crash(random.Random(seed))
            start = (await read_start(disk, FOLDER)).start
            bench = await open_bench(disk, ONE_A_SEGMENT, replicated=replicated)
            left = await offsets(bench)
            assert start == 15
            assert left == list(range(15, 20))
            assert not bench.log.damaged

    run(main())
    assert "missing" not in caplog.text


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("step", range(1, 16))
def test_a_log_whose_records_have_all_expired_ends_where_it_ended(step: int, replicated: bool) -> None:
    """Also if a power loss brings the wrong one of its last files back."""

    async def main() -> None:
        for seed in range(5):
            disk = MemoryDisk()
            bench = await filled(disk, 4, replicated=replicated)
            bench.log.appender.roll()
            await bench.log.flushed()
            bench.log.raise_start(4)
            disk.fail_at(disk.steps + step)
            try:
                await bench.log.expire()
            except LogError:
                pass
            disk.heal()
            disk.crash(random.Random(seed))
            bench = await open_bench(disk, ONE_A_SEGMENT, replicated=replicated)
            assert bench.log.end == 4
            assert bench.log.last_timestamp == 30
            await bench.store(bodies(4, 1))
            assert (await offsets(bench))[-1] == 4

    run(main())


def test_the_last_file_that_comes_back_may_end_below_the_start() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, 4)
        bench.log.appender.roll()
        await bench.log.flushed()
        older = disk.copy()
        bench.log.raise_start(4)
        await bench.log.expire()
        assert segments_on(disk) == []
        for path in (f"{FOLDER}/{1:020}.log", f"{FOLDER}/{1:020}.index"):
            disk.put(path, older.content(path))
        bench = await open_bench(disk, ONE_A_SEGMENT)
        assert (bench.log.start, bench.log.end) == (4, 4)
        assert segments_on(disk) == []
        await bench.store(bodies(4, 1))
        assert await offsets(bench) == [4]

    run(main())


def test_a_new_segment_without_a_record_does_not_hold_up_a_stop_or_look_like_another_file() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        ends = await start_ends(disk)
        bench = await filled(disk, 3, ends=ends, replicated=True)
        bench.log.appender.roll()
        async with asyncio.timeout(5.0):
            await stop_ends(ends, bench)
        ends = await start_ends(disk)
        bench = await open_bench(disk, ends=ends, replicated=True)
        assert bench.log.tail is Tail.SURE
        assert bench.log.end == 3

    run(main())


def test_a_log_that_begins_again_has_nothing_and_goes_on_at_its_start() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        ends = await start_ends(disk)
        bench = await filled(disk, 3, ends=ends, replicated=True)
        await bench.log.begin_at(50)
        assert (bench.log.start, bench.log.end, bench.log.promised_end, bench.log.last_epoch) == (50, 50, 50, 0)
        assert segments_on(disk) == []
        assert not [path for path in disk.paths() if path.startswith("quarantine")]
        await bench.store(bodies(50, 2))
        assert await offsets(bench) == [50, 51]
        disk.crash()
        bench = await open_bench(disk, ends=await start_ends(disk), replicated=True)
        assert await offsets(bench) == [50, 51]
        assert not bench.log.damaged

    run(main())


@pytest.mark.parametrize("step", range(1, 20))
def test_a_power_loss_at_any_step_of_a_new_beginning(step: int) -> None:
    """What is left ends below the start, so that it begins again; or it has begun."""

    async def main() -> None:
        for seed in range(3):
            disk = MemoryDisk()
            bench = await filled(disk, 4, replicated=True)
            disk.fail_at(disk.steps + step)
            try:
                await bench.log.begin_at(50)
            except LogError:
                pass
            disk.heal()
            disk.crash(random.Random(seed))
            bench = await open_bench(disk, ONE_A_SEGMENT, replicated=True)
            if bench.log.end < 50:
                assert bench.log.end <= 4
                await bench.log.begin_at(50)
            await bench.store(bodies(50, 1))
            assert await offsets(bench) == [50]
            disk.crash(random.Random(seed))
            bench = await open_bench(disk, ONE_A_SEGMENT, replicated=True)
            assert await offsets(bench) == [50]

    run(main())


def test_under_relaxed_sync_a_removed_segment_is_not_synced_any_more() -> None:
    async def main() -> None:
        disk, clock = MemoryDisk(), ManualClock()
        bench = await filled(disk, 6, mode=RELAXED, clock=clock)
        bench.log.raise_start(4)
        await bench.log.expire()
        await asyncio.sleep(5.0)
        assert bench.failures == []
        await bench.store(bodies(6, 1))
        assert await offsets(bench) == [4, 5, 6]
        assert segments_on(disk)[0] == 4

    run(main())


def test_a_reader_in_a_segment_that_goes_finds_the_start() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, 10)
        reader = bench.log.reader(0)
        assert await reader.read() is not None
        bench.log.raise_start(7)
        await bench.log.expire()
        assert await reader.read() is not None
        assert reader.next_offset == 8
        backwards = bench.log.reverse_reader(9)
        while await backwards.read(1) is not None:
            pass
        assert backwards.next_offset == -1

    run(main())


def test_a_damaged_file_of_the_start_brings_nothing_above_it_down() -> None:
    """The log begins at its first segment then; the metadata says the rest."""

    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, 10)
        bench.log.raise_start(7)
        await bench.log.expire()
        path = f"{FOLDER}/{START_FILE}"
        disk.put(path, bytes(len(disk.content(path))))
        bench = await open_bench(disk, ONE_A_SEGMENT)
        assert await offsets(bench) == [7, 8, 9]

    run(main())


def test_what_is_not_asked_for_stays_though_the_start_is_raised_meanwhile() -> None:
    """What it says of producers, say, is not stored yet."""

    async def main() -> None:
        bench = await filled(MemoryDisk(), 20)
        bench.log.raise_start(6)
        removal = asyncio.create_task(bench.log.expire(6))
        await asyncio.sleep(0)
        bench.log.raise_start(15)
        await removal
        assert (await read_start(bench.disk, FOLDER)).start == 6
        assert bench.log.segments[0].base == 6
        await bench.log.expire(15)
        assert bench.log.segments[0].base == 15

    run(main())


@pytest.mark.parametrize("failing", range(12))
def test_files_that_could_not_be_removed_go_when_the_disk_works_again(failing: int) -> None:
    """Whichever call fails: the segments are no more in the list, and nobody else knows of their files."""

    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, 10)
        log, remove, calls = bench.log, disk.remove, 0

        async def fails_once(path: str) -> None:
            nonlocal calls
            calls += 1
            if calls == failing + 1:
                raise OSError(errno.EIO, "input/output error", path)
            await remove(path)

        disk.remove = fails_once  # type: ignore[method-assign]
        log.raise_start(6)
        with pytest.raises(LogError, match="input/output error"):
            await log.expire()
        before = log.expires
        await bench.store(bodies(10, 1))
        await log.expire()
        assert (before, log.expires) == (True, False), "it is to be tried again"
        assert segments_on(disk) == [6, 7, 8, 9, 10]
        assert await offsets(bench) == [6, 7, 8, 9, 10]

    run(main())
