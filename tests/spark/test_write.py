"""DataFrames as messages: real Spark, a real broker."""

import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bascule.client import BlockingClient, Client
from bascule.errors import Unimplemented
from bascule.spark import writing
from bascule.spark.registry import BatchId
from bascule.spark.writeoptions import write_options
from bascule.testing.processes import HOST, BrokerProcess, free_port, poll
from tests.harness.spark_sink import stored, write

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def test_a_row_is_a_message_with_key_headers_and_partition(
    spark: Any, broker: BrokerProcess, client: BlockingClient
) -> None:
    client.create_stream("written", partitions=3)
    rows = spark.sql(
        "SELECT 'v1' AS value, binary('k') AS key, map('h', binary('x')) AS headers, 2 AS partition, 17L AS offset "
        "UNION ALL SELECT '', NULL, NULL, 1, 18L"
    )
    write(rows, broker, stream="written")
    (full,) = stored(client, "written", 2)
    assert (full.value, full.key, full.headers["h"]) == (b"v1", b"k", b"x")
    (empty,) = stored(client, "written", 1)
    assert (empty.value, empty.key) == (b"", None)
    assert stored(client, "written", 0) == []


def test_every_row_is_doneonce_and_keys_choose_partitions_as_clients_do(
    spark: Any, broker: BrokerProcess, client: BlockingClient
) -> None:
    client.create_stream("keyed-rows", partitions=3)
    client.create_stream("keyless-rows", partitions=2)
    frame = spark.range(0, 20_000, numPartitions=4).selectExpr("string(id) AS value", "string(id % 100) AS key")
    write(frame, broker, stream="keyed-rows")
    messages = [(number, message) for number in range(3) for message in stored(client, "keyed-rows", number)]
    assert Counter(int(message.value) for _, message in messages) == Counter(range(20_000))
    assert all(number == zlib.crc32(message.key or b"") % 3 for number, message in messages)
    write(frame.select("value"), broker, stream="keyless-rows")
    assert [len(stored(client, "keyless-rows", number)) for number in range(2)] == [10_000, 10_000]


def test_the_column_stream_names_the_stream_of_a_row(spark: Any, broker: BrokerProcess, client: BlockingClient) -> None:
    for name in ("to-a", "to-b"):
        client.create_stream(name)
    frame = spark.range(100).selectExpr("string(id) AS value", "if(id % 4 = 0, 'to-a', 'to-b') AS stream")
    write(frame, broker, streams="to-a, to-b")
    assert [len(stored(client, name)) for name in ("to-a", "to-b")] == [25, 75]
    with pytest.raises(Exception, match='a row is for stream to-a, and the option "streams" names to-b'):
        write(frame, broker, streams="to-b")


def test_a_stream_is_written_by_micro_batches(
    spark: Any, broker: BrokerProcess, client: BlockingClient, tmp_path: Path
) -> None:
    client.create_stream("from", partitions=2)
    client.create_stream("to", partitions=2)
    source = spark.readStream.format("liftbridge").options(
        servers=broker.address, streams="from", startingOffsets="earliest", maxOffsetsPerTrigger="300"
    )

    def run() -> None:
        query = source.load().writeStream.format("liftbridge").options(servers=broker.address, stream="to")
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()

    for count in (500, 700):
        for number in range(2):
            first = len(stored(client, "to", number))
            values = [b"%d/%d" % (number, n) for n in range(first, count)]
            client.publish_many("from", values, partition=number)
        run()
        for number in range(2):
            assert [each.value for each in stored(client, "to", number)] == [
                b"%d/%d" % (number, n) for n in range(count)
            ]


def test_a_stream_that_is_not_there_is_told_before_a_task_of_a_query_runs(
    spark: Any, broker: BrokerProcess, client: BlockingClient, tmp_path: Path
) -> None:
    client.create_stream("from-there")
    client.publish("from-there", b"v")
    source = {"servers": broker.address, "streams": "from-there", "startingOffsets": "earliest"}
    frame = spark.readStream.format("liftbridge").options(**source).load().select("value")
    writer = frame.writeStream.format("liftbridge").options(servers=broker.address, stream="to-nowhere")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query = writer.start()
    with pytest.raises(Exception, match="no such stream: to-nowhere"):
        query.awaitTermination()
    assert list(spark.sparkContext.statusTracker().getJobIdsForGroup(query.runId)) == []
    client.create_stream("to-nowhere")
    writer.start().awaitTermination()
    assert [each.value for each in stored(client, "to-nowhere")] == [b"v"]


@pytest.mark.parametrize(
    ("select", "options", "text"),
    [
        (
            "id AS value",
            {"stream": "typed"},
            'column "value" is written as binary or string, and it is bigint: to_json',
        ),
        ("'v' AS valeu", {"stream": "typed"}, 'no column "valeu" to write: did you mean value?'),
        ("'k' AS key", {"stream": "typed"}, "there is no column value, only key"),
        ("'v' AS value, 'x' AS headers", {"stream": "typed"}, 'column "headers" is written as map<string,binary> or'),
        ("'v' AS value", {"streams": "typed, other"}, "no column stream that says which one a row is for"),
        ("'v' AS value", {"stream": "typed", "streamz": "x"}, 'has no option "streamz": did you mean stream'),
        ("'v' AS value", {}, 'give either the option "stream"'),
        ("'v' AS value", {"stream": "typed", "mode": "overwrite"}, "appended to, and not overwritten"),
        ("'v' AS value", {"stream": "typed", "orderBy": "id"}, '"orderBy" names a column "id", and there are value'),
        ("'v' AS value, array(1) AS id", {"stream": "typed", "orderBy": "id"}, 'names column "id", which has no order'),
        ("'v' AS value", {"stream": "nowhere"}, "no such stream: nowhere. Create it first"),
        ("string(NULL) AS value", {"stream": "typed"}, "the value of a row is null"),
        ("'v' AS value, 7 AS partition", {"stream": "typed"}, "partition 7 of stream typed, which has 0 to 0"),
    ],
)
def test_what_cannot_be_written_is_said_in_a_sentence(
    spark: Any, broker: BrokerProcess, client: BlockingClient, select: str, options: dict[str, str], text: str
) -> None:
    if "typed" not in client.fetch_metadata().streams:
        client.create_stream("typed")
    with pytest.raises(Exception, match=text):
        write(spark.range(1).selectExpr(*select.split(", ")), broker, options.pop("mode", "append"), **options)
    assert stored(client, "typed") == []


def test_a_stream_of_rows_that_cannot_be_written_ends_its_query_before_anything_is_stored(
    spark: Any, client: BlockingClient, broker: BrokerProcess, tmp_path: Path
) -> None:
    client.create_stream("typed-stream")
    rows = spark.readStream.format("rate").load()

    def told(number: int, select: str, **options: str) -> str:
        writer = rows.selectExpr(select).writeStream.format("liftbridge").options(servers=broker.address, **options)
        query = writer.option("checkpointLocation", str(tmp_path / str(number))).start()
        assert poll(lambda: query.exception() is not None, 60)
        return str(query.exception())

    wrong = told(1, "value", stream="typed-stream")
    assert 'column "value" is written as binary or string, and it is bigint: to_json' in wrong
    assert 'no option "strem": did you mean stream?' in told(2, "string(value) AS value", strem="typed-stream")
    assert 'the option "producerId" is for batches' in told(3, "'v' AS value", stream="typed-stream", producerId="x")
    assert stored(client, "typed-stream") == []


def test_an_error_begins_with_its_sentence_and_ends_with_its_trace(spark: Any) -> None:
    options = {"servers": f"{HOST}:{free_port()}", "stream": "x"}
    writer = spark.range(1).selectExpr("'v' AS value").write.format("liftbridge").options(**options).mode("append")
    reader = spark.read.format("liftbridge").options(servers=options["servers"], streams="x").load()
    for ask in (writer.save, reader.count):
        with pytest.raises(Exception, match="no broker can be reached") as caught:
            ask()
        told = str(caught.value).splitlines()
        (first, *_) = [number for number, line in enumerate(told) if "no broker can be reached" in line]
        assert first < 5, told[: first + 1]
        assert "connection refused): is one running there? `bascule up` starts one" in told[first]
        assert any("any_connection" in line for line in told[first:]), "the trace comes after it"


def test_other_servers_are_written_to_at_least_once_and_each_query_is_told_of_it_once(
    broker: BrokerProcess, client: BlockingClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As `log_bounds` says of a server without bulk calls; the rest is as such a server has it."""
    client.create_stream("published", partitions=2)

    async def no_bulk(*_: object) -> None:
        raise Unimplemented("unknown service bascule.v1.Log")

    monkeypatch.setattr(Client, "log_bounds", no_bulk)
    options = write_options({"servers": broker.address, "stream": "published"})
    rows = [{"value": b"%d" % n, "key": b"k%d" % n, "headers": [("h", b"%d" % n)]} for n in range(100)]
    headers = pa.map_(pa.string(), pa.binary())
    table = pa.Table.from_pylist(rows, pa.schema([("value", pa.binary()), ("key", pa.binary()), ("headers", headers)]))
    for name in ("query 1", "query 2"):
        for number in range(2):
            batch = BatchId(name, number)
            done = writing.write(options, batch, 0, iter(table.to_batches(max_chunksize=30)))
            assert done == (100, -1)
            writing.commit(options, batch, [done])
    assert [each.getMessage().rpartition("(")[2] for each in caplog.records] == ["query 1)", "query 2)"]
    assert all("is no Bascule cluster: rows are stored at least once" in each.getMessage() for each in caplog.records)
    caplog.clear()
    writing.prepare(options)
    assert "is no Bascule cluster" in caplog.text
    monkeypatch.undo()
    found = [(number, each) for number in range(2) for each in stored(client, "published", number)]
    assert Counter(each.value for _, each in found) == Counter({row["value"]: 4 for row in rows})
    assert all(number == zlib.crc32(each.key or b"") % 2 for number, each in found)
    assert all(each.headers["h"] == each.value for _, each in found)
