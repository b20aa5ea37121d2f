"""The log of a Delta table has each batch of the ledger once, whoever else writes it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bascule.errors import CorruptError, FailedPrecondition, InvalidArgument
from bascule.pipelines.deltalog import DeltaLog
from bascule.pipelines.ledger import Batch, End, Ledger, StoredFile

PLACE = "stream=a%3Ab c/partition=3/date=2026-01-31"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "lake")
    ledger.lock()
    ledger.create("delta")
    yield ledger
    ledger.unlock()


def commit(ledger: Ledger, number: int) -> None:
    file = StoredFile(f"{PLACE}/{number:010d}-00000.parquet", 10, 500, 10 * number, 10 * number + 9, 1)
    ledger.commit(Batch(number, 5_000_000_000, f"{number}-x", (), (file,), {("a:b c", 3): End(1, 10 * number + 10)}))


def versions(ledger: Ledger) -> list[list[dict[str, Any]]]:
    paths = sorted((ledger.table / "_delta_log").glob("*.json"))
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]


def batches(ledger: Ledger) -> list[int]:
    return [action["txn"]["version"] for actions in versions(ledger) for action in actions if "txn" in action]


def test_each_batch_is_a_version_once_however_often_it_is_followed(ledger: Ledger) -> None:
    for number in range(3):
        commit(ledger, number)
        if number != 1:  # a driver died between the two
            DeltaLog(ledger).follow()
            DeltaLog(ledger).follow()
    assert batches(ledger) == [0, 1, 2]
    first, second, _ = versions(ledger)
    assert [next(iter(action)) for action in first] == ["protocol", "metaData", "commitInfo", "txn", "add"]
    assert [next(iter(action)) for action in second] == ["commitInfo", "txn", "add"]
    about = first[1]["metaData"]
    assert about["partitionColumns"] == ["stream", "partition", "date"]
    names = [each["name"] for each in json.loads(about["schemaString"])["fields"]]
    assert (names[:3], names[-1]) == (["stream", "partition", "offset"], "date")


def test_a_file_is_named_as_a_url_and_its_folders_are_values(ledger: Ledger) -> None:
    commit(ledger, 0)
    DeltaLog(ledger).follow()
    added = versions(ledger)[0][-1]["add"]
    assert added["path"] == "stream=a%253Ab%20c/partition=3/date=2026-01-31/0000000000-00000.parquet"
    assert added["partitionValues"] == {"stream": "a:b c", "partition": "3", "date": "2026-01-31"}
    assert (added["size"], json.loads(added["stats"])["numRecords"]) == (500, 10)


def test_a_version_that_somebody_else_wrote_is_left_alone(ledger: Ledger) -> None:
    commit(ledger, 0)
    DeltaLog(ledger).follow()
    foreign = ledger.table / "_delta_log" / f"{1:020}.json"
    foreign.write_text(json.dumps({"commitInfo": {"operation": "OPTIMIZE"}}) + "\n")
    commit(ledger, 1)
    DeltaLog(ledger).follow()
    assert [next(iter(action)) for action in versions(ledger)[1]] == ["commitInfo"]
    assert "OPTIMIZE" in foreign.read_text()
    assert batches(ledger) == [0, 1]


def test_a_version_whose_name_is_taken_meanwhile_becomes_the_next_one(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(ledger, 0)
    DeltaLog(ledger).follow()
    commit(ledger, 1)
    (ledger.table / "_delta_log" / f"{1:020}.json").write_text('{"commitInfo": {}}\n')
    log = DeltaLog(ledger)
    real, before = log._versions, iter([[0], [0]])  # as it was when `_last` and `_add` looked
    monkeypatch.setattr(log, "_versions", lambda: next(before, None) or real())
    log.follow()
    assert batches(ledger) == [0, 1]
    assert len(versions(ledger)) == 3


def test_what_a_dead_driver_left_is_removed(ledger: Ledger) -> None:
    folder = ledger.table / "_delta_log"
    folder.mkdir()
    (folder / ".0123.new").write_text('{"commitInfo"')
    commit(ledger, 0)
    DeltaLog(ledger).follow()
    assert [path.name for path in folder.iterdir()] == [f"{0:020}.json"]


def test_a_log_that_does_not_say_what_it_has_is_not_added_to(ledger: Ledger) -> None:
    commit(ledger, 0)
    DeltaLog(ledger).follow()
    path = ledger.table / "_delta_log" / f"{0:020}.json"
    whole = path.read_text()
    path.write_text('{"commitInfo": {}}\n')
    with pytest.raises(FailedPrecondition, match="does not say which batches of the archive it has"):
        DeltaLog(ledger).follow()
    path.write_text(whole[:-9])
    with pytest.raises(CorruptError, match="is damaged"):
        DeltaLog(ledger).follow()


@pytest.mark.parametrize(
    "retained", [[], [2]], ids=["all versions are gone", "the last one is there, and is of others"]
)
def test_what_a_checkpoint_of_others_says_is_known_when_old_versions_are_gone(
    ledger: Ledger, retained: list[int]
) -> None:
    for number in range(2):
        commit(ledger, number)
    DeltaLog(ledger).follow()
    folder = ledger.table / "_delta_log"
    (folder / f"{2:020}.json").write_text('{"commitInfo": {"operation": "OPTIMIZE"}}\n')
    for version in {0, 1, 2} - set(retained):
        (folder / f"{version:020}.json").unlink()
    txns = [{"appId": "another", "version": 9}, None, {"appId": ledger.about()["id"], "version": 1}]
    for part, rows in enumerate([txns[:2], txns[2:]], 1):  # in parts, as large ones are
        txn = pa.array(rows, pa.struct([("appId", pa.string()), ("version", pa.int64())]))
        pq.write_table(pa.table({"txn": txn}), folder / f"{2:020}.checkpoint.{part:010}.{2:010}.parquet")
    commit(ledger, 2)
    DeltaLog(ledger).follow()
    assert batches(ledger) == [2]
    assert (folder / f"{3:020}.json").exists(), "after the checkpoint"


def test_a_table_of_parquet_becomes_one_of_delta_and_not_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "lake")
    ledger.lock()
    ledger.create("parquet")
    name = ledger.about()["id"]
    for number in range(2):
        commit(ledger, number)
    ledger.create("delta")
    DeltaLog(ledger).follow()
    assert ledger.about() == {"id": name, "format": "delta"}
    assert batches(ledger) == [0, 1]
    with pytest.raises(InvalidArgument, match="is an archive in the format delta, not parquet"):
        ledger.create("parquet")
    ledger.unlock()
