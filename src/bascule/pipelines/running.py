"""A pipeline's Spark: the session of `spark-submit` or one of its own, and errors that begin with one sentence."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bascule.errors import BasculeError, ClusterError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL = {"spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1))}
"""For one machine, where the settings say nothing else: Spark's own default is for a cluster."""
_OURS = re.compile(r"bascule\.errors\.\w+: (.+)")


class PipelineFailed(ClusterError):
    """Spark ended a pipeline. The text is the first cause, the trace is that of `__cause__`."""


def is_submitted() -> bool:
    """Whether `spark-submit` started this program: then Spark's settings are its."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


@contextmanager
def spark_session(pipeline: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Ended with the block, unless it ran before."""
    from bascule.spark.session import session, submitted_session

    if is_submitted():
        spark = submitted_session(f"bascule {pipeline}")
    else:
        others = SMALL | {name: value for name, value in settings.items() if name != "master"}
        spark = session(f"bascule {pipeline}", master=settings.get("master", "local[*]"), **others)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def told_plainly() -> Iterator[None]:
    """An error of Spark is raised again with the sentence that caused it."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except BasculeError:
        raise
    except (PySparkException, Py4JError) as error:
        raise PipelineFailed(cause_of(str(error))) from error


def cause_of(text: str) -> str:
    """The sentence of our own error in a trace of Spark; else the first line of it."""
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1])
    return next((line.strip() for line in text.splitlines() if line.strip()), "Spark failed without a reason")
