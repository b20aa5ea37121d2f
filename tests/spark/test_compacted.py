"""`archive` and `audit` of a stream that is compacted between the question how far it is and the reading."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from bascule.client import BlockingClient, Client, Outgoing
from bascule.pipelines.archive import Archive
from bascule.pipelines.archive import configured as archive_configured
from bascule.pipelines.audit import Audit, AuditReport
from bascule.pipelines.audit import configured as audit_configured
from bascule.spark.planning import Bounds, Planner
from bascule.testing.processes import BrokerProcess, poll

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
KEYS, TURNS = 20, 10


@pytest.fixture
def compacting(broker: BrokerProcess, client: BlockingClient, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """The stream is compacted as soon as its bounds were asked for the first time."""

    def compacting(stream: str) -> None:
        client.create_stream(stream, segment_max_bytes=2000, cleaner_interval_ms=50)
        for turn in range(TURNS):
            messages = [Outgoing(b"%d" % turn, b"k%d" % n) for n in range(KEYS)]
            client.publish_many(stream, messages)
        real, asked = Planner.bounds, False

        def bounds(planner: Planner, *known: Any) -> Bounds:
            nonlocal asked
            found = real(planner, *known)
            if not asked:
                asked = True
                assert {each.compacted_end for each in found.values()} == {0}
                asyncio.run(compact(stream))
                assert poll(lambda: there(stream) < KEYS * TURNS // 2, 60), "it was not compacted"
            return found

        monkeypatch.setattr(Planner, "bounds", bounds)

    async def compact(stream: str) -> None:
        async with await Client.connect(broker.address) as client:
            await client.admin.alter_stream(stream, compact_enabled=True)

    def there(stream: str) -> int:
        return sum(each.count for each in client.read_range(stream))

    return compacting


def audited(spark: Any, folder: Path, **given: object) -> AuditReport:
    path = folder / "audit.yaml"
    path.write_text(yaml.safe_dump(given))
    return Audit(audit_configured(path), spark).run()


def test_an_archive_takes_holes_of_a_compaction_that_came_meanwhile_for_no_loss(
    spark: Any, broker: BrokerProcess, compacting: Callable[[str], None], tmp_path: Path
) -> None:
    compacting("moving")
    table = str(tmp_path / "lake")
    config = tmp_path / "archive.yaml"
    config.write_text(yaml.safe_dump({"servers": broker.address, "streams": "moving", "table": table}))
    report = Archive(archive_configured(config), spark).run()
    assert report.rows < KEYS * TURNS // 2
    assert report.missing == 0
    assert audited(spark, tmp_path, table=table).findings == []


def test_an_archive_counts_what_is_damaged_at_the_broker_also_where_compaction_has_been(
    spark: Any, broker: BrokerProcess, client: BlockingClient, tmp_path: Path
) -> None:
    client.create_stream("harmed", compact_enabled=True, cleaner_interval_ms=3_600_000, segment_max_bytes=4096)
    client.publish_many("harmed", [Outgoing(b"value %04d" % n, b"k%d" % n) for n in range(300)])
    for path in broker.data_dir.glob("streams/harmed@*/0/*.log"):
        if (position := path.read_bytes().find(b"value 0017")) >= 0:
            with path.open("r+b") as file:
                file.seek(position)
                file.write(b"V")
    config = tmp_path / "archive.yaml"
    given = {"servers": broker.address, "streams": "harmed", "table": str(tmp_path / "lake")}
    config.write_text(yaml.safe_dump(given | {"maxOffsetsPerTrigger": 200, "minPartitions": 5}))
    with pytest.raises(Exception, match="partition 0 of stream harmed: offset 17 is damaged on the broker's disk"):
        Archive(archive_configured(config), spark).run()
    config.write_text(yaml.safe_dump(given | {"maxOffsetsPerTrigger": 200, "failOnDataLoss": False}))
    report = Archive(archive_configured(config), spark).run()
    assert (report.rows, report.missing, report.batches) == (299, 1, 2)
    (finding,) = audited(spark, tmp_path, table=given["table"]).findings
    assert (finding.kind, finding.first, finding.last) == ("damaged", 17, 17)
    assert not (tmp_path / "lake" / "_bascule" / "staging").exists()


@pytest.mark.parametrize("harms", [True, False])
def test_an_audit_of_a_stream_that_was_compacted_before_passes_and_finds_what_is_damaged(
    spark: Any, broker: BrokerProcess, client: BlockingClient, tmp_path: Path, harms: bool
) -> None:
    stream = f"compacted-{harms}".lower()
    client.create_stream(stream, segment_max_bytes=2000, cleaner_interval_ms=50, compact_enabled=True)
    for turn in range(TURNS):
        client.publish_many(stream, [Outgoing(b"%d" % turn, b"k%d" % n) for n in range(KEYS)])

    def there() -> int:
        return sum(each.count for each in client.read_range(stream))

    assert poll(lambda: there() < KEYS * TURNS // 2, 60), "it was not compacted"
    expected = []
    if harms:
        harmed = client.publish(stream, b"harmed", key=b"alone").offset
        for path in broker.data_dir.glob(f"streams/{stream}@*/0/*.log"):
            if (position := path.read_bytes().find(b"harmed")) >= 0:
                with path.open("r+b") as file:
                    file.seek(position)
                    file.write(b"H")
        expected = [("damaged", harmed, harmed)]
    report = audited(spark, tmp_path, servers=broker.address, streams=stream)
    (part,) = report.partitions
    assert (part.start, part.end) == (0, KEYS * TURNS + harms)
    assert part.compacted > KEYS * TURNS // 2
    assert part.seen.records + part.compacted + len(expected) == part.end
    assert [(each.kind, each.first, each.last) for each in report.findings] == expected


def test_an_audit_takes_holes_of_a_compaction_that_came_meanwhile_for_no_loss(
    spark: Any, broker: BrokerProcess, compacting: Callable[[str], None], tmp_path: Path
) -> None:
    compacting("seen-moving")
    report = audited(spark, tmp_path, servers=broker.address, streams="seen-moving")
    assert report.findings == []
    (partition,) = report.partitions
    assert partition.compacted > KEYS * TURNS // 2


def test_a_row_that_the_table_lost_where_compaction_has_been_is_found_at_the_brokers(
    spark: Any, broker: BrokerProcess, client: BlockingClient, tmp_path: Path
) -> None:
    stream = "lost-among-holes"
    client.create_stream(stream, segment_max_bytes=2000, cleaner_interval_ms=50, compact_enabled=True)
    client.publish_many(stream, [Outgoing(b"alone", b"alone %d" % n) for n in range(5)])
    for turn in range(TURNS):
        client.publish_many(stream, [Outgoing(b"%d" % turn, b"k%d" % n) for n in range(KEYS)])
    assert poll(lambda: sum(each.count for each in client.read_range(stream)) < KEYS * TURNS // 2, 60)
    client.create_stream("never-taken", partitions=2)
    client.publish("never-taken", b"v", partition=1)
    table = tmp_path / "lake"
    given = {"servers": broker.address, "streams": stream, "table": str(table)}
    config = tmp_path / "archive.yaml"
    config.write_text(yaml.safe_dump({**given, "hold": False}))
    Archive(archive_configured(config), spark).run()
    compacted_end = client.log_bounds(stream).compacted_end
    assert found(audited(spark, tmp_path, **given)) == []
    (file,) = table.rglob("0000000000-*.parquet")
    rows = pq.ParquetFile(file).read()
    offsets = rows.column("offset").to_pylist()
    lost = next(number for number in range(1, len(offsets)) if offsets[number] < compacted_end)
    pq.write_table(pa.concat_tables([rows.slice(0, lost), rows.slice(lost + 1)]), file)
    report = audited(spark, tmp_path, **{**given, "streams": f"{stream},never-taken"})
    assert ("missing", offsets[lost], offsets[lost]) in found(report)
    (missing,) = (each for each in report.findings if each.kind == "missing")
    assert missing.what == "the brokers have it, and the table does not"
    (note,) = report.notes
    assert note.startswith("never-taken/1: the brokers have this partition, and nothing of it is in the table")


def found(report: AuditReport) -> list[tuple[str, int | None, int | None]]:
    return [(each.kind, each.first, each.last) for each in report.findings]
