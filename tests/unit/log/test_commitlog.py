"""The commit log: appends, promises, rolling, failure and reopening, deleting, looking up by time."""

import asyncio
import logging
import random

import pytest

from bascule import limits
from bascule.errors import LogError
from bascule.log.index import FileIndex, MemoryIndex, encode_footer
from bascule.log.scan import scan_segment
from bascule.log.sync import GROUP, SyncMode
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, ManualClock, make_scheduler, open_bench
from bascule.testing.loop import run
from bascule.testing.records import encode
from tests.harness.logs import bodies, numbered


def test_a_partition_has_no_files_before_its_first_record() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk)
        log = bench.log
        assert (log.start, log.end, log.promised_end, log.last_timestamp) == (0, 0, 0, 0)
        assert await log.offset_at_or_after(5) == 0
        assert await log.offset_at_or_before(5) is None
        assert await bench.read_all() == []
        assert disk.paths() == []
        await bench.store([b"first"])
        assert disk.paths() == [f"{FOLDER}/00000000000000000000.log"]

    asyncio.run(scenario())


def test_nothing_is_promised_before_it_is_synced() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        disk.sync_delay_s = 1.0
        bench = await open_bench(disk)
        bench.append(bodies(0, 3))
        assert (bench.log.end, bench.log.promised_end) == (3, 0)
        await asyncio.sleep(0.5)
        assert bench.promises == []
        disk_then = disk.copy()
        disk.crash()
        assert disk.paths() == [], "a power loss in the middle of the round leaves nothing"
        assert len(disk_then.paths()) == 1
        await bench.log.flushed()
        assert bench.log.failed is not None

        bench = await open_bench(disk)
        bench.append(bodies(0, 3))
        await bench.log.flushed()
        assert bench.promises == [3]
        disk.crash()
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(0, 3)

    run(scenario())


def test_what_arrives_during_a_round_shares_the_next_one() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        disk.sync_delay_s = 1.0
        scheduler = make_scheduler(disk, ManualClock())
        benches = [
            await open_bench(disk, folder=f"streams/test@1/{number}", scheduler=scheduler) for number in range(5)
        ]
        benches[0].append(bodies(0, 1))
        await asyncio.sleep(0.1)
        for bench in benches:
            for number in range(10):
                bench.append(bodies(number, 1))
        await asyncio.gather(*(bench.log.flushed() for bench in benches))
        assert scheduler.rounds == 2
        assert scheduler.waiting_bytes == 0
        assert [bench.promises for bench in benches] == [[1, 11], [10], [10], [10], [10]]

    run(scenario())


def test_a_segment_rolls_by_size_checked_before_the_append() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        size = len(encode(bodies(0, 1))[0])
        bench = await open_bench(disk, segment_max_bytes=2 * size)
        for number in range(5):
            await bench.store(bodies(number, 1))
        assert [segment.base for segment in bench.log.segments] == [0, 2, 4]
        bench.append(bodies(5, 100))
        await bench.log.flushed()
        assert [segment.base for segment in bench.log.segments] == [0, 2, 4], "an append is never split"
        assert await bench.read_all() == numbered(0, 105)

    asyncio.run(scenario())


def test_a_segment_rolls_by_the_age_of_its_first_record() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        clock = ManualClock(1_000)
        bench = await open_bench(disk, segment_max_age_ns=100, clock=clock)
        bench.log.append(*encode(bodies(0, 1), 0, timestamp=1_000))
        clock.now_ns = 1_099
        bench.log.append(*encode(bodies(1, 1), 1, timestamp=1_099))
        clock.now_ns = 1_100
        bench.log.append(*encode(bodies(2, 1), 2, timestamp=1_100))
        assert [segment.base for segment in bench.log.segments] == [0, 2]

    asyncio.run(scenario())


def test_no_segment_reaches_four_gibibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        one = len(encode(bodies(0, 1))[0])
        monkeypatch.setattr(limits, "MAX_SEGMENT_BYTES", 2 * one)
        bench = await open_bench(MemoryDisk(), segment_max_bytes=1 << 40)
        for number in range(4):
            bench.append(bodies(number, 1))
        assert [segment.base for segment in bench.log.segments] == [0, 2]

    asyncio.run(scenario())


def test_sealed_segments_get_an_index_file_and_all_is_the_same_after_a_restart() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, segment_max_bytes=2_000)
        for number in range(0, 200, 5):
            await bench.store(bodies(number, 5))
        before = bench.log
        assert all(isinstance(segment.index, FileIndex) for segment in before.segments[:-1])
        assert isinstance(before.segments[-1].index, MemoryIndex)
        footers = [segment.footer() for segment in before.segments]
        await bench.close()
        bench = await open_bench(disk, segment_max_bytes=2_000)
        after = bench.log
        assert [segment.footer() for segment in after.segments] == footers
        assert (after.start, after.end, after.promised_end) == (0, 200, 200)
        assert (after.last_timestamp, after.last_epoch) == (before.last_timestamp, before.last_epoch)
        assert await bench.read_all() == numbered(0, 200)
        await bench.store(bodies(200, 5))
        assert await bench.read_all(198) == numbered(198, 7)

    asyncio.run(scenario())


def test_times_are_found_in_stored_and_in_waiting_records() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, segment_max_bytes=1_500)
        for number in range(0, 60, 4):
            bench.append(bodies(number, 4))
            if number == 40:
                await bench.log.flushed()
        log = bench.log
        assert log.promised_end < log.end
        times = [(segment.first_timestamp, segment.first_offset) for segment in log.segments]
        assert len(times) == 3
        for timestamp, offset in times:
            assert await log.offset_at_or_after(timestamp) == offset
            assert await log.offset_at_or_before(timestamp) == offset
            assert await log.offset_at_or_before(timestamp - 1) == (offset - 1 if offset else None)
        assert await log.offset_at_or_after(log.last_timestamp) == 59
        assert await log.offset_at_or_after(log.last_timestamp + 1) == 60
        assert await log.offset_at_or_before(1 << 62) == 59
        assert await log.offset_at_or_after(-5) == 0

    asyncio.run(scenario())


def test_offsets_must_go_up_and_may_leave_gaps() -> None:
    async def scenario() -> None:
        bench = await open_bench(MemoryDisk(), segment_max_bytes=300)
        await bench.store(bodies(0, 2))
        with pytest.raises(LogError, match="the end is 2"):
            bench.append(bodies(1, 2), offset=1)
        assert len(bench.failures) == 1, "whoever appended stands ahead of this log now"
        await bench.log.reopen()
        for first in (10, 20, 30, 40):
            await bench.store(bodies(first, 2), offset=first)
        await bench.close()
        bench = await open_bench(bench.disk, segment_max_bytes=300)
        assert bench.log.end == 42
        assert await bench.read_all(11) == [*numbered(11, 1), *numbered(20, 2), *numbered(30, 2), *numbered(40, 2)]
        assert await bench.read_all(12) == [*numbered(20, 2), *numbered(30, 2), *numbered(40, 2)]
        bench.append([], offset=99)
        assert bench.log.end == 42

    asyncio.run(scenario())


def test_a_segment_is_written_once_the_one_before_it_is_durable() -> None:
    """Else a loss of power could leave the second without the first: a hole where nothing was ever promised."""

    async def scenario() -> None:
        for seed in range(40):
            disk = MemoryDisk()
            bench = await open_bench(disk, segment_max_bytes=400)
            disk.sync_delay_s = 0.01
            for first in range(0, 20, 5):
                bench.append(bodies(first, 5))
            await asyncio.sleep(0.005)  # the round has written, and has not synced yet
            disk.crash(random.Random(seed))
            disk.sync_delay_s = 0.0
            found = [offset for offset, _ in await (await open_bench(disk, segment_max_bytes=400)).read_all()]
            assert found == list(range(len(found)))

    asyncio.run(scenario())


@pytest.mark.parametrize("step", [1, 3, 4], ids=["write", "folder sync", "sync"])
def test_a_failed_store_stops_writing_and_reopening_resumes_it(step: int, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, segment_max_bytes=400)
        await bench.store(bodies(0, 5))
        disk.fail_at(disk.steps + step)  # a segment and the index of the one before; then the folder, then the file
        bench.append(bodies(5, 5))
        bench.append(bodies(10, 5))
        await bench.log.flushed()
        log = bench.log
        assert (log.end, log.promised_end) == (5, 5)
        assert len(bench.failures) == 1
        assert log.failed is not None
        assert "nothing that was acked is lost" in str(log.failed)
        with pytest.raises(LogError, match="storing records failed"):
            bench.append(bodies(5, 1))
        assert await bench.read_all() == numbered(0, 5)
        assert bench.scheduler.waiting_bytes == 0
        await log.reopen()
        await bench.store([b"another 5", b"another 6"])
        expected = [*numbered(0, 5), (5, b"another 5"), (6, b"another 6")]
        assert await bench.read_all() == expected
        disk.crash()
        bench = await open_bench(disk, segment_max_bytes=400)
        assert await bench.read_all() == expected
        if step == 4:
            aside = [path for path in disk.paths() if path.startswith("quarantine/")]
            assert len(aside) == 1, "the next segment waited for this one"
            assert b"value 5" in disk.content(aside[0])
            assert aside[0] in caplog.text

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())


def test_after_a_failed_sync_the_old_file_is_never_written_again() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk)
        await bench.store(bodies(0, 5))
        disk.fail_at(disk.steps + 2)
        await bench.store(bodies(5, 5))
        assert bench.log.failed is not None
        await bench.log.reopen()
        await bench.store(bodies(5, 5))
        assert [segment.base for segment in bench.log.segments] == [0, 5]
        disk.crash()
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(0, 10)

    asyncio.run(scenario())


def test_the_index_of_a_segment_that_was_truncated_ends_with_it() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk)
        await bench.store([bytes(3_000)] * 5)
        disk.fail_at(disk.steps + 2)
        await bench.store([bytes(3_000)] * 5)
        await bench.log.reopen()
        await bench.log.flushed()
        segment = bench.log.segments[0]
        assert isinstance(segment.index, FileIndex)
        scan = await scan_segment(disk, segment.path, 0, segment.promised.size)
        stored = disk.content(segment.index_path)
        assert stored == bytes(scan.index.entries) + encode_footer(scan.footer(), scan.index.entries)

    asyncio.run(scenario())


def test_a_full_disk_is_said_and_writing_goes_on_once_there_is_room() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk)
        await bench.store(bodies(0, 5))
        disk.capacity_bytes = sum(len(disk.content(path)) for path in disk.paths())
        await bench.store(bodies(5, 5))
        assert "free space" in str(bench.log.failed)
        await bench.log.reopen()
        await bench.store(bodies(5, 5))
        assert bench.log.failed is not None, "still full"
        assert len(bench.failures) == 2
        disk.capacity_bytes = None
        await bench.log.reopen()
        await bench.store(bodies(5, 5))
        assert await bench.read_all() == numbered(0, 10)

    asyncio.run(scenario())


def test_reopening_fails_while_the_disk_does_and_changes_nothing() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk)
        await bench.store(bodies(0, 5))
        disk.fail_at(disk.steps + 2, times=1000)
        await bench.store(bodies(5, 5))
        with pytest.raises(LogError):
            await bench.log.reopen()
        assert bench.log.failed is not None
        assert (bench.log.end, bench.log.promised_end) == (5, 5)
        disk.heal()
        await bench.log.reopen()
        await bench.store(bodies(5, 5))
        assert await bench.read_all() == numbered(0, 10)

    asyncio.run(scenario())


def test_interval_promises_what_is_written_and_syncs_on_time() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, segment_max_bytes=500, mode=SyncMode("interval", 100_000_000))
        for number in range(0, 20, 5):
            await bench.store(bodies(number, 5))
        assert bench.promises == [5, 10, 15, 20]
        assert not any(isinstance(segment.index, FileIndex) for segment in bench.log.segments)
        held = disk.copy()
        await asyncio.sleep(0.2)
        assert any(isinstance(segment.index, FileIndex) for segment in bench.log.segments)
        await bench.log.flushed()
        disk.crash()
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(0, 20)
        assert held.paths()

    run(scenario())


def test_a_log_closes_while_its_sync_is_due() -> None:
    """Closing syncs what was promised; the timer of the interval, which fires meanwhile, must not do so too."""

    async def scenario(after_s: float) -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, mode=SyncMode("interval", 100_000_000))
        disk.sync_delay_s = 0.05
        await bench.store(bodies(0, 5))
        await asyncio.sleep(after_s)
        await bench.log.close()
        disk.crash()
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(0, 5)

    for hundredths in range(18):
        run(scenario(hundredths / 100))


def test_interval_loses_at_most_what_was_written_since_the_last_sync() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, mode=SyncMode("interval", 100_000_000))
        await bench.store(bodies(0, 5))
        await asyncio.sleep(0.2)
        await bench.store(bodies(5, 5))
        disk.crash()
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(0, 5)

    run(scenario())


def test_a_failed_interval_sync_moves_promised_records_to_fresh_pages() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, mode=SyncMode("interval", 100_000_000))
        await bench.store(bodies(0, 5))
        disk.fail_at(disk.steps + 2)
        await asyncio.sleep(0.2)
        assert len(bench.failures) == 1
        assert await bench.read_all() == numbered(0, 5), "promised, so still read"
        await bench.log.reopen()
        disk.crash()
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(0, 5)

    run(scenario())


def test_closing_stores_and_syncs_what_was_appended() -> None:
    async def scenario(mode: SyncMode) -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, mode=mode)
        bench.append(bodies(0, 5))
        await bench.log.close()
        disk.crash()
        with pytest.raises(LogError, match="closed"):
            bench.append(bodies(5, 1))
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(0, 5)

    run(scenario(GROUP))
    run(scenario(SyncMode("interval", 10**9)))


def test_deleting_removes_the_folder_for_good_even_while_a_round_runs() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        disk.sync_delay_s = 1.0
        bench = await open_bench(disk)
        bench.append(bodies(0, 5))
        await asyncio.sleep(0.5)
        bench.append(bodies(5, 5))
        reader = bench.log.reader(0)
        waiting = asyncio.ensure_future(reader.wait())
        await asyncio.sleep(0)
        await bench.log.delete()
        assert await waiting == "deleted"
        assert await reader.read() is None
        assert bench.promises == []
        assert bench.scheduler.waiting_bytes == 0
        with pytest.raises(LogError, match="deleted"):
            bench.append(bodies(5, 1))
        disk.crash()
        assert disk.paths() == []
        empty = await open_bench(disk, folder="streams/other@2/0")
        await empty.log.delete()

    run(scenario())


def test_truncating_sets_the_suffix_aside_and_writing_goes_on_from_there() -> None:
    async def scenario(end: int) -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, segment_max_bytes=500)
        for number in range(0, 40, 4):
            await bench.store(bodies(number, 4))
        log = bench.log
        log.segments.visible_end = 0
        await log.truncate(end)
        assert (log.end, log.promised_end) == (end, end)
        assert await bench.read_all() == numbered(0, end)
        await bench.store([b"new"])
        assert await bench.read_all() == [*numbered(0, end), (end, b"new")]
        assert [path for path in disk.paths() if path.startswith("quarantine/")]
        with pytest.raises(ValueError, match="not truncated to"):
            await log.truncate(end)
        await log.flushed()
        disk.crash()
        bench = await open_bench(disk, segment_max_bytes=500)
        assert await bench.read_all() == [*numbered(0, end), (end, b"new")]

    for end in (39, 38, 36, 17, 16, 4, 3, 1, 0):
        asyncio.run(scenario(end))


def test_an_owner_that_throws_when_told_does_not_hold_up_the_others() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        scheduler = make_scheduler(disk, ManualClock())
        bad = await open_bench(disk, folder="bad", scheduler=scheduler)
        good = await open_bench(disk, folder="good", scheduler=scheduler)

        def throw(_: int) -> None:
            raise RuntimeError("an owner's bug")

        bad.on_promised = throw  # type: ignore[assignment, method-assign]
        bad.append(bodies(0, 1))
        good.append(bodies(0, 1))
        await good.log.flushed()
        assert good.promises == [1]
        assert "an owner's bug" in str(bad.assertions[0])

    asyncio.run(scenario())


def test_os_mode_promises_what_is_written_and_never_syncs_records() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, mode=SyncMode("os"))
        await bench.store(bodies(0, 5))
        assert bench.promises == [5]
        await asyncio.sleep(100)
        disk.crash()
        bench = await open_bench(disk)
        assert bench.log.end == 0

    run(scenario())


def test_an_index_that_cannot_be_written_is_no_failure_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, segment_max_bytes=100)
        await bench.store(bodies(0, 5))
        disk.put(f"{FOLDER}/00000000000000000000.index", b"in the way")
        await bench.store(bodies(5, 5))
        await asyncio.sleep(0.01)
        assert bench.log.failed is None
        assert isinstance(bench.log.segments[0].index, MemoryIndex)
        assert await bench.read_all(3) == numbered(3, 7)

    asyncio.run(scenario())
    assert "File exists" in caplog.text


def test_a_truncation_that_the_disk_fails_at_any_step_leaves_a_log_that_is_what_its_files_are() -> None:
    async def scenario() -> None:
        for step in range(1, 40):
            disk = MemoryDisk()
            bench = await open_bench(disk, segment_max_bytes=100)
            for number in range(8):
                await bench.store(bodies(number, 1))
            assert len(bench.log.segments) > 3
            before = disk.steps
            disk.fail_at(disk.steps + step)
            try:
                await bench.log.truncate(2, exposed_too=True)
            except OSError:
                pass
            whole = disk.steps < before + step
            assert await bench.read_all() == numbered(0, bench.log.end), f"failed at step {step}"
            disk.heal()
            await bench.log.truncate(2, exposed_too=True)
            await bench.store(bodies(2, 3))
            assert await bench.read_all() == numbered(0, 5), f"failed at step {step}"
            disk.crash()
            bench = await open_bench(disk)
            assert await bench.read_all() == numbered(0, 5), f"failed at step {step}"
            if whole:
                return
        raise AssertionError("the cut has more steps than were tried")

    asyncio.run(scenario())
