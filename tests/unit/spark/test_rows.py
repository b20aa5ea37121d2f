"""Rows of a task in an order that does not depend on how they came."""

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest

from bascule import limits
from bascule.errors import InvalidArgument
from bascule.spark.rows import ordered

ROWS: list[dict[str, Any]] = [
    {"value": b"a", "id": 2, "headers": [("h", b"1")]},
    {"value": b"c", "id": 1, "headers": None},
    {"value": b"b", "id": 1, "headers": [("h", b"2"), ("i", b"3")]},
    {"value": b"d", "id": None, "headers": []},
]
SCHEMA = pa.schema([("value", pa.binary()), ("id", pa.int64()), ("headers", pa.map_(pa.string(), pa.binary()))])


def batches(rows: list[dict[str, Any]], each: int) -> Iterator[Any]:
    return iter(pa.Table.from_pylist(rows, SCHEMA).to_batches(max_chunksize=each))


def test_rows_are_in_the_same_order_however_they_come() -> None:
    for rows in permutations(ROWS):
        for each in (1, 3):
            found = pa.Table.from_batches(ordered(batches(list(rows), each), ["id"])).to_pylist()
            assert [row["value"] for row in found] == [b"b", b"c", b"a", b"d"]
            assert [row["headers"] for row in found] == [ROWS[n]["headers"] for n in (2, 1, 0, 3)]
    assert list(ordered(iter(()), ["id"])) == []


def test_more_rows_than_a_task_may_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SPARK_SORT_BYTES", 100)
    with pytest.raises(InvalidArgument, match="give the write more partitions"):
        list(ordered(batches(ROWS * 10, 1), ["id"]))
