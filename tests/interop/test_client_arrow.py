"""Messages as Arrow record batches, and exports to Parquet: everything once, in order, from where the last one stopped,
in bulk and without."""

import asyncio
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bascule import limits
from bascule.client import (
    BlockingClient,
    Client,
    CorruptError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Outgoing,
    OutOfRange,
    Unimplemented,
    bulk,
    export,
)
from bascule.client import arrow as arrows
from bascule.testing.processes import BrokerProcess
from tests.harness.clients import with_client

PARTITIONS = 3
EACH = 500


async def fill(client: Client, stream: str, each: int = EACH) -> None:
    await client.create_stream(stream, partitions=PARTITIONS, exist_ok=True)
    values = [
        Outgoing(b"v%d" % n, key=b"k%d" % n if n % 2 else None, headers={"n": b"%d" % n}, partition=p)
        for n in range(each)
        for p in range(PARTITIONS)
    ]
    await client.publish_many(stream, values)


def rows(batches: list[pa.RecordBatch]) -> list[tuple[int, int]]:
    return [
        (p, n)
        for batch in batches
        for p, n in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
    ]


EVERYTHING = [(p, n) for p in range(PARTITIONS) for n in range(EACH)]


@pytest.fixture(params=["bulk", "subscribed"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other servers answer Unimplemented to a bulk read."""
    if request.param == "subscribed":

        async def unknown(*_: object) -> bulk.LogBounds:
            raise Unimplemented("unknown service bascule.v1.Log")

        monkeypatch.setattr(arrows, "log_bounds", unknown)
    return


@pytest.mark.usefixtures("way")
def test_all_messages_come_in_columns_as_an_iteration_has_them(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        read = client.arrow(stream, max_bytes=3_000)
        batches = [batch async for batch in read]
        assert len(batches) >= 2 * PARTITIONS
        assert rows(batches) == EVERYTHING
        assert read.position == {stream: dict.fromkeys(range(PARTITIONS), EACH)}
        table = pa.Table.from_batches(batches).to_pylist()
        async with client.consumer(stream, stop="latest") as consumer:
            messages = {(m.partition, m.offset): m async for m in consumer}
        for row in table:
            message = messages[row["partition"], row["offset"]]
            assert row["value"] == message.value
            assert row["key"] == message.key
            assert row["timestamp_ns"] == message.timestamp
            assert row["timestamp"] == message.time
            assert row["subject"] == message.subject
            assert dict(row["headers"]) == message.headers, "those of its publisher"
            assert list(message.headers) == ["n"]

    with_client(broker.address, use)


@pytest.mark.usefixtures("way")
def test_columns_partitions_and_starts_can_be_chosen(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        read = client.arrow(stream, partitions=[1], columns=["offset", "value"], start=EACH - 2)
        (batch,) = [each async for each in read]
        assert batch.schema.names == ["offset", "value"]
        assert batch["value"].to_pylist() == [b"v%d" % (EACH - 2), b"v%d" % (EACH - 1)]
        now = datetime.now(UTC)
        assert [each async for each in client.arrow(stream, start=now + timedelta(hours=1))] == []
        early = client.arrow(stream, start=now - timedelta(hours=1), columns=["partition", "offset"])
        assert rows([each async for each in early]) == EVERYTHING
        saved = json.loads(json.dumps({stream: {0: EACH, 1: 10, 2: EACH - 1}}))
        rest = rows([each async for each in client.arrow(stream, start=saved)])
        assert rest == [(1, n) for n in range(10, EACH)] + [(2, EACH - 1)]

    with_client(broker.address, use)


@pytest.mark.usefixtures("way")
def test_iterating_goes_on_after_it_was_interrupted(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        read = client.arrow(stream, max_bytes=5_000)
        batches: list[pa.RecordBatch] = []
        tries = 0
        while True:
            tries += 1
            try:
                async with asyncio.timeout(0.003):
                    async for batch in read:
                        batches.append(batch)
                break
            except TimeoutError:
                assert tries < 3000
        assert tries > 1
        assert rows(batches) == EVERYTHING

    with_client(broker.address, use)


def test_what_cannot_be_meant_is_an_error(broker: BrokerProcess, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        wrongs: list[dict[str, Any]] = [
            {"columns": ["colour"]},
            {"partitions": "some"},
            {"start": "latest"},
            {"start": -1},
            {"max_bytes": 0},
            {"max_bytes": 1 << 30},
        ]
        for wrong in wrongs:
            with pytest.raises(InvalidArgument):
                client.arrow(stream, **wrong)
        with pytest.raises(NotFound):
            await anext(client.arrow(stream, partitions=[9]))
        with pytest.raises(NotFound):
            await anext(client.arrow("nowhere"))
        await client.admin.delete_records(stream, 0, 100)
        with pytest.raises(OutOfRange, match="begins at 100"):
            await anext(client.arrow(stream, start=50))
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ImportError, match=r"pip install 'bascule\[arrow\]'"):
            client.arrow(stream)

    with_client(broker.address, use)


def exported(folder: Path) -> list[tuple[int, int]]:
    """What the files have, by name."""
    found = []
    for path in sorted(folder.glob("*.parquet")):
        table = pq.ParquetFile(path).read()
        found += list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    return found


@pytest.mark.usefixtures("way")
def test_an_export_goes_on_where_the_last_one_stopped(broker: BrokerProcess, stream: str, tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        first = await client.export_parquet(stream, tmp_path / "out")
        assert (first.messages, len(first.files), first.remaining) == (len(EVERYTHING), PARTITIONS, 0)
        assert exported(tmp_path / "out") == EVERYTHING
        again = await client.export_parquet(stream, tmp_path / "out")
        assert (again.messages, again.files) == (0, [])
        await client.publish(stream, b"more", partition=1)
        more = await client.export_parquet(stream, str(tmp_path / "out"))
        assert more.messages == 1
        assert sorted(exported(tmp_path / "out")) == sorted([*EVERYTHING, (1, EACH)])
        assert more.position == {stream: {0: EACH, 1: EACH + 1, 2: EACH}}

    with_client(broker.address, use)


def test_an_export_that_is_interrupted_anywhere_has_each_message_once(
    broker: BrokerProcess, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        runs = 0
        while True:
            runs += 1
            try:
                async with asyncio.timeout(0.004 * runs):
                    await client.export_parquet(stream, tmp_path, max_file_bytes=1)
                break
            except TimeoutError:
                retained = exported(tmp_path)
                assert len(set(retained)) == len(retained)
        assert exported(tmp_path) == EVERYTHING
        assert not list(tmp_path.glob("*.partial"))
        assert runs > 1

    monkeypatch.setattr(limits, "CLIENT_ARROW_BYTES", 5_000)
    with_client(broker.address, use)


def test_a_file_without_its_checkpoint_is_written_again_and_not_twice(
    broker: BrokerProcess, stream: str, tmp_path: Path
) -> None:
    """As after a crash between the two."""

    async def use(client: Client) -> None:
        await fill(client, stream)
        await client.export_parquet(stream, tmp_path)
        (tmp_path / "export.json").unlink()
        (tmp_path / f"{stream}-00000-x.parquet.partial").write_bytes(b"half")
        await fill(client, stream, 10)
        await client.export_parquet(stream, tmp_path)
        assert exported(tmp_path) == [(p, n) for p in range(PARTITIONS) for n in range(EACH + 10)]
        assert not list(tmp_path.glob("*.partial"))

    with_client(broker.address, use)


@pytest.mark.parametrize("renamed", [False, True])
def test_an_export_that_ended_at_a_rename_has_each_message_once_though_retention_moves_on(
    broker: BrokerProcess, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renamed: bool
) -> None:
    publish = export.Folder._publish

    def ends(folder: export.Folder, temporary: Path, final: Path) -> None:
        if final.suffix == ".parquet":
            if renamed:
                publish(folder, temporary, final)
            raise ZeroDivisionError
        publish(folder, temporary, final)

    async def use(client: Client) -> None:
        await fill(client, stream)
        with monkeypatch.context() as patched:
            patched.setattr(export.Folder, "_publish", ends)
            with pytest.raises(ZeroDivisionError):
                await client.export_parquet(stream, tmp_path)
        await client.admin.delete_records(stream, 0, 100)
        await client.export_parquet(stream, tmp_path)
        assert exported(tmp_path) == (EVERYTHING if renamed else EVERYTHING[100:])

    with_client(broker.address, use)


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker serves no offset 3 and 4 of partition 1."""
    whole = bulk.BulkRead._range

    def without(read: bulk.BulkRead, message: bytes) -> bulk.LogRange:
        given = whole(read, message)
        if read._request.partition != 1 or not given.start <= 3 < given.end:
            return given
        records, at, retained, count = given.records, 0, b"", given.count
        for offset in range(given.start, given.end):
            after = at + 5 + int.from_bytes(records[at + 1 : at + 5], "big")
            retained, count = (retained, count - 1) if offset in (3, 4) else (retained + records[at:after], count)
            at = after
        return replace(given, records=retained, count=count)

    monkeypatch.setattr(bulk.BulkRead, "_range", without)


@pytest.mark.usefixtures("damage")
def test_what_is_damaged_is_told_and_the_rest_can_be_read(broker: BrokerProcess, stream: str, tmp_path: Path) -> None:
    rest = [each for each in EVERYTHING if each not in {(1, 3), (1, 4)}]

    async def use(client: Client) -> None:
        await fill(client, stream)
        read = client.arrow(stream, columns=["partition", "offset"])
        batches: list[pa.RecordBatch] = []
        for _ in range(2):  # one of each partition
            batches.append(await anext(read))
        with pytest.raises(CorruptError, match=f"offsets 3 to 4 of partition 1 of stream {stream} are damaged"):
            await anext(read)
        batches += [batch async for batch in read]
        assert rows(batches) == rest
        assert read.damaged == {1: [range(3, 5)]}
        for _ in range(2):
            with pytest.raises(CorruptError, match="offsets 3 to 4"):
                await client.export_parquet(stream, tmp_path)
        report = await client.export_parquet(stream, tmp_path, skip_damaged=True)
        assert exported(tmp_path) == rest
        assert (report.messages, report.damaged) == (len(rest) - EACH, {1: [(3, 4)]}), "partition 0 was there"

    with_client(broker.address, use)


def test_an_export_of_something_else_does_not_go_into_the_same_folder(
    broker: BrokerProcess, stream: str, tmp_path: Path
) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, 1)
        await fill(client, f"{stream}-other", 1)
        await client.export_parquet(stream, tmp_path)
        with pytest.raises(InvalidArgument, match="has an export of stream"):
            await client.export_parquet(f"{stream}-other", tmp_path)
        with pytest.raises(InvalidArgument, match="with the columns"):
            await client.export_parquet(stream, tmp_path, columns=["value"])
        await client.delete_stream(stream)
        await fill(client, stream, 1)
        with pytest.raises(FailedPrecondition, match="made again"):
            await client.export_parquet(stream, tmp_path)
        (tmp_path / "export.json").write_text("[]")
        with pytest.raises(InvalidArgument, match="no checkpoint"):
            await client.export_parquet(stream, tmp_path)

    with_client(broker.address, use)


def test_the_blocking_client_does_the_same(broker: BrokerProcess, stream: str, tmp_path: Path) -> None:
    async def prepare(client: Client) -> None:
        await fill(client, stream)

    with_client(broker.address, prepare)
    with BlockingClient(broker.address) as client:
        read = client.arrow(stream, columns=["partition", "offset"])
        assert rows(list(read)) == EVERYTHING
        assert read.position == {stream: dict.fromkeys(range(PARTITIONS), EACH)}
        seen: list[int] = []
        report = client.export_parquet(stream, tmp_path, on_progress=lambda report: seen.append(report.messages))
        assert report.messages == len(EVERYTHING) == seen[-1]
        assert exported(tmp_path) == EVERYTHING
