"""Which small segments are merged: few files are left, retention stays exact, and no record is copied often."""

import math
import random

import pytest

from bascule import limits
from bascule.core.merging import MergeBounds, Run, Small, merge_bounds, next_run
from bascule.core.retention import UNLIMITED, RetentionLimits, SegmentSize, retained_from

NO_BOUND = 1 << 62
OPEN = MergeBounds(limits.MERGED_LEAST_BYTES, NO_BOUND, NO_BOUND)


def small(nbytes: int = 100, mergeable: bool = True, at: int = 0) -> Small:
    return Small(mergeable, nbytes, 1, at, at)


def joined(segments: list[Small], run: Run) -> list[Small]:
    old = segments[run.first : run.end]
    fresh = Small(
        True,
        sum(each.nbytes for each in old),
        sum(each.messages for each in old),
        old[0].first_timestamp,
        old[-1].last_timestamp,
    )
    return [*segments[: run.first], fresh, *segments[run.end :]]


def merged(segments: list[Small], bounds: MergeBounds) -> list[Small]:
    while (run := next_run(segments, bounds)) is not None:
        segments = joined(segments, run)
    return segments


def test_few_segments_are_left_alone() -> None:
    assert next_run([small()] * (limits.MERGED_FROM_SEGMENTS - 1), OPEN) is None
    assert next_run([small()] * limits.MERGED_FROM_SEGMENTS, OPEN) == Run(0, limits.MERGED_FROM_SEGMENTS)


def test_a_run_has_a_bound_and_ends_at_a_segment_that_is_not_merged() -> None:
    many = [small()] * 1000
    assert next_run(many, OPEN) == Run(0, limits.MERGED_AT_ONCE)
    assert next_run([*many[:50], small(mergeable=False), *many], OPEN) == Run(0, 50)
    assert next_run([*many[:5], small(mergeable=False), *many], OPEN) == Run(6, 6 + limits.MERGED_AT_ONCE), "too few"


@pytest.mark.parametrize(
    "bounds",
    [
        MergeBounds(1_000, NO_BOUND, NO_BOUND),
        MergeBounds(limits.MIB, 10, NO_BOUND),
        MergeBounds(limits.MIB, NO_BOUND, 9),
    ],
    ids=["bytes", "messages", "age"],
)
def test_no_bound_is_exceeded(bounds: MergeBounds) -> None:
    assert next_run([small(at=number) for number in range(200)], bounds) == Run(0, 10)


def test_a_large_segment_is_not_copied_for_a_few_small_ones() -> None:
    large = small(500_000)
    assert next_run([*[small()] * 50, large, *[small()] * 60], OPEN) == Run(0, 50)
    assert next_run([large, *[small()] * 110], OPEN) == Run(1, 111)
    assert next_run([large, *[small(100_000)] * 5, *[small(1)] * 100], OPEN) == Run(0, 106), "unless they are as many"


def test_a_tiny_segment_size_is_no_bound_and_a_large_one_is_not_copied_at_once() -> None:
    assert merge_bounds(1, UNLIMITED).nbytes == limits.MERGED_LEAST_BYTES
    assert merge_bounds(3 * limits.MIB, UNLIMITED).nbytes == 3 * limits.MIB
    assert merge_bounds(1 << 30, UNLIMITED).nbytes == limits.MERGED_MOST_BYTES


def test_a_merged_segment_is_a_small_part_of_what_is_retained() -> None:
    retained = RetentionLimits(max_bytes=10_000, max_messages=5_000, max_age_ns=70_000)
    assert merge_bounds(1 << 30, retained) == MergeBounds(100, 50, 700)
    few = merge_bounds(1, RetentionLimits(max_messages=50))
    assert next_run([small()] * 500, few) is None, "a stream that keeps 50 messages keeps exactly 50"


def test_retention_by_messages_removes_hardly_more_than_without_merging() -> None:
    retained = RetentionLimits(max_messages=2_000)
    segments = merged([small(at=number) for number in range(5_000)], merge_bounds(1, retained))
    sizes, base = [], 0
    for each in segments:
        sizes.append(SegmentSize(base, base + each.messages, each.messages, each.nbytes, each.last_timestamp))
        base += each.messages
    assert 3_000 <= retained_from(sizes, retained, 0) <= 3_000 + 2_000 // limits.MERGED_SHARE


def test_whatever_comes_few_files_are_left_and_a_record_is_copied_seldom() -> None:
    for seed in range(5):
        chance = random.Random(seed)
        segments: list[Small] = []
        appended = copied = most = 0
        for _ in range(300):
            for _ in range(chance.choice((1, 5, 100))):
                size = chance.choice((100, 100, 1_000, 20_000))
                segments.append(small(size))
                appended += size
            while (run := next_run(segments, OPEN)) is not None:
                copied += sum(each.nbytes for each in segments[run.first : run.end])
                segments = joined(segments, run)
            most = max(most, len(segments) - appended // (OPEN.nbytes // 16))
        assert all(each.nbytes <= OPEN.nbytes for each in segments)
        assert most <= 2 * limits.MERGED_FROM_SEGMENTS
        assert copied <= appended * math.log2(OPEN.nbytes / 100)
