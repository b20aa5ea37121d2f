"""`format("liftbridge")`: the committed messages of streams as DataFrames, in a batch or as a stream.

The driver plans exact ranges of offsets (`planning`, `streaming`), executors read them (`reading`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bascule.errors import InvalidArgument
from bascule.spark.options import Bound, ReadOptions, read_options
from bascule.spark.planning import Planner, StreamRange
from bascule.spark.streaming import LiftbridgeStreamReader


class LiftbridgeSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "liftbridge"

    def schema(self) -> str:
        from bascule.spark.columns import chosen, spark_schema

        options = read_options(self.options)
        return spark_schema(chosen(options.columns, options.headers))

    def reader(self, schema: StructType) -> LiftbridgeReader:
        return LiftbridgeReader(read_options(self.options), _names(schema))

    def streamReader(self, schema: StructType) -> LiftbridgeStreamReader:
        options = read_options(self.options)
        if options.end is not None:
            raise InvalidArgument('"endingOffsets" and "endingTimestamp" are for batches: a stream has no end')
        return LiftbridgeStreamReader(options, _names(schema))


def _names(schema: StructType) -> list[str]:
    """The columns of a schema, which may be the user's own: with it Spark says which are needed."""
    from bascule.spark.columns import COLUMNS

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

    def partitions(self) -> list[StreamRange]:
        """In the driver, once per query. Without messages there is one range, which is empty: Spark wants a task."""
        planner = Planner(self._options)
        bounds = planner.bounds()
        start = planner.positions(self._options.start or Bound("earliest"), bounds, "startingOffsets")
        end = planner.positions(self._options.end or Bound("latest"), bounds, "endingOffsets")
        return planner.ranges(start, end, bounds) or [StreamRange("", 0, 0, 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a worker: Arrow record batches."""
        from bascule.spark.reading import read

        assert isinstance(partition, StreamRange)
        return read(self._options, self._names, partition) if partition.start < partition.end else iter(())
