"""Adjacent small segments become one: the same records at the same offsets, whatever happens in the middle of it."""

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable

import pytest

from bascule import limits
from bascule.errors import LogError
from bascule.log.index import FileIndex
from bascule.log.manifest import MANIFEST_SUFFIX, FileChecksum, Manifest, read_manifest, write_manifest
from bascule.log.sync import SyncMode
from bascule.log.tail import Tail
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, Bench, open_bench, start_ends, stop_ends
from bascule.testing.loop import run
from tests.harness.logs import bodies

ONE_A_SEGMENT = 1
COUNT = 12
MERGED = (2, 8)
"""Offsets of the segments that become one."""


async def filled(disk: MemoryDisk, count: int = COUNT, **settings: object) -> Bench:
    """One record a segment."""
    bench = await open_bench(disk, ONE_A_SEGMENT, **settings)  # type: ignore[arg-type]
    for number in range(count):
        await bench.store(bodies(number, 1))
    return bench


EXPECTED = [(number, body) for number in range(COUNT) for body in bodies(number, 1)]


def files_of(disk: MemoryDisk, suffix: str = ".log") -> list[int]:
    names = [path.removeprefix(FOLDER + "/") for path in disk.paths() if path.startswith(FOLDER)]
    return sorted(int(name.removesuffix(suffix)) for name in names if name.endswith(suffix))


def others(disk: MemoryDisk) -> list[str]:
    """Files that are left over."""
    return [path for path in disk.paths() if path.endswith((".tmp", MANIFEST_SUFFIX))]


async def check(bench: Bench, count: int = COUNT) -> None:
    """Everything is there once, forwards, backwards and by time."""
    expected = EXPECTED[:count]
    assert await bench.read_all() == expected
    reader, found = bench.log.reverse_reader(count), 0
    while await reader.read(100) is not None:
        found += reader.count
    assert found == count
    for offset in range(count):
        assert await bench.log.offset_at_or_after(offset * 10) == offset
        assert (await bench.read_all(offset))[0] == expected[offset]
    assert not bench.log.damaged
    ends = [(each.base, each.appended.end) for each in bench.log.segments if not each.empty]
    assert [base for base, _ in ends[1:]] == [end for _, end in ends[:-1]], "each begins where the one before it ends"


@pytest.mark.parametrize("replicated", [False, True])
def test_the_records_are_the_same_and_the_files_are_one(replicated: bool) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, replicated=replicated)
        before = b"".join(disk.content(each.path) for each in bench.log.segments[2:8])
        assert await bench.log.merge(*MERGED) == 6
        assert files_of(disk) == [0, 1, 2, 8, 9, 10, 11]
        assert disk.content(bench.log.segments[2].path) == before
        await bench.log.flushed()
        assert files_of(disk, ".index") == [0, 1, 2, 8, 9, 10]
        assert isinstance(bench.log.segments[2].index, FileIndex)
        assert others(disk) == []
        await check(bench)
        await bench.store(bodies(COUNT, 1))
        await bench.close()
        bench = await open_bench(disk, ONE_A_SEGMENT, replicated=replicated)
        assert [each.base for each in bench.log.segments] == [0, 1, 2, 8, 9, 10, 11, 12]
        assert bench.log.end == COUNT + 1

    run(main())


@pytest.mark.parametrize("replicated", [False, True])
def test_a_power_loss_at_any_step_leaves_the_old_files_or_the_new_one(replicated: bool) -> None:
    async def main() -> None:
        outcomes: dict[int, int] = {}
        for step in range(1, 200):
            done = False
            for seed in range(6):
                disk = MemoryDisk()
                ends = await start_ends(disk)
                bench = await filled(disk, replicated=replicated, ends=ends)
                last = disk.steps + step
                disk.fail_at(last, times=1000)
                try:
                    await bench.log.merge(*MERGED)
                except LogError:
                    pass
                done = disk.steps < last
                disk.heal()
                if seed % 2:
                    disk.kill(random.Random(seed))
                else:
                    disk.crash(random.Random(seed) if seed else None)
                ends = await start_ends(disk)
                bench = await open_bench(disk, ONE_A_SEGMENT, replicated=replicated, ends=ends)
                await check(bench)
                assert bench.log.tail in (Tail.SURE, Tail.LIKELY)
                assert others(disk) == []
                assert not [path for path in disk.paths() if path.startswith("quarantine")]
                count = len(files_of(disk))
                assert count in (COUNT, COUNT - 5)
                outcomes[count] = outcomes.get(count, 0) + 1
                await bench.store(bodies(COUNT, 1))
                assert bench.log.end == COUNT + 1
            if done:
                break
        assert outcomes[COUNT] > 20
        assert outcomes[COUNT - 5] > 20

    run(main())


@pytest.mark.parametrize("times", [1, 3, 1000])
def test_the_disk_fails_at_any_step_and_the_log_goes_on(times: int) -> None:
    """Then it is truncated within the merged records: nothing of them comes back."""

    async def main() -> None:
        for step in range(1, 200):
            disk = MemoryDisk()
            bench = await filled(disk)
            last = disk.steps + step
            disk.fail_at(last, times=times)
            try:
                await bench.log.merge(*MERGED)
            except LogError:
                pass
            done = disk.steps < last
            disk.heal()
            await check(bench)
            await bench.log.truncate(5, exposed_too=True)
            assert await bench.read_all() == EXPECTED[:5]
            for number in range(5, 9):
                await bench.store(bodies(number, 1))
            await check(bench, 9)
            disk.crash(random.Random(step))
            bench = await open_bench(disk, ONE_A_SEGMENT)
            await check(bench, 9)
            if done:
                break
        assert step > 10

    run(main())


def test_old_files_left_by_an_error_go_without_another_merge() -> None:
    """Also where what they became expires first."""

    async def main() -> None:
        for expired in (0, 10):
            disk = MemoryDisk()
            bench = await filled(disk)
            remove = disk.remove

            async def fails(path: str, remove: Callable[[str], Awaitable[None]] = remove) -> None:
                if path.endswith(".log"):
                    raise OSError(errno.EIO, "input/output error", path)
                await remove(path)

            disk.remove = fails  # type: ignore[method-assign]
            with pytest.raises(LogError):
                await bench.log.merge(*MERGED)
            assert len(bench.log.segments) < COUNT < len(files_of(disk)) + 1, "the new one is in place"
            disk.remove = remove  # type: ignore[method-assign]
            bench.log.raise_start(expired)
            before = bench.log.expires
            await bench.log.expire()
            assert (before, bench.log.expires) == (True, False)
            await bench.log.flushed()
            assert files_of(disk) == [each.base for each in bench.log.segments]
            assert others(disk) == []

    run(main())


def test_a_merge_that_is_cancelled_at_any_turn_leaves_the_log_whole() -> None:
    async def main() -> None:
        counts: list[int] = []
        while True:
            disk = MemoryDisk()
            bench = await filled(disk)
            work = asyncio.get_running_loop().create_task(bench.log.merge(*MERGED))
            for turn in range(len(counts)):
                await asyncio.sleep(0 if turn < 100 else 0.01)
            if work.done():
                break
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await check(bench)
            counts.append(len(bench.log.segments))
            await bench.close()
            await check(await open_bench(disk, ONE_A_SEGMENT))
            assert len(files_of(disk)) == counts[-1]
            assert others(disk) == []
        assert set(counts) == {COUNT, COUNT - 5}

    run(main())


def test_readers_in_the_middle_of_it_miss_nothing_and_get_nothing_twice() -> None:
    async def main() -> None:
        for turns in range(60):
            disk = MemoryDisk()
            disk.cached = bool(turns % 2)
            bench = await filled(disk)
            forward, back = bench.log.reader(0), bench.log.reverse_reader(COUNT)
            seen: list[int] = []
            seen_back: list[int] = []
            work = asyncio.get_running_loop().create_task(bench.log.merge(*MERGED))
            for _ in range(turns):
                await asyncio.sleep(0)
            while await forward.read(1) is not None:
                seen += range(forward.given_end - forward.count, forward.given_end)
                if await back.read(1) is not None:
                    seen_back += range(back.next_offset + back.count, back.next_offset, -1)
                await bench.log.offset_at_or_after(50)
            while await back.read(1) is not None:
                seen_back += range(back.next_offset + back.count, back.next_offset, -1)
            await work
            assert seen == list(range(COUNT))
            assert seen_back == seen[::-1]
            await check(bench)

    run(main())


def test_damage_is_noted_and_nothing_is_merged() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, replicated=True)
        disk.flip(bench.log.segments[4].path, 20, 3)
        assert await bench.log.merge(*MERGED) == 0
        assert list(bench.log.damaged) == [bench.log.segments[4]]
        assert files_of(disk) == list(range(COUNT))
        assert others(disk) == []
        assert await bench.log.merge(*MERGED) == 0, "damage that is known is left alone"
        assert bench.log.mergeable() == [each not in (4, COUNT - 1) for each in range(COUNT)]

    run(main())


def test_a_segment_that_became_shorter_is_noted_as_damaged() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, replicated=True)
        disk.shorten(bench.log.segments[4].path, 10)
        assert await bench.log.merge(*MERGED) == 0
        assert list(bench.log.damaged) == [bench.log.segments[4]]
        assert files_of(disk) == list(range(COUNT))

    run(main())


def test_one_wrong_read_merges_nothing_and_is_no_damage() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk)
        wrong = 1

        def misread(path: str, data: bytes) -> bytes:
            nonlocal wrong
            if wrong and path.endswith(f"{4:020}.log") and data:
                wrong -= 1
                return bytes([data[0] ^ 1]) + data[1:]
            return data

        disk.misread = misread
        assert await bench.log.merge(*MERGED) == 0
        assert not bench.log.damaged
        assert await bench.log.merge(*MERGED) == 6
        await check(bench)

    run(main())


def test_one_wrong_read_at_a_start_does_not_undo_a_swap() -> None:
    async def main() -> None:
        disk = await interrupted()
        wrong = 1

        def misread(path: str, data: bytes) -> bytes:
            nonlocal wrong
            if wrong and path.endswith(f"{2:020}.log") and data:
                wrong -= 1
                return bytes([data[0] ^ 1]) + data[1:]
            return data

        disk.misread = misread
        bench = await open_bench(disk, ONE_A_SEGMENT)
        assert not wrong
        await check(bench)
        assert len(files_of(disk)) == COUNT - 5

    run(main())


async def interrupted() -> MemoryDisk:
    """The new file is in place, and all the old ones are there."""
    disk = MemoryDisk()
    bench = await filled(disk)
    old = disk.copy()
    await bench.log.merge(*MERGED)
    size = bench.log.segments[2].appended.size
    await bench.close()
    for path in old.paths():
        if path.startswith(FOLDER) and not path.endswith((f"{2:020}.log", f"{2:020}.index")):
            disk.put(path, old.content(path))
    content = disk.content(f"{FOLDER}/{2:020}.log")
    assert len(content) == size
    checksum = FileChecksum()
    checksum.add(content)
    await write_manifest(disk, FOLDER, Manifest(2, 8, 6, size, checksum.value))
    return disk


def test_a_manifest_that_does_not_fit_removes_nothing() -> None:
    async def main() -> None:
        disk = await interrupted()
        disk.flip(f"{FOLDER}/{2:020}.log", 20, 3)
        bench = await open_bench(disk, ONE_A_SEGMENT)
        assert [offset for offset, _ in await bench.read_all()] == [0, 1, *range(3, COUNT)], "the old files count"
        assert others(disk) == []

    run(main())


def test_a_damaged_manifest_is_none() -> None:
    async def main() -> None:
        disk = await interrupted()
        path = f"{FOLDER}/{2:020}{MANIFEST_SUFFIX}"
        for position in range(len(disk.content(path))):
            disk.flip(path, position, position % 8)
            assert await read_manifest(disk, FOLDER, 2) is None
            disk.flip(path, position, position % 8)
        assert await read_manifest(disk, FOLDER, 2) is not None
        disk.shorten(path, 10)
        assert await read_manifest(disk, FOLDER, 2) is None

    run(main())


def test_what_is_not_committed_synced_or_sealed_is_not_merged() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk)
        for number in range(COUNT, COUNT + 3):
            bench.append(bodies(number, 1))
            await bench.log.flushed()
        assert bench.log.mergeable() == [True] * COUNT + [False] * 3, "above the high watermark"
        bench.log.set_visible_end(COUNT + 3)
        assert bench.log.mergeable() == [True] * (COUNT + 2) + [False], "the active one"
        bench.log.appender.roll()
        assert bench.log.mergeable() == [True] * (COUNT + 2) + [False] * 2, "the newest one with a file"
        assert await bench.log.merge(10, COUNT + 3) == 0
        relaxed = await open_bench(MemoryDisk(), ONE_A_SEGMENT, mode=SyncMode("interval", 1_000_000_000))
        for number in range(4):
            await relaxed.store(bodies(number, 1))
        assert not any(relaxed.log.mergeable()), "not synced"

    run(main())


def test_offsets_that_are_not_those_of_whole_segments_merge_nothing() -> None:
    async def main() -> None:
        bench = await filled(MemoryDisk())
        assert await bench.log.merge(2, 8) == 6
        for base, end in ((2, 8), (3, 10), (0, 5), (8, 8), (8, 9), (9, 8), (0, 100), (-1, 3)):
            assert await bench.log.merge(base, end) == 0, (base, end)
        assert await bench.log.merge(0, 10) == 5
        await check(bench)

    run(main())


def test_on_a_disk_with_little_room_nothing_is_merged() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk)
        disk.capacity_bytes = disk.used_bytes + limits.MERGE_FREE_BYTES
        assert await bench.log.merge(*MERGED) == 0
        disk.capacity_bytes += limits.MIB
        assert await bench.log.merge(*MERGED) == 6

    run(main())


def test_a_disk_that_is_full_leaves_no_copy_behind() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk)
        disk.injected_error = lambda path: errno.ENOSPC if path.endswith(".tmp") else None
        with pytest.raises(LogError, match="not merged"):
            await bench.log.merge(*MERGED)
        disk.injected_error = None
        await check(bench)
        assert await bench.log.merge(*MERGED) == 6
        assert others(disk) == []

    run(main())


def test_merged_records_expire_and_are_truncated_like_others() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        ends = await start_ends(disk)
        bench = await filled(disk, ends=ends)
        await bench.log.merge(*MERGED)
        bench.log.raise_start(5)
        await bench.log.expire()
        assert files_of(disk) == [2, 8, 9, 10, 11], "a segment stays until all of it has expired"
        assert bench.log.mergeable()[:2] == [False, True], "what expires is not merged"
        assert (await bench.read_all())[0][0] == 5
        bench.log.raise_start(8)
        await bench.log.expire()
        assert files_of(disk) == [8, 9, 10, 11]
        await stop_ends(ends, bench)
        bench = await open_bench(disk, ONE_A_SEGMENT, ends=await start_ends(disk))
        assert (bench.log.tail, bench.log.start, bench.log.end) == (Tail.SURE, 8, COUNT)

    run(main())
