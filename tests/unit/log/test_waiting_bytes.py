"""What waits for the disk is bounded over all logs of a broker, and publishers are held back before the bound."""

import pytest

from bascule import limits
from bascule.errors import LogError
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import ManualClock, make_scheduler, open_bench
from bascule.testing.loop import run
from bascule.testing.records import encode
from tests.harness.logs import bodies, numbered


def test_too_much_waiting_for_the_disk_fails_the_log_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        batch = bodies(0, 10)
        monkeypatch.setattr(limits, "MAX_UNSYNCED_BYTES", 3 * len(encode(batch, 20, 200)[0]))
        disk = MemoryDisk()
        disk.sync_delay_s = 1.0
        bench = await open_bench(disk)
        for _ in range(3):
            bench.append(batch)
        with pytest.raises(LogError, match="faster than the disk"):
            bench.append(batch)
        assert [str(error) for error in bench.failures] == [str(bench.log.failed)]
        assert (bench.log.end, bench.log.promised_end) == (0, 0), "nothing follows what was not taken"
        await bench.log.reopen()
        assert bench.log.end == 0
        assert bench.scheduler.waiting_bytes == 0
        bench.append(batch)
        await bench.log.flushed()
        assert await bench.read_all() == numbered(0, 10)
        assert bench.scheduler.waiting_bytes == 0

    run(scenario())


def test_an_append_is_taken_if_nothing_waits_however_large_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends it would send it again, and get nowhere."""

    async def scenario() -> None:
        monkeypatch.setattr(limits, "MAX_UNSYNCED_BYTES", 100)
        bench = await open_bench(MemoryDisk())
        for first in (0, 10):
            bench.append(bodies(first, 10))
            await bench.log.flushed()
        assert await bench.read_all() == numbered(0, 20)

    run(scenario())


def test_a_disk_that_falls_behind_presses_back_and_lets_go_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        batch = bodies(0, 10)
        size = len(encode(batch, 20, 200)[0])
        monkeypatch.setattr(limits, "UNSYNCED_HIGH_BYTES", 2 * size)
        monkeypatch.setattr(limits, "UNSYNCED_LOW_BYTES", size)
        disk = MemoryDisk()
        disk.sync_delay_s = 1.0
        pressure: list[bool] = []
        scheduler = make_scheduler(disk, ManualClock(), on_pressure=pressure.append)
        bench = await open_bench(disk, scheduler=scheduler)
        for expected in ([], [], [True], [True]):
            bench.append(batch)
            assert pressure == expected
        await bench.log.flushed()
        assert pressure == [True, False]

    run(scenario())
