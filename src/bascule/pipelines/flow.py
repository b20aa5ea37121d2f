"""A stream through Spark in micro-batches, each carried out once: for `aggregate` and `dead-letter`.

Spark's checkpoint says which offsets a batch has, and has an id of its own. What a batch writes is named by that id and
the number of the batch, so a batch that is run again after its driver died replaces its rows of the table, and finds
its messages stored.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bascule.client import Stream
from bascule.errors import AlreadyExists, FailedPrecondition
from bascule.pipelines.config import (
    SOURCE_KEYS,
    SPARK_KEY,
    Config,
    Key,
    count,
    duration,
    listed,
    local_path,
    one_of,
    text,
)
from bascule.pipelines.durable import make_folder, replace_file
from bascule.pipelines.running import PipelineFailed, cause_of
from bascule.spark.connecting import connected
from bascule.spark.planning import matching
from bascule.spark.position import from_json
from bascule.spark.retrying import Tried, has_no_answer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

    from bascule.spark.options import ReadOptions

POLL_S = 1
HELD_MS = 60_000
MARK = "_query"
"""The file in a table with the id of the checkpoint whose batches it has."""
UNPARSED = "unparsed"
"""What a flow counts of each batch as its observed metric, if it leaves messages out."""
Output = Callable[["DataFrame", str, int], int]
"""Writes the rows of a batch, which is the checkpoint's id and a number, and gives how many they were."""
OnProgress = Callable[[int, int], None]
"""Told how many messages were read, and how many there are, of this run."""
FLOW_KEYS = {
    **SOURCE_KEYS,
    "servers": Key(listed, SOURCE_KEYS["servers"].what, required=True),
    "checkpoint": Key(
        local_path,
        "The folder in which Spark keeps how far it is. It belongs to this pipeline. Required.",
        required=True,
    ),
    "startingOffsets": Key(one_of("earliest", "latest"), "Where the first run begins. Default: earliest.", "earliest"),
    "trigger": Key(
        one_of("once", "continuous"),
        "once (the default): what is there at the start, then it ends. continuous: until it is interrupted.",
        "once",
    ),
    "interval": Key(duration, "Of a continuous pipeline: how often it looks for more. Default: 10s.", 10.0),
    "maxOffsetsPerTrigger": Key(
        count, "The most messages of a batch, over all partitions. Default: 1000000.", 1_000_000
    ),
    "spark": SPARK_KEY,
}
SCHEMA_KEY = Key(
    text, "The columns of the JSON in a value, as Spark writes them: id bigint not null, amount double, at timestamp."
)


@dataclass
class FlowReport:
    pipeline: str
    batches: int = 0
    read: int = 0
    unparsed: int = 0
    """Of what was read, what `aggregate` leaves out: no JSON of the schema, or without a time."""
    written: int = 0
    seconds: float = 0.0
    to: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Flow:
    """One run. `stopping` ends a continuous one after the batch that is under way."""

    def __init__(
        self,
        name: str,
        config: Config,
        spark: SparkSession,
        transform: Callable[[DataFrame], DataFrame],
        outputs: Sequence[Output],
        on_progress: OnProgress | None = None,
    ) -> None:
        self._config = config
        self._spark = spark
        self._transform = transform
        self._outputs = outputs
        self._told = on_progress
        self._read: dict[int, int] = {}
        self._unparsed: dict[int, int] = {}
        self._turn = threading.Lock()
        self._busy = False
        self._last: int | None = None
        """The batch that was carried out last."""
        self.report = FlowReport(name)
        self.stopping = threading.Event()

    def run(self) -> FlowReport:
        from pyspark.errors import PySparkException

        began = time.monotonic()
        self._spark.conf.set("spark.sql.session.timeZone", "UTC")
        options = self._config.source() | {
            "includeHeaders": "true",
            "startingOffsets": self._config.text("startingOffsets"),
            "maxOffsetsPerTrigger": str(self._config.number("maxOffsetsPerTrigger")),
        }
        frame = self._transform(self._spark.readStream.format("liftbridge").options(**options).load())
        writer = frame.writeStream.option("checkpointLocation", self._config.text("checkpoint"))
        once = self._config.values["trigger"] == "once"
        trigger = {"availableNow": True} if once else {"processingTime": f"{self._config.seconds('interval')} seconds"}
        tried, told = Tried(math.inf), 0
        while True:
            try:
                self._go(writer.foreachBatch(self._carry_out).trigger(**trigger).start())
                break
            except PySparkException as error:
                if once or not self._read or not has_no_answer(str(error)):
                    raise
                if len(self._read) > told:  # it went on since
                    told = len(self._read)
                    tried.over()
                if self.stopping.wait(tried.pause_after(PipelineFailed(cause_of(str(error))))):
                    break
        self.report.seconds = time.monotonic() - began
        return self.report

    def _go(self, query: StreamingQuery) -> None:
        """Until it ends, or is to stop."""
        try:
            ended = False
            while not ended and not self._is_done():
                ended = query.awaitTermination(POLL_S) is True
                self._follow(query.recentProgress)
        finally:
            query.stop()
        self._follow(query.recentProgress)

    def _follow(self, told: Sequence[StreamingQueryProgress]) -> None:
        """What Spark says of its last batches."""
        for each in told:
            self._read[each.batchId] = each.numInputRows
            if (counted := each.observedMetrics.get(UNPARSED)) is not None:
                self._unparsed[each.batchId] = counted[0]
        self.report.read, self.report.unparsed = sum(self._read.values()), sum(self._unparsed.values())
        if told and self._told is not None:
            behind = max((lag(each.endOffset, each.latestOffset) for each in told[-1].sources), default=0)
            self._told(self.report.read, self.report.read + behind)

    def _is_done(self) -> bool:
        """It is to stop, and Spark has committed the batch that was under way: it has told of it."""
        with self._turn:
            return self.stopping.is_set() and not self._busy and (self._last is None or self._last in self._read)

    def _take_turn(self) -> None:
        """A batch that begins when the flow is to stop is not carried out: it waits until Spark interrupts it."""
        jvm: Any = self._spark._jvm
        with self._turn:
            self._busy = not self.stopping.is_set()
        while not self._busy:  # in the thread of the query, so that the interruption is Spark's own and no error
            jvm.java.lang.Thread.sleep(HELD_MS)

    def _carry_out(self, frame: DataFrame, batch: int) -> None:
        self._take_turn()
        try:
            self._put(frame, batch)
        finally:
            with self._turn:
                self._busy, self._last = False, batch

    def _put(self, frame: DataFrame, batch: int) -> None:
        query = json.loads((Path(self._config.text("checkpoint")) / "metadata").read_text())["id"]
        frame = frame.persist()
        try:
            frame.count()  # by all executors; what follows may be ordered, and so in one task
            for output in self._outputs:
                self.report.written += output(frame, query, batch)
            self.report.batches += 1
        finally:
            frame.unpersist()


def lag(end: str | None, latest: str | None) -> int:
    """How many offsets are between two positions of the source, as Spark shows them."""
    if not end or not latest:
        return 0
    before = from_json(json.loads(end))
    found = 0
    for stream, (creation, offsets) in from_json(json.loads(latest)).items():
        known, read = before.get(stream, (creation, {}))
        for partition, offset in offsets.items():
            found += max(0, offset - (read.get(partition, 0) if known == creation else 0))
    return found


def into_table(table: Path) -> Output:
    """A folder for each batch, which is replaced as a whole."""

    def write(frame: DataFrame, query: str, batch: int) -> int:
        return into_table_batch(frame, table, query, batch)

    return write


def into_table_batch(frame: DataFrame, table: Path, query: str, batch: int) -> int:
    mark = table / MARK
    if mark.exists() and mark.read_text() != query:
        raise FailedPrecondition(
            f"{table} has what a pipeline with another checkpoint wrote: give this one a table of its own, or go on "
            "with the checkpoint that the other had"
        )
    make_folder(table)
    replace_file(mark, query.encode())
    rows: int = frame.count()
    if rows:
        frame.write.mode("overwrite").parquet(str(table / f"batch={batch}"))
    return rows


def into_stream(config: Config, stream: str) -> Output:
    """Messages that are stored once, however often the batch is run, if its rows are in one task and in an order."""

    def write(frame: DataFrame, query: str, batch: int) -> int:
        rows: int = frame.count()
        if rows:
            names = [name for name in ("servers", "tlsCa", "tlsCert", "tlsKey") if config.values.get(name)]
            options = {name: config.text(name) for name in names}
            options |= {"producerId": query, "producerBatch": str(batch)}
            frame.write.format("liftbridge").options(stream=stream, **options).mode("append").save()
        return rows

    return write


def make_stream(options: ReadOptions, stream: str) -> None:
    """If it is not there, with as many replicas as what is read has."""
    with connected(options) as client:
        known = client.fetch_metadata(options.streams).streams
        if options.pattern:
            known = {name: known[name] for name in matching(known, options.pattern)}
        with suppress(AlreadyExists):
            client.create_stream(stream, replication_factor=replicas_of(known.values()))


def replicas_of(streams: Iterable[Stream]) -> int:
    """The most that a partition of them has."""
    return max((len(each.replicas) for stream in streams for each in stream.partitions.values()), default=1)
