"""What is measured: jobs of one Spark session on the same rows, which a stream, files of Parquet and a topic have.

The processor time of Spark is that of its Java with all workers: what an executor uses, and the planning. It is counted
whole, also of workers that have ended.
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bascule.client import BlockingClient
from bascule.pipelines.archive import KEYS, Archive
from bascule.pipelines.config import checked
from bascule.pipelines.deltalog import PARTITIONED_BY
from bascule.pipelines.parquet import read_table
from bascule.spark.jars import fetched
from bascule.spark.session import session
from bascule.testing.processes import BrokerProcess
from bench.servers import TICKS_PER_SECOND
from bench.spark.kafka import START_TIMEOUT_S, KafkaProcess, jars_of

PARTITIONS = 2
VALUE_BYTES = 150
COLUMNS = ("offset", "timestamp", "key", "value")
STREAM, TOPIC, TO = "bench", "bench", "bench-to"
ROWS = (
    "string(id % 100003) AS key",
    f"substr(concat(sha2(string(id), 512), sha2(string(id), 256)), 1, {VALUE_BYTES}) AS value",
)
"""Digits of hashes: nearly nothing of them can be compressed away."""


@dataclass(frozen=True)
class Sample:
    rate: float
    """Rows a second."""
    spark_us: float
    """Processor time of Spark, a row."""
    server_us: float
    """The same of the broker."""


class Bench:
    """The same rows in three places."""

    def __init__(self, folder: Path, broker: BrokerProcess, rows: int, with_kafka: bool) -> None:
        self.rows = rows
        self._folder = folder
        self._broker = broker
        settings = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g"}
        if with_kafka:
            settings["spark.jars"] = ",".join(map(str, fetched(jars_of("source"))))
        self.spark = session("bench", master="local[2]", **settings)
        self._java = _java_of_spark()
        self.kafka = KafkaProcess(folder / "kafka", PARTITIONS).formatted() if with_kafka else None
        self._table = folder / "table"
        self._files = folder / "copy"

    def close(self) -> None:
        self.spark.stop()
        if self.kafka is not None:
            self.kafka.close()

    def fill(self, say: Callable[[str], None]) -> None:
        frame = self.spark.range(0, self.rows, numPartitions=PARTITIONS).selectExpr(*ROWS, f"id % {PARTITIONS} AS p")
        say(f"{self.rows:,} rows into a stream")
        with BlockingClient(self._broker.address) as client:
            client.create_stream(STREAM, partitions=PARTITIONS)
        self._write(frame.selectExpr("key", "value", "int(p) AS partition"), STREAM)
        say("into a table of Parquet")
        self._archive(self._table)
        if self.kafka is not None:
            say("into a topic of Kafka")
            self.kafka.start().wait_ready(START_TIMEOUT_S)
            kafka = frame.selectExpr("key", "value", "int(p) AS partition").write.format("kafka")
            kafka.options(**{"kafka.bootstrap.servers": self.kafka.address, "topic": TOPIC}).save()

    def measure(self, work: Callable[[], None], server: int | None) -> Sample:
        def used() -> tuple[float, float]:
            return tree_seconds(self._java), tree_seconds(server) if server else 0.0

        before, began = used(), time.perf_counter()
        work()
        seconds, after = time.perf_counter() - began, used()
        spark, broker = ((b - a) / self.rows * 1e6 for a, b in zip(before, after, strict=True))
        return Sample(self.rows / seconds, spark, broker)

    # --- the measures -------------------------------------------------------------------------------------------------

    def stream_to_noop(self) -> Sample:
        return self.measure(lambda: _noop(self._stream().select(*COLUMNS)), self._broker.pid)

    def parquet_to_noop(self) -> Sample:
        return self.measure(lambda: _noop(read_table(self.spark, self._table).select(*COLUMNS)), None)

    def kafka_to_noop(self) -> Sample:
        kafka = self.kafka
        assert kafka is not None
        options = {"kafka.bootstrap.servers": kafka.address, "subscribe": TOPIC, "startingOffsets": "earliest"}
        frame = self.spark.read.format("kafka").options(**options)
        return self.measure(lambda: _noop(frame.load().select(*COLUMNS)), kafka.pid)

    def stream_to_archive(self) -> Sample:
        shutil.rmtree(self._files, ignore_errors=True)
        return self.measure(lambda: self._archive(self._files), self._broker.pid)

    def parquet_to_parquet(self) -> Sample:
        """The same columns into the same folders."""
        shutil.rmtree(self._files, ignore_errors=True)

        def work() -> None:
            frame = read_table(self.spark, self._table)
            frame.write.partitionBy(*PARTITIONED_BY).parquet(str(self._files))

        return self.measure(work, None)

    def parquet_to_stream(self) -> Sample:
        with BlockingClient(self._broker.address) as client:
            if TO in client.fetch_metadata().streams:
                client.delete_stream(TO)
            client.create_stream(TO, partitions=PARTITIONS)
        frame = read_table(self.spark, self._table).select("key", "value")
        return self.measure(lambda: self._write(frame, TO), self._broker.pid)

    # --- what they do -------------------------------------------------------------------------------------------------

    def _stream(self) -> Any:
        options = {"servers": self._broker.address, "streams": STREAM, "columns": ",".join(COLUMNS)}
        return self.spark.read.format("liftbridge").options(**options).load()

    def _archive(self, table: Path) -> None:
        given = {"servers": self._broker.address, "streams": STREAM, "table": str(table), "hold": False}
        given["maxOffsetsPerTrigger"] = self.rows
        done = Archive(checked(given, "archive", KEYS, "the benchmark"), self.spark).run()
        if done.rows != self.rows:
            raise RuntimeError(f"the archive has {done.rows} rows of {self.rows}")

    def _write(self, frame: Any, stream: str) -> None:
        frame.write.format("liftbridge").options(servers=self._broker.address, stream=stream).mode("append").save()


MEASURES: dict[str, Callable[[Bench], Sample]] = {
    "stream to noop": Bench.stream_to_noop,
    "Parquet to noop": Bench.parquet_to_noop,
    "Kafka to noop": Bench.kafka_to_noop,
    "stream to Parquet archive": Bench.stream_to_archive,
    "Parquet to Parquet": Bench.parquet_to_parquet,
    "Parquet to stream": Bench.parquet_to_stream,
}
OF_KAFKA = ("Kafka to noop",)


def measures(with_kafka: bool) -> Sequence[str]:
    return [name for name in MEASURES if with_kafka or name not in OF_KAFKA]


def _noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _java_of_spark() -> int:
    (java,) = (int(each.pid) for each in psutil.Process().children() if each.name() == "java")
    return java


def tree_seconds(pid: int) -> float:
    """Processor time of a process and all that it started, also of those that have ended."""
    seconds = 0.0
    for each in (pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended, and is counted with its parent
            continue
        seconds += sum(map(int, fields[11:15])) / TICKS_PER_SECOND
    return seconds


def load_average() -> float:
    return os.getloadavg()[0]
