"""Files that became shorter, longer or garbage under a running log: damage that is said and stepped over, and never a
loop. On real files, for what a read finds at the end of one is the system's business."""

import asyncio
import logging
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bascule import limits
from bascule.errors import Unavailable
from bascule.log.chunk import read_chunk
from bascule.log.disk import FileDisk
from bascule.log.healing import Healing
from bascule.log.lookup import yielding
from bascule.log.scan import scan_segment
from bascule.log.segment import Segment
from bascule.node.partition.epochs import _read_from
from bascule.testing.logs import FOLDER, Bench, open_bench
from bascule.testing.records import split, values
from tests.harness.logs import bounded

COUNT = 200
SEGMENT_BYTES = 2_000


def body(number: int) -> bytes:
    return b"value %d " % number * (1 + number % 9)


def boundaries(data: bytes) -> list[int]:
    found = [0]
    for record in split(data):
        found.append(found[-1] + len(record))
    return found


def in_a_record(data: bytes) -> int:
    return boundaries(data)[3] + 20


def in_a_prefix(data: bytes) -> int:
    return boundaries(data)[3] + 2


def between_records(data: bytes) -> int:
    return boundaries(data)[3]


def to_nothing(data: bytes) -> int:
    return 0


CUTS = (in_a_record, in_a_prefix, between_records, to_nothing)
Cut = Callable[[bytes], int]


async def filled(disk: FileDisk) -> Bench:
    bench = await open_bench(disk, SEGMENT_BYTES)
    for number in range(0, COUNT, 5):
        await bench.store([body(each) for each in range(number, number + 5)])
    return bench


class Harmed:
    """A log of several segments, one of which is harmed while it runs."""

    def __init__(self, folder: Path, bench: Bench, sealed: bool) -> None:
        self.bench = bench
        self.log = bench.log
        self.number = 2 if sealed else len(self.log.segments) - 1
        self.segment = self.log.segments[self.number]
        self.path = folder / self.segment.path
        self.data = self.path.read_bytes()
        self.lost: set[int] = set()

    def cut(self, where: Cut) -> None:
        size = where(self.data)
        os.truncate(self.path, size)
        self.lost = {offset for offset, _ in values(self.data)} - {offset for offset, _ in values(self._whole(size))}

    def _whole(self, size: int) -> bytes:
        return self.data[: max(each for each in boundaries(self.data) if each <= size)]

    @property
    def retained(self) -> list[int]:
        return [offset for offset in range(COUNT) if offset not in self.lost]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FileDisk]:
    real = FileDisk(tmp_path)
    yield real
    real.close()


async def read_back(bench: Bench) -> list[int]:
    reader = bench.log.reverse_reader(COUNT)
    found: list[int] = []
    while (records := await reader.read(1_000)) is not None:
        found += [offset for offset, _ in values(records)]
    return found


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "active"])
@pytest.mark.parametrize("where", CUTS)
@pytest.mark.parametrize("max_bytes", [1, 1 << 20])
def test_what_is_missing_is_said_and_stepped_over(
    disk: FileDisk, tmp_path: Path, where: Cut, sealed: bool, max_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        bench = await filled(disk)
        harmed = Harmed(tmp_path, bench, sealed)
        harmed.cut(where)
        caplog.set_level(logging.ERROR)
        for _ in range(2):
            assert [offset for offset, _ in await bench.read_all(0, max_bytes)] == harmed.retained
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1
        assert harmed.segment.path in said[0]
        assert "shorter" in said[0]
        assert harmed.segment in bench.log.damaged
        # What comes later is stored and read all the same.
        await bench.store([b"and on"])
        assert [offset for offset, _ in await bench.read_all(0, max_bytes)] == [*harmed.retained, COUNT]
        await bench.close()

    with bounded():
        asyncio.run(scenario())


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "active"])
@pytest.mark.parametrize("where", CUTS)
def test_looking_up_times_and_reading_backwards_come_to_an_end(
    disk: FileDisk, tmp_path: Path, where: Cut, sealed: bool
) -> None:
    async def scenario() -> None:
        bench = await filled(disk)
        times = [max(each // 5 * 50, 1) + each % 5 for each in range(COUNT)]
        harmed = Harmed(tmp_path, bench, sealed)
        harmed.cut(where)
        for offset in range(COUNT):
            later = [each for each in harmed.retained if each >= offset]
            assert await bench.log.offset_at_or_after(times[offset]) == (later[0] if later else bench.log.end)
            earlier = [each for each in harmed.retained if each <= offset]
            assert await bench.log.offset_at_or_before(times[offset]) == (earlier[-1] if earlier else None)
        assert await read_back(bench) == harmed.retained[::-1]
        await bench.close()

    with bounded():
        asyncio.run(scenario())


@pytest.mark.parametrize("where", CUTS)
def test_what_waits_for_the_disk_behind_a_truncation_is_read(disk: FileDisk, tmp_path: Path, where: Cut) -> None:
    async def scenario() -> None:
        bench = await filled(disk)
        harmed = Harmed(tmp_path, bench, sealed=False)
        harmed.cut(where)
        bench.append([b"waits"])
        reader = bench.log.reader(0, uncommitted=True)
        found: list[int] = []
        while (records := await reader.read(1 << 20)) is not None:
            found += [offset for offset, _ in values(records)]
        assert found == [*harmed.retained, COUNT]
        assert (await _read_from(bench.log)).last_epoch == 1
        await bench.close()

    with bounded():
        asyncio.run(scenario())


@pytest.mark.parametrize("harm", ["cut", "emptied", "removed"])
def test_an_index_that_was_truncated_or_removed_is_made_again(disk: FileDisk, tmp_path: Path, harm: str) -> None:
    async def scenario() -> None:
        bench = await open_bench(disk, 400_000)
        for number in range(0, 9_000, 100):
            await bench.store([body(each) for each in range(number, number + 100)])
        segment = bench.log.segments[0]
        await bench.log.flushed()
        assert await bench.log.offset_at_or_after(10 * 700) == 700
        path = tmp_path / segment.index_path
        size = path.stat().st_size
        if harm == "removed":
            path.unlink()
            disk._files.forget(segment.index_path)  # as if it had been closed to make room for others
        else:
            os.truncate(path, size // 2 + 7 if harm == "cut" else 0)
        for offset in (0, 100, 700, 2_000):
            assert await bench.log.offset_at_or_after(10 * offset) == offset
            assert (await bench.read_all(offset))[0][0] == offset
        await bench.log.flushed()
        assert path.stat().st_size == size
        await bench.close()

    with bounded():
        asyncio.run(scenario())


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "active"])
@pytest.mark.parametrize("longer", [True, False])
def test_a_file_overwritten_with_random_bytes_gives_nothing_and_ends(
    disk: FileDisk, tmp_path: Path, sealed: bool, longer: bool
) -> None:
    async def scenario() -> None:
        bench = await filled(disk)
        harmed = Harmed(tmp_path, bench, sealed)
        size = len(harmed.data) * (3 if longer else 1)
        with harmed.path.open("r+b") as file:
            file.write(random.Random(1).randbytes(size))
        harmed.lost = {offset for offset, _ in values(harmed.data)}
        assert [offset for offset, _ in await bench.read_all()] == harmed.retained
        assert await read_back(bench) == harmed.retained[::-1]
        await bench.close()

    with bounded():
        asyncio.run(scenario())


@pytest.mark.parametrize("where", CUTS)
def test_a_file_truncated_while_it_is_scanned_does_not_hold_up_a_start(
    disk: FileDisk, tmp_path: Path, where: Cut
) -> None:
    async def scenario() -> None:
        bench = await filled(disk)
        harmed = Harmed(tmp_path, bench, sealed=True)
        harmed.cut(where)
        scan = await scan_segment(disk, harmed.segment.path, harmed.segment.base, len(harmed.data))
        assert scan.bad[-1][1] == len(harmed.data)
        await bench.close()

    with bounded():
        asyncio.run(scenario())


def test_a_search_in_a_long_file_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is in memory, so that no read waits for anything."""
    monkeypatch.setattr(limits, "RESYNC_BYTES", limits.KIB)
    monkeypatch.setattr("bascule.log.chunk._MAX_WHOLE_BYTES", limits.KIB)
    turns = 0
    size = 64 * limits.KIB
    malformed = bytes(size)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scenario() -> None:
        async def read(position: int, length: int, fresh: bool = False) -> bytes:
            return malformed[position : position + length]

        task = asyncio.get_running_loop().create_task(others())
        assert await read_chunk(yielding(read), 0, 1, size, 0, {}) is None
        task.cancel()

    with bounded():
        asyncio.run(scenario())
    assert turns > 50


def test_every_truncation_at_every_byte_of_a_small_segment_ends(disk: FileDisk, tmp_path: Path) -> None:
    async def scenario() -> None:
        bench = await open_bench(disk)
        await bench.store([body(each) for each in range(6)])
        path = tmp_path / FOLDER / f"{0:020}.log"
        data = path.read_bytes()
        ends = boundaries(data)
        for size in range(len(data), -1, -1):
            os.truncate(path, size)
            bench.log.segments[0].damage.clear()
            whole = sum(end <= size for end in ends[1:])
            assert [offset for offset, _ in await bench.read_all()] == list(range(whole))
        await bench.close()

    with bounded():
        asyncio.run(scenario())


def test_a_healing_that_changed_nothing_is_none(
    disk: FileDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever says "healed" without a new segment must not make readers look again for ever."""

    async def healed(segment: Segment, wait: bool) -> Healing:
        return Healing.HEALED

    async def scenario() -> None:
        bench = await filled(disk)
        harmed = Harmed(tmp_path, bench, sealed=True)
        harmed.cut(in_a_record)
        bench.log.segments.on_damage = healed
        monkeypatch.setattr(limits, "DAMAGE_PATIENCE_S", 0.2)
        with pytest.raises(Unavailable):
            await bench.read_all()
        await bench.close()

    with bounded():
        asyncio.run(scenario())
