"""Every call to the disk fails once, for every call of a short history: nothing promised is lost, the error says what
happened, reads go on, and writing goes on after reopening."""

import asyncio
import errno
import random

import pytest

from bascule.errors import LogError
from bascule.log.sync import GROUP, SyncMode
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import Bench, open_bench
from bascule.testing.loop import run

INTERVAL = SyncMode("interval", 1_000_000)
SEGMENT_BYTES = 700
TRIES = 4


class History:
    """A partition on a disk that fails: what was promised, by offset."""

    def __init__(self, disk: MemoryDisk, mode: SyncMode) -> None:
        self.disk = disk
        self.mode = mode
        self.promised: dict[int, bytes] = {}
        self.failures = 0
        self.complaints: list[str] = []
        self._number = 0

    async def live(self) -> None:
        bench = await self._open()
        for size in (1, 3, 2, 8, 1, 8, 2):
            await self._publish(bench, size)
        await bench.close()
        bench = await self._open()
        for size in (4, 1):
            await self._publish(bench, size)

    async def _open(self) -> Bench:
        for _ in range(TRIES):
            try:
                return await open_bench(self.disk, SEGMENT_BYTES, mode=self.mode)
            except LogError as error:
                self.failures += 1
                self.complaints.append(str(error))
        raise AssertionError("more failures than faults")

    async def _publish(self, bench: Bench, size: int) -> None:
        log = bench.log
        for _ in range(TRIES):
            try:
                bodies = []
                for _ in range(size):
                    self._number += 1
                    bodies.append(b"message %d" % self._number)
                first = log.end
                bench.append(bodies)
                await log.flushed()
                await asyncio.sleep(0.01)
                for offset in range(first, log.promised_end):
                    self.promised[offset] = bodies[offset - first]
            except LogError as error:
                self.complaints.append(str(error))
            if log.failed is None:
                return
            self.failures += 1
            assert log.end == log.promised_end
            await self._reads_go_on(bench)
            try:
                await log.reopen()
            except LogError as error:
                self.complaints.append(str(error))
        raise AssertionError("more failures than faults")

    async def _reads_go_on(self, bench: Bench) -> None:
        try:
            assert dict(await bench.read_all()) == self.promised
        except LogError as error:  # the same fault, met by a read: the next read works
            self.complaints.append(str(error))
            assert dict(await bench.read_all()) == self.promised

    async def judge(self) -> None:
        """After all that: a fresh start on the same disk."""
        for complaint in self.complaints:
            assert any(text in complaint for text in ("cannot be recovered", "storing records", "reading failed"))
            assert "the disk" in complaint
        self.disk.heal()
        bench = await open_bench(self.disk, SEGMENT_BYTES, mode=self.mode)
        found = await bench.read_all()
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets))
        assert {offset: body for offset, body in found if offset in self.promised} == self.promised
        end = bench.log.end
        await bench.store([b"and on"])
        assert await bench.read_all() == [*found, (end, b"and on")]


def steps_without_a_fault(mode: SyncMode) -> int:
    disk = MemoryDisk()
    history = History(disk, mode)
    run(history.live())
    assert history.failures == 0
    assert len(history.promised) == 30
    return disk.steps


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_any_one_failing_call_loses_nothing_promised_even_if_the_power_goes_next(number: int) -> None:
    failures = 0
    for step in range(1, steps_without_a_fault(GROUP) + 1):
        for seed in (None, 1, 2):
            disk = MemoryDisk()
            disk.fail_at(step, number)
            history = History(disk, GROUP)
            run(history.live())
            disk.crash(None if seed is None else random.Random(seed))
            run(history.judge())
            failures += history.failures
    assert failures > 50


@pytest.mark.parametrize("cached", [True, False])
def test_any_one_failing_call_loses_nothing_under_interval_while_the_power_stays(cached: bool) -> None:
    failures = 0
    for step in range(1, steps_without_a_fault(INTERVAL) + 1):
        disk = MemoryDisk()
        disk.cached = cached
        disk.fail_at(step)
        history = History(disk, INTERVAL)
        run(history.live())
        run(history.judge())
        failures += history.failures
    assert failures > 10


def test_several_failing_calls_in_a_row_lose_nothing() -> None:
    for step in range(1, steps_without_a_fault(GROUP) + 1):
        disk = MemoryDisk()
        disk.fail_at(step, times=2)
        history = History(disk, GROUP)
        run(history.live())
        disk.crash()
        run(history.judge())


def test_a_power_loss_at_any_moment_loses_nothing_promised() -> None:
    async def scenario(when_s: float, seed: int) -> int:
        disk = MemoryDisk()
        disk.sync_delay_s = 0.003
        history = History(disk, GROUP)
        running = asyncio.ensure_future(history.live())
        await asyncio.sleep(when_s)
        disk.crash(random.Random(seed))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        disk.sync_delay_s = 0
        await history.judge()
        return len(history.promised)

    counts = [run(scenario(moment / 1000, seed)) for moment in range(1, 140, 2) for seed in range(3)]
    assert min(counts) == 0
    assert max(counts) >= 25


def test_a_full_disk_fills_again_and_again_and_frees_up_at_last() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, SEGMENT_BYTES)
        await bench.store([b"first"])
        used = sum(len(disk.content(path)) for path in disk.paths())
        for spare in range(0, 300, 20):
            disk.capacity_bytes = used + spare
            await bench.store([b"x" * 50] * 3)
            if bench.log.failed is None:
                break
            assert "free space on the disk" in str(bench.log.failed)
            assert [body for _, body in await bench.read_all()] == [b"first"]
            await bench.log.reopen()
        else:
            disk.capacity_bytes = None
            await bench.store([b"x" * 50] * 3)
        assert bench.log.failed is None
        assert [body for _, body in await bench.read_all()] == [b"first", *[b"x" * 50] * 3]

    asyncio.run(scenario())
