"""Recovery: torn tails truncated, damage set aside, indexes made again, unknown files handled, and all of it logged."""

import asyncio
import logging

import pytest

from bascule import limits
from bascule.errors import LogError
from bascule.log.index import FileIndex
from bascule.log.quarantine import Quarantine
from bascule.log.tail import Tail
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, Bench, ManualClock, open_bench
from bascule.testing.records import encode, split


def bodies(first: int, count: int) -> list[bytes]:
    return [b"value %d" % number for number in range(first, first + count)]


def numbered(*offsets: int) -> list[tuple[int, bytes]]:
    return [(number, b"value %d" % number) for number in offsets]


async def filled(count: int = 30, segment_max_bytes: int = 1_000) -> tuple[MemoryDisk, Bench]:
    disk = MemoryDisk()
    bench = await open_bench(disk, segment_max_bytes=segment_max_bytes)
    for number in range(0, count, 5):
        await bench.store(bodies(number, 5))
    await asyncio.sleep(0.001)
    await bench.log.flushed()
    return disk, bench


def aside(disk: MemoryDisk) -> list[bytes]:
    return [disk.content(path) for path in disk.paths() if path.startswith("quarantine/")]


def segment(base: int) -> str:
    return f"{FOLDER}/{base:020}.log"


def index(base: int) -> str:
    return f"{FOLDER}/{base:020}.index"


def test_a_torn_tail_is_truncated_set_aside_and_its_offset_used_again(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk, _ = await filled(10, 1 << 20)
        torn = encode([b"never promised"], 10, 100)[0][:-5]
        disk.put(segment(0), disk.content(segment(0)) + torn)
        bench = await open_bench(disk)
        assert bench.log.end == 10
        assert bench.log.tail is Tail.SUSPECT
        assert await bench.read_all() == numbered(*range(10))
        assert aside(disk) == [torn]
        await bench.store(bodies(10, 1))
        assert await bench.read_all() == numbered(*range(11))

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "a torn tail" in caplog.text
    assert "moved to quarantine/" in caplog.text


def test_a_tail_of_zeros_is_truncated_and_not_set_aside() -> None:
    async def scenario() -> None:
        disk, _ = await filled(10, 1 << 20)
        disk.put(segment(0), disk.content(segment(0)) + bytes(5000))
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(*range(10))
        assert aside(disk) == []
        assert bench.log.tail is Tail.SUSPECT
        await bench.close()
        assert (await open_bench(disk)).log.tail is Tail.LIKELY

    asyncio.run(scenario())


def test_damage_in_the_middle_leaves_a_hole_and_keeps_what_follows(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk, _ = await filled(10, 1 << 20)
        content = bytearray(disk.content(segment(0)))
        records = split(bytes(content))
        start = sum(map(len, records[:4]))
        content[start + 20] ^= 4
        bad = bytes(content[start : start + len(records[4])])
        disk.put(segment(0), bytes(content))
        bench = await open_bench(disk)
        expected = numbered(0, 1, 2, 3, 5, 6, 7, 8, 9)
        assert await bench.read_all() == expected
        assert bench.log.end == 10
        assert aside(disk) == [bad]
        assert disk.content(segment(0)) == b"".join(records[:4] + records[5:])
        await bench.store(bodies(10, 1))
        disk.crash()
        again = await open_bench(disk)
        assert await again.read_all() == [*expected, *numbered(10)]
        assert len(aside(disk)) == 1, "nothing is left to repair"

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "damage" in caplog.text


def test_a_damaged_length_is_searched_past() -> None:
    async def scenario(flip: int) -> None:
        disk, _ = await filled(10, 1 << 20)
        content = bytearray(disk.content(segment(0)))
        records = split(bytes(content))
        content[len(records[0]) + 4] ^= flip
        disk.put(segment(0), bytes(content))
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(0, *range(2, 10))

    for flip in (1, 2, 64, 128):
        asyncio.run(scenario(flip))


def test_a_length_that_claims_the_rest_of_the_file_hides_nothing() -> None:
    async def scenario() -> None:
        disk, _ = await filled(10, 1 << 20)
        content = bytearray(disk.content(segment(0)))
        first = len(split(bytes(content))[0])
        content[first + 1 : first + 5] = (limits.MAX_RECORD_BYTES - 1).to_bytes(4, "big")
        disk.put(segment(0), bytes(content))
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(0, *range(2, 10))

    asyncio.run(scenario())


def test_record_bytes_in_the_value_of_a_damaged_record_are_not_taken_for_records() -> None:
    async def scenario(at_the_end: bool) -> None:
        smuggled = encode([b"smuggled"] * 5, 50, 5000)[0]
        disk = MemoryDisk()
        bench = await open_bench(disk)
        await bench.store([b"value 0", smuggled] if at_the_end else [b"value 0", smuggled, b"value 2", b"value 3"])
        content = bytearray(disk.content(segment(0)))
        content[content.index(smuggled) - 1] ^= 1
        disk.put(segment(0), bytes(content))
        bench = await open_bench(disk)
        assert await bench.read_all() == (numbered(0) if at_the_end else numbered(0, 2, 3))
        assert len(aside(disk)) == 1

    asyncio.run(scenario(at_the_end=False))
    asyncio.run(scenario(at_the_end=True))


def test_one_smuggled_record_is_not_believed_without_a_second_after_it() -> None:
    async def scenario() -> None:
        smuggled = encode([b"smuggled"], 50, 5000)[0]
        disk = MemoryDisk()
        bench = await open_bench(disk)
        await bench.store([b"value 0", b"x" + smuggled + b"x", b"value 2", b"value 3"])
        content = bytearray(disk.content(segment(0)))
        content[len(split(bytes(content))[0]) + 2] ^= 1  # the length of record 1
        disk.put(segment(0), bytes(content))
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(0, 2, 3)

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["missing", "empty", "shortened", "footer", "magic", "other segment"])
def test_a_bad_index_file_is_made_anew_at_the_start(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk, bench = await filled(60)
        good = disk.content(index(0))
        times = {time: await bench.log.offset_at_or_after(time) for time in range(0, 700, 7)}
        bad = {
            "empty": b"",
            "shortened": good[:-30],
            "footer": good[:-20] + bytes([good[-20] ^ 1]) + good[-19:],
            "magic": good.replace(b"BSCINDX2", b"BSCINDX0"),
            "other segment": disk.content(index(bench.log.segments[1].base)),
        }
        if how == "missing":
            await disk.remove(index(0))
        else:
            disk.put(index(0), bad[how])
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(*range(60))
        assert {time: await bench.log.offset_at_or_after(time) for time in times} == times
        await bench.log.flushed()
        assert disk.content(index(0)) == good

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "to make it again" in caplog.text


def test_wrong_index_entries_are_found_at_their_first_use(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, segment_max_bytes=100_000)
        for number in range(0, 2000, 50):
            await bench.store(bodies(number, 50))
        await bench.log.flushed()
        good = disk.content(index(0))
        assert len(good) > 400
        disk.put(index(0), good[:24] + bytes(240) + good[264:])
        bench = await open_bench(disk, segment_max_bytes=100_000)
        assert isinstance(bench.log.segments[0].index, FileIndex)
        for start in (0, 50, 100, 300, 700):
            assert (await bench.read_all(start))[0] == (start, b"value %d" % start)
        await bench.log.flushed()
        assert disk.content(index(0)) == good

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert caplog.text.count("its entries are damaged") == 1


def test_a_sealed_segment_of_another_size_than_its_index_says_is_scanned() -> None:
    async def scenario() -> None:
        disk, bench = await filled(60)
        second = bench.log.segments[1].base
        disk.put(segment(0), disk.content(segment(0))[:-1])
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(*range(second - 1), *range(second, 60))
        assert bench.log.end == 60
        await bench.log.flushed()
        again = await open_bench(disk)
        assert again.log.segments[0].footer().end == second - 1

    asyncio.run(scenario())


def test_only_the_last_segment_is_scanned() -> None:
    async def scenario() -> None:
        disk, bench = await filled(60)
        content = bytearray(disk.content(segment(0)))
        content[30] ^= 1
        disk.put(segment(0), bytes(content))
        sizes = [one.promised.size for one in bench.log.segments]
        bench = await open_bench(disk)
        assert [one.promised.size for one in bench.log.segments] == sizes, "the first one was not looked into"
        assert await bench.read_all() == numbered(*range(1, 60)), "but nothing bad is served"

    asyncio.run(scenario())


def test_records_that_the_next_segment_has_too_are_truncated() -> None:
    async def scenario() -> None:
        disk, bench = await filled(20)
        second = bench.log.segments[1].base
        overlap = disk.content(segment(second))
        disk.put(segment(0), disk.content(segment(0)) + overlap)
        await disk.remove(index(0))
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(*range(20))
        assert aside(disk) == [overlap]

    asyncio.run(scenario())


def test_an_index_does_not_hide_that_the_next_segment_begins_earlier() -> None:
    async def scenario() -> None:
        disk, bench = await filled(20, 1_000)
        second = bench.log.segments[1].base
        records = split(disk.content(segment(0)))[-2:] + split(disk.content(segment(second)))
        await disk.remove(segment(second))
        disk.put(segment(second - 2), b"".join(records))
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(*range(bench.log.end))
        assert bench.log.segments[0].appended.end == second - 2

    asyncio.run(scenario())


def test_an_empty_last_file_is_where_writing_goes_on() -> None:
    async def scenario() -> None:
        disk, _ = await filled(10, 1 << 20)
        disk.put(segment(10), b"")
        bench = await open_bench(disk)
        assert (bench.log.start, bench.log.end) == (0, 10)
        assert bench.log.last_timestamp > 0
        await bench.store(bodies(10, 2))
        assert disk.content(segment(10))
        assert await bench.read_all() == numbered(*range(12))

    asyncio.run(scenario())


def test_a_lone_segment_with_nothing_valid_keeps_its_offsets_unused() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        disk.put(segment(700), b"nothing that is a record")
        bench = await open_bench(disk)
        assert (bench.log.start, bench.log.end) == (700, 700)
        assert aside(disk) == [b"nothing that is a record"]
        await bench.store(bodies(700, 1))
        assert await bench.read_all() == numbered(700)

    asyncio.run(scenario())


def test_an_empty_file_in_the_middle_is_removed() -> None:
    async def scenario() -> None:
        disk, bench = await filled(60)
        second = bench.log.segments[1].base
        disk.put(segment(second), b"")
        bench = await open_bench(disk)
        third = bench.log.segments[1].base
        assert await bench.read_all() == numbered(*range(second), *range(third, 60))
        assert segment(second) not in disk.paths()

    asyncio.run(scenario())


def test_strays_are_said_and_only_ours_are_removed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk, _ = await filled(10, 1 << 20)
        strays = [f"{FOLDER}/notes.txt", f"{FOLDER}/{3:020}.index", f"{FOLDER}/{0:020}.log.tmp"]
        for path in strays:
            disk.put(path, b"something")
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(*range(10))
        assert [path in disk.paths() for path in strays] == [True, False, False]

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "not a file of this log" in caplog.text
    assert "an index without its segment" in caplog.text
    assert "not finished" in caplog.text


def test_what_a_killed_process_left_unsynced_is_synced_before_it_counts() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        disk.sync_delay_s = 3600
        bench = await open_bench(disk)
        bench.append(bodies(0, 5))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        disk.sync_delay_s = 0
        again = await open_bench(disk)  # another process sees what is in the page cache
        assert again.log.promised_end == 5
        disk.crash()
        third = await open_bench(disk)
        assert await third.read_all() == numbered(*range(5))

    asyncio.run(scenario())


def test_bytes_that_cannot_be_set_aside_are_not_truncated() -> None:
    async def scenario() -> None:
        disk, _ = await filled(10, 1 << 20)
        content = disk.content(segment(0))[:-3]
        disk.put(segment(0), content)
        disk.capacity_bytes = len(content)
        with pytest.raises(LogError, match="cannot be recovered"):
            await open_bench(disk)
        assert disk.content(segment(0)) == content
        disk.capacity_bytes = None
        bench = await open_bench(disk)
        assert await bench.read_all() == numbered(*range(9))

    asyncio.run(scenario())


def test_the_quarantine_is_bounded_and_the_oldest_leave_first(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        clock = ManualClock()
        quarantine = Quarantine(disk, clock, limit_bytes=250)
        disk.put("quarantine/somebody's folder/x", b"y" * 1000)
        for number in range(5):
            disk.put("source", bytes([65 + number]) * 100)
            clock.now_ns += 1_000_000_000
            await quarantine.keep("source", 0, 100)
        assert [content[:1] for content in aside(disk) if len(content) == 100] == [b"D", b"E"]
        assert "quarantine/somebody's folder/x" in disk.paths()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "removing its oldest piece" in caplog.text


class CountingDisk(MemoryDisk):
    """Notes how many bytes of a segment each read brought."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []

    async def read(self, path: str, position: int, length: int, fresh: bool = False) -> bytes:
        data = await super().read(path, position, length, fresh)
        if path.endswith(".log"):
            self.reads.append(len(data))
        return data


def test_a_large_segment_is_recovered_with_few_reads_each_byte_once(monkeypatch: pytest.MonkeyPatch) -> None:
    piece = 64 * 1024
    monkeypatch.setattr(limits, "RECOVERY_READ_BYTES", piece)
    count = 4000
    content = encode([bytes(1000)] * count, 1, 1)[0]

    async def scenario() -> None:
        disk = CountingDisk()
        disk.put(segment(1), content)
        bench = await open_bench(disk)
        assert bench.log.end == 1 + count
        # A record that goes across the end of a piece is read again with the next one: 1 in 62.
        assert len(content) <= sum(disk.reads) <= 1.02 * len(content)
        assert len(disk.reads) <= 1.02 * len(content) / piece + 1
        assert max(disk.reads) <= piece

    asyncio.run(scenario())


def test_a_damaged_segment_gets_no_index_so_that_the_next_start_knows() -> None:
    """An index is believed without a look at the records: with one, damage would be forgotten at the next start, and
    the replica would count as whole until a reader came to the place."""

    async def scenario() -> None:
        disk, _ = await filled(60)
        content = bytearray(disk.content(segment(0)))
        content[len(split(bytes(content))[0]) + 20] ^= 4
        disk.put(segment(0), bytes(content))
        await disk.remove(index(0))
        bench = await open_bench(disk, segment_max_bytes=1_000, replicated=True)
        assert [each.base for each in bench.log.damaged] == [0]
        await bench.store(bodies(60, 30))
        await bench.log.flushed()
        assert await disk.size(index(0)) is None
        assert await disk.size(index(bench.log.segments[1].base)) is not None
        await bench.close()
        again = await open_bench(disk, segment_max_bytes=1_000, replicated=True)
        assert [each.base for each in again.log.damaged] == [0]

    asyncio.run(scenario())
