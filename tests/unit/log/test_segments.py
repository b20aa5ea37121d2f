"""The segments of a log, in order."""

import pytest

from bascule.log.segment import Segment
from bascule.log.segments import SegmentList
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, open_bench
from bascule.testing.loop import run


def listed(*bases: int) -> SegmentList:
    disk = MemoryDisk()
    segments = SegmentList(disk, FOLDER, None, lambda segment: None)
    for base in bases:
        segments.add(Segment(disk, FOLDER, base))
    return segments


def test_an_offset_is_looked_for_in_the_segment_that_begins_last_before_it() -> None:
    segments = listed(10, 20, 30)
    assert [found.base for offset in (0, 10, 19, 20, 99) if (found := segments.at(offset))] == [10, 10, 10, 20, 30]
    assert listed().at(0) is None


def test_neighbours_end_at_both_ends_of_the_log() -> None:
    segments = listed(10, 20, 30)
    first, second, third = segments
    assert [segments.before(each) for each in segments] == [None, first, second]
    assert [segments.after(each) for each in segments] == [second, third, None]


def test_segments_stand_in_the_order_of_their_offsets() -> None:
    segments = listed(10, 20)
    with pytest.raises(AssertionError):
        segments.add(Segment(segments.disk, FOLDER, 15))


def test_what_leaves_the_list_is_retired_and_not_damaged_any_more() -> None:
    segments = listed(10, 20)
    first, second = segments
    first.damage = second.damage = {0: 5}
    segments.note_damage(first)
    segments.note_damage(second)
    segments.drop_last()
    assert (second.retired, list(segments.damaged)) == (True, [first])
    fresh = Segment(segments.disk, FOLDER, 10)
    segments.replace(first, fresh)
    assert (first.retired, list(segments), list(segments.damaged)) == (True, [fresh], [])
    segments.note_damage(first)
    assert not segments.damaged, "a reader may still stand in it"


def test_a_segment_takes_the_place_of_one_that_begins_at_the_same_offset() -> None:
    segments = listed(10, 20)
    with pytest.raises(AssertionError):
        segments.replace(segments[0], Segment(segments.disk, FOLDER, 11))


def test_a_replica_knows_which_offsets_it_lacks_between_two_segments() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, segment_max_bytes=200, replicated=True)
        for number in range(12):
            await bench.store([b"%d" % number * 20])
        bases = [segment.base for segment in bench.log.segments]
        await bench.close()
        gone = bench.log.segments[2]
        await disk.remove(gone.path)
        await disk.remove(gone.index_path)
        segments = (await open_bench(disk, segment_max_bytes=200, replicated=True)).log.segments
        start, end = bases[2], bases[3]
        assert start < end < bench.log.end
        for asked in ((start, end), (start - 1, start + 1), (end - 1, end + 1), (0, bench.log.end)):
            assert segments.lacks(*asked)
        for asked in ((0, start), (end, bench.log.end)):
            assert not segments.lacks(*asked)

    run(main())
