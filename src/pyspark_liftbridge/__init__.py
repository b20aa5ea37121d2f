"""Spark looks for data sources in packages whose names begin with `pyspark_`: so `format("liftbridge")` works in every
session of an environment with this package, without a call of `register`."""

from bascule.spark.source import LiftbridgeSource


class DefaultSource(LiftbridgeSource):
    """The name that Spark looks for."""
