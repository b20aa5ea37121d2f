"""`aggregate`: counts and sums of windows of time, into a table and into a stream.

A window is complete when the watermark has passed its end: then it is written, once. What comes later than the
watermark allows is left out. So is what is no JSON of the schema, or has no time: it is counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bascule.errors import ConfigError
from bascule.pipelines.config import Config, Key, duration, load, local_path, text, texts_by_name
from bascule.pipelines.flow import (
    FLOW_KEYS,
    SCHEMA_KEY,
    UNPARSED,
    Flow,
    OnProgress,
    into_stream,
    into_table,
    make_stream,
)
from bascule.pipelines.parsing import PARSED, REASON, columns_of, judged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "aggregate"
VIEW = "messages"
KEYS = {
    **FLOW_KEYS,
    "schema": SCHEMA_KEY,
    "time": Key(text, "The time of a message: a column of the schema, or timestamp. Default: timestamp.", "timestamp"),
    "watermark": Key(duration, "How late messages may come, behind the newest: 10s, 15m. Default: 1m.", 60.0),
    "window": Key(duration, "The length of a window. This with select, or sql, is required."),
    "by": Key(texts_by_name, "Names, each with the SQL of what is grouped by: country: upper(country).", {}),
    "select": Key(texts_by_name, "Names, each with its aggregate in SQL: orders: count(*), total: sum(amount).", {}),
    "sql": Key(text, f"Instead of window, by and select: a query over the view {VIEW} that groups by window(...)."),
    "table": Key(local_path, "A folder of Parquet files for the results. This or toStream is required."),
    "toStream": Key(text, "A stream for the results as JSON; it is made if it is not there."),
}
"""Every key with what it means: docs/pipelines.md shows them."""


def aggregate(config: Config, spark: SparkSession, on_progress: OnProgress | None = None) -> Flow:
    """One run."""
    outputs = []
    if config.text("table"):
        outputs.append(into_table(Path(config.text("table"))))
    if config.text("toStream"):
        make_stream(config.source_options(), config.text("toStream"))
        write = into_stream(config, config.text("toStream"))
        counted = not outputs

        def publish(frame: DataFrame, query: str, batch: int) -> int:
            rows = write(as_messages(frame, config), query, batch)
            return rows if counted else 0

        outputs.append(publish)
    flow = Flow(NAME, config, spark, lambda frame: windows(frame, config), outputs, on_progress)
    flow.report.to = [config.text(name) for name in ("table", "toStream") if config.text(name)]
    return flow


def windows(frame: DataFrame, config: Config) -> DataFrame:
    from pyspark.sql.functions import col, expr, window

    if config.text("schema"):
        frame = columns(frame, config)
    frame = frame.withWatermark(config.text("time"), f"{config.seconds('watermark')} seconds")
    if config.text("sql"):
        frame.createOrReplaceTempView(VIEW)
        return frame.sparkSession.sql(config.text("sql"))
    by = {name: expr(sql).alias(name) for name, sql in config.by_name("by").items()}
    grouped = frame.groupBy(window(config.text("time"), f"{config.seconds('window')} seconds"), *by.values())
    found = grouped.agg(*(expr(sql).alias(name) for name, sql in config.by_name("select").items()))
    begin, end = col("window.start").alias("window_start"), col("window.end").alias("window_end")
    return found.select(begin, end, *by, *config.by_name("select"))


def columns(frame: DataFrame, config: Config) -> DataFrame:
    """Those of the schema. Messages without them are left out, and counted."""
    from pyspark.sql.functions import col, count_if

    time = config.text("time")
    others = others_than(config, frame)
    frame = judged(frame, config.text("schema"))
    of_schema = time.lower() not in {name.lower() for name in others}
    left_out = col(REASON).isNotNull() | (col(PARSED).getField(time) if of_schema else col(time)).isNull()
    frame = frame.observe(UNPARSED, count_if(left_out).alias(UNPARSED))
    return frame.where(~left_out).select(f"{PARSED}.*", *others)


def others_than(config: Config, frame: DataFrame) -> list[str]:
    """The message's own columns, as far as the schema has none of the same name."""
    taken = {each.name.lower() for each in columns_of(config.text("schema"))}
    return [name for name in frame.columns if name.lower() not in taken]


def as_messages(frame: DataFrame, config: Config) -> DataFrame:
    """JSON, with the window and what was grouped by as the key, in an order that does not depend on tasks."""
    from pyspark.sql.functions import struct, to_json

    keys = [name for name in ("window_start", *config.by_name("by")) if name in frame.columns] or frame.columns
    found = frame.select(to_json(struct(*keys)).alias("key"), to_json(struct(*frame.columns)).alias("value"))
    return found.coalesce(1).sortWithinPartitions("key", "value")


def configured(path: Path) -> Config:
    """ConfigError if a key or a value cannot be used. Spark is not needed."""
    config = load(path, NAME, KEYS)
    config.source_options()
    if bool(config.text("sql")) == bool(config.values["window"] and config.by_name("select")):
        raise ConfigError(f"{path}: give either window and select, or sql")
    if not config.text("table") and not config.text("toStream"):
        raise ConfigError(f"{path}: name where the results go: table, or toStream, or both")
    return config
