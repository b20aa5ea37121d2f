"""How much a micro-batch takes, how long it waits, where the first one begins by time: real Spark, a real broker."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bascule.client import BlockingClient
from bascule.testing.processes import BrokerProcess, poll

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
WAIT_S = 120.0


class Batches:
    """A query, and the offsets of each of its batches."""

    def __init__(self, spark: Any, broker: BrokerProcess, folder: Path) -> None:
        self._spark, self._broker, self._folder = spark, broker, folder
        self.seen: list[list[int]] = []

    @property
    def offsets(self) -> list[int]:
        return [offset for batch in self.seen for offset in batch]

    def start(self, trigger: dict[str, Any], **options: str) -> Any:
        source = self._spark.readStream.format("liftbridge").options(servers=self._broker.address, **options)
        writer = source.load().select("offset").writeStream.foreachBatch(self._take)
        return writer.option("checkpointLocation", str(self._folder)).trigger(**trigger).start()

    @contextmanager
    def running(self, **options: str) -> Iterator[Any]:
        query = self.start({"processingTime": "50 milliseconds"}, **options)
        try:
            yield query
        finally:
            query.stop()

    def _take(self, rows: Any, batch: int) -> None:
        if found := sorted(row.offset for row in rows.collect()):
            self.seen.append(found)


@pytest.fixture
def batches(spark: Any, broker: BrokerProcess, tmp_path: Path) -> Batches:
    return Batches(spark, broker, tmp_path / "checkpoint")


def test_a_batch_waits_for_enough_messages(
    spark: Any, client: BlockingClient, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_stream("gathers")
    client.publish_many("gathers", [b"v"] * 5)
    interval = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(interval, "50")

    def waits_before(end: int) -> bool:
        told = query.lastProgress
        latest = told.sources[0].latestOffset if told is not None else None
        return latest is not None and json.loads(latest)["streams"]["gathers"]["partitions"] == {"0": end}

    try:
        options = {"streams": "gathers", "startingOffsets": "earliest", "minOffsetsPerTrigger": "10"}
        with batches.running(**options, maxTriggerDelay="1h") as query:
            assert poll(lambda: query.exception() is not None or waits_before(5), WAIT_S)
            client.publish_many("gathers", [b"v"] * 5)
            assert poll(lambda: query.exception() is not None or bool(batches.seen), WAIT_S)
    finally:
        spark.conf.unset(interval)
    assert batches.seen == [list(range(10))]


def test_a_batch_waits_no_longer_than_it_is_told_to(client: BlockingClient, batches: Batches) -> None:
    client.create_stream("impatient")
    client.publish_many("impatient", [b"v"] * 5)
    options = {"streams": "impatient", "startingOffsets": "earliest", "minOffsetsPerTrigger": "1000"}
    with batches.running(**options, maxTriggerDelay="100ms") as query:
        assert poll(lambda: query.exception() is not None or bool(batches.seen), WAIT_S)
    assert batches.offsets == list(range(5))


def test_a_batch_has_about_so_many_bytes(client: BlockingClient, batches: Batches) -> None:
    client.create_stream("heavy")
    client.publish_many("heavy", [b"v" * 1000] * 100)
    options = {"streams": "heavy", "startingOffsets": "earliest", "maxBytesPerTrigger": "30k"}
    batches.start({"availableNow": True}, **options).awaitTermination()
    assert batches.offsets == list(range(100))
    assert len(batches.seen) >= 4
    assert max(map(len, batches.seen)) <= 30


def test_a_stream_begins_at_a_time(client: BlockingClient, batches: Batches) -> None:
    client.create_stream("by-time")
    client.publish_many("by-time", [b"v"] * 5)
    client.publish_many("by-time", [b"v"] * 5)
    (sixth,) = client.subscribe("by-time", 0, start=5, stop=5)
    before = [
        each.offset
        for each in client.subscribe("by-time", 0, start="earliest", stop="latest")
        if each.time < sixth.time
    ]
    options = {"streams": "by-time", "startingTimestamp": sixth.time.isoformat()}
    batches.start({"availableNow": True}, **options).awaitTermination()
    assert batches.offsets == list(range(len(before), 10))
