"""A program for `spark-submit`: a stream is read in a batch and in micro-batches, and written to another one."""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any


def where(rows: Iterable[Any]) -> Iterator[dict[str, object]]:
    """In an executor: its Python and its working folder, where this package was found, and how many rows it had."""
    import os

    import bascule
    from bascule.wire.kernels import TWIN

    count = sum(1 for _ in rows)
    yield {
        "python": sys.executable,
        "executor": os.getcwd(),
        "package": bascule.__file__,
        "kernels": TWIN,
        "rows": count,
    }


def main(servers: str, source: str, sink: str, folder: str) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("cluster").getOrCreate()
    read = {"servers": servers, "streams": source, "columns": "partition,offset,key,value"}
    batch = spark.read.format("liftbridge").options(**read, minPartitions="4").load()
    seen = batch.rdd.mapPartitions(where).collect()
    stream = spark.readStream.format("liftbridge").options(
        **read, startingOffsets="earliest", maxOffsetsPerTrigger="6000"
    )
    once: dict[str, Any] = {"availableNow": True}
    written = stream.load().writeStream.format("liftbridge").options(servers=servers, stream=sink)
    written.option("checkpointLocation", f"{folder}/sink-checkpoint").trigger(**once).start().awaitTermination()
    table = stream.load().writeStream.format("parquet").option("checkpointLocation", f"{folder}/table-checkpoint")
    table.trigger(**once).start(f"{folder}/table").awaitTermination()
    batch.select("key", "value").write.format("liftbridge").options(servers=servers, stream=sink).mode("append").save()
    print(json.dumps(seen), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
