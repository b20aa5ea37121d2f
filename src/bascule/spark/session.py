"""A local SparkSession that reads streams, on loopback only and quiet unless something is wrong."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bascule.spark.delta import delta_if_there
from bascule.spark.java import find_java
from bascule.spark.source import LiftbridgeSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

SETTINGS = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
    "spark.sql.session.timeZone": "UTC",
    # One task for each core: Spark's own 200 cost more than the work of a small machine.
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
    # Of the workers, to connect to the JVM: on a busy machine Python starts slowly.
    "spark.python.authenticate.socketTimeout": "120s",
    # Of the state of a Delta table, which Delta itself spreads over 50 tasks.
    "spark.databricks.delta.snapshotPartitions": "2",
    # A driver that is killed while it writes the first offsets leaves a temporary file: it could not begin again.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
}


def session(app_name: str = "bascule", master: str = "local[*]", **settings: str) -> SparkSession:
    """The running session if there is one, else a new one. `settings` are Spark's keys, or these with `_` for the dots.

    Tables of Delta are read and written, too, once `delta_settings()` has fetched its jars: give them to the first
    session. Workers run this very Python, so they find this package.
    """
    os.environ["JAVA_HOME"] = str(find_java())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    with without_pandas_warnings():
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(master).appName(app_name)
        given = {key if "." in key else key.replace("_", "."): value for key, value in settings.items()}
        for key, value in {**SETTINGS, **delta_if_there(given), **given}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        register(spark)
    return spark


def submitted_session(app_name: str) -> SparkSession:
    """That of `spark-submit`, whose settings are Spark's."""
    with without_pandas_warnings():
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.appName(app_name).getOrCreate()
        register(spark)
    return spark


@contextmanager
def without_pandas_warnings() -> Iterator[None]:
    """pyspark warns about every pandas newer than itself, on stdout if it was submitted; nothing here goes through
    pandas."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
        yield


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("liftbridge")` work in a session made elsewhere."""
    spark.dataSource.register(LiftbridgeSource)
