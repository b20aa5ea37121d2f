"""Atomic batches in a log: there whole or not at all, whatever a crash left of their write, and replicated whole."""

import asyncio
import random

import pytest

from bascule.core.partition.epochs import EpochHistory
from bascule.core.replication.feed import Read, WasRead
from bascule.log.reader import Reader
from bascule.log.sync import GROUP, SyncMode
from bascule.log.tail import Tail
from bascule.node.replication.reads import read_records
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import Bench, open_bench, start_ends, stop_ends
from bascule.testing.loop import run
from bascule.testing.records import encode_batch, record_starts, values

PLAIN = [b"plain %d" % number for number in range(3)]
LARGE = [letter * 9000 for letter in (b"v", b"w", b"x", b"y", b"z")]
BATCH = [b"a" * 300, b"", b"b" * 700, b"c", b"d" * 90]


def append(bench: Bench, bodies: list[bytes]) -> None:
    end = bench.log.end
    bench.log.append(*encode_batch(bodies, end, max(end * 10, bench.log.last_timestamp + 1)))


async def stored(disk: MemoryDisk, *, replicated: bool = False, mode: SyncMode = GROUP) -> Bench:
    """A log with plain records whose promise is on record, and a batch whose promise is not."""
    bench = await open_bench(disk, ends=await start_ends(disk), replicated=replicated, mode=mode)
    await bench.store(PLAIN)
    await asyncio.sleep(1)
    append(bench, BATCH)
    await bench.log.flushed()
    return bench


async def reopened(disk: MemoryDisk, *, replicated: bool = False) -> Bench:
    return await open_bench(disk, ends=await start_ends(disk), replicated=replicated)


@pytest.mark.parametrize("replicated", [False, True])
def test_a_batch_truncated_at_any_byte_is_there_whole_or_not_at_all(replicated: bool) -> None:
    async def main() -> None:
        first = MemoryDisk()
        bench = await stored(first, replicated=replicated)
        path = bench.log.segments[-1].path
        data = first.content(path)
        begin, *borders = record_starts(data)[len(PLAIN) :]
        for size in (begin, begin + 1, *(border + by for border in borders for by in (-1, 0, 40)), len(data)):
            disk = MemoryDisk()
            await stored(disk, replicated=replicated)
            disk.crash()
            disk.put(path, data[:size])
            bench = await reopened(disk, replicated=replicated)
            found = [value for _, value in await bench.read_all()]
            assert found == ([*PLAIN, *BATCH] if size == len(data) else PLAIN), size
            assert bench.log.end == len(found)

    run(main())


def test_what_a_loss_of_power_leaves_of_a_batch_is_all_or_nothing() -> None:
    """Any sectors of the write, at every step of it."""
    wholes = [0, 0]

    async def main(seed: int) -> None:
        disk, chance = MemoryDisk(), random.Random(seed)
        bench = await open_bench(disk, ends=await start_ends(disk))
        await bench.store(PLAIN)
        await asyncio.sleep(1)
        append(bench, BATCH)
        append(bench, BATCH[:2])
        for _ in range(chance.randrange(8)):
            await asyncio.sleep(0)
        disk.crash(chance)
        bench = await reopened(disk)
        found = [value for _, value in await bench.read_all()]
        assert found in (PLAIN, [*PLAIN, *BATCH], [*PLAIN, *BATCH, *BATCH[:2]]), seed
        wholes[found != PLAIN] += 1
        await bench.store([b"next"])
        assert (await bench.read_all())[-1] == (len(found), b"next")

    for seed in range(150):
        run(main(seed))
    assert min(wholes) > 10


def test_a_start_that_is_interrupted_before_a_part_of_a_batch_is_cut_leaves_that_on_record() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await stored(disk, replicated=True)
        disk.crash()
        path = bench.log.segments[-1].path
        data = disk.content(path)
        disk.put(path, data[: record_starts(data)[-1]])  # at the border of a record: nothing is torn
        for _ in range(2):
            bench = await reopened(disk, replicated=True)
            assert (bench.log.end, bench.log.tail) == (len(PLAIN), Tail.SUSPECT)
            assert not bench.log.damaged
            disk.crash()
        assert any(b"a" * 300 in disk.content(each) for each in disk.paths() if each.startswith("quarantine/"))

    run(main())


@pytest.mark.parametrize("clean", [True, False])
def test_of_a_batch_that_was_promised_only_the_damaged_record_is_lost(clean: bool) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        ends = await start_ends(disk)
        bench = await open_bench(disk, ends=ends)
        await bench.store(PLAIN)
        append(bench, BATCH)
        await bench.log.flushed()
        path = bench.log.segments[-1].path
        if clean:
            await stop_ends(ends, bench)
        else:
            await asyncio.sleep(1)  # the promise is on record
            disk.crash()
        disk.flip(path, len(disk.content(path)) - 30, 1)
        bench = await reopened(disk)
        assert [value for _, value in await bench.read_all()] == [*PLAIN, *BATCH[:-1]]
        await bench.store([b"next"])
        assert (await bench.read_all())[-1] == (8, b"next")

    run(main())


def test_a_hole_in_a_batch_counts_from_its_first_record() -> None:
    """Where a write may have been torn, a replica that is to lead truncates it: not in the middle of a batch."""

    async def main() -> None:
        disk = MemoryDisk()
        bench = await stored(disk, replicated=True)
        disk.crash()
        path = bench.log.segments[-1].path
        disk.flip(path, record_starts(disk.content(path))[-3] + 400, 1)
        bench = await reopened(disk, replicated=True)
        assert bench.log.record.torn_from == len(PLAIN)
        assert bench.log.end == len(PLAIN) + len(BATCH)

    run(main())


def test_a_hole_in_a_batch_that_is_not_whole_goes_with_it() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await stored(disk, replicated=True)
        disk.crash()
        path = bench.log.segments[-1].path
        starts = record_starts(disk.content(path))
        disk.put(path, disk.content(path)[: starts[-1]])
        disk.flip(path, starts[-3] + 400, 1)
        bench = await reopened(disk, replicated=True)
        assert (bench.log.end, bench.log.record.torn_from) == (len(PLAIN), None)
        assert not bench.log.damaged

    run(main())


async def answers(bench: Bench, max_bytes: int) -> list[list[int]]:
    """The offsets of what a follower is given, answer by answer."""
    epochs = EpochHistory()
    epochs.begin(1, 0)
    given: list[list[int]] = []
    offset, cursor = 0, None
    while offset < bench.log.end:
        found: WasRead = await read_records(bench.log, epochs, Read((1, 0), offset, max_bytes, cursor))
        assert found.records
        given.append([each for each, _ in values(found.records)])
        assert found.end == given[-1][-1] + 1
        offset, cursor = found.end, found.cursor
    return given


@pytest.mark.parametrize("max_bytes", [1, 9000, 20_000, 40_000, 60_000])
def test_a_follower_is_never_given_a_part_of_a_batch(max_bytes: int) -> None:
    async def main() -> None:
        bench = await open_bench(MemoryDisk())
        bench.append(LARGE[:3])
        append(bench, LARGE)
        append(bench, LARGE[:3])
        bench.append(LARGE[:3])
        await bench.log.flushed()
        given = await answers(bench, max_bytes)
        assert [offset for each in given for offset in each] == list(range(14))
        assert len(given) > 1
        assert {each[-1] + 1 for each in given}.isdisjoint({4, 5, 6, 7, 9, 10})

    run(main())


def test_a_follower_in_the_middle_of_a_batch_is_given_the_rest_of_it() -> None:
    """Its last records were damaged there."""

    async def main() -> None:
        bench = await open_bench(MemoryDisk())
        append(bench, LARGE)
        await bench.log.flushed()
        epochs = EpochHistory()
        epochs.begin(1, 0)
        found = await read_records(bench.log, epochs, Read((1, 0), 2, 1, None))
        assert [offset for offset, _ in values(found.records)] == [2, 3, 4]

    run(main())


def test_a_batch_whose_rest_is_lost_is_given_as_it_is() -> None:
    async def main() -> None:
        bench = await open_bench(MemoryDisk())
        records, _, _, timestamp = encode_batch(LARGE)
        cut = record_starts(records)[3]
        bench.log.append(records[:cut], 3, 3, timestamp)
        bench.append([b"later"], offset=5)
        await bench.log.flushed()
        assert [offset for each in await answers(bench, 1) for offset in each] == [0, 1, 2, 5]

    run(main())


def test_a_batch_whose_rest_cannot_be_read_now_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is damaged, and about to be healed."""

    async def main() -> None:
        bench = await open_bench(MemoryDisk())
        bench.append(PLAIN)
        append(bench, LARGE)
        await bench.log.flushed()
        usual = Reader.read

        async def read(reader: Reader, max_bytes: int, stop_end: int) -> bytes | None:
            return await usual(reader, max_bytes, stop_end) if reader.next_offset < 4 else None

        epochs = EpochHistory()
        epochs.begin(1, 0)
        with monkeypatch.context() as patched:
            patched.setattr(Reader, "read", read)
            found = await read_records(bench.log, epochs, Read((1, 0), 0, 15_000, None))
            assert [offset for offset, _ in values(found.records)] == [0, 1, 2]
            assert (found.end, found.epoch, found.cursor) == (3, 1, None)
            found = await read_records(bench.log, epochs, Read((1, 0), 3, 1, None))
            assert found == WasRead(b"", 3, 0, 3, None)
        found = await read_records(bench.log, epochs, Read((1, 0), 3, 1, None))
        assert [offset for offset, _ in values(found.records)] == [3, 4, 5, 6, 7]

    run(main())


def test_a_batch_is_never_split_by_a_new_segment() -> None:
    async def main() -> None:
        bench = await open_bench(MemoryDisk(), segment_max_bytes=500)
        for _ in range(5):
            append(bench, BATCH)
            await bench.log.flushed()
        assert len(bench.log.segments) > 3
        assert {segment.base % len(BATCH) for segment in bench.log.segments} == {0}

    run(main())
