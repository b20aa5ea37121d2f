"""Where a log begins and what its last record was, also where segments hold none that can be read."""

from bascule.log.commitlog import CommitLog
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import open_bench
from bascule.testing.loop import run
from tests.harness.logs import bodies


async def open_replicated(disk: MemoryDisk) -> CommitLog:
    return (await open_bench(disk, segment_max_bytes=300, replicated=True)).log


async def damaged_from(first: int) -> MemoryDisk:
    """Two segments; the second one's records from `first` on cannot be read."""
    bench = await open_bench(disk := MemoryDisk(), segment_max_bytes=300)
    await bench.store(bodies(0, 5))
    await bench.store(bodies(5, 3))
    await bench.store(bodies(8, 3))
    await bench.close()
    paths = sorted(path for path in disk.paths() if path.endswith(".log"))
    assert len(paths) == 2
    data, position = disk.content(paths[1]), 0
    for offset in range(5, 11):
        size = 5 + int.from_bytes(data[position + 1 : position + 5], "big")
        if first <= offset < 9:
            disk.flip(paths[1], position + 12, 1)
        position += size
    return disk


def test_time_and_epoch_are_those_of_the_last_record_also_where_the_last_segment_holds_none() -> None:
    """Cut where only damage would be left of a segment: a leader that went on from timestamp 0 would break look-ups by
    time, and a log with epoch 0 would lose every comparison."""

    async def scenario() -> None:
        disk = await damaged_from(5)
        log = await open_replicated(disk)
        assert (log.end, log.last_epoch) == (11, 1)
        await log.truncate(9)
        assert log.segments[-1].first_offset < 0, "of the last segment nothing is left"
        assert (log.end, log.last_timestamp, log.last_epoch) == (5, log.segments[0].appended.last_timestamp, 1)
        again = await open_replicated(disk)
        assert (again.last_timestamp, again.last_epoch) == (log.last_timestamp, log.last_epoch)

    run(scenario())


def test_a_log_whose_first_segment_cannot_be_read_begins_where_that_did() -> None:
    async def scenario() -> None:
        disk = await damaged_from(5)
        first = min(path for path in disk.paths() if path.endswith(".log"))
        for position in range(12, len(disk.content(first)), 10):
            disk.flip(first, position, 1)
        await disk.remove(first.replace(".log", ".index"))
        log = await open_replicated(disk)
        assert (log.segments[0].first_offset, log.start) == (-1, 0)
        assert log.segments[1].first_timestamp > 0

    run(scenario())
