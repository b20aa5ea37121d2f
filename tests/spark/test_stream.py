"""Streams as streaming DataFrames: real Spark, a real broker."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bascule.client import BlockingClient, Client, Outgoing
from bascule.spark.cursor import commit_cursors
from bascule.testing.processes import BrokerProcess, poll
from tests.harness.archives import flip

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
    for loss in ("true", "false"):
        with pytest.raises(Exception, match=r"of stream match-a, which does not match .* any more, 'match-b': let it"):
            run(streamPattern="match-b", failOnDataLoss=loss)


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
    with pytest.raises(Exception, match='the option "endingOffsets" is for batches'):
        run(streams="told", endingOffsets="latest")
    assert run(streams="told", startingOffsets="earliest") == expected("told", 1, 5)
    client.create_stream("told-elsewhere")
    with pytest.raises(Exception, match="the checkpoint is of stream told, and this query reads told-elsewhere"):
        run(streams="told-elsewhere")


def test_messages_that_retention_took_fail_the_query_unless_loss_is_accepted(
    broker: BrokerProcess, client: BlockingClient, run: Run
) -> None:
    client.create_stream("cleaned", segment_max_bytes=1)
    fill(client, "cleaned", 1, 0, 5)
    assert run(streams="cleaned", startingOffsets="earliest") == expected("cleaned", 1, 5)
    fill(client, "cleaned", 1, 5, 20)
    administer(broker, lambda client: client.admin.delete_records("cleaned", 0, 12))
    with pytest.raises(Exception, match="cleaned/0 is to be read from 5, and has 12 to 20: messages were removed"):
        run(streams="cleaned")
    rows = run(streams="cleaned", failOnDataLoss="false")
    assert [row[2] for row in rows] == [*range(5), *range(12, 20)]


def test_a_paused_partition_is_named_resumed_or_left_for_later(client: BlockingClient, run: Run) -> None:
    client.create_stream("paused", partitions=2)
    fill(client, "paused", 2, 0, 5)
    options = {"streams": "paused", "startingOffsets": "earliest"}
    assert run(**options) == expected("paused", 2, 5)
    fill(client, "paused", 2, 5, 9)
    client.pause_stream("paused", [1])
    with pytest.raises(Exception, match="partition 1 of stream paused is paused: resume it"):
        run(**options)
    rows = run(**options, pausedPartitions="skip")
    assert [row[1:3] for row in rows] == [*((0, n) for n in range(9)), *((1, n) for n in range(5))]
    assert run(**options, pausedPartitions="resume") == expected("paused", 2, 9)
    client.pause_stream("paused")
    fill(client, "paused", 1, 9, 10)  # which resumes partition 0
    assert len(run(**options, pausedPartitions="skip")) == 19


def test_a_paused_partition_begins_at_the_latest_with_the_message_that_resumes_it(
    client: BlockingClient, run: Run
) -> None:
    client.create_stream("resumed", partitions=2)
    fill(client, "resumed", 2, 0, 5)
    client.pause_stream("resumed", [1])
    options = {"streams": "resumed", "startingOffsets": "latest", "pausedPartitions": "skip"}
    assert run(**options) == []
    fill(client, "resumed", 1, 5, 6)
    client.publish("resumed", b"1/5", partition=1)
    assert [row[1:3] for row in run(**options)] == [(0, 5), (1, 5)]


def test_a_cursor_follows_what_is_committed(client: BlockingClient, run: Run) -> None:
    client.create_stream("followed", partitions=2)
    fill(client, "followed", 2, 0, 100)
    options = {"streams": "followed", "startingOffsets": "earliest", "cursor": "lake"}
    run(**options, maxOffsetsPerTrigger="60")
    assert [client.fetch_cursor("lake", "followed", number) for number in range(2)] == [99, 99]


def test_a_damaged_record_fails_the_batch_that_would_read_it_or_is_noted(
    broker: BrokerProcess, client: BlockingClient, run: Run, tmp_path: Path
) -> None:
    client.create_stream("damaged", segment_max_bytes=4096)
    fill(client, "damaged", 1, 0, 300)
    flip(broker.data_dir, "damaged", b"0/17")
    with pytest.raises(Exception, match="partition 0 of stream damaged: offset 17 is damaged on the broker's disk"):
        run(streams="damaged", startingOffsets="earliest")
    whole = [row for row in expected("damaged", 1, 300) if row[2] != 17]
    assert run(streams="damaged", quarantine=str(tmp_path / "quarantine")) == whole
    (noted,) = (json.loads(each.read_text()) for each in (tmp_path / "quarantine").glob("*.json"))
    assert (noted["stream"], noted["partition"], noted["start"], noted["end"]) == ("damaged", 0, 17, 18)


def administer(broker: BrokerProcess, work: Callable[[Client], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with await Client.connect(broker.address) as client:
            return await work(client)

    return asyncio.run(main())


def test_a_running_query_reads_streams_that_are_new_and_survives_compaction(
    spark: Any, broker: BrokerProcess, client: BlockingClient, tmp_path: Path
) -> None:
    """With a trigger by time, and a cursor that the driver sets when the query has ended."""
    client.create_stream("run-a", compact_enabled=True, cleaner_interval_ms=50, segment_max_bytes=2000)
    source = spark.readStream.format("liftbridge").options(servers=broker.address, streamPattern="run-.*")
    frame = source.options(startingOffsets="earliest", maxOffsetsPerTrigger="400", cursor="runs").load()
    seen: list[tuple[str, int, int]] = []

    def take(rows: Any, batch: int) -> None:
        seen.extend((row.stream, row.partition, row.offset) for row in rows.collect())

    writer = frame.select("stream", "partition", "offset").writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(processingTime="50 milliseconds").start()
    try:
        for turn in range(4):
            client.publish_many("run-a", [Outgoing(b"%d" % turn, b"key-%d" % (n % 7)) for n in range(200)])
        client.create_stream("run-b", partitions=2)
        fill(client, "run-b", 2, 0, 10)
        assert poll(lambda: compacted(client, "run-a")), "the log was not compacted"
        client.publish_many("run-a", [Outgoing(b"last", b"key-%d" % n) for n in range(7)])
        wanted = {("run-b", p, n) for p in range(2) for n in range(10)} | {("run-a", 0, 800 + n) for n in range(7)}
        assert poll(lambda: query.exception() is not None or wanted <= set(seen)), sorted(wanted - set(seen))[:3]
        assert query.exception() is None
        query.processAllAvailable()
    finally:
        query.stop()
    assert len(seen) == len(set(seen)), "a message came twice"
    commit_cursors(query, servers=broker.address, cursor="runs")
    assert client.fetch_cursor("runs", "run-a") == 806
    assert [client.fetch_cursor("runs", "run-b", number) for number in range(2)] == [9, 9]


def compacted(client: BlockingClient, stream: str) -> bool:
    return sum(each.count for each in client.read_range(stream)) < client.log_bounds(stream).end - 100
