"""How far a micro-batch goes, and what a checkpoint means, without Spark's JVM."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from bascule.client import LogBounds
from bascule.errors import BasculeError, FailedPrecondition, InvalidArgument, OutOfRange, Unavailable
from bascule.spark.cursor import Cursor, commit_cursors
from bascule.spark.options import read_options
from bascule.spark.planning import Bounds, Planner, StreamRange, split
from bascule.spark.streaming import LiftbridgeStreamReader, in_turn, shares, within

ALL = ReadAllAvailable()


class Source:
    """A reader over partitions that are made up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self.bounds: Bounds = {}
        self.paused_ends: dict[tuple[str, int], int] = {}
        monkeypatch.setattr(Planner, "bounds", lambda planner, known=frozenset(): dict(self.bounds))
        monkeypatch.setattr(Planner, "paused_ends", lambda planner: dict(self.paused_ends))
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


@pytest.mark.parametrize("where", ["latest", "earliest"])
def test_the_first_batch_begins_where_it_began_when_it_is_run_again(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Spark asks for the initial offset again, and has only the end of the batch in its log."""
    source = Source(monkeypatch, startingOffsets=where)
    source.holds("s", 0, 5, 10)
    start = source.reader.initialOffset()
    source.holds("s", 0, 5, 14)
    end = json.loads(json.dumps(source.reader.latestOffset(start, ALL)))
    planned = source.ranges(start, end)
    assert planned == [("s", 0, 10 if where == "latest" else 5, 14)]
    again = Source(monkeypatch, startingOffsets=where)
    again.holds("s", 0, 7, 30)
    assert again.ranges(again.reader.initialOffset(), end) == planned
    following = again.reader.latestOffset(end, ALL)
    assert again.ranges(end, following) == [("s", 0, 14, 30)]
    assert again.reader.latestOffset(following, ALL) == following


@given(
    st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), st.integers(0, 1000)),
    st.integers(1, 2000) | st.none(),
)
def test_shares_are_fair_and_whole(backlog: dict[tuple[str, int], int], most: int | None) -> None:
    taken = shares(backlog, most)
    total = sum(backlog.values())
    assert sum(taken.values()) == (total if most is None else min(most, total))
    assert all(0 <= taken[part] <= size for part, size in backlog.items())


@given(
    st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), st.integers(1, 100_000), min_size=1),
    st.integers(1, 30),
    st.integers(0, 100),
)
def test_no_partition_waits_for_ever_behind_a_backlog(
    backlog: dict[tuple[str, int], int], most: int, turn: int
) -> None:
    """However much the others have: it is in each batch that has room for all, and else in one of so many."""
    turns = [shares(in_turn(backlog, turn + n), most) for n in range(len(backlog))]
    if most >= len(backlog):
        assert all(count for taken in turns for count in taken.values())
    assert {part for taken in turns for part, count in taken.items() if count} == backlog.keys()


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("ab"), st.integers(0, 5)),
        st.tuples(st.integers(1, 10_000), st.integers(1, 1000)),
        min_size=1,
    ),
    st.integers(1, 5000),
)
def test_bytes_are_shared_out_so_that_none_waits_for_ever(
    parts: dict[tuple[str, int], tuple[int, int]], most: int
) -> None:
    counts, sizes = ({part: each[index] for part, each in parts.items()} for index in (0, 1))
    turns = [within(in_turn(counts, n), sizes, most) for n in range(len(parts))]
    for taken in turns:
        assert all(1 <= count <= counts[part] for part, count in taken.items())
        used = sum(count * sizes[part] for part, count in taken.items())
        assert used <= most or sum(taken.values()) == 1
        if sum(sizes.values()) <= most:
            assert taken.keys() == parts.keys()
    assert {part for taken in turns for part in taken} == parts.keys()


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
    source = Source(monkeypatch, startingOffsets="earliest", maxOffsetsPerTrigger="4", minOffsetsPerTrigger="4")
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
    source.holds("other", 0, 0, 10)
    start = source.reader.initialOffset()
    source.bounds.clear()
    source.holds("r", 0, 0, 10)
    with pytest.raises(InvalidArgument, match="the checkpoint is of stream other, and this query reads s, r"):
        source.reader.latestOffset(start, ALL)
    with pytest.raises(InvalidArgument, match="not of this source"):
        source.reader.latestOffset({"topic": {"0": 1}}, ALL)


def test_a_batch_has_about_so_many_bytes_and_a_message_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[Any, Any]] = []

    def sizes(planner: Planner, spans: dict[Any, tuple[int, int, int]]) -> dict[Any, int]:
        """Messages of s are ten times as large from offset 40 on."""
        asked.append(spans)
        return {part: 1000 if part[0] == "s" and start + 10 > 40 else 100 for part, (_, start, _) in spans.items()}

    monkeypatch.setattr(Planner, "sizes", sizes)
    monkeypatch.setattr("bascule.spark.streaming.SAMPLE_OFFSETS", 10)
    source = Source(monkeypatch, startingOffsets="earliest", maxBytesPerTrigger="2000")
    assert source.reader.getDefaultReadLimit() == ReadMaxBytes(2000)
    source.holds("s", 0, 0, 60)
    source.holds("r", 0, 0, 20)
    position, taken = source.reader.initialOffset(), []
    limit = source.reader.getDefaultReadLimit()
    while (end := source.reader.latestOffset(position, limit)) != position:
        taken.append(
            [(stream, n) for stream, _, first, last in source.ranges(position, end) for n in range(first, last)]
        )
        position = end
    sizes_of = [sum(1000 if stream == "s" and n >= 40 else 100 for stream, n in each) for each in taken]
    assert all(each and size <= 2000 for each, size in zip(taken, sizes_of, strict=True)), sizes_of
    assert sorted(each for batch in taken for each in batch) == sorted(
        [("r", n) for n in range(20)] + [("s", n) for n in range(60)]
    )
    assert len(taken) < 40, "batches are smaller than they need be"
    asked.clear()
    source.reader.latestOffset(source.reader.initialOffset(), ALL)
    assert not asked, "a trigger that takes all asks for no sizes"
    for creation in (0, -1_700_000_000):
        source.holds("s", 0, 0, 60, creation=creation)
        with pytest.raises(InvalidArgument, match='"maxBytesPerTrigger" needs bulk reads'):
            source.reader.latestOffset(source.reader.initialOffset(), limit)


def test_a_paused_partition_keeps_its_place_until_it_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch, startingOffsets="earliest", pausedPartitions="skip")
    source.holds("s", 0, 0, 10)
    source.holds("r", 0, 0, 10)
    start = source.reader.latestOffset(source.reader.initialOffset(), ALL)
    del source.bounds["s", 0]
    source.reader._planner.paused = {("s", 0)}
    source.holds("r", 0, 0, 12)
    end = source.reader.latestOffset(start, ALL)
    assert source.ranges(start, end) == [("r", 0, 10, 12)]
    source.reader._planner.paused = set()
    source.holds("s", 0, 0, 15)
    assert source.ranges(end, source.reader.latestOffset(end, ALL)) == [("s", 0, 10, 15)]


@pytest.mark.parametrize(
    ("start", "first"), [("latest", 98), ("earliest", 20), ('{"s": {"1": 50}}', 50), ('{"s": {"0": 3}}', 20)]
)
def test_a_partition_that_was_paused_from_the_start_begins_where_the_query_was_told_to(
    monkeypatch: pytest.MonkeyPatch, start: str, first: int
) -> None:
    source = Source(monkeypatch, startingOffsets=start, pausedPartitions="skip")
    source.holds("s", 0, 0, 10)
    source.holds("r", 0, 0, 10)
    source.reader._planner.paused = {("s", 1)}
    source.paused_ends["s", 1] = 98  # messages 98 and 99 come with its resumption
    position = source.reader.initialOffset()
    for end in (12, 14):
        source.holds("r", 0, 0, end)
        position = json.loads(json.dumps(source.reader.latestOffset(position, ALL)))
    again = Source(monkeypatch, startingOffsets=start, pausedPartitions="skip")  # from its checkpoint
    again.bounds = source.bounds | {("s", 1): LogBounds(20, 100, 1, 0), ("s", 2): LogBounds(7, 8, 1, 0)}
    placed = again.reader.latestOffset(position, ALL)
    again.holds("s", 1, 20, 105)
    found = again.ranges(placed, again.reader.latestOffset(placed, ALL))
    assert found == [("s", 1, first, 105), ("s", 2, 7, 8)], "what is new is read from its beginning"


def test_a_partition_that_is_named_and_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch, startingOffsets='{"s": {"1": 5}}', pausedPartitions="skip")
    source.holds("s", 0, 0, 10)
    source.reader._planner.paused = {("s", 2)}
    with pytest.raises(InvalidArgument, match="names partition 1 of stream s, which is not read"):
        source.reader.initialOffset()


def test_a_partition_that_vanished_is_told_or_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source(monkeypatch, startingOffsets="earliest")
    for number in (0, 1):
        source.holds("s", number, 0, 10, creation=0)
    position = source.reader.latestOffset(source.reader.initialOffset(), ALL)
    del source.bounds["s", 1]
    with pytest.raises(OutOfRange, match="s/1 is not there any more"):
        source.reader.latestOffset(position, ALL)
    lenient = Source(monkeypatch, failOnDataLoss="false")
    lenient.holds("s", 0, 0, 12, creation=0)
    following = lenient.reader.latestOffset(position, ALL)
    assert lenient.ranges(position, following) == [("s", 0, 10, 12)]
    assert "s/1 is not there any more" in caplog.text
    caplog.clear()
    assert lenient.reader.latestOffset(following, ALL) == following
    assert not caplog.text


def test_a_stream_of_another_server_is_told_from_the_one_before_by_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch, startingOffsets="earliest")
    source.holds("s", 0, 0, 10, creation=-1000)
    position = source.reader.latestOffset(source.reader.initialOffset(), ALL)
    source.holds("s", 0, 0, 30, creation=-2000)
    with pytest.raises(FailedPrecondition, match="deleted and made again"):
        source.reader.latestOffset(position, ALL)


def test_a_checkpoint_from_before_these_times_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(monkeypatch, startingOffsets="earliest")
    source.holds("s", 0, 0, 10, creation=0)
    position = source.reader.latestOffset(source.reader.initialOffset(), ALL)
    source.holds("s", 0, 0, 30, creation=-2000)
    following = source.reader.latestOffset(position, ALL)
    assert source.ranges(position, following) == [("s", 0, 10, 30)]
    assert following["streams"]["s"]["creation"] == -2000


def test_what_is_paused_when_a_query_of_what_is_there_begins_stays_so_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark asks for the latest offsets in between, when it may be resumed."""
    source = Source(monkeypatch, startingOffsets="earliest", pausedPartitions="skip")
    source.holds("s", 0, 0, 10)
    source.holds("s", 1, 0, 10)
    start = source.reader.latestOffset(source.reader.initialOffset(), ALL)
    del source.bounds["s", 1]
    source.reader._planner.paused = {("s", 1)}
    source.holds("s", 0, 0, 12)
    source.reader.prepareForTriggerAvailableNow()
    source.reader._planner.paused = set()
    end = source.reader.latestOffset(start, ALL)
    assert source.ranges(start, end) == [("s", 0, 10, 12)]
    assert end["streams"]["s"]["partitions"] == {"0": 12, "1": 10}


def test_a_cursor_follows_what_spark_says_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[dict[tuple[str, int], int]] = []

    async def note(cursor: Cursor, moved: dict[tuple[str, int], int]) -> None:
        set_to.append(moved)
        cursor._known |= moved

    monkeypatch.setattr(Cursor, "_set", note)
    source = Source(monkeypatch, startingOffsets="earliest", cursor="lake")
    source.holds("s", 0, 0, 10)
    source.holds("r", 0, 3, 5)
    start = source.reader.initialOffset()
    end = source.reader.latestOffset(start, ALL)
    assert set_to == [{("r", 0): 3}], "nothing is committed yet, and r begins at 3"
    source.reader.commit(end)
    source.reader.latestOffset(end, ALL)
    assert set_to[1:] == [{("r", 0): 5, ("s", 0): 10}]

    set_to.clear()
    progress = SimpleNamespace(sources=[SimpleNamespace(endOffset="1"), SimpleNamespace(endOffset=json.dumps(end))])
    commit_cursors(SimpleNamespace(isActive=False, lastProgress=progress), servers="nowhere:1", cursor="lake")
    assert set_to == [{("r", 0): 5, ("s", 0): 10}]
    with pytest.raises(InvalidArgument, match="the query runs"):
        commit_cursors(SimpleNamespace(isActive=True), servers="nowhere:1", cursor="lake")
    with pytest.raises(InvalidArgument, match="name the cursor"):
        commit_cursors(SimpleNamespace(isActive=False), servers="nowhere:1")


def test_a_cursor_that_cannot_be_set_now_does_not_stop_the_query(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    error: BasculeError = Unavailable("no leader")

    async def fail(cursor: Cursor, moved: dict[tuple[str, int], int]) -> None:
        raise error

    monkeypatch.setattr(Cursor, "_set", fail)
    source = Source(monkeypatch, cursor="lake")
    source.holds("s", 0, 0, 10)
    source.reader.latestOffset(source.reader.initialOffset(), ALL)
    assert "cursor lake stays behind the query for now: no leader" in caplog.text
    error = FailedPrecondition("this cluster has no cursors")
    with pytest.raises(FailedPrecondition, match="no cursors"):
        source.reader.latestOffset(source.reader.initialOffset(), ALL)
