"""Writing DataFrames to streams."""

from typing import Any

from bascule.client import BlockingClient, Message
from bascule.testing.processes import BrokerProcess


def write(frame: Any, broker: BrokerProcess, mode: str = "append", **options: str) -> None:
    frame.write.format("liftbridge").options(servers=broker.address, **options).mode(mode).save()


def stored(client: BlockingClient, stream: str, partition: int = 0) -> list[Message]:
    if client.log_bounds(stream, partition).end == 0:
        return []
    return list(client.subscribe(stream, partition, start="earliest", stop="latest"))


def start(spark: Any, servers: str, source: str, sink: str, checkpoint: str) -> Any:
    """Everything of one stream into another, in micro-batches."""
    options = {"servers": servers, "streams": source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40000"}
    frame = spark.readStream.format("liftbridge").options(**options).load().select("key", "value")
    writer = frame.writeStream.format("liftbridge").options(servers=servers, stream=sink)
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
