"""`bascule pipeline archive`: a stream becomes a table, each message once, whatever ends the driver and when."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bascule.client import BlockingClient, Outgoing
from bascule.errors import FailedPrecondition, InvalidArgument, OutOfRange
from bascule.pipelines import archive, ledger, parquet
from bascule.pipelines.archive import Archive, ArchiveReport, configured
from bascule.pipelines.holds import raise_holds
from bascule.pipelines.ledger import Ledger
from bascule.pipelines.parquet import read_table
from bascule.spark.options import read_options
from bascule.testing.processes import BrokerProcess, poll, script
from tests.harness.archives import Killed, crash_at, holds_of, log_of, remove, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


class Archives:
    """Archives of one stream into one table."""

    def __init__(self, spark: Any, broker: BrokerProcess, folder: Path, stream: str) -> None:
        self.spark, self.broker, self.stream = spark, broker, stream
        self.table = folder / "lake"
        self.config = folder / "archive.yaml"

    def configure(self, **more: object) -> Path:
        self.config.write_text(
            yaml.safe_dump({"servers": self.broker.address, "streams": self.stream, "table": str(self.table), **more})
        )
        return self.config

    def run(self, **more: object) -> ArchiveReport:
        return Archive(configured(self.configure(**more)), self.spark).run()

    def rows(self) -> list[tuple[object, ...]]:
        return rows_of(read_table(self.spark, self.table))


@pytest.fixture
def archives(spark: Any, broker: BrokerProcess, tmp_path: Path) -> Callable[[str], Archives]:
    return lambda stream: Archives(spark, broker, tmp_path, stream)


def fill(client: BlockingClient, stream: str, count: int, partitions: int = 2) -> None:
    for number in range(partitions):
        messages = [Outgoing(b"%d" % n, b"k%d" % (n % 7) if n % 3 else None, {"n": b"%d" % n}) for n in range(count)]
        client.publish_many(stream, messages, partition=number)


def test_the_table_has_every_message_once_and_the_hold_follows(
    archives: Callable[[str], Archives], client: BlockingClient, broker: BrokerProcess
) -> None:
    client.create_stream("taken", partitions=2)
    fill(client, "taken", 500)
    archiving = archives("taken")
    report = archiving.run(hold="lake", maxOffsetsPerTrigger=600)
    assert (report.batches, report.rows, report.missing) == (2, 1000, 0)
    assert archiving.rows() == log_of(client, "taken", 2)
    assert holds_of(broker, "taken") == {(0, "lake"): 500, (1, "lake"): 500}
    fill(client, "taken", 10)
    assert archiving.run(hold="lake").rows == 20
    assert archiving.run(hold="lake").batches == 0
    assert archiving.rows() == log_of(client, "taken", 2)
    assert holds_of(broker, "taken") == {(0, "lake"): 510, (1, "lake"): 510}
    assert [each.partition for each in report.partitions.values()] == [0, 1]
    assert json.dumps(report.as_dict())
    dates = {path.name for path in (archiving.table / "stream=taken" / "partition=0").iterdir()}
    assert len(dates) in (1, 2)  # midnight may pass
    assert all(name.startswith("date=2") for name in dates)


CRASHES: dict[str, tuple[Any, str, int]] = {
    "before the files are synced": (parquet, "sync_file", 1),
    "before the batch is committed": (ledger, "replace_file", 2),
    "before its first file is in the table": (parquet, "make_folder", 1),
    "between its files": (parquet, "make_folder", 2),
    "before the names in the table are synced": (parquet, "sync_folders", 2),
    "before the hold goes up": (archive, "raise_holds", 2),
}
COMMITTED = list(CRASHES)[2:]


@pytest.mark.parametrize("moment", CRASHES)
def test_a_driver_that_dies_at_any_step_of_a_commit_leaves_each_message_once(
    archives: Callable[[str], Archives],
    client: BlockingClient,
    broker: BrokerProcess,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    stream = f"crash-{list(CRASHES).index(moment)}"
    client.create_stream(stream, partitions=2)
    fill(client, stream, 20)
    archiving = archives(stream)
    with monkeypatch.context() as patched:
        crash_at(patched, *CRASHES[moment])
        with pytest.raises(Killed):
            archiving.run(hold="lake")
    assert holds_of(broker, stream) == {(0, "lake"): 0, (1, "lake"): 0}, "nothing that is not durable may be removed"
    again = archiving.run(hold="lake")
    assert again.rows == (0 if moment in COMMITTED else 40)
    assert archiving.rows() == log_of(client, stream, 2)
    assert holds_of(broker, stream) == {(0, "lake"): 20, (1, "lake"): 20}
    assert not Ledger(archiving.table).staging.exists()


@pytest.mark.slow
def test_kill_9_of_the_driver_in_the_middle_leaves_each_message_once(
    archives: Callable[[str], Archives], client: BlockingClient, broker: BrokerProcess, tmp_path: Path
) -> None:
    client.create_stream("killed", partitions=2)
    fill(client, "killed", 4000)
    archiving = archives("killed")
    config = archiving.configure(maxOffsetsPerTrigger=400, spark={"master": "local[2]"})
    entries = Ledger(archiving.table)
    with (tmp_path / "driver.log").open("wb") as log:
        command = [str(script("bascule")), "pipeline", "archive", "--config", str(config)]
        driver = subprocess.Popen(command, stdout=log, stderr=log, process_group=0)
    try:
        assert poll(lambda: len(entries.numbers()) >= 2 and entries.staging.exists(), 120)
    finally:
        os.kill(driver.pid, signal.SIGKILL)  # Spark's Java is left alone, and goes on for a moment
        driver.wait()
    assert 0 < len(entries.numbers()) < 20, "it was killed in the middle"
    archiving.run()
    assert archiving.rows() == log_of(client, "killed", 2)
    assert {offset for _, offset in holds_of(broker, "killed").items()} == {4000}


def test_what_is_not_archived_cannot_be_removed(
    archives: Callable[[str], Archives], client: BlockingClient, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_stream("held")
    fill(client, "held", 100, 1)
    archiving = archives("held")
    with monkeypatch.context() as patched:
        crash_at(patched, ledger, "replace_file", 3)  # the second batch is not committed
        with pytest.raises(Killed):
            archiving.run(hold="lake", maxOffsetsPerTrigger=60)
    assert holds_of(broker, "held") == {(0, "lake"): 60}
    with pytest.raises(FailedPrecondition, match="lake"):
        remove(broker, "held", 61)
    remove(broker, "held", 60)
    assert client.log_bounds("held").start == 60
    assert archiving.run(hold="lake").partitions["held", 0].start == 60


def test_a_continuous_archive_takes_what_arrives_until_it_is_stopped(
    archives: Callable[[str], Archives], client: BlockingClient
) -> None:
    client.create_stream("flowing")
    archiving = archives("flowing")
    running = Archive(
        configured(archiving.configure(trigger="continuous", interval="50ms", hold=False)), archiving.spark
    )
    reports: list[ArchiveReport] = []
    thread = threading.Thread(target=lambda: reports.append(running.run()))
    thread.start()
    try:
        for count in (30, 20):
            before = Ledger(archiving.table).last()
            fill(client, "flowing", count, 1)
            assert poll(lambda before=before: Ledger(archiving.table).last() != before, 60)  # type: ignore[misc]
    finally:
        running.stopping.set()
        thread.join(60)
    assert archiving.run(hold=False).rows + reports[0].rows == 50
    assert archiving.rows() == log_of(client, "flowing", 1)


def test_a_stream_that_is_another_by_now_is_not_mixed_in(
    archives: Callable[[str], Archives], client: BlockingClient, broker: BrokerProcess
) -> None:
    client.create_stream("twice")
    fill(client, "twice", 5, 1)
    archiving = archives("twice")
    archiving.run(hold=False)
    client.delete_stream("twice")
    client.create_stream("twice")
    fill(client, "twice", 50, 1)
    with pytest.raises(FailedPrecondition, match="stream twice was deleted and made again since it was archived"):
        archiving.run(hold=False)
    assert len(archiving.rows()) == 5


def test_what_would_spoil_a_table_is_refused(
    archives: Callable[[str], Archives], client: BlockingClient, broker: BrokerProcess, tmp_path: Path
) -> None:
    client.create_stream("refused")
    fill(client, "refused", 5, 1)
    archiving = archives("refused")
    archiving.table.mkdir()
    (archiving.table / "notes.txt").write_text("mine")
    with pytest.raises(InvalidArgument, match="has files, and is no archive"):
        archiving.run()
    archiving.table = tmp_path / "other"
    entries = Ledger(archiving.table)
    entries.lock()
    with pytest.raises(FailedPrecondition, match="another pipeline writes"):
        archiving.run()
    entries.unlock()
    archiving.run(hold="shared")
    fill(client, "refused", 5, 1)
    raise_holds(read_options({"servers": broker.address, "streams": "refused"}), "shared", {("refused", 0): 8})
    with pytest.raises(
        FailedPrecondition, match=r"the hold of refused/0 cannot be set to 5: .* at offset 8.* of its own"
    ):
        archiving.run(hold="shared")


def test_what_was_removed_before_it_was_archived_is_said(
    archives: Callable[[str], Archives], client: BlockingClient, broker: BrokerProcess
) -> None:
    client.create_stream("removed")
    fill(client, "removed", 10, 1)
    archiving = archives("removed")
    archiving.run(hold=False)
    fill(client, "removed", 10, 1)
    remove(broker, "removed", 15)
    with pytest.raises(OutOfRange, match="was archived up to 10, and begins at 15 now"):
        archiving.run(hold=False)
    assert archiving.run(hold=False, failOnDataLoss=False).rows == 5
    assert [row[2] for row in archiving.rows()] == [*range(10), *range(15, 20)]


def test_files_are_on_the_disk_before_they_are_committed(
    archives: Callable[[str], Archives], client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of what is synced, and of what is promised for it."""
    client.create_stream("ordered")
    fill(client, "ordered", 5, 1)
    done: list[str] = []
    seen: Iterator[tuple[Any, str]] = iter(
        [(parquet, "sync_file"), (ledger, "replace_file"), (parquet, "sync_folders"), (archive, "raise_holds")]
    )
    for module, name in seen:
        real = getattr(module, name)

        def noted(*arguments: Any, real: Any = real, name: str = name) -> Any:
            given = real(*arguments)
            done.append(name)
            return given

        monkeypatch.setattr(module, name, noted)
    archives("ordered").run(hold="lake")
    assert done == [
        "replace_file",  # table.json
        "raise_holds",  # where the partition begins
        "sync_file",
        "sync_folders",
        "replace_file",  # the entry of the batch
        "sync_folders",
        "raise_holds",
    ]
