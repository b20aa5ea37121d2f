"""Streams as Spark DataFrames: `session()` makes a SparkSession that knows `format("liftbridge")`."""

from bascule.errors import PackageMissing

try:
    from bascule.spark.cursor import commit_cursors
    from bascule.spark.delta import delta_settings
    from bascule.spark.envelopes import decode_envelope, encode_envelope
    from bascule.spark.session import session
    from bascule.spark.source import LiftbridgeSource
except ImportError as error:
    package = (error.name or "").partition(".")[0]
    if package not in ("pyspark", "py4j", "pyarrow"):
        raise
    raise PackageMissing(
        f"Spark and the pipelines need pyspark and pyarrow, and this Python has no {package}: "
        "pip install 'bascule[spark]'",
        name=package,
    ) from None

__all__ = ["LiftbridgeSource", "commit_cursors", "decode_envelope", "delta_settings", "encode_envelope", "session"]
