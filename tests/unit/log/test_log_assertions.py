"""A failed assertion in a group commit ends the writing of that log until another start, and tells its owner once. The
other logs of the same round are stored and promised."""

import asyncio
from typing import NoReturn

import pytest

from bascule.errors import LogError
from bascule.log.sync import GROUP, SyncMode
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import Bench, ManualClock, make_scheduler, open_bench
from bascule.testing.loop import run
from tests.harness.logs import bodies

PLANTED = "planted: two and two are five"
INTERVAL = SyncMode("interval", 1_000_000)
PLACES = {"take": GROUP, "settle": GROUP, "take_unsynced": INTERVAL, "settle_synced": INTERVAL}


def wrong(*_: object) -> NoReturn:
    raise AssertionError(PLANTED)


async def two_logs(mode: SyncMode, disk: MemoryDisk) -> tuple[Bench, Bench]:
    """The first of them with a record; both in one group commit."""
    clock = ManualClock()
    scheduler = make_scheduler(disk, clock, mode)
    first = await open_bench(disk, folder="streams/a@1/0", scheduler=scheduler, clock=clock)
    other = await open_bench(disk, folder="streams/b@2/0", scheduler=scheduler, clock=clock)
    await first.store(bodies(0, 1))
    return first, other


@pytest.mark.parametrize("place", PLACES)
def test_one_log_takes_no_more_writes_and_the_others_go_on(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        first, other = await two_logs(PLACES[place], disk)
        scheduler = first.scheduler
        monkeypatch.setattr(first.log.appender, place, wrong)
        for number in range(3):  # in front of the other one in the same rounds
            if first.log.failed is None:
                first.append(bodies(1 + number, 1))
            other.append(bodies(number, 1))
            await asyncio.sleep(0.1)
        assert other.promises == [1, 2, 3]
        assert [str(error) for error in first.assertions] == [PLANTED]
        assert (first.failures, other.failures, other.assertions) == ([], [], [])
        assert PLANTED in str(first.log.failed)
        with pytest.raises(LogError, match="start this broker again, and report this"):
            first.append(bodies(first.log.end, 1))
        assert scheduler.waiting_bytes == 0
        assert (await first.read_all())[0] == (0, b"value 0"), "reads go on"
        await first.log.close()
        assert first.log.clean_end() is None, "a clean shutdown does not speak for it"
        await other.log.close()
        await scheduler.close()
        again = await open_bench(disk, folder="streams/a@1/0")
        assert (await again.read_all())[: len(first.promises)] == [
            (number, b"value %d" % number) for number in range(len(first.promises))
        ]

    run(main())


def test_what_is_on_its_way_to_the_disk_is_not_promised() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        first, _ = await two_logs(GROUP, disk)
        disk.sync_delay_s = 1.0
        first.append(bodies(1, 1))
        await asyncio.sleep(0.5)
        first.log.fail(AssertionError(PLANTED))
        await first.log.flushed()
        await asyncio.sleep(2.0)
        assert first.promises == [1]
        assert first.scheduler.waiting_bytes == 0

    run(main())


def test_it_is_neither_opened_again_nor_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        first, _ = await two_logs(GROUP, disk)
        with monkeypatch.context() as planted:
            planted.setattr(first.log.appender, "settle", wrong)
            first.append(bodies(1, 1))
            await first.log.flushed()
        before = disk.copy()
        with pytest.raises(LogError, match=PLANTED):
            await first.log.reopen()
        with pytest.raises(LogError, match=PLANTED):
            await first.log.truncate(0, shown_too=True)
        assert disk.paths() == before.paths()
        assert first.log.failed is not None
        await first.log.delete()
        assert disk.paths() == []

    run(main())


def test_any_error_but_the_disks_counts_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(*_: object) -> NoReturn:
        raise KeyError("no such segment")

    async def main() -> None:
        first, other = await two_logs(GROUP, MemoryDisk())
        monkeypatch.setattr(first.log.appender, "settle", lacks)
        first.append(bodies(1, 1))
        other.append(bodies(0, 1))
        await asyncio.sleep(0.1)
        (error,) = first.assertions
        assert "no such segment" in str(error)
        assert isinstance(error.__cause__, KeyError)
        assert other.promises == [1]

    run(main())
