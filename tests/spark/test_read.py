"""Streams as DataFrames: real Spark, a real broker."""

import asyncio
from typing import Any

import pytest

from bascule.client import BlockingClient, Client, Outgoing
from bascule.errors import FailedPrecondition, OutOfRange, Unimplemented
from bascule.spark.envelopes import decode_envelope, encode_envelope
from bascule.spark.options import read_options
from bascule.spark.planning import Planner
from bascule.spark.source import LiftbridgeReader
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
    assert {name: bytes(value) for name, value in row.headers.items()} == stored.headers == {"h": b"v"}
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


def test_other_servers_are_read_by_subscriptions(
    broker: BrokerProcess, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `log_bounds` says of a server without bulk reads; the rest is as such a server has it."""

    async def no_bulk(*_: object) -> None:
        raise Unimplemented("unknown service bascule.v1.Log")

    client.create_stream("foreign", partitions=2)
    for number in range(2):
        client.publish_many("foreign", [Outgoing(b"%d" % n, b"k") for n in range(50)], partition=number)
    monkeypatch.setattr(Client, "log_bounds", no_bulk)
    options = {"servers": broker.address, "streams": "foreign", "minPartitions": "6"}
    reader = LiftbridgeReader(
        read_options(options | {"startingOffsets": '{"foreign": {"1": 20}}'}),
        ["partition", "offset", "value", "leaderEpoch"],
    )
    planned = reader.partitions()
    assert len(planned) >= 6
    assert {each.creation for each in planned} == {
        -client.fetch_metadata(["foreign"]).streams["foreign"].creation_timestamp
    }
    rows = [row for each in planned for batch in reader.read(each) for row in batch.to_pylist()]
    assert [(row["partition"], row["offset"]) for row in rows] == [(p, n) for p in range(2) for n in range(20 * p, 50)]
    assert all((int(row["value"]), row["leaderEpoch"]) == (row["offset"], None) for row in rows)


def test_removed_messages_of_other_servers_are_told(
    broker: BrokerProcess, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_bulk(*_: object) -> None:
        raise Unimplemented("unknown service bascule.v1.Log")

    async def remove(before: int) -> None:
        async with await Client.connect(broker.address) as admin:
            await admin.admin.delete_records("foreign-cut", 0, before)

    client.create_stream("foreign-cut", segment_max_bytes=1)
    client.publish_many("foreign-cut", [b"%d" % n for n in range(50)])
    asyncio.run(remove(10))
    monkeypatch.setattr(Client, "log_bounds", no_bulk)

    def rows(**options: str) -> list[int]:
        given = {"servers": broker.address, "streams": "foreign-cut", **options}
        reader = LiftbridgeReader(read_options(given), ["offset"])
        planned = reader.partitions()
        asyncio.run(remove(30))
        return [offset for each in planned for batch in reader.read(each) for offset in batch.column(0).to_pylist()]

    with pytest.raises(OutOfRange, match="offsets 10 to 29 of foreign-cut/0 are not there"):
        rows()
    assert rows(minPartitions="4") == list(range(30, 50)), "they were gone before"
    with pytest.raises(OutOfRange, match="names offset 20 of foreign-cut/0, and it begins at 30"):
        rows(startingOffsets='{"foreign-cut": {"0": 20}}')
    assert rows(startingOffsets='{"foreign-cut": {"0": 20}}', failOnDataLoss="false") == list(range(30, 50))


def test_a_range_that_was_named_is_not_left_out_because_its_partition_is_paused(
    broker: BrokerProcess, client: BlockingClient
) -> None:
    client.create_stream("named-range", partitions=2)
    for number in range(2):
        client.publish_many("named-range", [b"v"] * 5, partition=number)
    client.pause_stream("named-range", [1])
    options = {"servers": broker.address, "streams": "named-range", "pausedPartitions": "skip"}
    ends = {
        "startingOffsets": '{"named-range": {"0": 0, "1": 0}}',
        "endingOffsets": '{"named-range": {"0": 5, "1": 5}}',
    }
    (planned,) = LiftbridgeReader(read_options(options), ["offset"]).partitions()
    assert (planned.partition, planned.start, planned.end) == (0, 0, 5)
    with pytest.raises(FailedPrecondition, match="partition 1 of stream named-range is paused"):
        LiftbridgeReader(read_options(options | ends), ["offset"]).partitions()


def test_how_large_messages_are_is_seen_in_the_log(broker: BrokerProcess, client: BlockingClient) -> None:
    client.create_stream("sized")
    client.publish_many("sized", [b"small"] * 100 + [b"l" * 5000] * 100)
    creation = client.log_bounds("sized").creation
    planner = Planner(read_options({"servers": broker.address, "streams": "sized"}))
    (small,) = planner.sizes({("sized", 0): (creation, 0, 200)}).values()
    (large,) = planner.sizes({("sized", 0): (creation, 150, 200)}).values()
    assert 5 < small < 200
    assert 5000 < large < 5200


def test_a_wrong_option_is_told_when_it_is_loaded_and_one_for_streams_when_it_is_read(
    spark: Any, broker: BrokerProcess, client: BlockingClient
) -> None:
    client.create_stream("checked")
    with pytest.raises(Exception, match='has no option "maxbytespertriger": did you mean maxBytesPerTrigger'):
        load(spark, broker, "checked", maxBytesPerTriger="1m")
    with pytest.raises(Exception, match='the option "cursor" is for streams: a batch reads all that it is told to'):
        load(spark, broker, "checked", cursor="lake").count()
    reader = spark.read.format("liftbridge").options(servers=broker.address, streamPattern="no-such-.*")
    with pytest.raises(Exception, match='no stream matches the option "streamPattern", \'no-such-'):
        reader.load().count()


def test_captures_of_nats_are_looked_into_by_functions_of_columns(spark: Any) -> None:
    frame = spark.range(5).selectExpr(
        "string(id) AS v", "if(id = 1, null, 'k') AS k", "map('h', binary(string(id))) AS h", "id"
    )
    payload = encode_envelope(frame.v, "k", "h", checked=True)
    bent = "CASE id WHEN 3 THEN overlay(p PLACING binary('x') FROM 14) WHEN 4 THEN binary('text') ELSE p END AS p"
    captured = frame.select("id", payload.alias("p")).selectExpr("id", bent)
    rows = captured.select("id", decode_envelope("p").alias("m")).orderBy("id").collect()
    assert [row.m.status for row in rows] == ["message"] * 3 + ["damaged", "plain"]
    assert [row.m.value and bytes(row.m.value) for row in rows] == [b"0", b"1", b"2", None, b"text"]
    assert [row.m.key and bytes(row.m.key) for row in rows] == [b"k", None, b"k", None, None]
    assert (bytes(rows[2].m.headers["h"]), rows[2].m.checked, rows[4].m.checked) == (b"2", True, None)
