"""`query`: SQL over an archive and the stream behind it, as one table.

The archive has what is below its end, as its ledger has it, and the stream the rest. Both sides are bound to the same
offsets before anything is read, so a row is in one of them, also while an archive pipeline adds to the table.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bascule.errors import ConfigError, FailedPrecondition, OutOfRange
from bascule.pipelines.config import SOURCE_KEYS, SPARK_KEY, Config, Key, count, load, local_path, text
from bascule.pipelines.ledger import DELTA, End, Ledger, Part, offsets_json
from bascule.pipelines.parquet import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bascule.spark.planning import Bounds

logger = logging.getLogger(__name__)

NAME = "query"
VIEW = "messages"
KEYS = {
    **SOURCE_KEYS,
    "servers": Key(
        SOURCE_KEYS["servers"].check, "Addresses of brokers, separated by commas. Default: the archive only."
    ),
    "streams": Key(
        SOURCE_KEYS["streams"].check, "Names of streams, separated by commas. Default: those that the archive has."
    ),
    "table": Key(local_path, "The folder of the archive. Default: the streams only."),
    "sql": Key(
        text, f"The query, if it is not given with --sql. The view {VIEW} has all rows, and each stream is a view."
    ),
    "limit": Key(count, "The most rows that are shown. Default: 1000.", 1000),
    "spark": SPARK_KEY,
}
"""Every key with what it means: docs/pipelines.md shows them."""


@dataclass(frozen=True, slots=True)
class Answer:
    columns: tuple[str, ...]
    rows: list[tuple[object, ...]]


class Query:
    def __init__(self, config: Config, spark: SparkSession) -> None:
        self._config = config
        self._spark = spark

    def run(self, sql: str) -> Answer:
        streams, frame = self._opened()
        frame.createOrReplaceTempView(VIEW)
        for stream in with_views(streams):
            frame.where(frame.stream == stream).createOrReplaceTempView(f"`{stream}`")
        found = self._spark.sql(sql).limit(self._config.number("limit"))
        return Answer(tuple(found.columns), [tuple(row) for row in found.collect()])

    def _opened(self) -> tuple[list[str], DataFrame]:
        """The streams, and all their rows."""
        self._spark.conf.set("spark.sql.session.timeZone", "UTC")
        ends, frames = self._archived() if self._config.text("table") else ({}, [])
        streams = {stream for stream, _ in ends}
        if self._config.text("servers"):
            bounds = self._bounds(streams)
            _check(ends, bounds)
            streams |= {stream for stream, _ in bounds}
            if bounds:
                frames.append(self._live(ends, bounds))
        if not frames:
            raise FailedPrecondition(f"{self._config.text('table')} has no committed batch yet: archive into it first")
        whole = frames[0]
        for frame in frames[1:]:
            whole = whole.unionByName(frame)
        return sorted(streams), whole

    def _archived(self) -> tuple[dict[Part, End], list[DataFrame]]:
        ledger = Ledger(Path(self._config.text("table")).resolve())
        if ledger.about()["format"] == DELTA:
            _check_files(ledger)
        ends = ledger.published_ends()
        lake = read_table(self._spark, ledger.table)
        return ends, [lake.where(_below(ends))] if ends else []

    def _bounds(self, archived: set[str]) -> Bounds:
        from bascule.spark.options import read_options
        from bascule.spark.planning import Planner

        try:
            return Planner(read_options(self._source(archived))).bounds(archived)
        except OutOfRange as error:
            what, _, _ = str(error).partition(":")
            raise FailedPrecondition(
                f"{what} since it was archived: query the archive alone (without servers), or set failOnDataLoss to "
                "false to have of it what is archived"
            ) from error

    def _source(self, archived: set[str]) -> dict[str, str]:
        given = self._config.source()
        if not given.get("streams") and not given.get("streamPattern"):
            given["streams"] = ",".join(sorted(archived))
        return given

    def _live(self, ends: Mapping[Part, End], bounds: Bounds) -> DataFrame:
        """From where the archive ends to where the streams end now."""
        from pyspark.sql.functions import col, to_date

        start = {part: ends[part].offset if part in ends else each.start for part, each in bounds.items()}
        end = {part: each.end for part, each in bounds.items()}
        options = {name: value for name, value in self._source(set()).items() if name != "streamPattern"}
        options |= {"streams": ",".join(sorted({stream for stream, _ in bounds})), "includeHeaders": "true"}
        reader = self._spark.read.format("liftbridge").options(**options)
        frame = reader.options(startingOffsets=offsets_json(start), endingOffsets=offsets_json(end)).load()
        return frame.withColumn("date", to_date(col("timestamp")))


def with_views(streams: Sequence[str]) -> list[str]:
    """Those that get a view. Names of views do not differ by case, and all rows have one already."""
    counts = Counter([VIEW, *(each.lower() for each in streams)])
    without = [each for each in streams if counts[each.lower()] > 1]
    if without and len(streams) > 1:
        logger.warning(
            "%s: no view of its own, for another one has that name; ask %s where stream = '%s'",
            ", ".join(without),
            VIEW,
            without[0],
        )
    return [each for each in streams if each not in without]


def _check_files(ledger: Ledger) -> None:
    """Others may remove files from a table of Delta (VACUUM), when they have written their rows again."""
    published = (
        each for batch in ledger.batches() if not (ledger.staging / batch.staged).exists() for each in batch.files
    )
    gone = [each.path for each in published if not (ledger.table / each.path).exists()]
    if gone:
        raise FailedPrecondition(
            f"{len(gone)} files of the archive {ledger.table} are gone, such as {gone[0]}: was it vacuumed? Query it "
            "as a table of Delta, or restore them from a copy"
        )


def _below(ends: Mapping[Part, End]) -> str:
    """What is archived; files that an archive pipeline adds while the query runs are read from the streams."""
    parts = (
        f"(`stream` = {_quoted(stream)} and `partition` = {partition} and `offset` < {end.offset})"
        for (stream, partition), end in sorted(ends.items())
    )
    return " or ".join(parts)


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _check(ends: Mapping[Part, End], bounds: Bounds) -> None:
    for part, each in bounds.items():
        there = ends.get(part)
        if there is not None and there.creation != each.creation:
            raise FailedPrecondition(
                f"stream {part[0]} was deleted and made again since it was archived: the archive and the stream are "
                "not one table. Query the archive alone (without servers), or name another one"
            )


def configured(path: Path, sql: str) -> tuple[Config, str]:
    """With the query. ConfigError if a key or a value cannot be used. Spark is not needed."""
    config = load(path, NAME, KEYS)
    if not config.text("table") and not config.text("servers"):
        raise ConfigError(f"{path}: name what is queried: table, or servers and streams, or all of these")
    if config.text("servers") and not config.text("table"):
        config.source_options()
    if config.text("streamPattern") and config.text("streams"):
        raise ConfigError(f"{path}: give either streams or streamPattern")
    wanted = sql or config.text("sql")
    if not wanted:
        raise ConfigError(f"{path}: there is no query: give --sql, or the key sql")
    return config, wanted
