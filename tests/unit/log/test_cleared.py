"""How far a log is cleared: of every tombstone below no older record of its key is left in it, but for the last records
of leader epochs."""

import asyncio
import random
import struct

import pytest

from bascule.errors import LogError
from bascule.log.checkpoint import write_checkpoint
from bascule.log.compaction import Progress
from bascule.testing.disk import MemoryDisk
from bascule.testing.keyed import Keyed
from bascule.testing.logs import Bench, open_bench
from bascule.testing.loop import run
from tests.harness.compacted import LARGE, SEGMENT, SMALL, files, filled, order, put, some, stored

DELETED = [Keyed(b"a", b"1"), *some(8, keys=3), Keyed(b"a", b"", True), *some(20, 8, keys=3)]
"""Its tombstone is at 9."""


def packed(*offsets: int) -> bytes:
    return b"".join(struct.pack("<q", offset) for offset in offsets)


async def again(disk: MemoryDisk) -> Bench:
    return await open_bench(disk, SEGMENT)


def test_a_pass_that_removes_all_that_tombstones_delete_clears_a_log_to_its_end() -> None:
    async def main() -> None:
        bench = await filled(MemoryDisk(), DELETED)
        await bench.log.compact(order(bench))
        progress = await bench.log.compaction.load()
        assert progress.cleared_end == progress.clean_end > 9

    run(main())


def test_the_last_record_of_a_producer_holds_it_until_a_pass_over_all_keys_has_removed_that() -> None:
    async def main() -> None:
        bench = await filled(MemoryDisk(), DELETED)
        await bench.log.compact(order(bench, protected=packed(0)))
        progress = await bench.log.compaction.load()
        assert (progress.cleared_end, progress.clean_end > 9) == (9, True)
        await put(bench, some(20, 40, keys=3))
        await bench.log.compact(order(bench))
        assert 0 in [each.offset for each in await stored(bench)], "this pass does not know its key"
        assert (await bench.log.compaction.load()).cleared_end == 9
        await bench.log.compact(order(bench, from_start=True))
        progress = await bench.log.compaction.load()
        assert progress.cleared_end == progress.clean_end

    run(main())


def test_the_last_record_of_an_epoch_does_not_hold_it_and_keeps_its_tombstone() -> None:
    async def main() -> None:
        bench = await filled(MemoryDisk(), DELETED)
        for _ in range(2):
            await bench.log.compact(order(bench, epoch_ends=packed(0), tombstones_until=1 << 60, from_start=True))
        progress = await bench.log.compaction.load()
        assert progress.cleared_end == progress.clean_end
        assert {0, 9} <= {each.offset for each in await stored(bench)}

    run(main())


def test_more_keys_than_fit_clear_it_pass_by_pass() -> None:
    async def main() -> None:
        messages = [Keyed(b"k%d" % number, b"", number % 2 == 1) for number in range(40) for _ in range(2)]
        bench = await filled(MemoryDisk(), messages)
        ends = []
        for _ in range(40):
            done = await bench.log.compact(order(bench, map_bytes=SMALL))
            progress = await bench.log.compaction.load()
            assert progress.cleared_end == progress.clean_end
            ends.append(progress.cleared_end)
            if done.ended:
                break
        assert ends == sorted(ends)
        assert len(set(ends)) > 3

    run(main())


def test_tombstones_go_below_their_end_and_no_further() -> None:
    async def main() -> None:
        messages = [Keyed(b"a", b"1"), Keyed(b"b", b"1"), *some(8), Keyed(b"a", b"", True), *some(8, 8)]
        bench = await filled(MemoryDisk(), [*messages, Keyed(b"b", b"", True), *some(20, 16)])
        await bench.log.compact(order(bench))
        sweep = order(bench, from_start=True, tombstones_until=1 << 60, tombstones_end=15, noted_end=15)
        assert (await bench.log.compact(sweep)).tombstones == 1
        left = [each.offset for each in await stored(bench) if each.message.key in (b"a", b"b")]
        assert left == [19]
        progress = await bench.log.compaction.load()
        assert (progress.gone_end, progress.alone_end) == (15, 15)

    run(main())


def test_it_counts_only_when_it_is_on_the_disk_after_what_makes_it_true() -> None:
    """Whatever step a power loss hits."""

    async def main() -> None:
        outcomes: set[int] = set()
        for step in range(1, 400):
            disk = MemoryDisk()
            bench = await filled(disk, DELETED)
            last = disk.steps + step
            disk.fail_at(last, times=1000)
            try:
                await bench.log.compact(order(bench))
            except LogError:
                pass
            done = disk.steps < last
            told = bench.log.compaction.progress or Progress()
            disk.heal()
            disk.crash(random.Random(step))
            after = await again(disk)
            end = (await after.log.compaction.load()).cleared_end
            assert end >= told.cleared_end, "what may have been told is on the disk"
            assert end <= 9 or 0 not in [each.offset for each in await stored(after)], "and it is so"
            outcomes.add(end)
            if done:
                break
        assert len(outcomes) == 2, outcomes

    run(main())


def test_a_pass_during_which_records_come_back_stores_nothing() -> None:
    async def main() -> None:
        bench = await filled(MemoryDisk(), DELETED)
        under_way = asyncio.get_running_loop().create_task(bench.log.compact(order(bench)))
        await asyncio.sleep(0)
        bench.log.compaction.changes += 1
        await under_way
        assert await bench.log.compaction.load() == Progress()

    run(main())


def test_a_log_that_begins_again_notes_all_keys_in_the_next_pass_and_is_cleared_to_what_is_given() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, DELETED)
        await bench.log.compact(order(bench))
        await bench.log.compaction.begin_again(5, 77)
        assert await (await again(disk)).log.compaction.load() == Progress(cleared_end=5, epoch=77)
        await bench.log.compact(order(bench))
        progress = await bench.log.compaction.load()
        assert (progress.cleared_end, progress.epoch) == (progress.clean_end, 77)

    run(main())


@pytest.mark.parametrize("empty", [True, False])
def test_a_log_that_begins_anew_is_cleared_to_nothing_until_that_is_said(empty: bool) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, [] if empty else DELETED)
        await bench.log.compact(order(bench))
        await bench.log.begin_anew()
        assert (await bench.log.compaction.load()) == Progress()
        await bench.log.compaction.begin_again(40, 3)
        after = await again(disk)
        assert await after.log.compaction.load() == Progress(cleared_end=40, epoch=3)
        assert after.log.end == after.log.start == 0
        await put(after, some(30))
        await after.log.compact(order(after, map_bytes=LARGE))
        assert (await after.log.compaction.load()).cleared_end == 40, "it never goes down"
        assert len(files(disk, "compaction")) == 1

    run(main())


def test_what_an_older_release_stored_is_a_log_that_is_not_cleared() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, DELETED)
        await write_checkpoint(disk, f"{bench.log.folder}/compaction", struct.pack("<qqq", 20, 5, 9))
        assert await (await again(disk)).log.compaction.load() == Progress()

    run(main())
