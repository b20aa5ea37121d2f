"""A local SparkSession that reads streams, on loopback only and quiet unless something is wrong."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

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
}


def session(app_name: str = "bascule", master: str = "local[*]", **settings: str) -> SparkSession:
    """The running session if there is one, else a new one; `settings` have `_` for the dots of Spark's keys.

    Workers run this very Python, so they find this package.
    """
    os.environ["JAVA_HOME"] = str(find_java())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    with warnings.catch_warnings():
        # pyspark warns about every pandas newer than itself; nothing here goes through pandas.
        warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(master).appName(app_name)
        for key, value in {**SETTINGS, **{key.replace("_", "."): value for key, value in settings.items()}}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make `spark.read.format("liftbridge")` work in a session made elsewhere."""
    spark.dataSource.register(LiftbridgeSource)
