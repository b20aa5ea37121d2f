"""Queries that run while their streams are deleted, made again and shortened by retention: a real broker."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from bascule.client import BlockingClient, Client
from bascule.testing.processes import BrokerProcess, poll

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

WAIT_S = 120.0
Row = tuple[str, int, int, bytes]


class Running:
    """A query with a trigger by time, and what it has seen."""

    def __init__(self, spark: Any, broker: BrokerProcess, checkpoint: Path, **options: str) -> None:
        self.seen: list[Row] = []
        self.goes_on = Event()
        self.goes_on.set()
        self.stands = Event()
        source = spark.readStream.format("liftbridge").options(servers=broker.address, startingOffsets="earliest")
        frame = source.options(**options).load().select("stream", "partition", "offset", "value")
        writer = frame.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
        self.query = writer.trigger(processingTime="50 milliseconds").start()

    def _take(self, rows: Any, batch: int) -> None:
        """Holds a batch, which is planned and not read yet, until it may go on."""
        self.stands.set()
        self.goes_on.wait(WAIT_S)
        self.seen += [(row.stream, row.partition, row.offset, bytes(row.value)) for row in rows.collect()]

    def until(self, has: Callable[[list[Row]], bool]) -> None:
        assert poll(lambda: self.query.exception() is not None or has(self.seen), WAIT_S), sorted(self.seen)[-3:]
        assert self.query.exception() is None, self.query.exception()

    def error(self) -> str:
        assert poll(lambda: self.query.exception() is not None, WAIT_S), "the query goes on"
        return str(self.query.exception())


@pytest.fixture
def run(spark: Any, broker: BrokerProcess, tmp_path: Path) -> Any:
    queries: list[Running] = []

    def run(**options: str) -> Running:
        queries.append(Running(spark, broker, tmp_path / str(len(queries)), **options))
        return queries[-1]

    yield run
    for each in queries:
        each.goes_on.set()
        each.query.stop()


def values(stream: str, partition: int, text: bytes, first: int, end: int) -> list[Row]:
    return [(stream, partition, n, b"%s %d" % (text, n)) for n in range(first, end)]


def publish(client: BlockingClient, rows: list[Row]) -> None:
    client.publish_many(rows[0][0], [row[3] for row in rows], partition=rows[0][1])


def test_a_stream_that_is_deleted_and_made_again_under_a_query_is_told_apart(client: BlockingClient, run: Any) -> None:
    """With another number of partitions: what the old one and the new one have is never mixed."""
    for stream in ("gone", "stays"):
        client.create_stream(stream)
        publish(client, values(stream, 0, b"old", 0, 20))
    options = {"streams": "gone,stays"}
    strict, easy = run(**options), run(**options, failOnDataLoss="false")
    expected = values("gone", 0, b"old", 0, 20) + values("stays", 0, b"old", 0, 20)
    for each in (strict, easy):
        each.until(lambda seen: sorted(seen) == sorted(expected))
    client.delete_stream("gone")
    assert "stream gone was deleted: messages were removed before they were read" in strict.error()
    publish(client, more := values("stays", 0, b"old", 20, 25))
    easy.until(lambda seen: sorted(seen) == sorted(expected + more))
    client.create_stream("gone", partitions=2)
    for number in range(2):
        publish(client, values("gone", number, b"new", 0, 30))
    again = values("gone", 0, b"new", 0, 30) + values("gone", 1, b"new", 0, 30)
    easy.until(lambda seen: sorted(seen) == sorted(expected + more + again))
    late = run(**options)  # it has seen the new one only
    late.until(lambda seen: sorted(seen) == sorted(values("stays", 0, b"old", 0, 25) + again))
    client.delete_stream("gone")
    client.create_stream("gone")
    publish(client, values("gone", 0, b"third", 0, 40))
    assert "stream gone was deleted" in late.error()
    easy.until(lambda seen: set(values("gone", 0, b"third", 0, 40)) <= set(seen))
    assert len(easy.seen) == len(set(easy.seen)), "a message came twice"


def keep_few(broker: BrokerProcess, stream: str) -> None:
    async def main() -> None:
        async with await Client.connect(broker.address) as client:
            await client.admin.alter_stream(stream, retention_max_messages=5)

    asyncio.run(main())


def test_what_retention_removes_under_a_query_fails_it_unless_loss_is_accepted(
    broker: BrokerProcess, client: BlockingClient, run: Any
) -> None:
    """A batch is planned, and what it names is gone when it is read."""
    client.create_stream("short", segment_max_bytes=1, cleaner_interval_ms=50)
    publish(client, values("short", 0, b"v", 0, 10))
    strict, easy = run(streams="short"), run(streams="short", failOnDataLoss="false")
    queries = (strict, easy)
    for each in queries:
        each.until(lambda seen: seen == values("short", 0, b"v", 0, 10))
        each.stands.clear()
        each.goes_on.clear()
    publish(client, values("short", 0, b"v", 10, 20))
    assert all(each.stands.wait(WAIT_S) for each in queries)
    keep_few(broker, "short")
    publish(client, values("short", 0, b"v", 20, 40))
    assert poll(lambda: client.log_bounds("short").start >= 20, WAIT_S), "retention removed nothing"
    for each in queries:
        each.goes_on.set()
    assert 'Messages that were to be read are gone; set the option "failOnDataLoss" to false' in strict.error()
    easy.until(lambda seen: seen[-1][2] == 39)
    start = client.log_bounds("short").start
    assert easy.seen[:10] == values("short", 0, b"v", 0, 10)
    assert easy.seen[10:] == values("short", 0, b"v", easy.seen[10][2], 40)
    assert 20 <= easy.seen[10][2] <= start
