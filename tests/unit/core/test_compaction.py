"""When a log is compacted: soon while it is small, and again when tombstones may go."""

from types import SimpleNamespace
from typing import Any

import pytest

from bascule import limits
from bascule.core.compaction import is_due, joins, tombstones_due
from bascule.core.merging import MergeBounds

HOUR = 3_600_000_000_000


@pytest.mark.parametrize(
    ("total", "new", "due"),
    [
        (0, 0, False),
        (1000, 0, False),
        (1000, 1, True),
        (limits.COMPACT_WHOLE_BYTES, 1, True),
        (limits.COMPACT_WHOLE_BYTES * 10, limits.COMPACT_WHOLE_BYTES, False),
        (limits.COMPACT_WHOLE_BYTES * 10, limits.COMPACT_WHOLE_BYTES * 10 // limits.COMPACT_SHARE, True),
    ],
)
def test_a_large_log_is_compacted_when_a_good_part_of_it_is_new(total: int, new: int, due: bool) -> None:
    assert is_due(total, new) is due


def test_tombstones_go_when_what_they_delete_has_been_gone_for_the_delay() -> None:
    """However old they are themselves."""
    written, gone = 5 * HOUR, 90 * HOUR
    assert not tombstones_due(written, gone, gone + HOUR - 1, HOUR)
    assert tombstones_due(written, gone, gone + HOUR, HOUR)
    assert not tombstones_due(written, gone, gone, 0), "not in the same pass"
    assert tombstones_due(written, gone, gone + 1, 0)


@pytest.mark.parametrize("nothing", [-1, -2])
def test_without_tombstones_nothing_is_due_for_them(nothing: int) -> None:
    assert not tombstones_due(nothing, 0, 90 * HOUR, HOUR)


@pytest.mark.parametrize(
    ("nbytes", "records", "more", "age", "join"),
    [
        (100, 1, 1, 10, True),
        (101, 1, 1, 10, False),
        (100, 1, 2, 10, False),
        (100, 1, 1, 11, False),
        (100, 2, 0, 99, True),
        (100, 0, 9, 99, True),
        (101, 9, 0, 1, False),
        (0, 0, 0, 99, True),
    ],
)
def test_files_join_within_the_bounds_of_merging_and_empty_ones_as_far_as_bytes_go(
    nbytes: int, records: int, more: int, age: int, join: bool
) -> None:
    first: Any = SimpleNamespace(first_timestamp=1, appended=SimpleNamespace(last_timestamp=2))
    last: Any = SimpleNamespace(first_timestamp=3, appended=SimpleNamespace(last_timestamp=1 + age))
    assert joins(MergeBounds(100, 2, 10), [first], last, nbytes, records, more) is join
