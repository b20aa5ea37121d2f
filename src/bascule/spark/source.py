"""`spark.read.format("liftbridge")`: the committed messages of streams, one Spark partition per stream
partition.

Planning asks each partition's leader for its high watermark and fixes the range [0, high watermark] there:
however often Spark runs a task again, it reads the same offsets, and messages published meanwhile wait for
the next read. A task that does not reach the end of its range fails; it never returns fewer messages
quietly. Offsets removed by retention or compaction before the read are simply not there.

Options: `servers`, broker addresses; `streams`, stream names; both separated by commas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bascule import limits
from bascule.client import BlockingClient, Message
from bascule.errors import InvalidArgument, NotFound, Unavailable


@dataclass
class StreamRange(InputPartition):
    """Offsets `start` to `stop`, both inclusive, of one partition."""

    stream: str
    partition: int
    start: int
    stop: int


class LiftbridgeSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "liftbridge"

    def schema(self) -> str:
        from bascule.spark.columns import SPARK_SCHEMA

        return SPARK_SCHEMA

    def reader(self, schema: object) -> LiftbridgeReader:
        return LiftbridgeReader(_list(self.options, "servers"), _list(self.options, "streams"))


def _list(options: Any, name: str) -> list[str]:
    items = [item.strip() for item in options.get(name, "").split(",") if item.strip()]
    if not items:
        raise InvalidArgument(f'the option "{name}" is missing: .option("{name}", "a,b")')
    return list(dict.fromkeys(items))


class LiftbridgeReader(DataSourceReader):
    def __init__(self, servers: list[str], streams: list[str]) -> None:
        self.servers = servers
        self.streams = streams

    def partitions(self) -> list[StreamRange]:
        """In the driver, once per query. An empty partition has an empty range: Spark wants a task at least."""
        with BlockingClient(self.servers) as client:
            known = client.fetch_metadata(self.streams).streams
            missing = [name for name in self.streams if name not in known]
            if missing:
                raise NotFound(f"no such stream: {', '.join(missing)}. Check the spelling in option streams")
            ranges: list[StreamRange] = []
            for name in self.streams:
                for partition in known[name].partitions:
                    newest = client.fetch_partition_metadata(name, partition).high_watermark
                    ranges.append(StreamRange(name, partition, 0, newest))
        return ranges

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """In a worker: Arrow record batches."""
        from bascule.spark.columns import record_batch

        assert isinstance(partition, StreamRange)
        if partition.stop < partition.start:
            return
        with BlockingClient(self.servers) as client:
            for messages in _gathered(_messages(client, partition)):
                yield record_batch(messages)


def _messages(client: BlockingClient, wanted: StreamRange) -> Iterator[list[Message]]:
    end = wanted.start - 1
    for batch in client.batches(wanted.stream, wanted.partition, start=wanted.start, stop=wanted.stop):
        end = batch[-1].offset
        if end > wanted.stop:
            batch = [message for message in batch if message.offset <= wanted.stop]
        yield batch
        if end >= wanted.stop:
            return
    raise Unavailable(
        f"partition {wanted.partition} of stream {wanted.stream} ended at offset {end}, and {wanted.stop} was "
        "committed before: was the stream deleted meanwhile?"
    )


def _gathered(batches: Iterator[list[Message]]) -> Iterator[list[Message]]:
    """Network reads are small; Arrow batches should not be."""
    gathered: list[Message] = []
    size = 0
    for batch in batches:
        gathered += batch
        size += sum(len(message.value) for message in batch)
        if size >= limits.SPARK_BATCH_BYTES or len(gathered) >= limits.SPARK_BATCH_ROWS:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered
