"""A log is a list: random histories of appends, rolls, restarts, failures and lost indexes against a plain model."""

import random
from bisect import bisect_left, bisect_right

from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.log.index import OFFSET, POSITION, TIMESTAMP, FileIndex, MemoryIndex, encode_footer, floor_in, read_footer
from bascule.log.scan import scan_segment
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, Bench, open_bench
from bascule.testing.loop import run
from bascule.testing.records import encode, values

sizes = st.sampled_from([0, 1, 10, 100, 2_000, 9_000])
appends = st.tuples(st.just("append"), st.lists(sizes, min_size=1, max_size=8), st.sampled_from([0, 0, 0, 1, 7]))
steps = st.one_of(
    appends,
    appends,
    appends,
    st.tuples(st.just("wait")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("crash"), st.integers(0, 1 << 16)),
    st.tuples(st.just("lose indexes")),
    st.tuples(st.just("fail"), st.integers(1, 4)),
)


class Model:
    """What the log must hold: (offset, timestamp, value), promised or only appended."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int, bytes]] = []
        self.number = 0

    def end(self) -> int:
        return self.records[-1][0] + 1 if self.records else 0

    def keep_below(self, end: int) -> None:
        self.records = [record for record in self.records if record[0] < end]


class Driver:
    def __init__(self, segment_max_bytes: int) -> None:
        self.disk = MemoryDisk()
        self.model = Model()
        self.segment_max_bytes = segment_max_bytes
        self.bench: Bench

    async def open(self) -> None:
        self.bench = await open_bench(self.disk, self.segment_max_bytes)

    async def step(self, step: tuple[object, ...]) -> None:
        match step:
            case ("append", list(lengths), int(gap)):
                await self._append(lengths, gap)
            case ("wait",):
                await self.bench.log.flushed()
            case ("restart",):
                await self.bench.close()
                await self.open()
            case ("crash", int(seed)):
                await self._crash(seed)
            case ("lose indexes",):
                await self.bench.close()
                for path in self.disk.paths():
                    if path.endswith(".index"):
                        await self.disk.remove(path)
                await self.open()
            case ("fail", int(nth)):
                self.disk.fail_at(self.disk.steps + nth)
                await self._append([50, 50], 0)
                await self.bench.log.flushed()
                self.disk.heal()
                self.model.keep_below(self.bench.log.end)
                await self.bench.log.reopen()

    async def _append(self, lengths: list[int], gap: int) -> None:
        log, model = self.bench.log, self.model
        bodies = []
        for length in lengths:
            model.number += 1
            bodies.append(b"%d:" % model.number + bytes(length))
        offset = log.end + gap
        timestamp = log.last_timestamp + 1 + gap * 3
        log.append(*encode(bodies, offset, timestamp))
        model.records += [(offset + n, timestamp + n, body) for n, body in enumerate(bodies)]

    async def _crash(self, seed: int) -> None:
        """Lose power with whatever is on its way; what was promised stays, of the rest some may."""
        promised = self.bench.log.promised_end
        scheduler = self.bench.scheduler
        self.disk.crash(random.Random(seed))
        await scheduler.close()
        await self.open()
        found = {offset for offset, _ in await self.bench.read_all()}
        expected = {record[0] for record in self.model.records if record[0] < promised}
        assert expected <= found
        self.model.records = [record for record in self.model.records if record[0] in found]
        assert len(self.model.records) == len(found)

    async def check(self) -> None:
        """The log and the model agree, on promised and on waiting records."""
        log, model = self.bench.log, self.model
        assert log.end >= model.end()
        assert log.start == (model.records[0][0] if model.records else log.end)
        timestamps = [record[1] for record in model.records]
        interesting = {0, 1, *timestamps[:3], *timestamps[-3:], *timestamps[:: max(len(timestamps) // 7, 1)]}
        for timestamp in sorted({near for time in interesting for near in (time - 1, time, time + 1)}):
            at = bisect_left(timestamps, timestamp)
            assert await log.offset_at_or_after(timestamp) == (
                model.records[at][0] if at < len(timestamps) else log.end
            )
            at = bisect_right(timestamps, timestamp) - 1
            assert await log.offset_at_or_before(timestamp) == (model.records[at][0] if at >= 0 else None)
        await log.flushed()
        expected = [(record[0], record[2]) for record in model.records]
        assert await self.bench.read_all() == expected
        for start in (log.end // 3, log.end // 2, log.end - 1, log.end):
            part = [record for record in expected if record[0] >= start]
            assert await self.bench.read_all(start, max_bytes=500) == part
            reader, back = log.reverse_reader(start), []
            while (records := await reader.read(3_000)) is not None:
                back += values(records)
            assert back == [record for record in expected if record[0] <= start][::-1]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([1, 300, 5_000, 30_000]), st.lists(steps, max_size=25))
def test_any_history_of_a_log_gives_what_a_list_would(
    segment_max_bytes: int, history: list[tuple[object, ...]]
) -> None:
    async def scenario() -> None:
        driver = Driver(segment_max_bytes)
        await driver.open()
        for step in history:
            await driver.step(step)
            if step[0] != "append":
                await driver.check()
        await driver.check()
        await driver.bench.close()
        await driver.open()
        await driver.check()

    run(scenario())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(sizes, min_size=1, max_size=10), min_size=1, max_size=12), st.data())
def test_an_index_in_memory_on_the_disk_or_made_anew_gives_the_same_answers(
    batches: list[list[int]], data: st.DataObject
) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        grown = MemoryIndex()
        content, offset, timestamp = b"", 5, 100
        placed: list[tuple[int, int, int]] = []
        for lengths in batches:
            records, _, next_offset, last_timestamp = encode([bytes(n) for n in lengths], offset, timestamp)
            grown.add(records, len(content))
            position = len(content)
            for number, start in enumerate(range(len(lengths))):
                placed.append((offset + number, position, timestamp + start))
                position += 5 + int.from_bytes(records[position - len(content) + 1 :][:4], "big")
            content += records
            offset, timestamp = next_offset + 2, last_timestamp + 9
        path = f"{FOLDER}/{5:020}.log"
        disk.put(path, content)
        scan = await scan_segment(disk, path, 5, len(content))
        assert scan.bad == []
        assert scan.index.entries == grown.entries
        disk.put("index", bytes(grown.entries) + encode_footer(scan.footer(), grown.entries))
        found = await read_footer(disk, "index")
        assert found is not None
        footer, stored = found
        assert footer == scan.footer()
        assert isinstance(stored, FileIndex)
        for field in (OFFSET, POSITION, TIMESTAMP):
            top = placed[-1][field]
            for target in data.draw(st.lists(st.integers(-1, top + 5), max_size=10)):
                answer = floor_in(grown.entries, field, target)
                assert await stored.floor(field, target) == answer
                if answer is None:
                    assert target < placed[0][field]
                else:
                    assert tuple(answer) in placed
                    assert answer[field] <= target

    run(scenario())
