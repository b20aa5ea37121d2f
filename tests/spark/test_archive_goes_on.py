"""An archive goes on without what is paused, deleted or damaged, if it is told to, and says so if it is not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bascule.client import BlockingClient
from bascule.errors import FailedPrecondition, OutOfRange
from bascule.pipelines.archive import Archive, ArchiveReport, configured
from bascule.pipelines.audit import Audit
from bascule.pipelines.audit import configured as audit_configured
from bascule.pipelines.parquet import read_table
from bascule.testing.processes import BrokerProcess
from tests.harness.archives import flip, holds_of, log_of, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
Run = Callable[..., ArchiveReport]


@pytest.fixture
def run(spark: Any, broker: BrokerProcess, tmp_path: Path) -> Run:
    def run(streams: str, **more: object) -> ArchiveReport:
        config = tmp_path / "archive.yaml"
        given = {"servers": broker.address, "streams": streams, "table": str(tmp_path / "lake"), "hold": "lake"}
        config.write_text(yaml.safe_dump({**given, **more}))
        return Archive(configured(config), spark).run()

    return run


@pytest.fixture
def rows(spark: Any, tmp_path: Path) -> Callable[[], list[tuple[object, ...]]]:
    return lambda: rows_of(read_table(spark, tmp_path / "lake"))


def fill(client: BlockingClient, stream: str, partitions: int, first: int, end: int) -> None:
    for number in range(partitions):
        client.publish_many(stream, [b"%d/%d" % (number, n) for n in range(first, end)], partition=number)


def before_it_reads(monkeypatch: pytest.MonkeyPatch, strike: Callable[[], None]) -> None:
    """Once, when the first batch is planned."""
    real, struck = Archive._frame, False

    def frame(archive: Archive, *arguments: Any) -> Any:
        nonlocal struck
        if not struck:
            struck = True
            strike()
        return real(archive, *arguments)

    monkeypatch.setattr(Archive, "_frame", frame)


def test_a_paused_partition_is_named_left_for_later_or_resumed(
    run: Run, rows: Callable[[], Any], client: BlockingClient, broker: BrokerProcess
) -> None:
    client.create_stream("rests", partitions=2)
    fill(client, "rests", 2, 0, 10)
    log = log_of(client, "rests", 2)
    client.pause_stream("rests", [1])
    with pytest.raises(FailedPrecondition, match=r'partition 1 of stream rests is paused: .* the option "pausedPart'):
        run("rests")
    assert run("rests", pausedPartitions="skip").rows == 10
    assert holds_of(broker, "rests") == {(0, "lake"): 10}
    assert rows() == log[:10]
    assert run("rests", pausedPartitions="resume").rows == 10
    assert holds_of(broker, "rests") == {(0, "lake"): 10, (1, "lake"): 10}
    assert rows() == log


def test_a_partition_that_is_paused_under_a_batch_is_archived_when_it_is_resumed(
    run: Run,
    rows: Callable[[], Any],
    client: BlockingClient,
    broker: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client.create_stream("naps", partitions=2)
    fill(client, "naps", 2, 0, 10)
    log = log_of(client, "naps", 2)
    with monkeypatch.context() as patched:
        before_it_reads(patched, lambda: client.pause_stream("naps", [1]))
        assert run("naps", pausedPartitions="skip").rows == 10
    assert rows() == log[:10], "what is not in the table does not count as archived"
    client.resume_stream("naps", [1])
    assert run("naps", pausedPartitions="skip").rows == 10
    assert rows() == log
    assert holds_of(broker, "naps") == {(0, "lake"): 10, (1, "lake"): 10}


def test_one_of_several_streams_may_be_deleted(
    run: Run, rows: Callable[[], Any], client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream in ("leaves", "goes", "stays-on"):
        client.create_stream(stream)
        fill(client, stream, 1, 0, 5)
    streams = "leaves,goes,stays-on"
    run(streams)
    archived = rows()
    client.delete_stream("leaves")
    fill(client, "goes", 1, 5, 8)
    fill(client, "stays-on", 1, 5, 8)
    with pytest.raises(OutOfRange, match=r'stream leaves was deleted: .* set the option "failOnDataLoss" to false'):
        run(streams)
    with monkeypatch.context() as patched:
        before_it_reads(patched, lambda: client.delete_stream("goes"))
        assert run(streams, failOnDataLoss=False).rows == 3
    assert sorted(rows()) == sorted(archived + log_of(client, "stays-on", 1)[5:])


def test_damage_is_noted_in_the_quarantine_and_the_rest_is_archived(
    run: Run, client: BlockingClient, broker: BrokerProcess, spark: Any, tmp_path: Path
) -> None:
    client.create_stream("scratched")
    fill(client, "scratched", 1, 0, 50)
    flip(broker.data_dir, "scratched", b"0/17")
    with pytest.raises(Exception, match="offset 17 is damaged on the broker's disk"):
        run("scratched")
    report = run("scratched", quarantine=str(tmp_path / "quarantine"))
    assert (report.rows, report.missing) == (49, 1)
    (noted,) = (json.loads(each.read_text()) for each in (tmp_path / "quarantine").glob("*.json"))
    assert (noted["stream"], noted["partition"], noted["start"], noted["end"]) == ("scratched", 0, 17, 18)
    config = tmp_path / "audit.yaml"
    config.write_text(yaml.safe_dump({"table": str(tmp_path / "lake")}))
    found = Audit(audit_configured(config), spark).run().findings
    assert [(each.kind, each.first, each.last) for each in found] == [("damaged", 17, 17)]
