"""Streams as Spark DataFrames: `session()` makes a SparkSession that knows `format("liftbridge")`."""

from bascule.spark.session import session
from bascule.spark.source import LiftbridgeSource

__all__ = ["LiftbridgeSource", "session"]
