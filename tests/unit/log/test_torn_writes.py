"""A write of which a power loss keeps later sectors and loses earlier ones: the log ends where the hole begins, for
nothing from there on was promised. A flipped bit is no such hole."""

import asyncio
import logging

import pytest

from bascule.log.refill import refill
from bascule.log.reread import Read
from bascule.log.sync import GROUP, SyncMode
from bascule.log.tail import Tail
from bascule.log.tornwrite import lacks_sectors
from bascule.testing.disk import SECTOR_BYTES, MemoryDisk
from bascule.testing.logs import FOLDER, Bench, open_bench, start_ends, stop_ends
from bascule.testing.loop import run
from bascule.testing.records import encode, record_starts
from bascule.wire.kernels import scan_records

PROMISED = [b"%d" % number for number in range(5)]
LOST, RETAINED = b"lost" * 300, b"kept"


def read_of(data: bytes) -> Read:
    async def read(position: int, length: int, fresh: bool = False) -> bytes:
        return data[position : position + length]

    return read


def hole_of(data: bytes, start: int) -> tuple[int, int] | None:
    """The first bad stretch from `start` on that has a valid record after it."""
    hole = scan_records(data, start, len(data), 0)[0]
    for end in range(hole + 1, len(data)):
        if scan_records(data, end, len(data), 0)[1]:
            return hole, end
    return None


@pytest.mark.parametrize("before", [0, 1, 100, 300, 507, 508, 509, 510, 511, 512, 700])
def test_whatever_sectors_of_a_write_are_missing_it_shows(before: int) -> None:
    async def main() -> None:
        write = encode([b"x" * 300, b"y" * 20, b"z" * 700, b"w" * 40], 0, 1000)[0]
        data, found = b"p" * before + write, 0
        for first in range(before // SECTOR_BYTES, len(data) // SECTOR_BYTES):
            for last in range(first, len(data) // SECTOR_BYTES):
                start, end = max(first * SECTOR_BYTES, before), (last + 1) * SECTOR_BYTES
                torn = data[:start] + bytes(end - start) + data[end:]
                hole = hole_of(torn, before)
                if torn != data and hole is not None:
                    assert await lacks_sectors(read_of(torn), *hole), (first, last)
                    found += 1
        assert found > 1

    run(main())


@pytest.mark.parametrize("left", [1, 2, 3])
def test_a_missing_sector_shows_though_the_next_record_begins_in_it_with_zeros(left: int) -> None:
    async def main() -> None:
        records = encode([b"x" * 700, b"y" * 700], 0, 1000)[0]
        first = record_starts(records)[1]
        before = -(left + first) % SECTOR_BYTES
        data, end = b"p" * before + records, before + first
        assert -end % SECTOR_BYTES == left
        torn = data[: end + left - SECTOR_BYTES] + bytes(SECTOR_BYTES) + data[end + left :]
        hole = hole_of(torn, before)
        assert hole is not None
        assert hole[1] == end
        assert await lacks_sectors(read_of(torn), *hole)

    run(main())


@pytest.mark.parametrize("before", [100, 508, 509, 510, 511, 512])
def test_a_flipped_bit_does_not_look_like_a_torn_write(before: int) -> None:
    async def main() -> None:
        write = encode([b"x" * 300, b"z" * 700, b"w" * 40], 0, 1000)[0]
        start = record_starts(write)[1]
        data = b"p" * (before - start % SECTOR_BYTES) + write
        start += len(data) - len(write)
        for position in range(start + 4, start + 700):
            flipped = bytearray(data)
            flipped[position] ^= 1 << position % 8
            hole = hole_of(bytes(flipped), len(data) - len(write))
            assert hole is not None
            assert hole[0] == start
            assert not await lacks_sectors(read_of(bytes(flipped)), *hole), position

    run(main())


async def promised(disk: MemoryDisk, *more: bytes, mode: SyncMode = GROUP, replicated: bool = False) -> str:
    """A log whose promises are on record, but for those of `more`. The path of its segment."""
    ends = await start_ends(disk)
    bench = await open_bench(disk, ends=ends, mode=mode, replicated=replicated)
    await bench.store(PROMISED)
    await asyncio.sleep(1)
    if more:
        await bench.store(list(more))
    return bench.log.segments[-1].path


def tear(disk: MemoryDisk, path: str) -> None:
    """The power goes while two records are written, of which the first one is lost."""
    disk.crash()
    written = encode([LOST, RETAINED], len(PROMISED), 1000)[0]
    first = record_starts(written)[1]
    disk.put(path, disk.content(path) + bytes(first) + written[first:])


async def started(disk: MemoryDisk, mode: SyncMode = GROUP) -> Bench:
    return await open_bench(disk, ends=await start_ends(disk), mode=mode)


async def offsets(bench: Bench) -> list[int]:
    return [offset for offset, _ in await bench.read_all()]


def test_the_only_replica_gives_the_offsets_of_a_torn_write_again(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        tear(disk, await promised(disk))
        with caplog.at_level(logging.WARNING):
            bench = await started(disk)
        assert bench.log.end == len(PROMISED)
        assert "a power loss tore a hole" in caplog.text
        assert any(RETAINED in disk.content(path) for path in disk.paths() if path.startswith("quarantine/"))
        await bench.store([b"next"])
        await asyncio.sleep(1)
        disk.crash()
        bench = await started(disk)
        assert await offsets(bench) == list(range(len(PROMISED) + 1))

    run(main())


def test_a_replica_with_a_torn_write_is_suspect_and_not_damaged() -> None:
    """As with any torn tail; and a start that is interrupted before it is truncated leaves that on record."""

    async def main() -> None:
        disk = MemoryDisk()
        tear(disk, await promised(disk, replicated=True))
        for _ in range(2):
            bench = await open_bench(disk, ends=await start_ends(disk), replicated=True)
            assert not bench.log.damaged
            assert (bench.log.end, bench.log.tail) == (len(PROMISED), Tail.SUSPECT)
            assert bench.log.record.torn_from is None
            disk.crash()

    run(main())


def test_what_was_promised_in_the_last_moments_stays_behind_a_flipped_bit() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        path = await promised(disk, b"a" * 600, b"b" * 600, b"c")
        disk.crash()
        disk.flip(path, record_starts(disk.content(path))[-2] + 300, 1)
        bench = await started(disk)
        assert await offsets(bench) == [0, 1, 2, 3, 4, 5, 7]
        await bench.store([b"next"])
        assert (await offsets(bench))[-1] == 8

    run(main())


@pytest.mark.parametrize("known", ["relaxed", "clean", "lost"])
def test_where_a_missing_sector_proves_nothing_what_is_behind_it_stays(known: str) -> None:
    """Relaxed promises are not synced; after a clean stop there was no write; and if nothing is on record all of it may
    have been promised."""
    mode = SyncMode("interval", 10**12) if known == "relaxed" else GROUP

    async def main() -> None:
        disk = MemoryDisk()
        if known == "clean":
            ends = await start_ends(disk)
            bench = await open_bench(disk, ends=ends)
            await bench.store([*PROMISED, LOST, RETAINED])
            await stop_ends(ends, bench)
            path = bench.log.segments[-1].path
            data = disk.content(path)
            start, end = record_starts(data)[-2:]
            disk.put(path, data[:start] + bytes(end - start) + data[end:])
        else:
            path = await promised(disk, mode=mode)
            await disk.evict(path)
            tear(disk, path)
        if known == "lost":
            await disk.remove("promised-ends")
        assert await offsets(await started(disk, mode)) == [0, 1, 2, 3, 4, 6]

    run(main())


def test_after_the_process_alone_ended_what_is_on_record_is_enough() -> None:
    """What looks like damage behind the promised end is not: whatever it is, nobody was told of it."""

    async def main() -> None:
        disk = MemoryDisk()
        path = await promised(disk)
        written = encode([b"half", RETAINED], len(PROMISED), 1000)[0]
        disk.put(path, disk.content(path) + b"\xff" + written[1:])
        bench = await started(disk)
        assert bench.log.end == len(PROMISED)

    run(main())


def test_an_index_is_evidence_that_what_it_speaks_of_was_synced() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        path = await promised(disk)
        tear(disk, path)
        other = MemoryDisk()
        bench = await open_bench(other, segment_max_bytes=100)
        await bench.store([*PROMISED, LOST, RETAINED])
        await bench.store([b"next"])
        await bench.close()
        index = next(each for each in other.paths() if each.endswith(".index") and each.startswith(FOLDER))
        disk.put(path.replace(".log", ".index"), other.content(index))
        assert await offsets(await started(disk)) == [0, 1, 2, 3, 4, 6]

    run(main())


def test_offsets_that_a_peer_lacks_too_are_not_said_to_be_back(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        disk = MemoryDisk()
        path = await promised(disk, LOST, RETAINED, replicated=True)
        disk.crash()
        lost, last = record_starts(disk.content(path))[-2:]
        disk.flip(path, lost + 100, 1)
        bench = await open_bench(disk, ends=await start_ends(disk), replicated=True)
        (segment,) = bench.log.damaged
        retained = disk.content(path)[last:]

        async def fetch(start: int, end: int) -> bytes:
            return retained if start <= len(PROMISED) + 1 < end else b""

        with caplog.at_level(logging.WARNING):
            assert await refill(bench.log, segment, fetch)
        assert not bench.log.damaged
        assert "are back" not in caplog.text
        assert "offsets 5 to 5 name nothing in another replica's log" in caplog.text

    run(main())
