"""`dead-letter`: values that are not what a schema says go to a stream of their own, with reason and source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bascule.errors import ConfigError
from bascule.pipelines.config import Config, Key, load, local_path, text
from bascule.pipelines.flow import FLOW_KEYS, SCHEMA_KEY, Flow, OnProgress, into_stream, into_table, make_stream
from bascule.pipelines.parsing import PARSED, REASON, judged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "dead-letter"
WHY, STREAM, PARTITION, OFFSET, TIME = (
    f"dead-letter-{what}" for what in ("reason", "stream", "partition", "offset", "timestamp")
)
"""The headers of what is written."""
KEYS = {
    **{name: key for name, key in FLOW_KEYS.items() if name != "streamPattern"},
    "schema": Key(SCHEMA_KEY.check, f"{SCHEMA_KEY.what} Required.", required=True),
    "to": Key(
        text, "The stream for what fails; it is made if it is not there. Default: the name of the stream and .dlq."
    ),
    "table": Key(local_path, "A folder of Parquet files for what does not fail. Default: none."),
}
"""Every key with what it means: docs/pipelines.md shows them."""


def dead_letter(config: Config, spark: SparkSession, on_progress: OnProgress | None = None) -> Flow:
    """One run."""
    from pyspark.sql.functions import col

    options = config.source_options()
    to = config.text("to") or f"{options.streams[0]}.dlq"
    make_stream(options, to)
    failures = into_stream(config, to)
    table = into_table(Path(config.text("table"))) if config.text("table") else None

    def failed(frame: DataFrame, query: str, batch: int) -> int:
        return failures(letters(frame.where(col(REASON).isNotNull())), query, batch)

    def passed(frame: DataFrame, query: str, batch: int) -> int:
        valid = frame.where(col(REASON).isNull())
        assert table is not None
        table(valid.select(f"{PARSED}.*", "stream", "partition", "offset", "timestamp"), query, batch)
        return 0

    outputs = [failed, *([passed] if table else [])]
    flow = Flow(NAME, config, spark, lambda frame: judged(frame, config.text("schema")), outputs, on_progress)
    flow.report.to = [to, *([config.text("table")] if table else [])]
    return flow


def letters(frame: DataFrame) -> DataFrame:
    """As messages in the order of their offsets: key and value as they were, and the source in the headers."""
    from pyspark.sql.functions import col, create_map, lit, map_concat, map_filter

    added = {WHY: REASON, STREAM: "stream", PARTITION: "partition", OFFSET: "offset", TIME: "timestamp_ns"}
    pairs = [each for name, of in added.items() for each in (lit(name), col(of).cast("string").cast("binary"))]
    others = map_filter("headers", lambda name, _: ~name.isin(*added))
    ordered = frame.coalesce(1).sortWithinPartitions("partition", "offset")
    return ordered.select("key", "value", map_concat(others, create_map(*pairs)).alias("headers"))


def configured(path: Path) -> Config:
    """ConfigError if a key or a value cannot be used. Spark is not needed."""
    config = load(path, NAME, KEYS)
    if len(config.source_options().streams) != 1:
        raise ConfigError(f"{path}: streams names the one stream that is looked through")
    return config
