"""How far a micro-batch goes, and what a checkpoint means, without Spark's JVM."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from bascule.client import LogBounds
from bascule.errors import FailedPrecondition, InvalidArgument, OutOfRange
from bascule.spark.options import read_options
from bascule.spark.planning import Bounds, Planner, StreamRange, split
from bascule.spark.streaming import LiftbridgeStreamReader, shares

ALL = ReadAllAvailable()


class Source:
    """A reader over partitions that are made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self.bounds: Bounds = {}
        monkeypatch.setattr(Planner, "bounds", lambda planner: dict(self.bounds))
        given = {"servers": "nowhere:1", **({} if "streamPattern" in options else {"streams": "s,r"}), **options}
        self.reader = LiftbridgeStreamReader(read_options(given), ["offset"])

    def holds(self, stream: str, partition: int, start: int, end: int, creation: int = 1) -> None:
        self.bounds[stream, partition] = LogBounds(start, end, creation, 0)

    def ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int, int]]:
        found = self.reader.partitions(start, end)
        return [(each.stream, each.partition, each.start, each.end) for each in found if isinstance(each, StreamRange)]


def test_a_query_begins_at_the_latest_and_takes_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch)
    source.holds("s", 0, 0, 10)
    source.holds("r", 0, 3, 5)
    start = source.reader.initialOffset()
    assert source.reader.latestOffset(start, ALL) == start
    source.holds("s", 0, 0, 14)
    end = source.reader.latestOffset(start, ALL)
    assert source.ranges(start, end) == [("s", 0, 10, 14)]
    assert source.ranges(end, end) == []


def test_a_limit_is_shared_out_and_nothing_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    source.holds("s", 0, 0, 90)
    source.holds("s", 1, 0, 9)
    source.holds("r", 0, 0, 1)
    assert source.reader.getDefaultReadLimit() == ReadMaxRows(10)
    position, read = source.reader.initialOffset(), dict.fromkeys(source.bounds, 0)
    for _ in range(10):
        end = source.reader.latestOffset(position, ReadMaxRows(10))
        taken = source.ranges(position, end)
        assert sum(last - first for _, _, first, last in taken) == 10
        for stream, partition, first, last in taken:
            assert read[stream, partition] == first
            read[stream, partition] = last
        position = end
    assert read == {part: each.end for part, each in source.bounds.items()}
    assert source.reader.latestOffset(position, ReadMaxRows(10)) == position


@given(
    st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), st.integers(0, 1000)),
    st.integers(1, 2000) | st.none(),
)
def test_shares_are_fair_and_whole(backlog: dict[tuple[str, int], int], most: int | None) -> None:
    taken = shares(backlog, most)
    total = sum(backlog.values())
    assert sum(taken.values()) == (total if most is None else min(most, total))
    assert all(0 <= taken[part] <= size for part, size in backlog.items())


@given(st.lists(st.integers(1, 50), max_size=6), st.integers(1, 20))
def test_splitting_keeps_every_offset_once(sizes: list[int], least: int) -> None:
    ranges = [StreamRange("s", number, 5, 5 + size, 1) for number, size in enumerate(sizes)]
    parts = list(split(ranges, least))
    assert all(part.start < part.end for part in parts)
    assert len(parts) >= min(least, sum(sizes))
    covered = [(part.partition, offset) for part in parts for offset in range(part.start, part.end)]
    assert covered == [(number, 5 + offset) for number, size in enumerate(sizes) for offset in range(size)]


def test_messages_are_waited_for_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("bascule.spark.streaming.time.monotonic", lambda: now)
    source = Source(monkeypatch, minOffsetsPerTrigger="5", maxTriggerDelay="10s")
    source.holds("s", 0, 0, 10)
    start = source.reader.initialOffset()
    limit = source.reader.getDefaultReadLimit()
    assert limit == ReadMinRows(5)
    source.holds("s", 0, 0, 13)
    assert source.reader.latestOffset(start, limit) == start
    now = 9.9
    assert source.reader.latestOffset(start, limit) == start
    now = 10.0
    assert source.ranges(start, source.reader.latestOffset(start, limit)) == [("s", 0, 10, 13)]
    source.holds("s", 0, 0, 15)
    assert source.ranges(start, source.reader.latestOffset(start, limit)) == [("s", 0, 10, 15)]


def test_available_now_ends_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch, startingOffsets="earliest", maxOffsetsPerTrigger="4", minOffsetsPerTrigger="100")
    source.holds("s", 0, 0, 10)
    position = source.reader.initialOffset()
    source.reader.prepareForTriggerAvailableNow()
    source.holds("s", 0, 0, 1000)
    ends = []
    while (end := source.reader.latestOffset(position, ReadMaxRows(4))) != position:
        ends += [last for _, _, _, last in source.ranges(position, end)]
        position = end
    assert ends == [4, 8, 10]


def test_a_new_stream_enters_with_its_beginning_and_is_read_from_the_next_batch_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source(monkeypatch, streamPattern="s.*")
    source.holds("s1", 0, 0, 5)
    start = source.reader.initialOffset()
    source.holds("s2", 0, 7, 9, creation=4)
    entered = source.reader.latestOffset(start, ALL)
    assert source.ranges(start, entered) == []
    source.holds("s2", 0, 8, 9, creation=4)  # retention: what it entered with is gone, and this is not silent
    with pytest.raises(OutOfRange, match="failOnDataLoss"):
        source.reader.latestOffset(entered, ALL)
    source.holds("s2", 0, 7, 9, creation=4)
    assert source.ranges(entered, source.reader.latestOffset(entered, ALL)) == [("s2", 0, 7, 9)]


def test_a_stream_that_was_made_again_is_never_taken_for_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch)
    source.holds("s", 0, 0, 10, creation=1)
    start = source.reader.initialOffset()
    source.holds("s", 0, 0, 20, creation=2)
    with pytest.raises(FailedPrecondition, match="deleted and made again"):
        source.reader.latestOffset(start, ALL)
    lenient = Source(monkeypatch, failOnDataLoss="false")
    lenient.holds("s", 0, 0, 20, creation=2)
    again = lenient.reader.latestOffset(start, ALL)
    assert lenient.ranges(start, again) == []
    assert lenient.ranges(again, lenient.reader.latestOffset(again, ALL)) == [("s", 0, 0, 20)]


def test_messages_that_are_gone_are_told_or_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch, startingOffsets="earliest")
    source.holds("s", 0, 0, 10)
    start = source.reader.initialOffset()
    source.holds("s", 0, 4, 12)
    with pytest.raises(OutOfRange, match="s/0 is to be read from 0, and has 4 to 12"):
        source.reader.latestOffset(start, ALL)
    lenient = Source(monkeypatch, failOnDataLoss="false")
    lenient.holds("s", 0, 4, 12)
    assert lenient.ranges(start, lenient.reader.latestOffset(start, ALL)) == [("s", 0, 0, 12)]


def test_a_checkpoint_of_another_query_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch)
    source.holds("s", 0, 0, 10)
    start = source.reader.initialOffset()
    source.bounds.clear()
    source.holds("r", 0, 0, 10)
    with pytest.raises(InvalidArgument, match="the checkpoint is of stream s, and this query reads s, r"):
        source.reader.latestOffset(start, ALL)
    with pytest.raises(InvalidArgument, match="not of this source"):
        source.reader.latestOffset({"topic": {"0": 1}}, ALL)
