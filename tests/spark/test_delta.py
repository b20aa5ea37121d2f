"""An archive as a table of Delta: what Spark's Delta reads is the log, each batch whole, however a driver ends."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bascule.client import BlockingClient, Outgoing
from bascule.errors import FailedPrecondition
from bascule.pipelines import deltalog
from bascule.pipelines.archive import Archive, ArchiveReport, configured
from bascule.pipelines.query import Query
from bascule.pipelines.query import configured as query_configured
from bascule.testing.processes import BrokerProcess
from tests.harness.archives import Killed, crash_at, log_of, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


@pytest.fixture
def run(delta: Any, broker: BrokerProcess, tmp_path: Path) -> Callable[..., ArchiveReport]:
    def run(stream: str, form: str = "delta") -> ArchiveReport:
        given = {"servers": broker.address, "streams": stream, "table": str(tmp_path / "lake"), "format": form}
        path = tmp_path / "archive.yaml"
        path.write_text(yaml.safe_dump({**given, "maxOffsetsPerTrigger": 60}))
        return Archive(configured(path), delta).run()

    return run


def fill(client: BlockingClient, stream: str, first: int, end: int) -> None:
    for number in range(2):
        messages = [Outgoing(b"%d" % n, b"k" if n % 3 else None, {"n": b"%d" % n}) for n in range(first, end)]
        client.publish_many(stream, messages, partition=number)


def test_delta_reads_the_log_and_each_batch_is_a_version(
    delta: Any, client: BlockingClient, run: Callable[..., ArchiveReport], tmp_path: Path
) -> None:
    assert delta.conf.get("spark.databricks.delta.snapshotPartitions") == "2"
    client.create_stream("as-delta", partitions=2)
    table = str(tmp_path / "lake")
    fill(client, "as-delta", 0, 30)
    assert run("as-delta", "parquet").batches == 1  # and becomes one of Delta
    fill(client, "as-delta", 30, 90)
    assert run("as-delta").batches == 2
    assert rows_of(delta.read.format("delta").load(table)) == log_of(client, "as-delta", 2)
    before = delta.read.format("delta").option("versionAsOf", 1).load(table)
    assert (before.count(), before.where("partition = 1 AND offset >= 50").count()) == (120, 10)


CRASHES: dict[str, tuple[Any, str, int]] = {
    "before the version is written": (deltalog, "make_folder", 2),
    "when the version is written": (deltalog, "sync_folders", 1),
}


@pytest.mark.parametrize("moment", CRASHES)
def test_a_driver_that_dies_about_a_version_leaves_each_message_once(
    delta: Any,
    client: BlockingClient,
    run: Callable[..., ArchiveReport],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    moment: str,
) -> None:
    stream = f"delta-crash-{list(CRASHES).index(moment)}"
    client.create_stream(stream, partitions=2)
    fill(client, stream, 0, 20)
    with monkeypatch.context() as patched:
        crash_at(patched, *CRASHES[moment])
        with pytest.raises(Killed):
            run(stream)
    fill(client, stream, 20, 25)
    run(stream)
    assert rows_of(delta.read.format("delta").load(str(tmp_path / "lake"))) == log_of(client, stream, 2)


def test_what_others_do_to_the_table_costs_no_row_and_makes_none_twice(
    delta: Any, client: BlockingClient, run: Callable[..., ArchiveReport], tmp_path: Path
) -> None:
    client.create_stream("optimized", partitions=2)
    table = tmp_path / "lake"
    for first in (0, 20):
        fill(client, "optimized", first, first + 20)
        run("optimized")
    delta.sql(f"OPTIMIZE delta.`{table}`")
    fill(client, "optimized", 40, 50)
    run("optimized")
    assert rows_of(delta.read.format("delta").load(str(table))) == log_of(client, "optimized", 2)
    asked = tmp_path / "query.yaml"
    asked.write_text(yaml.safe_dump({"table": str(table)}))
    config, sql = query_configured(asked, "select count(*) as n, count(distinct partition, offset) as d from messages")
    assert [tuple(row) for row in Query(config, delta).run(sql).rows] == [(100, 100)]
    with pytest.raises(Exception, match="DELTA_CANNOT_MODIFY_APPEND_ONLY"):
        delta.sql(f"DELETE FROM delta.`{table}` WHERE offset = 3")
    next(iter(table.rglob("0000000000-*.parquet"))).unlink()  # as VACUUM does, when they are old enough
    with pytest.raises(FailedPrecondition, match=r"1 files of the archive .* are gone"):
        Query(config, delta).run(sql)
