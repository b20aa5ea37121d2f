"""`format("liftbridge")`: the committed messages of streams as DataFrames, in a batch or as a stream, and back.

The driver plans exact ranges of offsets (`planning`, `streaming`), executors read them (`reading`). Rows are written by
executors (`sink`, `writing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bascule.errors import InvalidArgument, NotFound
from bascule.spark.options import Bound, ReadOptions, check_use, read_options
from bascule.spark.planning import Planner, StreamRange, paused
from bascule.spark.sink import LiftbridgeStreamWriter, LiftbridgeWriter, options_of
from bascule.spark.streaming import LiftbridgeStreamReader
from bascule.spark.told import batches_plainly, plainly


class LiftbridgeSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "liftbridge"

    @plainly
    def schema(self) -> str:
        from bascule.spark.columns import chosen, spark_schema

        options = read_options(self.options)
        return spark_schema(chosen(options.columns, options.headers))

    @plainly
    def reader(self, schema: StructType) -> LiftbridgeReader:
        check_use(self.options, stream=False)
        return LiftbridgeReader(read_options(self.options), _names(schema))

    @plainly
    def streamReader(self, schema: StructType) -> LiftbridgeStreamReader:
        check_use(self.options, stream=True)
        return LiftbridgeStreamReader(read_options(self.options), _names(schema))

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> LiftbridgeWriter:
        return LiftbridgeWriter(options_of(self.options, schema, overwrite))

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> LiftbridgeStreamWriter:
        return LiftbridgeStreamWriter(options_of(self.options, schema, overwrite))


def _names(schema: StructType) -> list[str]:
    """The columns of a schema, which may be the user's own: with it Spark says which are needed."""
    from bascule.client.columns import COLUMNS

    for each in schema.fields:
        if each.name not in COLUMNS:
            raise InvalidArgument(f'the schema names a column "{each.name}", and there are {", ".join(COLUMNS)}')
        wanted, given = COLUMNS[each.name].spark, each.dataType.simpleString()
        if given != wanted:
            raise InvalidArgument(f'column "{each.name}" is of type {wanted}, and the schema says {given}')
    return [str(each.name) for each in schema.fields]


class LiftbridgeReader(DataSourceReader):
    def __init__(self, options: ReadOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = names

    @plainly
    def partitions(self) -> list[StreamRange]:
        """In the driver, once per query. Without messages there is one range, which is empty: Spark wants a task."""
        planner = Planner(self._options)
        bounds = planner.bounds()
        if not bounds and not planner.paused:
            raise NotFound(f'no stream matches the option "streamPattern", {self._options.pattern!r}')
        self._check_named(planner)
        start = planner.positions(self._options.start or Bound("earliest"), bounds, "startingOffsets")
        end = planner.positions(self._options.end or Bound("latest"), bounds, "endingOffsets")
        return planner.ranges(start, end, bounds) or [StreamRange("", 0, 0, 0, 0)]

    def _check_named(self, planner: Planner) -> None:
        """A range that was asked for by name is read, or the query fails; it is not left out for a pause."""
        for stream, number in sorted(planner.paused):
            start, end = (
                bound.offsets.get(stream, {}).get(number, -1) if bound is not None else -1
                for bound in (self._options.start, self._options.end)
            )
            if 0 <= start < end:
                raise paused(stream, number)

    @batches_plainly
    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a worker: Arrow record batches."""
        from bascule.spark.reading import read

        assert isinstance(partition, StreamRange)
        return read(self._options, self._names, partition) if partition.start < partition.end else iter(())
