"""`bascule pipeline audit` finds what is planted in copies of a log and of a table, and passes on what is sound."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from bascule.client import BlockingClient, Client, Outgoing
from bascule.errors import ConfigError, InvalidArgument
from bascule.pipelines.archive import Archive
from bascule.pipelines.archive import configured as archive_configured
from bascule.pipelines.audit import Audit, AuditReport, configured
from bascule.pipelines.ledger import Ledger
from bascule.spark.planning import Bounds, Planner
from bascule.testing.processes import BrokerProcess, poll

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
STREAM, COUNT = "audited", 300
Plant = Callable[[list[Any]], list[Any]]


def swapped(items: list[Any]) -> list[Any]:
    return [*items[:100], items[101], items[100], *items[102:]]


FAULTS: dict[str, tuple[Plant, list[tuple[str, int, int]]]] = {
    "nothing": (lambda items: items, []),
    "a missing record": (lambda items: items[:100] + items[101:], [("missing", 100, 100)]),
    "missing records": (lambda items: items[:100] + items[150:], [("missing", 100, 149)]),
    "a missing first record": (lambda items: items[1:], [("missing", 0, 0)]),
    "a duplicate": (lambda items: items[:101] + items[100:], [("duplicate", 100, 100)]),
    "a duplicate at the end": (lambda items: [*items, items[100]], [("duplicate", 100, 100)]),
    "a reordering": (swapped, [("out of order", 100, 100)]),
}


@pytest.fixture(scope="module")
def made(broker: BrokerProcess, client: BlockingClient, spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an archive of the stream."""
    client.create_stream(STREAM, partitions=2)
    for number in range(2):
        client.publish_many(STREAM, [b"%d" % n for n in range(COUNT)], partition=number)
    folder = tmp_path_factory.mktemp("audit")
    config = folder / "archive.yaml"
    given = {"servers": broker.address, "streams": STREAM, "table": str(folder / "lake"), "maxOffsetsPerTrigger": 400}
    config.write_text(yaml.safe_dump(given))
    Archive(archive_configured(config), spark).run()
    return folder


@pytest.fixture
def audited(spark: Any, tmp_path: Path) -> Callable[..., AuditReport]:
    def audited(**given: object) -> AuditReport:
        path = tmp_path / "audit.yaml"
        path.write_text(yaml.safe_dump(given))
        report = Audit(configured(path), spark).run()
        assert json.dumps(report.as_dict())
        return report

    return audited


def found(report: AuditReport) -> list[tuple[str, int | None, int | None]]:
    return [(each.kind, each.first, each.last) for each in report.findings]


# --- a log ----------------------------------------------------------------------------------------------------------


def copied_log(broker: BrokerProcess, folder: Path) -> Path:
    """The only segment of partition 0, in a copy of the stream's folder."""
    (there,) = (broker.data_dir / "streams").glob(f"{STREAM}@*")
    shutil.copytree(there, folder / there.name)
    (segment,) = (folder / there.name / "0").glob("*.log")
    return segment


def records_of(data: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(data):
        end = position + 5 + int.from_bytes(data[position + 1 : position + 5], "big")
        yield data[position:end]
        position = end


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_planted_in_a_copy_of_a_log_is_found(
    made: Path, broker: BrokerProcess, audited: Callable[..., AuditReport], tmp_path: Path, fault: str
) -> None:
    segment = copied_log(broker, tmp_path)
    plant, expected = FAULTS[fault]
    segment.write_bytes(b"".join(plant(list(records_of(segment.read_bytes())))))
    report = audited(log=str(tmp_path))
    assert found(report) == expected
    assert [(each.stream, each.partition) for each in report.partitions] == [(STREAM, 0), (STREAM, 1)]
    assert {each.partition for each in report.findings} <= {0}


@pytest.mark.parametrize("byte", [0, 2, 4, 20, -2])
def test_a_flipped_bit_anywhere_in_a_record_of_a_log_is_found(
    made: Path, broker: BrokerProcess, audited: Callable[..., AuditReport], tmp_path: Path, byte: int
) -> None:
    """In its flag, its length, its content and its checksum."""
    segment = copied_log(broker, tmp_path)
    records = list(records_of(segment.read_bytes()))
    damaged = bytearray(records[100])
    damaged[byte] ^= 0x40
    segment.write_bytes(b"".join([*records[:100], bytes(damaged), *records[101:]]))
    report = audited(log=str(tmp_path))
    assert found(report) == [("damaged", 100, 100)]
    assert f"{segment.relative_to(tmp_path)}, bytes {len(b''.join(records[:100]))} to" in report.findings[0].what


def test_the_end_of_a_log_is_missed_when_brokers_say_where_it_is(
    made: Path, broker: BrokerProcess, audited: Callable[..., AuditReport], tmp_path: Path
) -> None:
    segment = copied_log(broker, tmp_path)
    records = list(records_of(segment.read_bytes()))
    segment.write_bytes(b"".join(records[:-2]) + records[-2][:10])
    report = audited(log=str(tmp_path))
    assert (found(report), report.partitions[0].end) == ([], COUNT - 2), "a write may have been under way"
    assert [each.what for each in report.partitions[0].seen.notes] != []
    named = audited(log=str(tmp_path), servers=broker.address, streams=STREAM)
    assert found(named) == [("missing", COUNT - 2, COUNT - 1)]


# --- a table --------------------------------------------------------------------------------------------------------


def copied_table(made: Path, folder: Path) -> Path:
    """The first file of partition 0 in a copy of the table."""
    shutil.copytree(made / "lake", folder / "lake")
    return sorted((folder / "lake").glob(f"stream={STREAM}/partition=0/*/*.parquet"))[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_planted_in_a_copy_of_a_table_is_found(
    made: Path, audited: Callable[..., AuditReport], tmp_path: Path, fault: str
) -> None:
    file = copied_table(made, tmp_path)
    plant, expected = FAULTS[fault]
    with pq.ParquetFile(file) as opened:
        table = opened.read()
    order = plant(list(range(table.num_rows)))
    if expected:  # as a program does that reads the file and writes it again
        pq.write_table(table.take(pa.array(order)), file)
    report = audited(table=str(tmp_path / "lake"))
    faults = [each for each in found(report) if each[1] is not None]
    assert faults == expected
    checksums = [each for each in report.findings if "is not the one that was committed" in each.what]
    assert len(checksums) == (1 if expected else 0)
    counts = [each for each in report.findings if each.kind == "unexpected"]
    assert len(counts) == (1 if len(order) != table.num_rows else 0)


@pytest.mark.parametrize("place", [4, 0.5, -3])
def test_a_flipped_bit_anywhere_in_a_table_is_found(
    made: Path, audited: Callable[..., AuditReport], tmp_path: Path, place: float
) -> None:
    file = copied_table(made, tmp_path)
    data = bytearray(file.read_bytes())
    data[place if isinstance(place, int) else int(len(data) * place)] ^= 1
    file.write_bytes(data)
    report = audited(table=str(tmp_path / "lake"))
    assert report.findings[0].kind == "damaged"
    assert file.name in report.findings[0].what


def test_a_file_that_is_gone_or_was_never_committed_is_found(
    made: Path, audited: Callable[..., AuditReport], tmp_path: Path
) -> None:
    file = copied_table(made, tmp_path)
    shutil.copy(file, file.with_name("copy.parquet"))
    report = audited(table=str(tmp_path / "lake"))
    assert ("duplicate", 0, 199) in found(report)
    assert any("copy.parquet was never committed" in each.what for each in report.findings)
    file.with_name("copy.parquet").unlink()
    file.unlink()
    assert ("damaged", 0, 199) in found(audited(table=str(tmp_path / "lake")))


def test_a_table_is_compared_with_the_brokers(
    made: Path, broker: BrokerProcess, audited: Callable[..., AuditReport], client: BlockingClient, tmp_path: Path
) -> None:
    assert found(audited(table=str(made / "lake"), servers=broker.address, streams=STREAM)) == []
    copied_table(made, tmp_path)
    for path in (tmp_path / "lake" / "_bascule" / "batches").iterdir():
        path.write_text(path.read_text().replace('"creation": ', '"creation": 1'))
    report = audited(table=str(tmp_path / "lake"), servers=broker.address, streams=STREAM)
    assert [each.what for each in report.findings] == [
        "the stream was deleted and made again since it was archived"
    ] * 2


# --- a stream -------------------------------------------------------------------------------------------------------


def test_an_undamaged_stream_passes_and_its_page_shows_it(
    made: Path, broker: BrokerProcess, audited: Callable[..., AuditReport], tmp_path: Path
) -> None:
    report = audited(servers=broker.address, streams=STREAM, report=str(tmp_path / "page.html"))
    assert found(report) == []
    assert report.records == 2 * COUNT
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 2
    assert "sound" in page
    assert "http" not in page.replace("http-equiv", ""), "it loads nothing"


def test_a_stream_whose_start_retention_moved_passes(
    broker: BrokerProcess, client: BlockingClient, audited: Callable[..., AuditReport]
) -> None:
    client.create_stream("retained", segment_max_bytes=2000, retention_max_messages=50, cleaner_interval_ms=100)
    client.publish_many("retained", [b"x" * 100] * 500)
    client.publish_many("retained", [b"x" * 100] * 10)
    assert poll(lambda: client.log_bounds("retained").start > 0, 30)
    report = audited(servers=broker.address, streams="retained")
    (part,) = report.partitions
    assert found(report) == []
    assert part.start > 0
    assert part.seen.records == part.end - part.start


def test_a_log_damaged_under_its_broker_is_found(
    broker: BrokerProcess, client: BlockingClient, audited: Callable[..., AuditReport]
) -> None:
    client.create_stream("broken")
    client.publish_many("broken", [b"%d" % n for n in range(50)])
    (segment,) = (broker.data_dir / "streams").glob("broken@*/0/*.log")
    records = list(records_of(segment.read_bytes()))
    with segment.open("r+b") as file:
        file.seek(sum(map(len, records[:20])) + 30)
        file.write(b"\xff")
    report = audited(servers=broker.address, streams="broken")
    (finding,) = report.findings  # by then the broker may have set the record aside
    assert finding.kind in ("damaged", "missing")
    assert (finding.first or 0) <= 20 <= (finding.last or 0)


def test_damage_in_a_stream_that_compacts_fails_a_read_and_is_found(
    broker: BrokerProcess, client: BlockingClient, spark: Any, audited: Callable[..., AuditReport]
) -> None:
    """Nothing was compacted yet, but might be: what is missing is told by the broker alone."""
    client.create_stream("keyed", compact_enabled=True, cleaner_interval_ms=3_600_000, segment_max_bytes=4096)
    client.publish_many("keyed", [Outgoing(b"value %04d" % n, b"k%d" % n) for n in range(300)])
    for path in (broker.data_dir / "streams").glob("keyed@*/0/*.log"):
        if (position := path.read_bytes().find(b"value 0017")) >= 0:
            with path.open("r+b") as file:
                file.seek(position)
                file.write(b"V")
    options = {"servers": broker.address, "streams": "keyed"}
    with pytest.raises(Exception, match="partition 0 of stream keyed: offset 17 is damaged on the broker's disk"):
        spark.read.format("liftbridge").options(**options).load().collect()
    report = audited(**options)
    assert found(report) == [("damaged", 17, 17)]
    assert report.partitions[0].compacted == 0


def test_a_stream_whose_messages_are_removed_while_it_is_read_passes(
    broker: BrokerProcess, client: BlockingClient, audited: Callable[..., AuditReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_stream("shrinking", segment_max_bytes=1)
    client.publish_many("shrinking", [b"x"] * 100)
    real = Planner.bounds

    async def remove() -> None:
        async with await Client.connect(broker.address) as admin:
            await admin.admin.delete_records("shrinking", 0, 40)

    def bounds(planner: Planner, *known: Any) -> Bounds:
        there = real(planner, *known)
        asyncio.run(remove())
        return there

    monkeypatch.setattr(Planner, "bounds", bounds)
    report = audited(servers=broker.address, streams="shrinking")
    (part,) = report.partitions
    assert (found(report), part.start, part.seen.records) == ([], 40, 60)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "name what is audited"),
        ({"table": "a", "log": "b"}, "give either table or log"),
        ({"table": "a", "streams": "x"}, "the key servers is missing"),
        ({"tabel": "a"}, "did you mean table?"),
    ],
)
def test_a_configuration_that_names_nothing_is_refused(tmp_path: Path, given: dict[str, str], said: str) -> None:
    path = tmp_path / "audit.yaml"
    path.write_text(yaml.safe_dump(given))
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        configured(path)


def test_a_folder_without_a_log_is_told(audited: Callable[..., AuditReport], tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="has no log: name a copy of a broker's data folder"):
        audited(log=str(tmp_path))
    assert not Ledger(tmp_path).is_there
