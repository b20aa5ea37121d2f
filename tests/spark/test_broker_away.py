"""No broker answers for a while, under queries and pipelines: they wait, and go on."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bascule.client import BlockingClient
from bascule.errors import BasculeError, Unavailable
from bascule.pipelines import deadletter, flow
from bascule.pipelines.archive import Archive, configured
from bascule.pipelines.parquet import read_table
from bascule.testing.processes import BrokerProcess, poll, start_broker
from tests.harness.archives import holds_of, log_of, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
WAIT_S = 120.0
AWAY_S = 9.0
"""Longer than a connection is tried."""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that is killed."""
    with start_broker(tmp_path_factory.mktemp("away")) as running:
        yield running


class Going:
    """A pipeline in a thread of its own."""

    def __init__(self, running: Any) -> None:
        self.running = running
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.running.run()
        except BaseException as error:
            self.error = error

    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        self.running.stopping.set()
        self._thread.join(WAIT_S)
        assert self.has_ended(), "it goes on"
        assert self.error is None, self.error


def written(folder: Path, name: str, own: BrokerProcess, **given: object) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"servers": own.address, "trigger": "continuous", "interval": "50ms", **given}))
    return path


def publish(own: BrokerProcess, stream: str, first: int, end: int) -> None:
    with BlockingClient(own.address) as client:
        client.publish_many(stream, [b"no json %d" % n for n in range(first, end)])


def end_of(own: BrokerProcess, stream: str) -> int:
    try:
        with BlockingClient(own.address) as client:
            return client.log_bounds(stream).end
    except BasculeError:
        return 0


def test_a_query_an_archive_and_a_flow_wait_for_a_broker(
    spark: Any, own: BrokerProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with BlockingClient(own.address) as client:
        client.create_stream("awaited")
    publish(own, "awaited", 0, 10)
    seen: list[int] = []

    def take(rows: Any, batch: int) -> None:
        seen.extend(row.offset for row in rows.select("offset").collect())

    source = spark.readStream.format("liftbridge").options(servers=own.address, streams="awaited")
    writer = source.option("startingOffsets", "earliest").load().writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", str(tmp_path / "query")).trigger(processingTime="50 milliseconds")
    query = writer.start()
    lake = written(tmp_path, "archive", own, streams="awaited", table=str(tmp_path / "lake"), hold="lake")
    archived = Going(Archive(configured(lake), spark))
    letters = {"streams": "awaited", "schema": "id int", "checkpoint": str(tmp_path / "flow")}
    sorted_out = Going(deadletter.dead_letter(deadletter.configured(written(tmp_path, "flow", own, **letters)), spark))
    pipelines = (archived, sorted_out)

    def has_failed() -> bool:
        return query.exception() is not None or any(each.has_ended() for each in pipelines)

    def all_have(count: int) -> bool:
        committed = len(seen) == count == sorted_out.running.report.read
        return committed and holds_of(own, "awaited") == {(0, "lake"): count}

    try:
        assert poll(lambda: has_failed() or all_have(10), WAIT_S)
        own.kill9()
        with caplog.at_level(logging.WARNING, "bascule.spark.retrying"):
            assert not poll(has_failed, AWAY_S), (query.exception(), archived.error, sorted_out.error)
        (told,) = caplog.messages
        assert told.startswith("no broker can be reached")
        assert told.endswith("It is tried again until a broker answers")
        own.start().wait_ready()
        publish(own, "awaited", 10, 20)
        assert poll(lambda: has_failed() or all_have(20), WAIT_S), (query.exception(), archived.error, seen)
        assert seen == list(range(20))
        own.kill9()
        for each in pipelines:
            each.stop()
    finally:
        for each in pipelines:
            each.running.stopping.set()
        query.stop()
        own.start().wait_ready()
    with BlockingClient(own.address) as client:
        assert rows_of(read_table(spark, tmp_path / "lake")) == log_of(client, "awaited", 1)
        found = [each.value for each in client.subscribe("awaited.dlq", start="earliest", stop="latest")]
        assert found == [b"no json %d" % n for n in range(20)]


def test_a_broker_that_goes_away_under_a_batch_of_an_archive_is_waited_for(
    spark: Any, own: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with BlockingClient(own.address) as client:
        client.create_stream("under-a-batch")
    publish(own, "under-a-batch", 0, 10)
    lake = written(tmp_path, "archive", own, streams="under-a-batch", table=str(tmp_path / "lake"), hold="lake")
    lake.write_text(lake.read_text().replace("continuous", "once"))
    real, struck = Archive._frame, threading.Event()

    def frame(archive: Archive, *arguments: Any) -> Any:
        if not struck.is_set():
            own.kill9()
            struck.set()
        return real(archive, *arguments)

    monkeypatch.setattr(Archive, "_frame", frame)
    going = Going(Archive(configured(lake), spark))
    assert poll(lambda: "It is tried again until a broker answers, for up to 120 s" in caplog.text, WAIT_S)
    own.start().wait_ready()
    assert poll(going.has_ended, WAIT_S)
    assert going.error is None, going.error
    with BlockingClient(own.address) as client:
        assert rows_of(read_table(spark, tmp_path / "lake")) == log_of(client, "under-a-batch", 1)
    assert holds_of(own, "under-a-batch") == {(0, "lake"): 10}


def test_a_flow_that_waited_too_long_for_a_broker_begins_again(
    spark: Any, own: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with BlockingClient(own.address) as client:
        client.create_stream("too-long")
    given = {"streams": "too-long", "schema": "id int", "checkpoint": str(tmp_path / "c"), "table": str(tmp_path / "t")}
    real: Callable[..., int] = flow.into_table_batch
    tries: list[int] = []

    def fails_once(frame: Any, table: Path, query: str, batch: int) -> int:
        tries.append(batch)
        if tries == [0, 1]:
            raise Unavailable("no broker can be reached")
        return real(frame, table, query, batch)

    monkeypatch.setattr(flow, "into_table_batch", fails_once)
    going = Going(deadletter.dead_letter(deadletter.configured(written(tmp_path, "flow", own, **given)), spark))
    try:
        for count in (1, 2):
            publish(own, "too-long", count - 1, count)
            assert poll(lambda count=count: going.has_ended() or end_of(own, "too-long.dlq") == count, WAIT_S)  # type: ignore[misc]
            assert poll(lambda count=count: going.has_ended() or going.running.report.read == count, WAIT_S)  # type: ignore[misc]
    finally:
        going.stop()
    assert tries == [0, 1, 1]
