"""`archive`: streams into a table, each message once, and the stream's hold behind it.

A batch is a range of offsets of each partition, planned here and read by `format("liftbridge")`. Once the table has it
for good, the hold goes up, so the broker removes only what is archived; when the driver dies in between, the next run
raises it. The state is the table's own ledger: what a run finds there is where it goes on.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bascule import limits
from bascule.errors import FailedPrecondition, OutOfRange
from bascule.pipelines.config import (
    SOURCE_KEYS,
    SPARK_KEY,
    Config,
    Key,
    count,
    duration,
    listed,
    load,
    local_path,
    name_or_false,
    one_of,
)
from bascule.pipelines.deltalog import DeltaLog
from bascule.pipelines.holds import raise_holds
from bascule.pipelines.ledger import DELTA, FORMATS, PARQUET, Batch, End, Ledger, Part, Range, offsets_json
from bascule.pipelines.parquet import ParquetTable
from bascule.pipelines.running import PipelineFailed, cause_of
from bascule.spark.quarantine import note, noted
from bascule.spark.retrying import NO_ANSWER, Retrying, Tried, has_no_answer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bascule.client import LogBounds
    from bascule.spark.planning import Bounds

logger = logging.getLogger(__name__)

NAME = "archive"
INTERVAL_S = {PARQUET: 10.0, DELTA: 60.0}
"""Of a continuous archive, by the format of its table."""
KEYS = {
    **SOURCE_KEYS,
    "servers": Key(listed, SOURCE_KEYS["servers"].what, required=True),
    "table": Key(
        local_path,
        "The folder of the table, which the archive makes, and which is its own. Required.",
        required=True,
    ),
    "format": Key(
        one_of(*FORMATS),
        "parquet (the default): a folder of Parquet files. delta: with the log of a Delta table beside them, so that "
        "readers of Delta see each batch as a whole. A table of Parquet may become one of Delta later.",
        PARQUET,
    ),
    "hold": Key(
        name_or_false,
        "The name of the hold that keeps in the streams what is not archived yet. false: none. Default: archive- and "
        "the id of the table.",
    ),
    "trigger": Key(
        one_of("once", "continuous"),
        "once (the default): what is there at the start, then it ends. continuous: until it is interrupted.",
        "once",
    ),
    "interval": Key(
        duration,
        "Of a continuous archive: how often it looks for more, as 10s or 5m. Default: 10s, and 1m with format delta, "
        "whose readers open a file for each batch.",
    ),
    "maxOffsetsPerTrigger": Key(
        count, "The most messages of a batch, over all partitions. Default: 1000000.", 1_000_000
    ),
    "spark": SPARK_KEY,
}
"""Every key with what it means: docs/pipelines.md shows them."""

OnProgress = Callable[[int, int], None]
"""Told how many offsets are done, and how many there are, of this run."""


@dataclass
class Archived:
    """Of one partition, what this run archived: offsets from `start` to `end`, exclusive."""

    stream: str
    partition: int
    start: int
    end: int
    rows: int = 0
    hold: int | None = None


@dataclass
class ArchiveReport:
    table: str
    batches: int = 0
    rows: int = 0
    bytes: int = 0
    missing: int = 0
    """Offsets that no record had, and that compaction did not remove."""
    seconds: float = 0.0
    partitions: dict[Part, Archived] = field(default_factory=dict)

    def add(self, batch: Batch) -> None:
        self.batches += 1
        self.rows += sum(each.rows for each in batch.ranges)
        self.bytes += sum(each.bytes for each in batch.files)
        self.missing += sum(map(missing, batch.ranges))
        for each in batch.ranges:
            part = (each.stream, each.partition)
            found = self.partitions.setdefault(part, Archived(*part, each.start, each.end))
            found.end = each.end
            found.rows += each.rows

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "pipeline": NAME, "partitions": [asdict(each) for each in self.partitions.values()]}


def missing(each: Range) -> int:
    """How many offsets have no record, though compaction did not remove them. Where it has been, as far as the broker
    said so."""
    lacking = each.end - each.start - each.rows
    return (
        lacking if each.start >= each.compacted_end else min(lacking, sum(end - start for start, end in each.damaged))
    )


class Archive:
    """One run. `stopping` ends a continuous one after the batch that is under way."""

    def __init__(self, config: Config, spark: SparkSession, on_progress: OnProgress | None = None) -> None:
        from bascule.spark.planning import Planner

        self._config = config
        self._options = config.source_options()
        self._spark = spark
        self._told = on_progress
        self._ledger = Ledger(Path(config.text("table")).resolve())
        delta = DeltaLog(self._ledger) if config.text("format") == DELTA else None
        self._table = ParquetTable(self._ledger, delta)
        self.stopping = threading.Event()
        continuous = config.values["trigger"] == "continuous"
        self._retrying = Retrying(math.inf if continuous else limits.SPARK_RETRY_S, self.stopping)
        self._planner = Planner(self._options, self._retrying)
        self._tried = Tried(math.inf if continuous else limits.SPARK_RETRY_S)
        self._hold = ""
        self._ends: dict[Part, End] = {}
        self._number = 0
        self._done = 0
        self._report = ArchiveReport(str(self._ledger.table))

    def run(self) -> ArchiveReport:
        began = time.monotonic()
        self._spark.conf.set("spark.sql.session.timeZone", "UTC")  # the dates of the table are those of UTC
        self._ledger.lock()
        try:
            self._ledger.create(self._config.text("format"))
            self._table.recover()
            self._go_on()
            self._archive()
        except NO_ANSWER:
            if not self.stopping.is_set():
                raise
        finally:
            self._ledger.unlock()
        self._report.seconds = time.monotonic() - began
        return self._report

    def _go_on(self) -> None:
        """From the last batch of the table. Its hold may not have been raised."""
        last = self._ledger.last()
        if last is not None:
            self._ends, self._number = dict(last.ends), last.number + 1
        given = self._config.values["hold"]
        self._hold = "" if given is False else str(given or f"archive-{self._ledger.about()['id']}")

    def _archive(self) -> None:
        bounds = self._begun(self._bounds())
        while True:
            ranges = self._next(bounds)
            if ranges:
                if not self._take(ranges, bounds):
                    bounds = self._begun(self._bounds())
            elif self._config.values["trigger"] == "once" or self.stopping.wait(self._config.seconds("interval")):
                return
            else:
                bounds = self._begun(self._bounds())
            if self.stopping.is_set():
                return

    # --- planning -------------------------------------------------------------------------------------------------

    def _bounds(self) -> Bounds:
        return self._planner.bounds({stream for stream, _ in self._ends})

    def _begun(self, bounds: Bounds) -> Bounds:
        """Each partition has a place to go on from, and a hold there, so that nothing is removed from now on."""
        wanted = {part: self._ends[part].offset if part in self._ends else None for part in bounds}
        self._check(bounds)
        if self._hold:
            self._note(raise_holds(self._options, self._hold, wanted, self._retrying))
        for part, each in bounds.items():
            if part not in self._ends or self._ends[part].offset < each.start:
                self._ends[part] = End(each.creation, each.start)
        return bounds

    def _check(self, bounds: Bounds) -> None:
        for part, each in bounds.items():
            if part in self._ends:
                self._check_part(part, self._ends[part], each)

    def _check_part(self, part: Part, there: End, now: LogBounds) -> None:
        (stream, partition), start, end = part, now.start, now.end
        if there.creation != now.creation:
            raise FailedPrecondition(
                f"stream {stream} was deleted and made again since it was archived into {self._ledger.table}: the "
                "offsets of the new one mean other messages. Archive it into a table of its own"
            )
        if there.offset > end:
            raise FailedPrecondition(
                f"{stream}/{partition} ends at {end}, and {self._ledger.table} has it up to {there.offset}: the stream "
                "lost messages that were committed, and may have others at their offsets. Look into the broker's log, "
                "then archive into a table of its own"
            )
        if there.offset < start:
            gone = f"{stream}/{partition} was archived up to {there.offset}, and begins at {start} now"
            if self._options.fail_on_loss:
                raise OutOfRange(
                    f"{gone}: messages were removed before they were archived. Set failOnDataLoss to false to go on "
                    "without them"
                )
            logger.warning("%s: messages were removed before they were archived; the archive goes on", gone)

    def _next(self, bounds: Bounds) -> list[Range]:
        """The ranges of the next batch, each partition in proportion to what it has."""
        from bascule.spark.streaming import in_turn, shares

        backlog = {
            part: each.end - self._ends[part].offset
            for part, each in bounds.items()
            if self._ends[part].offset < each.end
        }
        if self._told is not None:
            self._told(self._done, self._done + sum(backlog.values()))
        taken = shares(in_turn(backlog, self._number), self._config.number("maxOffsetsPerTrigger"))
        return [
            Range(*part, bounds[part].creation, start, start + size, 0, bounds[part].compacted_end)
            for part, size in sorted(taken.items())
            if size
            for start in [self._ends[part].offset]
        ]

    # --- a batch --------------------------------------------------------------------------------------------------

    def _take(self, ranges: list[Range], bounds: Bounds) -> bool:
        """Whether the batch is in the table. Not if no broker answered, or if a partition of it was paused or deleted
        meanwhile, and the archive is to go on without."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        ends = self._ends | {(each.stream, each.partition): End(each.creation, each.end) for each in ranges}
        leaves_out = bool(self._options.quarantine or not self._options.fail_on_loss)
        notes = str(self._ledger.staging / f"damaged-{uuid.uuid4().hex[:8]}") if leaves_out else ""
        try:
            with self._table.written(self._frame(ranges, bounds, notes), self._number, ranges) as written:
                now = self._bounds()
                self._check(now)  # it was this stream that was read
                if self._are_gone(ranges, now):
                    return False
                compacted = {part: each.compacted_end for part, each in now.items()}
                batch = written.commit(ends, compacted, self._damaged(notes))
        except (PySparkException, Py4JError) as error:  # what it was is seen by what there is now
            if self._are_gone(ranges, self._bounds()):
                return False
            if not has_no_answer(str(error)):
                raise
            self.stopping.wait(self._tried.pause_after(PipelineFailed(cause_of(str(error)))))
            return False
        self._tried.over()
        self._ends, self._number = ends, self._number + 1
        self._report.add(batch)
        self._done += sum(each.end - each.start for each in ranges)
        for each in batch.ranges:
            if lacking := missing(each):
                logger.warning(
                    "%s/%d has no records at %d of the offsets from %d to %d, and compaction did not remove them: "
                    "`bascule pipeline audit` says which",
                    *(each.stream, each.partition, lacking, each.start, each.end),
                )
        if self._hold:
            raised = {(each.stream, each.partition): each.end for each in batch.ranges}
            self._note(raise_holds(self._options, self._hold, raised, self._retrying))
        return True

    def _are_gone(self, ranges: Sequence[Range], now: Bounds) -> bool:
        gone = [f"{each.stream}/{each.partition}" for each in ranges if (each.stream, each.partition) not in now]
        if gone:
            logger.warning(
                "%s: paused or deleted while a batch was read; the batch is read again without", ", ".join(gone)
            )
        return bool(gone)

    def _damaged(self, notes: str) -> dict[Part, list[tuple[int, int]]]:
        """What the tasks of a batch left out, because it is damaged on the broker's disk. The `quarantine` gets it."""
        found: dict[Part, list[tuple[int, int]]] = {}
        for each in noted(notes) if notes else ():
            found.setdefault((each.stream, each.partition), []).append((each.start, each.end))
            if self._options.quarantine:
                offsets = range(each.start, each.end)
                note(self._options.quarantine, each.stream, each.partition, each.creation, offsets)
        return {part: sorted(ranges) for part, ranges in found.items()}

    def _frame(self, ranges: list[Range], bounds: Bounds, notes: str) -> DataFrame:
        """Exactly these offsets: a partition without any is named, too. `notes`: where damage is noted, if that is to
        be left out; a folder of this batch, which all executors have, as they have the table."""
        from pyspark.sql.functions import col, to_date

        streams = {each.stream for each in ranges}
        start = {part: self._ends[part].offset for part in bounds if part[0] in streams}
        end = start | {(each.stream, each.partition): each.end for each in ranges}
        options = {name: value for name, value in self._config.source().items() if name != "streamPattern"}
        options |= {"streams": ",".join(sorted(streams)), "includeHeaders": "true"}
        options |= {"quarantine": notes} if notes else {}
        reader = self._spark.read.format("liftbridge").options(**options)
        frame = reader.option("startingOffsets", offsets_json(start)).option("endingOffsets", offsets_json(end)).load()
        return frame.withColumn("date", to_date(col("timestamp")))

    def _note(self, holds: Mapping[Part, int]) -> None:
        for part, hold in holds.items():
            if part in self._report.partitions:
                self._report.partitions[part].hold = hold


def configured(path: Path) -> Config:
    """ConfigError if a key or a value cannot be used. Spark is not needed."""
    config = load(path, NAME, KEYS)
    config.source_options()
    if config.values["interval"] is not None:
        return config
    interval = INTERVAL_S[config.text("format")]
    return replace(config, values={**config.values, "interval": interval})
