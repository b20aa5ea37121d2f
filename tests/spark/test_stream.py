"""Streams as streaming DataFrames: real Spark, a real broker."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bascule.client import BlockingClient
from bascule.testing.processes import BrokerProcess

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

Run = Callable[..., list[tuple[str, int, int, bytes]]]


@pytest.fixture
def run(spark: Any, broker: BrokerProcess, tmp_path: Path) -> Run:
    """One run of a query to what is there now, as its table holds it afterwards."""

    def run(checkpoint: str = "checkpoint", **options: str) -> list[tuple[str, int, int, bytes]]:
        frame = spark.readStream.format("liftbridge").options(servers=broker.address, **options).load()
        writer = frame.select("stream", "partition", "offset", "value").writeStream.format("parquet")
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True)
        query.start(str(tmp_path / "table")).awaitTermination()
        rows = spark.read.parquet(str(tmp_path / "table")).orderBy("stream", "partition", "offset").collect()
        return [(row.stream, row.partition, row.offset, bytes(row.value)) for row in rows]

    return run


def expected(stream: str, partitions: int, each: int) -> list[tuple[str, int, int, bytes]]:
    return [(stream, number, n, b"%d/%d" % (number, n)) for number in range(partitions) for n in range(each)]


def fill(client: BlockingClient, stream: str, partitions: int, first: int, end: int) -> None:
    for number in range(partitions):
        client.publish_many(stream, [b"%d/%d" % (number, n) for n in range(first, end)], partition=number)


def test_a_query_goes_on_from_its_checkpoint_and_reads_everything_once(client: BlockingClient, run: Run) -> None:
    client.create_stream("carried", partitions=2)
    fill(client, "carried", 2, 0, 1000)
    options = {"streams": "carried", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "700"}
    assert run(**options) == expected("carried", 2, 1000)
    fill(client, "carried", 2, 1000, 1500)
    assert run(**options, minPartitions="5") == expected("carried", 2, 1500)
    assert run(**options) == expected("carried", 2, 1500)


def test_streams_that_begin_to_match_are_read_from_their_beginning(client: BlockingClient, run: Run) -> None:
    client.create_stream("match-a")
    fill(client, "match-a", 1, 0, 10)
    options = {"streamPattern": "match-.*", "startingOffsets": "earliest"}
    assert run(**options) == expected("match-a", 1, 10)
    client.create_stream("match-b")
    fill(client, "match-b", 1, 0, 7)
    assert run(**options) == expected("match-a", 1, 10) + expected("match-b", 1, 7)


def test_a_stream_made_again_fails_the_query_unless_loss_is_accepted(client: BlockingClient, run: Run) -> None:
    client.create_stream("again")
    fill(client, "again", 1, 0, 5)
    assert run(streams="again", startingOffsets="earliest") == expected("again", 1, 5)
    client.delete_stream("again")
    client.create_stream("again")
    client.publish_many("again", [b"new"] * 20)
    with pytest.raises(Exception, match="stream again was deleted and made again since the last batch"):
        run(streams="again")
    rows = run(streams="again", failOnDataLoss="false")
    assert sorted(row[3] for row in rows) == sorted([b"0/%d" % n for n in range(5)] + [b"new"] * 20)


def test_a_wrong_option_or_checkpoint_is_told_in_a_sentence(client: BlockingClient, run: Run) -> None:
    client.create_stream("told")
    fill(client, "told", 1, 0, 5)
    with pytest.raises(Exception, match='has no option "startingofset": did you mean startingOffsets'):
        run(streams="told", startingOfset="earliest")
    with pytest.raises(Exception, match='"endingOffsets" and "endingTimestamp" are for batches'):
        run(streams="told", endingOffsets="latest")
    assert run(streams="told", startingOffsets="earliest") == expected("told", 1, 5)
    client.create_stream("other")
    with pytest.raises(Exception, match="the checkpoint is of stream told, and this query reads other"):
        run(streams="other")
