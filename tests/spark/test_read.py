"""Streams as DataFrames: real Spark, a real broker."""

from pathlib import Path
from typing import Any

import pytest

from bascule.client import BlockingClient, Outgoing
from bascule.errors import StartError
from bascule.spark.java import find_java, major_version
from bascule.testing.processes import BrokerProcess

# py4j leaves its sockets to the garbage collector, and pyspark warns about pandas.
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def load(spark: Any, broker: BrokerProcess, streams: str, **options: str) -> Any:
    return spark.read.format("liftbridge").options(servers=broker.address, streams=streams, **options).load()


def test_every_message_is_there_once_with_all_its_fields(
    spark: Any, broker: BrokerProcess, client: BlockingClient
) -> None:
    client.create_stream("fields", subject="some.subject", partitions=2)
    client.publish("fields", b"\x00\xff", key=b"k", headers={"h": b"v"}, partition=1)
    client.publish("fields", b"plain", partition=0)
    (stored,) = client.subscribe("fields", 1, start="earliest", stop="latest")
    plain, row = load(spark, broker, "fields", includeHeaders="true").orderBy("partition").collect()
    assert (row.stream, row.partition, row.offset) == ("fields", 1, 0)
    assert (bytes(row.key), bytes(row.value)) == (b"k", b"\x00\xff")
    assert (row.subject, row.replySubject) == ("some.subject.1", None)
    assert row.leaderEpoch >= 1
    assert row.timestamp_ns == stored.timestamp
    assert {name: bytes(value) for name, value in row.headers.items()} == stored.headers
    assert stored.headers["h"] == b"v"
    assert (plain.key, bytes(plain.value)) == (None, b"plain")
    seconds = load(spark, broker, "fields").where("partition = 1").selectExpr("unix_micros(timestamp) as t")
    assert seconds.collect()[0].t == stored.timestamp // 1000


def test_the_schema_is_the_documented_one(spark: Any, broker: BrokerProcess, client: BlockingClient) -> None:
    client.create_stream("schema")
    frame = load(spark, broker, "schema")
    assert [f"{name} {kind}" for name, kind in frame.dtypes] == [
        "stream string",
        "partition int",
        "offset bigint",
        "timestamp timestamp",
        "timestamp_ns bigint",
        "key binary",
        "value binary",
        "subject string",
        "replySubject string",
        "leaderEpoch bigint",
    ]
    assert frame.count() == 0


def test_all_messages_of_several_streams_are_counted_once(
    spark: Any, broker: BrokerProcess, client: BlockingClient
) -> None:
    for name, partitions, count in (("many-a", 3, 50_000), ("many-b", 1, 1000)):
        client.create_stream(name, partitions=partitions)
        client.publish_many(name, [Outgoing(b"%d" % n, b"%d" % n) for n in range(count)])
    frame = load(spark, broker, "many-a, many-b,many-a")
    sums = frame.selectExpr("stream", "cast(cast(value as string) as long) as n").groupBy("stream")
    rows = sums.agg({"n": "sum", "stream": "count"}).orderBy("stream").collect()
    assert [(r["count(stream)"], r["sum(n)"]) for r in rows] == [(50_000, 50_000 * 49_999 // 2), (1000, 499_500)]
    assert frame.where("stream = 'many-a'").select("partition").distinct().count() == 3
    assert frame.select("stream", "partition", "offset").distinct().count() == 51_000


def test_the_range_is_fixed_when_the_query_is_planned(broker: BrokerProcess, client: BlockingClient) -> None:
    from bascule.spark.options import read_options
    from bascule.spark.source import LiftbridgeReader

    client.create_stream("fixed")
    client.publish_many("fixed", [b"before"] * 10)
    reader = LiftbridgeReader(read_options({"servers": broker.address, "streams": "fixed"}), ["offset", "value"])
    (planned,) = reader.partitions()
    client.publish_many("fixed", [b"after"] * 10)
    for _ in range(2):
        assert sum(batch.num_rows for batch in reader.read(planned)) == 10


def test_a_range_is_chosen_by_offsets_or_times_and_split(
    spark: Any, broker: BrokerProcess, client: BlockingClient
) -> None:
    client.create_stream("chosen", partitions=2)
    for first, end in ((0, 60), (60, 100)):  # the first ones are acked before the others are sent: microseconds before
        for number in range(2):
            client.publish_many("chosen", [b"%d" % n for n in range(first, end)], partition=number)
    (middle,) = client.subscribe("chosen", 0, start=60, stop=60)

    def offsets(**options: str) -> list[tuple[int, int]]:
        rows = load(spark, broker, "chosen", columns="partition,offset", **options).collect()
        return sorted((row.partition, row.offset) for row in rows)

    one, other = ([(number, n) for n in range(100)] for number in range(2))
    assert offsets(startingOffsets='{"chosen": {"0": 90, "1": -1}}') == one[90:]
    assert offsets(startingOffsets='{"chosen": {"0": -1}}', endingOffsets='{"chosen": {"1": 5}}') == other[:5]
    assert offsets(startingTimestamp=middle.time.isoformat()) == one[60:] + other[60:]
    assert offsets(endingTimestamp=middle.time.isoformat()) == one[:60] + other[:60]
    frame = load(spark, broker, "chosen", minPartitions="7")
    assert frame.rdd.getNumPartitions() >= 7
    assert frame.count() == 200
    with pytest.raises(
        Exception, match="names offset 101 of partition 0 of stream chosen, and the partition ends at 100"
    ):
        offsets(startingOffsets='{"chosen": {"0": 101}}')


def test_only_the_columns_of_a_schema_are_read(spark: Any, broker: BrokerProcess, client: BlockingClient) -> None:
    client.create_stream("pruned")
    client.publish("pruned", b"v", key=b"k")
    reader = spark.read.format("liftbridge").options(servers=broker.address, streams="pruned")
    (row,) = reader.schema("value binary, offset bigint").load().collect()
    assert (bytes(row.value), row.offset) == (b"v", 0)
    with pytest.raises(Exception, match='column "offset" is of type bigint, and the schema says string'):
        reader.schema("offset string").load().collect()
    with pytest.raises(Exception, match='names a column "colour", and there are stream, partition'):
        reader.schema("colour string").load().collect()


def test_a_missing_stream_or_option_is_said_by_name(spark: Any, broker: BrokerProcess, client: BlockingClient) -> None:
    with pytest.raises(Exception, match="no such stream: nowhere"):
        load(spark, broker, "nowhere").count()
    with pytest.raises(Exception, match='give either the option "streams" or "streamPattern"'):
        spark.read.format("liftbridge").option("servers", broker.address).load().count()


def test_java_is_found_or_named_as_what_to_install(tmp_path: Path) -> None:
    home = find_java()
    assert (major_version(home / "bin" / "java") or 0) >= 17
    with pytest.raises(StartError, match=r"needs Java 17.*none was found.*apt install"):
        find_java({"PATH": str(tmp_path)})
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(StartError, match="is Java 8"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)})
