"""A streaming write knows its query and its batch from Spark, or stores nothing."""

from typing import Any

import pytest

from bascule.errors import FailedPrecondition
from bascule.spark import sink, writing
from bascule.spark.writeoptions import write_options


class Task:
    def __init__(self, properties: dict[str, str]) -> None:
        self._properties = properties

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self._properties.get(name)


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"sql.streaming.queryId": "q"},
        {"streaming.sql.batchId": "7"},
        {"sql.streaming.queryId": "q", "streaming.sql.batchId": "seven"},
    ],
)
def test_a_task_that_is_not_told_its_query_and_batch_is_refused(
    monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]
) -> None:
    def stored(*_: Any) -> None:
        raise AssertionError("nothing is stored")

    monkeypatch.setattr("pyspark.TaskContext.get", lambda: Task(properties))
    monkeypatch.setattr(writing, "prepare_stream", lambda _: None)
    monkeypatch.setattr(writing, "write", stored)
    writer = sink.LiftbridgeStreamWriter(write_options({"servers": "nowhere:1", "stream": "s"}))
    with pytest.raises(FailedPrecondition, match=r"does not tell a task its query and its batch .* use foreachBatch"):
        writer.write(iter(()))
