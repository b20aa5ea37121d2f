"""Readers: byte ranges of whole, verified records, forward and backward, across segments, gaps and damage."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from bascule import limits
from bascule.errors import LogError, Unavailable
from bascule.log.healing import Healing
from bascule.log.segment import Segment
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, Bench, open_bench
from bascule.testing.loop import run
from bascule.testing.records import split, values
from bascule.wire import kernels
from bascule.wire.record import FRAME_PREFIX_BYTES


def bodies(first: int, count: int) -> list[bytes]:
    return [b"value %d" % number for number in range(first, first + count)]


async def filled(disk: MemoryDisk, count: int = 200, segment_max_bytes: int = 2_000) -> Bench:
    bench = await open_bench(disk, segment_max_bytes=segment_max_bytes)
    for number in range(0, count, 5):
        await bench.store(bodies(number, 5))
    return bench


async def read_back(bench: Bench, start: int, max_bytes: int, oldest: int = 0) -> list[int]:
    reader = bench.log.reverse_reader(start, oldest)
    offsets: list[int] = []
    while (records := await reader.read(max_bytes)) is not None:
        found = [offset for offset, _ in values(records)]
        assert len(found) == reader.count
        offsets += found
    return offsets


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("max_bytes", [1, 100, 1_000, 1 << 20])
def test_a_reader_gives_every_record_from_its_offset_on(cached: bool, max_bytes: int) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await filled(disk)
        disk.cached = cached
        for start in (0, 1, 57, 199):
            assert [offset for offset, _ in await bench.read_all(start, max_bytes)] == list(range(start, 200))
        assert await bench.read_all(200) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("max_bytes", [1, 4_500, 9_000])
def test_what_waits_for_the_disk_is_read_in_stretches_as_long_as_asked(max_bytes: int) -> None:
    async def scenario() -> None:
        bench = await open_bench(MemoryDisk())
        for number in range(0, 400, 5):
            bench.append(bodies(number, 5))
        reader = bench.log.reader(3, uncommitted=True)
        found: list[tuple[int, bytes]] = []
        while (records := await reader.read(max_bytes)) is not None:
            found += values(records)
            # Many batches at once: a short read only where the next record would not fit, or at the end.
            assert len(records) > max(max_bytes, 4_096) - 500 or reader.next_offset == 400
        assert found == list(zip(range(3, 400), bodies(3, 397), strict=True))
        await bench.close()

    asyncio.run(scenario())


def test_what_a_reader_gives_is_what_stands_in_the_file() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, 20, 1 << 20)
        assert await bench.log.reader(0).read(1 << 20) == disk.content(f"{FOLDER}/{0:020}.log")

    asyncio.run(scenario())


def test_a_reader_stops_at_the_visible_end_and_at_its_stop() -> None:
    async def scenario() -> None:
        bench = await open_bench(MemoryDisk(), segment_max_bytes=500)
        for number in range(0, 50, 5):
            bench.append(bodies(number, 5))
        await bench.log.flushed()
        reader = bench.log.reader(3)
        assert await reader.read() is None, "nothing is visible yet"
        bench.log.set_visible_end(12)
        got: list[tuple[int, bytes]] = []
        while (records := await reader.read(100)) is not None:
            got += values(records)
        assert [offset for offset, _ in got] == list(range(3, 12))
        assert reader.next_offset == 12
        bench.log.set_visible_end(40)
        bench.log.set_visible_end(30)
        assert bench.log.visible_end == 40, "what was visible stays so"
        while (records := await reader.read(100, stop_end=33)) is not None:
            got += values(records)
        assert [offset for offset, _ in got] == list(range(3, 33))
        assert reader.next_offset == 33
        assert await reader.read(100, stop_end=33) is None
        records = await reader.read(100)
        assert records is not None
        assert values(records)[0][0] == 33

    asyncio.run(scenario())


def test_a_stop_inside_a_gap_is_reached() -> None:
    async def scenario() -> None:
        bench = await open_bench(MemoryDisk())
        await bench.store(bodies(0, 3))
        await bench.store(bodies(100, 3), offset=100)
        reader = bench.log.reader(1)
        records = await reader.read(1 << 20, stop_end=50)
        assert records is not None
        assert [offset for offset, _ in values(records)] == [1, 2]
        assert await reader.read(1 << 20, stop_end=50) is None
        assert reader.next_offset >= 50

    asyncio.run(scenario())


def test_nothing_unsynced_is_read_even_if_it_were_visible() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk)
        await bench.store(bodies(0, 3))
        bench.append(bodies(3, 3))
        bench.log.set_visible_end(6)
        reader = bench.log.reader(0)
        records = await reader.read()
        assert records is not None
        assert [offset for offset, _ in values(records)] == [0, 1, 2]
        assert await reader.read() is None
        await bench.log.flushed()
        records = await reader.read()
        assert records is not None
        assert [offset for offset, _ in values(records)] == [3, 4, 5]

    asyncio.run(scenario())


def test_a_record_larger_than_a_chunk_comes_whole() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk)
        large = bytes(range(256)) * 1024
        await bench.store([b"small", large, b"small"])
        disk.cached = False
        assert await bench.read_all(max_bytes=1000) == [(0, b"small"), (1, large), (2, b"small")]
        assert await read_back(bench, 2, 1000) == [2, 1, 0]

    asyncio.run(scenario())


def test_waiting_readers_wake_for_data_and_for_the_end_of_the_log() -> None:
    async def scenario() -> None:
        bench = await open_bench(MemoryDisk())
        readers = [bench.log.reader(0) for _ in range(100)]
        waits = [asyncio.ensure_future(reader.wait()) for reader in readers]
        await asyncio.sleep(0)
        assert len(bench.log.waiters) == 100
        await bench.store(bodies(0, 1))
        assert await asyncio.gather(*waits) == ["data"] * 100
        assert len(bench.log.waiters) == 0
        assert await readers[0].wait() == "data", "there is something to read already"
        assert await readers[0].read() is not None
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(readers[0].wait(), 0.01)
        assert len(bench.log.waiters) == 0, "one that gave up leaves nothing behind"
        last = asyncio.ensure_future(readers[0].wait())
        await asyncio.sleep(0)
        await bench.close()
        assert await last == "closed"
        assert await readers[0].wait() == "closed"

    asyncio.run(scenario())


@pytest.mark.parametrize("max_bytes", [1, 100, 1_000, 6_000, 1 << 20])
def test_a_reverse_reader_gives_every_record_newest_first(max_bytes: int) -> None:
    async def scenario() -> None:
        bench = await filled(MemoryDisk())
        for start in (0, 1, 57, 199):
            assert await read_back(bench, start, max_bytes) == list(range(start, -1, -1))
        assert await read_back(bench, 1000, max_bytes) == list(range(199, -1, -1))
        assert await read_back(bench, 150, max_bytes, oldest=42) == list(range(150, 41, -1))
        assert await read_back(bench, 30, max_bytes, oldest=42) == []

    asyncio.run(scenario())


def test_a_reverse_reader_stays_below_the_visible_end_and_crosses_gaps() -> None:
    async def scenario() -> None:
        bench = await open_bench(MemoryDisk(), segment_max_bytes=300)
        for first in (0, 10, 20, 30):
            bench.append(bodies(first, 4), offset=first)
        await bench.log.flushed()
        assert await read_back(bench, 99, 1000) == []
        bench.log.set_visible_end(22)
        assert await read_back(bench, 99, 1000) == [21, 20, 13, 12, 11, 10, 3, 2, 1, 0]
        assert await read_back(bench, 17, 1000) == [13, 12, 11, 10, 3, 2, 1, 0]

    asyncio.run(scenario())


@pytest.mark.parametrize("where", ["value", "length", "trailer", "flag"])
def test_damage_met_while_reading_is_stepped_over_and_said_once(where: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, 60, 1_000)
        path = bench.log.segments[1].path
        content = bytearray(disk.content(path))
        records = split(bytes(content))
        position = len(records[0]) + len(records[1])
        at = {"flag": 0, "length": 2, "value": 8, "trailer": len(records[2]) - 14}[where]
        content[position + at] ^= 0x10
        disk.put(path, bytes(content))
        (bad, _) = values(records[2])[0]
        expected = [offset for offset in range(60) if offset != bad]
        assert [offset for offset, _ in await bench.read_all()] == expected
        assert [offset for offset, _ in await bench.read_all(max_bytes=1)] == expected
        assert await read_back(bench, 99, 1) == expected[::-1]
        assert await bench.log.offset_at_or_after(bad // 5 * 50 + bad % 5) == bad + 1

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert caplog.text.count("are damaged and left out") == 1


@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
@pytest.mark.parametrize("harmed", [[7], [0], [59], [5, 6, 7], range(20, 45), [3, 30, 31, 59], range(60)])
def test_a_reader_says_what_it_went_past_because_it_is_damaged(harmed: Sequence[int], max_bytes: int) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, 60, 1_000)
        assert len(bench.log.segments) > 2
        for segment in bench.log.segments:
            position = 0
            for record in split(disk.content(segment.path)):
                if values(record)[0][0] in harmed:
                    disk.flip(segment.path, position + 30, 1)
                position += len(record)
        for start, end in ((0, 60), (6, 58), (30, 31)):
            reader = bench.log.reader(start)
            said: list[int] = []
            given: list[int] = []
            while reader.next_offset < end:
                position = reader.next_offset
                records = await reader.read(max_bytes, end)
                given += [offset for offset, _ in values(records)] if records else []
                assert (
                    not reader.damaged or position == reader.damaged.start < reader.damaged.stop <= reader.next_offset
                )
                said += reader.damaged
            assert said == [offset for offset in range(start, end) if offset in harmed]
            assert sorted(said + given) == list(range(start, end))

    asyncio.run(scenario())


def test_records_inside_a_damaged_records_value_are_not_served() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        inner = await filled(MemoryDisk(), 20, 1 << 20)
        smuggled = await inner.log.reader(5).read()
        assert smuggled is not None
        bench = await open_bench(disk)
        await bench.store([b"a", smuggled, b"c", b"d"])
        path = bench.log.segments[0].path
        content = bytearray(disk.content(path))
        content[content.index(smuggled) - 1] ^= 1  # the value's own length inside the record
        disk.put(path, bytes(content))
        assert await bench.read_all() == [(0, b"a"), (2, b"c"), (3, b"d")]

    asyncio.run(scenario())


def test_damage_at_the_very_end_is_stepped_over_too() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, 10, 1 << 20)
        path = bench.log.segments[0].path
        content = bytearray(disk.content(path))
        content[-1] ^= 1
        disk.put(path, bytes(content))
        assert [offset for offset, _ in await bench.read_all()] == list(range(9))
        reader = bench.log.reader(0)
        while await reader.read() is not None:
            pass
        assert reader.next_offset == 10
        await bench.store(bodies(10, 1))
        records = await reader.read()
        assert records is not None
        assert [offset for offset, _ in values(records)] == [10]

    asyncio.run(scenario())


def test_a_disk_that_cannot_be_read_is_an_error_that_names_the_file() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await filled(disk, 10, 1 << 20)
        disk.cached = False
        disk.fail_at(disk.steps + 1)
        reader = bench.log.reader(0)
        with pytest.raises(LogError, match=r"0\.log: reading failed"):
            await reader.read()
        assert await reader.read() is not None

    asyncio.run(scenario())


def test_a_reader_finds_its_place_again_after_the_log_was_truncated_under_it() -> None:
    async def scenario() -> None:
        bench = await filled(MemoryDisk(), 40, 500)
        bench.log.segments.visible_end = 20
        reader = bench.log.reader(0)
        while await reader.read(500) is not None:
            pass
        assert reader.next_offset == 20
        await bench.log.truncate(22)
        await bench.store([b"new 22", b"new 23"])
        records = await reader.read()
        assert records is not None
        rest = await reader.read()
        found = values(records + (rest or b""))
        assert found == [(20, b"value 20"), (21, b"value 21"), (22, b"new 22"), (23, b"new 23")]

    asyncio.run(scenario())


def test_every_byte_served_is_a_valid_record() -> None:
    async def scenario() -> None:
        bench = await filled(MemoryDisk())
        reader = bench.log.reader(7)
        while (records := await reader.read(700)) is not None:
            good, count, *_, status = kernels.scan_records(records, 0, len(records), 0)
            assert (good, status) == (len(records), 0)
            assert count == reader.count

    asyncio.run(scenario())


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("harm", ["a flipped bit", "a segment without its last record", "a segment that is gone"])
def test_a_consumer_never_steps_over_what_a_replica_out_of_reach_may_have(harm: str, backwards: bool) -> None:
    """Left out silently it would count as never stored. It waits, is told so, and gets all once that is known."""
    answers = [Healing.UNKNOWN]

    async def on_damage(segment: Segment, wait: bool) -> Healing:
        assert wait
        return answers[-1]

    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, 120, replicated=True)
        for batch in ([b"one", b"two"], [b"three", b"four"], [b"five"]):
            await bench.store(batch)
        first, second, _ = [each.path for each in bench.log.segments]
        missing = [0] if harm == "a flipped bit" else [1] if harm.endswith("record") else [2, 3]
        if harm == "a flipped bit":
            disk.flip(first, 20, 1)
        else:
            await bench.log.close()
            if harm.endswith("record"):
                disk.shorten(first, FRAME_PREFIX_BYTES + int.from_bytes(disk.content(first)[1:FRAME_PREFIX_BYTES]))
            else:
                disk.vanish(second)
            bench = await open_bench(disk, 120, replicated=True)
            bench.log.set_visible_end(bench.log.promised_end)
        bench.log.segments.on_damage = on_damage

        async def read() -> list[int]:
            reader = bench.log.reverse_reader(4) if backwards else bench.log.reader(0)
            found: list[int] = []
            while records := await reader.read():
                found += [offset for offset, _ in values(records)]
            return found

        with pytest.raises(Unavailable, match="start its broker"):
            await read()
        waiting = asyncio.get_running_loop().create_task(read())
        await asyncio.sleep(limits.DAMAGE_PATIENCE_S / 2)
        assert not waiting.done()
        answers.append(Healing.LOST)
        assert sorted(await waiting) == [each for each in range(5) if each not in missing]

    run(scenario())
