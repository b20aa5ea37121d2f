"""`restore`: an archive back into a stream, with the offset and the time that each message had.

Each batch of the archive is one write, in the order of its offsets, and has its number under the one producer id of
the restore. How far it is, is kept beside the ledger: a restore that is run again stores nothing twice, and goes on
with what the archive has got since.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bascule.client import BlockingClient
from bascule.errors import AlreadyExists, FailedPrecondition, Unimplemented
from bascule.pipelines.config import SOURCE_KEYS, SPARK_KEY, Config, Key, count, listed, load, local_path, text
from bascule.pipelines.flow import replicas_of
from bascule.pipelines.ledger import Batch, Ledger
from bascule.pipelines.parquet import SCHEMA, literal, part_of
from bascule.pipelines.restored import Restored
from bascule.spark.connecting import connected
from bascule.spark.options import read_options
from bascule.spark.registry import SUPERSEDED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "restore"
STREAM, PARTITION, OFFSET, TIME = (f"restored-{what}" for what in ("stream", "partition", "offset", "timestamp"))
"""The headers of what is restored."""
KEYS = {
    "servers": Key(listed, SOURCE_KEYS["servers"].what, required=True),
    **{name: SOURCE_KEYS[name] for name in ("tlsCa", "tlsCert", "tlsKey")},
    "table": Key(local_path, "The folder of the archive. Required.", required=True),
    "stream": Key(text, "Which stream of the archive. Default: the only one."),
    "to": Key(
        text,
        "The stream that is written to, each message to the partition that it had; it is made if it is not there. "
        "Required.",
        required=True,
    ),
    "replicas": Key(
        count,
        "Of the stream that is written to, if it has to be made. Default: as many as the stream that was archived has, "
        "if the servers have it; else 1.",
    ),
    "spark": SPARK_KEY,
}
"""Every key with what it means: docs/pipelines.md shows them."""


@dataclass
class RestoreReport:
    stream: str
    to: str
    batches: int = 0
    rows: int = 0
    """Of the archive, that the stream was given."""
    known: int = 0
    """Of these, those of batches that an earlier run had restored."""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return {"pipeline": NAME, **asdict(self)}


class Restore:
    def __init__(
        self, config: Config, spark: SparkSession, on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        self._config = config
        self._spark = spark
        self._told = on_progress
        self._ledger = Ledger(Path(config.text("table")).resolve())

    def run(self) -> RestoreReport:
        began = time.monotonic()
        id = self._ledger.about()["id"]
        batches = [each for each in self._ledger.batches() if not (self._ledger.staging / each.staged).exists()]
        stream = self._stream(batches)
        report = RestoreReport(stream, self._config.text("to"))
        ranges = [each for batch in batches for each in batch.ranges if each.stream == stream]
        total = sum(each.rows for each in ranges)
        with connected(read_options({**self._options(), "streams": report.to})) as client:
            created = make(
                client, report.to, 1 + max(each.partition for each in ranges), self._replicas(client, stream)
            )
            name = f"{NAME}-{id}-{stream}-{report.to}-{created}"
            restored = Restored(self._ledger, name)
            following = restored.next(batches, lambda: _ends(client, report.to))
            for batch in batches:
                rows = sum(each.rows for each in batch.ranges if each.stream == stream)
                if not rows:
                    continue
                if batch.number < following or not self._write(batch, report, name):
                    report.known += rows
                if batch.number >= following:
                    restored.put(batch, _ends(client, report.to))
                report.batches, report.rows = report.batches + 1, report.rows + rows
                if self._told is not None:
                    self._told(report.rows, total)
        report.seconds = time.monotonic() - began
        return report

    def _replicas(self, client: BlockingClient, stream: str) -> int:
        if self._config.values["replicas"] is not None:
            return self._config.number("replicas")
        return replicas_of(client.fetch_metadata([stream]).streams.values())

    def _write(self, batch: Batch, report: RestoreReport, name: str) -> bool:
        """Whether it had to be: a batch is done before the next one begins, so it is if there is a later one."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        options = {"stream": report.to, "producerId": name, "producerBatch": str(batch.number)}
        try:
            write_rows(self._rows(batch, report.stream), {**self._options(), **options})
        except (PySparkException, Py4JError) as error:
            if SUPERSEDED not in str(error):
                raise
            return False
        return True

    def _stream(self, batches: list[Batch]) -> str:
        there = sorted({each.stream for batch in batches for each in batch.ranges})
        wanted = self._config.text("stream")
        if wanted in there:
            return wanted
        if wanted or len(there) != 1:
            raise FailedPrecondition(
                f"{self._config.where}: stream names one of those that {self._config.text('table')} has: "
                f"{', '.join(there) or 'none yet'}"
            )
        return there[0]

    def _options(self) -> dict[str, str]:
        names = ("servers", "tlsCa", "tlsCert", "tlsKey")
        return {name: self._config.text(name) for name in names if self._config.text(name)}

    def _rows(self, batch: Batch, stream: str) -> DataFrame:
        """In one task, in the order of their offsets: the same however often they are written."""
        from pyspark.sql.functions import col, create_map, lit, map_concat, map_filter

        table = self._ledger.table
        files = [literal(table / each.path) for each in batch.files if part_of(Path(each.path))[0] == stream]
        frame = self._spark.read.schema(SCHEMA).option("basePath", str(table)).parquet(*files)
        added = {STREAM: "stream", PARTITION: "partition", OFFSET: "offset", TIME: "timestamp_ns"}
        pairs = [each for name, of in added.items() for each in (lit(name), col(of).cast("string").cast("binary"))]
        others = map_filter("headers", lambda name, _: ~name.isin(*added))
        headers = map_concat(others, create_map(*pairs)).alias("headers")
        ordered = frame.coalesce(1).sortWithinPartitions("partition", "offset")
        return ordered.select("partition", "key", "value", headers)


def write_rows(frame: DataFrame, options: dict[str, str]) -> None:
    frame.write.format("liftbridge").options(**options).mode("append").save()


def make(client: BlockingClient, stream: str, partitions: int, replicas: int) -> int:
    """If it is not there. When it was made, in nanoseconds."""
    with suppress(AlreadyExists):
        client.create_stream(stream, partitions=partitions, replication_factor=replicas)
    found = client.fetch_metadata([stream]).streams[stream]
    if len(found.partitions) < partitions:
        raise FailedPrecondition(
            f"stream {stream} has {len(found.partitions)} partitions, and the archive {partitions}: restore into "
            "another stream, or one that is not there yet"
        )
    return found.creation_timestamp


def _ends(client: BlockingClient, stream: str) -> tuple[int, ...]:
    partitions = client.fetch_metadata([stream]).streams[stream].partitions
    try:
        return tuple(client.log_bounds(stream, number).end for number in sorted(partitions))
    except Unimplemented:
        return ()


def configured(path: Path) -> Config:
    """ConfigError if a key or a value cannot be used. Spark is not needed."""
    return load(path, NAME, KEYS)
