"""Delta in a Spark session: its jars, from Maven Central into the cache folder, and the settings that load them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from bascule.spark.jars import Jar, cached, fetched

VERSION = "4.4.0"
"""The one that works with the Spark of this package, 4.2."""
JARS = (
    Jar(
        f"io/delta/delta-spark_2.13/{VERSION}/delta-spark_2.13-{VERSION}.jar",
        "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
    ),
    Jar(
        f"io/delta/delta-storage/{VERSION}/delta-storage-{VERSION}.jar",
        "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
    ),
    Jar(
        f"io/delta/delta-kernel-api/{VERSION}/delta-kernel-api-{VERSION}.jar",
        "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
    ),
    Jar(
        f"io/delta/delta-kernel-defaults/{VERSION}/delta-kernel-defaults-{VERSION}.jar",
        "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
    ),
    Jar(
        f"io/delta/delta-kernel-unitycatalog/{VERSION}/delta-kernel-unitycatalog-{VERSION}.jar",
        "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
    ),
)
CLASSES = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}


def delta_settings(folder: Path | None = None) -> dict[str, str]:
    """Of a session that reads and writes Delta tables. StartError if the jars cannot be had."""
    return _settings(fetched(JARS, folder))


def delta_if_there(given: Mapping[str, str], folder: Path | None = None) -> dict[str, str]:
    """The same, beside the settings that a session is given, if nothing has to be fetched for it and nobody else says
    which jars there are: the caller, a session that runs, or Spark's own settings. Else none."""
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    others = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf") / "spark-defaults.conf"
    if pyspark.SparkContext._active_spark_context is not None or "PYSPARK_SUBMIT_ARGS" in os.environ or others.exists():
        return {}
    if any(key in given for key in ("spark.jars", "spark.jars.packages", *CLASSES)):
        return {}
    there = cached(JARS, folder)
    return _settings(there) if there else {}


def _settings(jars: list[Path]) -> dict[str, str]:
    return {"spark.jars": ",".join(map(str, jars)), **CLASSES}
