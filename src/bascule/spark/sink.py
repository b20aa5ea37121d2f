"""`df.write.format("liftbridge")` and `df.writeStream.format("liftbridge")`: rows become messages of streams.

A micro-batch is told from others by the id of its query, which is in the checkpoint, and its number: both are the same
when it is run again. A batch write is told from others by the options `producerId` and `producerBatch`, or by an id of
this very run.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bascule.errors import FailedPrecondition, InvalidArgument
from bascule.spark.rows import check_schema
from bascule.spark.told import plainly
from bascule.spark.writeoptions import WriteOptions, write_options


@dataclass
class Written(WriterCommitMessage):
    """Of one task."""

    rows: int
    registered: int
    name: str


def options_of(given: Mapping[str, str], schema: StructType, overwrite: bool) -> WriteOptions:
    """Checked, with the columns, before anything is written."""
    options = write_options(given)
    check_schema(schema, options.by_column, options.streams, options.order_by)
    if overwrite:
        raise InvalidArgument('a stream is appended to, and not overwritten: .mode("append")')
    return options


class LiftbridgeWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        """In the driver, once for each run."""
        from bascule.spark.writing import prepare

        self._options = options
        self._name = options.producer_id or f"run {uuid.uuid4()}"
        prepare(options)

    @plainly
    def write(self, iterator: Iterator[Any]) -> Written:
        return _write(self._options, self._name, self._options.producer_batch, _task(), iterator)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._options, self._options.producer_batch, messages)


class LiftbridgeStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions) -> None:
        """In the driver, for each micro-batch, and again when it is committed."""
        if options.producer_id:
            raise InvalidArgument(
                'the option "producerId" is for batches: a streaming write has the id of its query, which is in its '
                "checkpoint"
            )
        from bascule.spark.writing import prepare_stream

        self._options = options
        prepare_stream(options)

    @plainly
    def write(self, iterator: Iterator[Any]) -> Written:
        context = _task()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not query or not batch or not batch.isdecimal():
            raise FailedPrecondition(
                "this Spark does not tell a task its query and its batch (sql.streaming.queryId, "
                "streaming.sql.batchId), and without them nothing is stored exactly once: use foreachBatch with "
                '.option("producerId", name).option("producerBatch", batch_id)'
            )
        return _write(self._options, f"query {query}", int(batch), context, iterator)

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        _commit(self._options, batchId, messages)


def _task() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise FailedPrecondition("a write runs in a task of Spark, and this is none")
    return context


def _write(options: WriteOptions, name: str, batch: int, context: TaskContext, rows: Iterator[Any]) -> Written:
    from bascule.spark.registry import BatchId
    from bascule.spark.writing import write

    stored = write(options, BatchId(name, batch), context.partitionId(), rows)
    return Written(stored.rows, stored.registered, name)


def _commit(options: WriteOptions, batch: int, messages: list[WriterCommitMessage | None]) -> None:
    from bascule.spark.exactly import Stored
    from bascule.spark.registry import BatchId
    from bascule.spark.writing import commit

    tasks = [each for each in messages if isinstance(each, Written)]
    if tasks:
        stored = [Stored(each.rows, each.registered) for each in tasks]
        commit(options, BatchId(tasks[0].name, batch), stored)
