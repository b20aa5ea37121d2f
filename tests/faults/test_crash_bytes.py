"""A log truncated at every byte of its last segment, and with a bit flipped in every byte of it: recovery keeps exactly
the whole valid records, sets everything else aside, and the log goes on."""

import asyncio
from pathlib import Path

import pytest

from bascule.log.disk import FileDisk
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, open_bench
from bascule.testing.records import split, values
from bascule.wire import kernels

COUNT = 300
SEGMENT_BYTES = 4_000
STEP = 1 if kernels.TWIN == "compiled" else 17


async def written(disk: MemoryDisk | FileDisk) -> str:
    """A log of several segments; gives the path of the last."""
    bench = await open_bench(disk, SEGMENT_BYTES)
    for number in range(0, COUNT, 3):
        await bench.store([b"%d:" % offset + bytes(offset % 40) for offset in range(number, number + 3)])
    last = bench.log.segments[-1].path
    assert len(bench.log.segments) > 5
    await bench.close()
    return last


def aside(disk: MemoryDisk) -> list[bytes]:
    return [disk.content(path) for path in disk.paths() if path.startswith("quarantine/")]


class Aftermath:
    """The log as it was, and the check of what recovery made of a damaged copy of it."""

    def __init__(self, disk: MemoryDisk, last: str) -> None:
        self.last = last
        self.whole = disk.content(last)
        self.records = split(self.whole)
        self.starts = [sum(map(len, self.records[:number])) for number in range(len(self.records) + 1)]
        self.before = [disk.content(path) for path in disk.paths() if path.endswith(".log") and path != last]
        self.sealed = sum(len(split(content)) for content in self.before)
        self.disk = disk

    async def check(self, damaged: bytes, retained: list[bytes], lost: bytes, end: int) -> None:
        disk = self.disk.copy()
        disk.put(self.last, damaged)
        bench = await open_bench(disk, SEGMENT_BYTES)
        log = bench.log
        assert disk.content(self.last) == b"".join(retained)
        assert aside(disk) == ([lost] if lost.strip(b"\0") else [])
        assert log.end == log.promised_end == end
        log.set_visible_end(end)
        reader, found = log.reader(self.sealed), b""
        while (records := await reader.read()) is not None:
            found += records
        assert found == b"".join(retained)

    async def goes_on(self, damaged: bytes) -> None:
        disk = self.disk.copy()
        disk.put(self.last, damaged)
        bench = await open_bench(disk, SEGMENT_BYTES)
        expected = [*await bench.read_all(), (bench.log.end, b"and on")]
        await bench.store([b"and on"])
        disk.crash()
        again = await open_bench(disk, SEGMENT_BYTES)
        assert await again.read_all() == expected


def prepared() -> Aftermath:
    disk = MemoryDisk()
    return Aftermath(disk, asyncio.run(written(disk)))


def test_a_log_truncated_at_every_byte_keeps_every_whole_record() -> None:
    log = prepared()

    async def scenario() -> None:
        for size in range(0, len(log.whole), STEP):
            whole = sum(end <= size for end in log.starts[1:])
            lost = log.whole[log.starts[whole] : size]
            await log.check(log.whole[:size], log.records[:whole], lost, log.sealed + whole)

    asyncio.run(scenario())


def test_a_log_with_a_bit_flipped_in_every_byte_loses_that_record_alone() -> None:
    log = prepared()
    last = len(log.records) - 1

    async def scenario() -> None:
        for at in range(0, len(log.whole), STEP):
            number = next(number for number, end in enumerate(log.starts[1:]) if at < end)
            damaged = bytearray(log.whole)
            damaged[at] ^= 1 << at % 8
            lost = bytes(damaged[log.starts[number] : log.starts[number + 1]])
            retained = log.records[:number] + log.records[number + 1 :]
            await log.check(bytes(damaged), retained, lost, COUNT - (number == last))

    asyncio.run(scenario())


def test_after_any_such_damage_the_log_goes_on() -> None:
    log = prepared()

    async def scenario() -> None:
        for at in range(0, len(log.whole), 97):
            await log.goes_on(log.whole[:at])
            damaged = bytearray(log.whole)
            damaged[at] ^= 0x40
            await log.goes_on(bytes(damaged))

    asyncio.run(scenario())


def test_several_damaged_records_are_each_set_aside() -> None:
    log = prepared()

    async def scenario() -> None:
        damaged = bytearray(log.whole)
        for number in (1, 4, 5, len(log.records) - 1):
            damaged[log.starts[number] + 30] ^= 1
        disk = log.disk.copy()
        disk.put(log.last, bytes(damaged))
        bench = await open_bench(disk, SEGMENT_BYTES)
        gone = [log.sealed + number for number in (1, 4, 5, len(log.records) - 1)]
        assert [offset for offset, _ in await bench.read_all()] == [n for n in range(COUNT) if n not in gone]
        assert b"".join(aside(disk)).count(b"\x82\x7d\x0c") == 4

    asyncio.run(scenario())


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_a_real_file_truncated_around_its_record_boundaries(tmp_path: Path, shift: int) -> None:
    async def scenario() -> None:
        disk = FileDisk(tmp_path)
        try:
            path = tmp_path / await written(disk)
            whole = path.read_bytes()
            boundary = len(whole)
            for record in reversed(split(whole)):
                (offset, _) = values(record)[0]
                boundary -= len(record)
                if boundary + shift < 0:
                    break
                await disk.truncate(f"{FOLDER}/{path.name}", boundary + shift)
                bench = await open_bench(disk, SEGMENT_BYTES)
                assert bench.log.end == offset - (shift < 0)
                await bench.close()
        finally:
            disk.close()

    asyncio.run(scenario())
