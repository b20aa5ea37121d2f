"""Streams as DataFrames: real Spark, a real broker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bascule.client import BlockingClient, Outgoing
from bascule.errors import StartError
from bascule.spark.java import find_java, major_version
from bascule.testing.processes import BrokerProcess, start_broker

# py4j leaves its sockets to the garbage collector, and pyspark warns about pandas.
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path_factory.mktemp("spark")) as running:
        yield running


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from bascule.spark import session

    spark = session("tests", master="local[2]")
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[BlockingClient]:
    with BlockingClient(broker.address) as client:
        yield client


def load(spark: Any, broker: BrokerProcess, streams: str) -> Any:
    return spark.read.format("liftbridge").option("servers", broker.address).option("streams", streams).load()


def test_every_message_is_there_once_with_all_its_fields(
    spark: Any, broker: BrokerProcess, client: BlockingClient
) -> None:
    client.create_stream("fields", subject="some.subject", partitions=2)
    client.publish("fields", b"\x00\xff", key=b"k", headers={"h": b"v"}, partition=1)
    client.publish("fields", b"plain", partition=0)
    (stored,) = client.subscribe("fields", 1, start="earliest", stop="latest")
    plain, row = load(spark, broker, "fields").orderBy("partition").collect()
    assert (row.stream, row.partition, row.offset) == ("fields", 1, 0)
    assert (bytes(row.key), bytes(row.value)) == (b"k", b"\x00\xff")
    assert (row.subject, row.reply) == ("some.subject.1", None)
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
        "reply string",
        "headers map<string,binary>",
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
    from bascule.spark.source import LiftbridgeReader

    client.create_stream("fixed")
    client.publish_many("fixed", [b"before"] * 10)
    reader = LiftbridgeReader([broker.address], ["fixed"])
    (planned,) = reader.partitions()
    client.publish_many("fixed", [b"after"] * 10)
    for _ in range(2):
        assert sum(batch.num_rows for batch in reader.read(planned)) == 10


def test_a_missing_stream_or_option_is_said_by_name(spark: Any, broker: BrokerProcess, client: BlockingClient) -> None:
    with pytest.raises(Exception, match="no such stream: nowhere"):
        load(spark, broker, "nowhere").count()
    with pytest.raises(Exception, match='the option "streams" is missing'):
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
