"""A refill that is cancelled, because the reader that asked for it is gone, or that meets a failing disk: at every
point the log in memory is the one in the files."""

import asyncio

import pytest

from bascule.errors import LogError
from bascule.log.refill import refill
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, Bench, open_bench
from bascule.testing.loop import run

COUNT = 24
EXPECTED = [(number, b"%d" % number * 20) for number in range(COUNT)]


class ThreadedDisk(MemoryDisk):
    """What was begun is done, though nobody waits for it any more."""

    async def rename(self, source: str, target: str) -> None:
        await asyncio.shield(asyncio.get_running_loop().create_task(super().rename(source, target)))

    async def sync_folder(self, folder: str) -> None:
        await asyncio.shield(asyncio.get_running_loop().create_task(super().sync_folder(folder)))


async def harmed() -> tuple[Bench, Bench]:
    """A replica whose second segment has lost its second half, and a whole one."""
    disk = ThreadedDisk()
    bench = await open_bench(disk, segment_max_bytes=500)
    for _, value in EXPECTED:
        await bench.store([value])
    await bench.close()
    peer = await open_bench(disk.copy(), segment_max_bytes=500)
    path = [path for path in disk.paths() if path.startswith(FOLDER) and path.endswith(".log")][1]
    disk.shorten(path, len(disk.content(path)) // 2)
    return await open_bench(disk, segment_max_bytes=500, replicated=True), peer


async def check(bench: Bench, peer: Bench) -> bool:
    """Whether it is healed. If it is not, it can be."""
    log, disk = bench.log, bench.disk
    assert isinstance(disk, MemoryDisk)
    for segment in log.segments:
        assert len(disk.content(segment.path)) == segment.appended.size
    healed = not log.damaged
    for segment in list(log.damaged):
        assert await heal(bench, peer, segment.base)
    assert not log.damaged
    assert await bench.read_all() == EXPECTED
    await bench.close()
    again = await open_bench(disk, segment_max_bytes=500, replicated=True)
    assert not again.log.damaged
    assert await again.read_all() == EXPECTED
    return healed


async def heal(bench: Bench, peer: Bench, base: int) -> bool:
    async def fetch(start: int, end: int) -> bytes:
        return await peer.log.reader(start, uncommitted=True).read(500, end) or b""

    segment = bench.log.segments.at(base)
    assert segment is not None
    return await refill(bench.log, segment, fetch)


def test_cancelled_at_any_turn_of_the_event_loop() -> None:
    async def main() -> None:
        outcomes: list[bool] = []
        while True:
            bench, peer = await harmed()
            (segment,) = bench.log.damaged
            work = asyncio.get_running_loop().create_task(heal(bench, peer, segment.base))
            for _ in range(len(outcomes)):
                await asyncio.sleep(0)
            if work.done():
                break
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            outcomes.append(await check(bench, peer))
        assert len(outcomes) > 10
        assert outcomes == sorted(outcomes)

    run(main())


def test_the_disk_fails_at_any_step() -> None:
    async def main() -> None:
        for step in range(1, 1000):
            bench, peer = await harmed()
            disk = bench.disk
            assert isinstance(disk, MemoryDisk)
            (segment,) = bench.log.damaged
            last = disk.steps + step
            disk.fail_at(last)
            try:
                assert await heal(bench, peer, segment.base)
            except LogError:
                pass
            done = disk.steps < last
            disk.heal()
            await check(bench, peer)
            if done:
                break
        assert step > 10

    run(main())


def test_a_folder_that_was_taken_away_meanwhile_is_not_made_again() -> None:
    async def main() -> None:
        bench, peer = await harmed()
        disk = bench.disk
        assert isinstance(disk, MemoryDisk)
        (segment,) = bench.log.damaged
        put_back = disk.vanish(FOLDER)
        with pytest.raises(LogError, match="cannot be refilled"):
            await heal(bench, peer, segment.base)
        assert await disk.list(FOLDER) == []
        put_back()
        assert not await check(bench, peer)

    run(main())


def test_a_folder_that_a_refill_made_is_watched_again() -> None:
    async def main() -> None:
        bench, peer = await harmed()
        assert isinstance(bench.disk, MemoryDisk)
        bench.disk.vanish(FOLDER)
        bench.log.lose(FOLDER)
        await bench.log.reopen(heals=True)
        assert bench.log.presence.file_check() is None
        for segment in list(bench.log.damaged):
            assert await heal(bench, peer, segment.base)
        assert bench.log.presence.file_check() is not None
        assert await bench.read_all() == EXPECTED

    run(main())
