"""`bascule pipeline aggregate`, `dead-letter` and `restore`: what they write is there once, also when a batch is run
again."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from bascule.client import BlockingClient, Message, Outgoing
from bascule.errors import ConfigError, FailedPrecondition
from bascule.pipelines import aggregate, archive, deadletter, flow, restore
from bascule.testing.processes import BrokerProcess, poll
from bascule.wire.pure.producers import read_numbered
from bascule.wire.pure.record import record_fields
from tests.harness.archives import Killed, crash_at

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
WAIT_S = 120.0
Written = Callable[..., Path]


@pytest.fixture
def written(broker: BrokerProcess, tmp_path: Path) -> Written:
    def written(**given: object) -> Path:
        path = tmp_path / "pipeline.yaml"
        path.write_text(yaml.safe_dump({"servers": broker.address, **given}))
        return path

    return written


def stored(client: BlockingClient, stream: str, partition: int = 0) -> list[Message]:
    return list(client.subscribe(stream, partition, start="earliest", stop="latest"))


def producers(client: BlockingClient, stream: str) -> list[tuple[int, int]]:
    """Id and epoch of the producer of each message of partition 0."""
    found = []
    for piece in client.read_range(stream, 0, 0):
        for _, _, field in record_fields(piece.records, 0, len(piece.records)):
            numbered = read_numbered(field)
            assert numbered is not None
            found.append((numbered.id, numbered.epoch))
    return found


def test_what_is_no_json_of_the_schema_goes_to_a_stream_of_its_own(
    client: BlockingClient, spark: Any, written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_stream("letters")
    values = [b'{"id": 1, "amount": 2.5}', b"{no json", b'{"amount": 1}', b'{"id": "x"}', b'{"id": 2}']
    client.publish_many("letters", [Outgoing(value, b"k", {"trace": b"t"}) for value in values])
    config = deadletter.configured(
        written(
            streams="letters",
            schema="id bigint not null, amount double",
            checkpoint=str(tmp_path / "checkpoint"),
            table=str(tmp_path / "sound"),
        )
    )
    with monkeypatch.context() as patched:  # the driver dies when the letters are written, and the table is not
        crash_at(patched, flow, "into_table_batch", 1, ZeroDivisionError)
        with pytest.raises(Exception, match="ZeroDivisionError"):
            deadletter.dead_letter(config, spark).run()
    report = deadletter.dead_letter(config, spark).run()
    assert (report.batches, report.read, report.written) == (1, 5, 3)
    letters = stored(client, "letters.dlq")
    assert len(letters) == 3
    found = {each.value: each.headers for each in letters}
    assert set(found) == {values[1], values[2], values[3]}
    assert found[values[1]]["dead-letter-reason"] == b"no JSON of the schema"
    assert found[values[2]]["dead-letter-reason"] == b"id is missing"
    assert found[values[1]]["dead-letter-offset"] == b"1"
    assert found[values[1]]["dead-letter-stream"] == b"letters"
    assert found[values[1]]["trace"] == b"t"
    assert {each.key for each in letters} == {b"k"}
    rows = spark.read.parquet(str(tmp_path / "sound")).orderBy("id").collect()
    assert [(row.id, row.amount, row.offset) for row in rows] == [(1, 2.5, 0), (2, None, 4)]
    again = deadletter.configured(
        written(streams="letters", schema="id int", checkpoint=str(tmp_path / "other"), table=str(tmp_path / "sound"))
    )
    with pytest.raises(Exception, match="has what a pipeline with another checkpoint wrote"):
        deadletter.dead_letter(again, spark).run()


def test_what_spark_alone_would_take_for_json_is_a_letter_too(
    client: BlockingClient, spark: Any, written: Written, tmp_path: Path
) -> None:
    client.create_stream("lenient")
    values = {
        b'{"id": 1, "n": {"a": 1}, "list": [{"b": 1}], "of": {"x": {"c": 1}}}': None,
        b' {"id": 1, "more": 123456789012345678901234567890}\n': None,
        b'{"id": 5}{"id": 6}': b"no JSON of the schema",
        b'{"id": 4} trailing': b"no JSON of the schema",
        b'[{"id": 2}, {"id": 3}]': b"no JSON of the schema",
        b"{'id': 7}": b"no JSON of the schema",
        b'{"id": 8, "amount": NaN}': b"no JSON of the schema",
        b'{"id": 9, "name": "\xff"}': b"no JSON of the schema",
        b'{"id": 10, "deep": ' + 5000 * b"[" + 5000 * b"]" + b"}": b"no JSON of the schema",
        b"null": b"no JSON of the schema",
        b"": b"no JSON of the schema",
        b'{"id": 11, "n": {}}': b"n.a is missing",
        b'{"id": 12, "list": [{"b": 1}, {}]}': b"list[].b is missing",
        b'{"id": 13, "of": {"x": {"c": null}}}': b"of[].c is missing",
        b'{"n": {"a": 1}}': b"id is missing",
    }
    client.publish_many("lenient", values)
    config = deadletter.configured(
        written(
            streams="lenient",
            schema="id bigint not null, amount double, n struct<a: int not null>, list array<struct<b: int not null>>, "
            "of map<string, struct<c: int not null>>, name string",
            checkpoint=str(tmp_path / "checkpoint"),
            table=str(tmp_path / "sound"),
        )
    )
    deadletter.dead_letter(config, spark).run()
    found = {each.value: each.headers["dead-letter-reason"] for each in stored(client, "lenient.dlq")}
    assert found == {value: reason for value, reason in values.items() if reason is not None}
    rows = spark.read.parquet(str(tmp_path / "sound"))
    assert rows.columns == [
        "id",
        "amount",
        "n",
        "list",
        "of",
        "name",
        "stream",
        "partition",
        "offset",
        "timestamp",
        "batch",
    ]
    assert sorted(row.offset for row in rows.collect()) == [0, 1]


def test_what_an_aggregate_cannot_parse_is_left_out_and_counted(
    client: BlockingClient, spark: Any, written: Written, tmp_path: Path
) -> None:
    client.create_stream("half-sound")
    at = [b'{"at": "2026-01-01T00:00:01Z"}', b'{"at": "2026-01-01T00:00:02Z"}', b'{"at": "2026-01-01T01:00:00Z"}']
    client.publish_many("half-sound", [at[0], b"garbage", b'{"x": 1}', at[1] + at[1], at[1], at[2], b'{"at": "soon"}'])
    given = {"streams": "half-sound", "schema": "at timestamp", "window": "1m", "select": {"n": "count(*)"}}

    def run(name: str, **more: object) -> tuple[int, int, list[int]]:
        to = {"checkpoint": str(tmp_path / f"{name}.checkpoint"), "table": str(tmp_path / name)}
        flow = aggregate.aggregate(aggregate.configured(written(watermark="1s", **given, **to, **more)), spark)
        report = flow.run()
        rows = spark.read.parquet(str(tmp_path / name)).collect() if report.written else []
        return report.read, report.unparsed, [row.n for row in rows]

    assert run("by-their-own-time", time="at", maxOffsetsPerTrigger=3) == (7, 4, [2])
    assert run("by-the-time-of-the-broker")[:2] == (7, 3)  # {"x": 1} is JSON, and nothing in the schema is required


def test_windows_are_counted_and_summed_and_late_messages_left_out(
    client: BlockingClient, spark: Any, written: Written, tmp_path: Path
) -> None:
    client.create_stream("amounts")

    def publish(*orders: tuple[str, str, float]) -> None:
        values = [json.dumps({"at": f"2026-01-01T00:{at}Z", "land": land, "amount": n}) for at, land, n in orders]
        client.publish_many("amounts", [value.encode() for value in values])

    config = aggregate.configured(
        written(
            streams="amounts",
            schema="at timestamp, land string, amount double",
            time="at",
            window="1m",
            watermark="1m",
            by={"land": "upper(land)"},
            select={"orders": "count(*)", "total": "sum(amount)"},
            checkpoint=str(tmp_path / "checkpoint"),
            table=str(tmp_path / "totals"),
            toStream="totals",
        )
    )
    publish(("00:10", "de", 1.0), ("00:20", "DE", 2.0), ("00:30", "fr", 4.0), ("01:10", "de", 8.0))
    aggregate.aggregate(config, spark).run()
    publish(("10:00", "de", 16.0), ("00:40", "de", 32.0))  # the first closes the windows; the other is in time still
    aggregate.aggregate(config, spark).run()
    publish(("00:50", "de", 64.0), ("10:30", "de", 128.0))  # too late
    aggregate.aggregate(config, spark).run()
    rows = spark.read.parquet(str(tmp_path / "totals")).orderBy("window_start", "land").collect()
    assert [(row.window_start.minute, row.land, row.orders, row.total) for row in rows] == [
        (0, "DE", 3, 35.0),
        (0, "FR", 1, 4.0),
        (1, "DE", 1, 8.0),
    ]
    messages = [json.loads(each.value) for each in stored(client, "totals")]
    assert sorted((each["window_start"], each["land"], each["orders"], each["total"]) for each in messages) == [
        ("2026-01-01T00:00:00.000Z", "DE", 3, 35.0),
        ("2026-01-01T00:00:00.000Z", "FR", 1, 4.0),
        ("2026-01-01T00:01:00.000Z", "DE", 1, 8.0),
    ]


class Going:
    """A continuous pipeline, until the block ends."""

    def __init__(self, running: flow.Flow) -> None:
        self.flow = running
        self._thread = threading.Thread(target=running.run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.flow.stopping.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "it goes on"


def test_a_continuous_aggregate_writes_each_window_once_over_its_runs(
    client: BlockingClient, spark: Any, written: Written, tmp_path: Path
) -> None:
    client.create_stream("ticks")
    client.create_stream("tick-counts")

    def publish(minute: int) -> None:
        client.publish_many(
            "ticks", [json.dumps({"at": f"2026-01-01T00:{minute:02}:{n:02}Z"}).encode() for n in range(10)]
        )

    def counted() -> list[tuple[str, int]]:
        there = client.log_bounds("tick-counts").end
        found = [json.loads(each.value) for each in stored(client, "tick-counts")] if there else []
        return sorted((each["window_start"][14:16], each["n"]) for each in found)

    config = aggregate.configured(
        written(
            streams="ticks",
            schema="at timestamp",
            time="at",
            window="1m",
            watermark="1s",
            select={"n": "count(*)"},
            checkpoint=str(tmp_path / "checkpoint"),
            toStream="tick-counts",
            trigger="continuous",
            interval="50ms",
        )
    )
    for first in (0, 3):
        with Going(aggregate.aggregate(config, spark)):
            for minute in range(first, first + 3):  # each one closes the windows before it
                publish(minute)
                expected = [(f"{each:02}", 10) for each in range(minute)]
                assert poll(lambda expected=expected: counted() == expected, WAIT_S), counted()  # type: ignore[misc]
    assert counted() == [(f"{each:02}", 10) for each in range(5)]


def test_a_continuous_dead_letter_takes_what_arrives_until_it_is_stopped(
    client: BlockingClient, spark: Any, written: Written, tmp_path: Path
) -> None:
    client.create_stream("mail")
    config = deadletter.configured(
        written(
            streams="mail",
            schema="id bigint not null",
            checkpoint=str(tmp_path / "checkpoint"),
            table=str(tmp_path / "sound"),
            trigger="continuous",
            interval="50ms",
        )
    )
    running = deadletter.dead_letter(config, spark)
    for turn in range(2):
        with Going(running if turn == 0 else deadletter.dead_letter(config, spark)):
            for n in range(3 * turn, 3 * turn + 3):
                client.publish_many("mail", [b'{"id": %d}' % n, b"no json %d" % n])
                assert poll(lambda n=n: client.log_bounds("mail.dlq").end == n + 1, WAIT_S)  # type: ignore[misc]
    assert [each.value for each in stored(client, "mail.dlq")] == [b"no json %d" % n for n in range(6)]
    rows = spark.read.parquet(str(tmp_path / "sound")).orderBy("offset").collect()
    assert [(row.id, row.offset) for row in rows] == [(n, 2 * n) for n in range(6)]
    assert running.report.written == 3


def test_a_flow_that_is_stopped_ends_after_the_batch_that_is_under_way(
    client: BlockingClient, spark: Any, written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_stream("backlog")
    client.publish_many("backlog", [b"no json %d" % n for n in range(20)])
    checkpoint = tmp_path / "checkpoint"
    given = {"streams": "backlog", "schema": "id int", "table": str(tmp_path / "sound"), "checkpoint": str(checkpoint)}
    config = deadletter.configured(written(maxOffsetsPerTrigger=2, **given))
    running = deadletter.dead_letter(config, spark)
    real = flow.into_table_batch

    def stopped(*arguments: Any) -> int:
        running.stopping.set()
        return real(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(flow, "into_table_batch", stopped)
        report = running.run()
    assert (report.batches, report.read, report.written) == (1, 2, 2)
    assert [each.name for each in (checkpoint / "commits").glob("[0-9]*")] == ["0"], "it is committed, and no other"
    report = deadletter.dead_letter(deadletter.configured(written(**given)), spark).run()
    assert report.written == 18
    assert [each.value for each in stored(client, "backlog.dlq")] == [b"no json %d" % n for n in range(20)]


def test_an_archive_is_restored_once_with_what_each_message_had(
    client: BlockingClient, spark: Any, written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_stream("kept-safe", partitions=2)

    def fill(first: int, end: int) -> None:
        for number in range(2):
            messages = [Outgoing(b"%d" % n, b"k%d" % n, {"h": b"%d" % n}) for n in range(first, end)]
            client.publish_many("kept-safe", messages, partition=number)

    def take() -> None:
        config = archive.configured(
            written(streams="kept-safe", table=str(tmp_path / "lake"), hold=False, maxOffsetsPerTrigger=40)
        )
        archive.Archive(config, spark).run()

    fill(0, 30)
    take()
    config = restore.configured(written(table=str(tmp_path / "lake"), to="restored"))
    with monkeypatch.context() as patched:
        crash_at(patched, restore, "write_rows", 2)
        with pytest.raises(Killed):
            restore.Restore(config, spark).run()
    assert restore.Restore(config, spark).run().rows == 60
    fill(30, 35)
    take()
    config = restore.configured(written(table=str(tmp_path / "lake"), to="restored"))
    for _ in range(2):
        assert restore.Restore(config, spark).run().rows == 70
    for number in range(2):
        source, found = stored(client, "kept-safe", number), stored(client, "restored", number)
        assert [(each.key, each.value) for each in found] == [(each.key, each.value) for each in source]
        assert [each.headers["restored-offset"] for each in found] == [b"%d" % each.offset for each in source]
        assert [each.headers["restored-timestamp"] for each in found] == [b"%d" % each.timestamp for each in source]
        assert {each.headers["restored-stream"] for each in found} == {b"kept-safe"}
        assert [each.headers["h"] for each in found] == [each.headers["h"] for each in source]
    client.create_stream("narrow")
    with pytest.raises(FailedPrecondition, match="has 1 partitions, and the archive 2"):
        restore.Restore(restore.configured(written(table=str(tmp_path / "lake"), to="narrow")), spark).run()


def test_what_was_restored_is_known_when_brokers_do_not_know_it_any_more(
    client: BlockingClient, spark: Any, written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bascule.pipelines.restored.LOOK_AGAIN_S", 0.0)
    client.create_stream("long-ago")
    client.publish_many("long-ago", [b"%d" % n for n in range(30)])
    lake = tmp_path / "lake"
    archived = written(streams="long-ago", table=str(lake), hold=False, maxOffsetsPerTrigger=10)
    archive.Archive(archive.configured(archived), spark).run()
    config = restore.configured(written(table=str(lake), to="today"))

    def restored() -> tuple[int, int]:
        report = restore.Restore(config, spark).run()
        return report.rows, report.known

    assert restored() == (30, 0)
    (retained,) = (lake / "_bascule" / "restored").iterdir()
    retained.unlink()  # as in a copy of the table that was made before
    assert restored() == (30, 20)  # the last batch is sent again, and not stored again
    client.delete_stream("spark-writes")  # as after a week, or after 5,000 other writes
    assert restored() == (30, 30)
    told = json.loads(retained.read_bytes())
    assert [each.value for each in stored(client, "today")] == [b"%d" % n for n in range(30)]
    assert len({id for id, _ in producers(client, "today")}) == 1, "a restore is one producer of a partition"
    retained.write_text(json.dumps(told | {"ends": [31]}))
    with pytest.raises(FailedPrecondition, match="it has lost messages"):
        restored()
    retained.write_text(json.dumps(told | {"staged": "2-another"}))
    with pytest.raises(FailedPrecondition, match="a copy that went on by itself"):
        restored()
    client.delete_stream("today")  # one that is made again has nothing
    assert restored() == (30, 0)
    assert [each.value for each in stored(client, "today")] == [b"%d" % n for n in range(30)]


def test_a_flow_is_one_producer_of_its_stream_however_many_batches_it_has(
    client: BlockingClient, spark: Any, written: Written, tmp_path: Path
) -> None:
    client.create_stream("many-batches")
    client.publish_many("many-batches", [b"no json %d" % n for n in range(12)])
    given = {"streams": "many-batches", "schema": "id int", "maxOffsetsPerTrigger": 4}
    config = deadletter.configured(written(checkpoint=str(tmp_path / "checkpoint"), **given))
    told: list[tuple[int, int]] = []
    assert deadletter.dead_letter(config, spark, lambda *at: told.append(at)).run().batches == 3
    assert told == sorted(told)
    assert told[-1] == (12, 12)
    assert [each.value for each in stored(client, "many-batches.dlq")] == [b"no json %d" % n for n in range(12)]
    found = producers(client, "many-batches.dlq")
    assert len({id for id, _ in found}) == 1
    assert [epoch for _, epoch in found] == [1] * 4 + [2] * 4 + [3] * 4


@pytest.mark.parametrize(
    ("module", "given", "said"),
    [
        (aggregate, {"streams": "x", "checkpoint": "c", "table": "t"}, "give either window and select, or sql"),
        (aggregate, {"streams": "x", "checkpoint": "c", "sql": "select 1"}, "name where the results go"),
        (aggregate, {"streams": "x", "checkpoint": "c", "windw": "1m"}, "did you mean window"),
        (deadletter, {"streams": "x,y", "checkpoint": "c", "schema": "id int"}, "the one stream that is looked"),
        (deadletter, {"streams": "x", "checkpoint": "c"}, "the key schema is missing"),
        (restore, {"table": "x"}, "the key to is missing"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_told(
    written: Written, module: Any, given: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        module.configured(written(**given))
