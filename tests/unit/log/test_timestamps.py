"""Look-ups by time before damage: what may have stood there is neither left out nor guessed."""

import asyncio
from itertools import pairwise

import pytest

from bascule import limits
from bascule.errors import Unavailable
from bascule.log.healing import Healing
from bascule.log.segment import Segment
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import Bench, open_bench
from bascule.testing.loop import run
from bascule.testing.records import record_starts, values
from bascule.wire import kernels

COUNT = 60


class Harmed:
    """A log of several segments with one damaged record, which another replica may have."""

    def __init__(self, bench: Bench, where: str) -> None:
        assert isinstance(bench.disk, MemoryDisk)
        self.bench, self.log, self.disk = bench, bench.log, bench.disk
        segments = self.log.segments
        segment = segments[-1] if where == "the last of all" else segments[1]
        starts = record_starts(self.disk.content(segment.path))
        number = {"in the middle": len(starts) // 2, "the first of its file": 0}.get(where, len(starts) - 1)
        self.offset = segment.first_offset + number
        self.times = self._times()
        self.asked = 0
        self.healing = Healing.UNKNOWN
        self._flip = (segment.path, starts[number] + 20, 2)
        self.disk.flip(*self._flip)
        self.log.segments.on_damage = self.on_damage

    def _times(self) -> list[int]:
        content = b"".join(self.disk.content(each.path) for each in self.log.segments)
        return _timestamps(content)

    async def on_damage(self, segment: Segment, wait: bool) -> Healing:
        self.asked += 1
        if self.healing is Healing.HEALED and not segment.retired:
            self.disk.flip(*self._flip)
            fresh = Segment.recovered(
                self.disk, self.log.folder, segment.footer(), segment.index, segment.index_verified
            )
            self.log.segments.replace(segment, fresh)
        return self.healing


def _timestamps(content: bytes) -> list[int]:
    starts = [*record_starts(content), len(content)]
    return [kernels.seek_record(content, start, end, 0, 0)[2] for start, end in pairwise(starts)]


async def harmed(where: str) -> Harmed:
    bench = await open_bench(MemoryDisk(), segment_max_bytes=1_000, replicated=True)
    for number in range(0, COUNT, 5):
        await bench.store([b"value %d" % each for each in range(number, number + 5)])
    assert len(bench.log.segments) > 2
    return Harmed(bench, where)


PLACES = ["in the middle", "the first of its file", "the last of its file", "the last of all"]


@pytest.mark.parametrize("where", PLACES)
def test_a_time_in_damage_waits_until_it_is_healed(where: str) -> None:
    async def scenario() -> None:
        log = await harmed(where)
        time = log.times[log.offset]
        loop = asyncio.get_running_loop()
        start = loop.create_task(log.log.offset_at_or_after(time))
        stop = loop.create_task(log.log.offset_at_or_before(time))
        await asyncio.sleep(limits.DAMAGE_PATIENCE_S / 2)
        assert not start.done()
        assert not stop.done()
        log.healing = Healing.HEALED
        assert (await start, await stop) == (log.offset, log.offset)

    run(scenario())


@pytest.mark.parametrize("where", PLACES)
def test_who_waited_long_enough_is_told_and_what_is_lost_is_stepped_over(where: str) -> None:
    async def scenario() -> None:
        log = await harmed(where)
        time = log.times[log.offset]
        with pytest.raises(Unavailable, match="start its broker"):
            await log.log.offset_at_or_after(time)
        with pytest.raises(Unavailable, match="start its broker"):
            await log.log.offset_at_or_before(time)
        log.healing = Healing.LOST
        assert await log.log.offset_at_or_after(time) == log.offset + 1
        assert await log.log.offset_at_or_before(time) == log.offset - 1

    run(scenario())


@pytest.mark.parametrize("where", PLACES)
def test_damage_elsewhere_holds_no_lookup_up(where: str) -> None:
    async def scenario() -> None:
        log = await harmed(where)
        near = {log.offset - 1, log.offset, log.offset + 1}
        for offset in (each for each in range(COUNT) if each not in near):
            assert await log.log.offset_at_or_after(log.times[offset]) == offset
            assert await log.log.offset_at_or_before(log.times[offset]) == offset
        assert log.asked == 0

    run(scenario())


@pytest.mark.parametrize("where", PLACES)
def test_what_is_known_to_be_earlier_ends_where_damage_begins(where: str) -> None:
    """Who sets records aside from a time on leaves none of them out, and waits for nobody."""

    async def scenario() -> None:
        log = await harmed(where)
        assert await log.log.end_before(log.times[log.offset]) == log.offset
        assert await log.log.end_before(log.times[log.offset - 2]) == log.offset - 2
        assert log.asked == 0

    run(scenario())


def test_what_is_appended_meanwhile_is_not_left_out() -> None:
    async def scenario() -> None:
        log = await harmed("the last of all")
        last = log.times[-1]
        looking = asyncio.get_running_loop().create_task(log.log.offset_at_or_after(last + 1))
        await asyncio.sleep(1)
        await log.bench.store([b"later"])
        log.healing = Healing.LOST
        start = await looking
        reader = log.log.reader(start)
        assert values(await reader.read() or b"")[0][0] == COUNT

    run(scenario())
