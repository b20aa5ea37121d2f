"""What is wrong with offsets, told from what retention and compaction removed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import ResourceExhausted
from bascule.pipelines.auditing.runs import Faults, Stretch, faults_of, joined, runs_of


def judged(offsets: list[int], start: int = 0, end: int | None = None, compacted_end: int = 0) -> Faults:
    runs = joined(runs_of(np.array(offsets, np.int64), compacted_end), compacted_end)
    return faults_of(runs, start, max(offsets) + 1 if end is None else end, compacted_end)


@pytest.mark.parametrize(
    ("offsets", "faults"),
    [
        ([0, 1, 2, 3], Faults()),
        ([0, 1, 3], Faults(missing=[Stretch(2, 2)])),
        ([1, 2, 3], Faults(missing=[Stretch(0, 0)])),
        ([0, 1, 1, 2], Faults(duplicate=[Stretch(1, 1)])),
        ([0, 1, 2, 1, 2, 3], Faults(duplicate=[Stretch(1, 2)])),
        ([0, 2, 1, 3], Faults(out_of_order=[Stretch(1, 1)])),
        ([3, 4, 0, 1, 2], Faults(out_of_order=[Stretch(0, 2)])),
        ([0, 3, 1, 1, 4], Faults(missing=[Stretch(2, 2)], duplicate=[Stretch(1, 1)], out_of_order=[Stretch(1, 1)])),
        ([0, 1, 5, 2, 3, 4, 5, 6], Faults(duplicate=[Stretch(5, 5)], out_of_order=[Stretch(2, 4)])),
    ],
)
def test_each_fault_is_called_by_its_name(offsets: list[int], faults: Faults) -> None:
    assert judged(offsets) == faults


def test_what_should_be_there_at_the_end_is_missed() -> None:
    assert judged([0, 1], end=4).missing == [Stretch(2, 3)]
    assert faults_of([], 3, 5, 0).missing == [Stretch(3, 4)]
    assert faults_of([], 5, 5, 0) == Faults()


def test_what_has_expired_is_not_missed_and_may_still_be_there() -> None:
    assert judged([5, 6, 7], start=5) == Faults()
    assert judged([3, 4, 5, 6, 7], start=5) == Faults()
    assert judged([3, 4, 6, 7], start=5).missing == [Stretch(5, 5)]


def test_compaction_may_leave_holes_below_its_end_and_nowhere_else() -> None:
    assert judged([2, 5, 9, 10, 11], compacted_end=10) == Faults(compacted=7)
    assert judged([2, 5, 9, 10, 12], compacted_end=10) == Faults(missing=[Stretch(11, 11)], compacted=7)
    assert judged([0, 8], compacted_end=5) == Faults(missing=[Stretch(5, 7)], compacted=4)
    assert judged([2, 5, 5, 9], compacted_end=10).duplicate == [Stretch(5, 5)]
    assert judged([2, 9, 5, 10], compacted_end=10).duplicate == [Stretch(5, 9)], "late, or twice: no telling there"


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40))
def test_every_offset_is_there_or_missing_and_every_other_row_is_a_fault(offsets: list[int]) -> None:
    faults = judged(offsets)
    missing = {offset for each in faults.missing for offset in range(each.first, each.last + 1)}
    assert missing == set(range(max(offsets) + 1)) - set(offsets)
    assert sum(each.last - each.first + 1 for each in faults.duplicate) == len(offsets) - len(set(offsets))
    in_order = sum(offset > max(offsets[:place], default=-1) for place, offset in enumerate(offsets))
    late = len(set(offsets)) - in_order
    assert sum(each.last - each.first + 1 for each in faults.out_of_order) == late


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(0, 32), st.integers(0, 40))
def test_the_judgement_does_not_depend_on_where_it_was_read_in_pieces(
    offsets: list[int], compacted_end: int, cut: int
) -> None:
    pieces = [np.array(each, np.int64) for each in (offsets[:cut], offsets[cut:])]
    runs = joined([run for piece in pieces for run in runs_of(piece, compacted_end)], compacted_end)
    assert faults_of(runs, 0, max(offsets) + 1, compacted_end) == judged(offsets, compacted_end=compacted_end)


def test_what_is_no_log_is_not_judged_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bascule.limits.AUDIT_RUNS", 3)
    with pytest.raises(ResourceExhausted, match="more than 3 breaks"):
        judged([0, 2, 4, 6, 8])
