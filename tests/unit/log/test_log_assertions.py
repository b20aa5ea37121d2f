"""A failed assertion in a group commit ends the writing of that log until another start, and tells its owner once. The
other logs of the same round are stored and promised."""

import asyncio
from typing import NoReturn

import pytest

from bascule.errors import LogError
from bascule.log import cleanshutdown, promised
from bascule.log.sync import GROUP, SyncMode
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, Bench, ManualClock, make_scheduler, open_bench, start_ends
from bascule.testing.loop import run
from tests.harness.led import replicated
from tests.harness.logs import bodies
from tests.harness.members import until
from tests.harness.stops import stop

PLANTED = "planted: two and two are five"
INTERVAL = SyncMode("interval", 1_000_000)
PLACES = {"take": GROUP, "finish": GROUP, "take_unsynced": INTERVAL, "finish_synced": INTERVAL}


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
            planted.setattr(first.log.appender, "finish", wrong)
            first.append(bodies(1, 1))
            await first.log.flushed()
        before = disk.copy()
        with pytest.raises(LogError, match=PLANTED):
            await first.log.reopen()
        with pytest.raises(LogError, match=PLANTED):
            await first.log.truncate(0, exposed_too=True)
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
        monkeypatch.setattr(first.log.appender, "finish", lacks)
        first.append(bodies(1, 1))
        other.append(bodies(0, 1))
        await asyncio.sleep(0.1)
        (error,) = first.assertions
        assert "no such segment" in str(error)
        assert isinstance(error.__cause__, KeyError)
        assert other.promises == [1]

    run(main())


# --- the record of what all logs have promised --------------------------------------------------------------------


def test_a_record_of_promises_that_fails_is_never_written_again_and_says_so() -> None:
    async def main() -> None:
        disk, fatal = MemoryDisk(), list[str]()
        ends = await start_ends(disk, fatal.append)
        bench = await open_bench(disk, ends=ends)
        await bench.store(bodies(0, 1))
        await asyncio.sleep(1)
        before = disk.content(promised.FILE)
        with pytest.MonkeyPatch.context() as planted:
            planted.setattr(ends, "_write_due", wrong)
            await bench.store(bodies(1, 1))
            await asyncio.sleep(1)
        assert len(fatal) == 1
        assert PLANTED in fatal[0]
        assert "start the broker again, and report this" in fatal[0]
        await bench.store(bodies(2, 1))
        await asyncio.sleep(60)
        assert disk.content(promised.FILE) == before, "nothing is tried again"
        with pytest.raises(OSError, match="not written after a failed assertion"):
            await bench.log.truncate(0, exposed_too=True)
        assert [number for number, _ in await bench.read_all()] == [0, 1, 2], "and nothing is cut without it"
        with pytest.raises(OSError, match="not written after a failed assertion"):
            await ends.close()
        assert len(fatal) == 1

    run(main())


@pytest.mark.parametrize("by", ["the background", "a partition that is truncated"])
def test_the_broker_ends_and_leaves_no_clean_shutdown(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has it written."""

    async def main() -> None:
        made = await replicated()
        member = made.other
        ends = member.broker.environment.ends
        await asyncio.sleep(1)
        monkeypatch.setattr(ends, "_write_due", wrong)
        if by == "the background":
            await made.leader.publish("s", b"promised")
        else:
            with pytest.raises(OSError, match="not written after a failed assertion"):
                await ends.record(FOLDER).found(1, suspect=False)
        await until(lambda: member.fatal)
        assert PLANTED in member.fatal
        assert len(member.ends) == 1
        disk = member.disk
        await stop(member)
        assert await cleanshutdown.read(disk) is None

    run(main())
