"""`bascule pipeline query`: an archive and the stream behind it are one table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bascule.client import BlockingClient
from bascule.errors import ConfigError, FailedPrecondition
from bascule.pipelines import ledger, parquet
from bascule.pipelines.archive import Archive
from bascule.pipelines.archive import configured as archive_configured
from bascule.pipelines.query import Query, configured
from bascule.pipelines.restore import Restore
from bascule.pipelines.restore import configured as restore_configured
from bascule.testing.processes import BrokerProcess
from tests.harness.archives import Killed, crash_at, remove

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
EVERYTHING = "select partition, offset, cast(value as string) from messages order by partition, offset"
Ask = Callable[..., list[tuple[object, ...]]]


def written(folder: Path, name: str, **given: object) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(given))
    return path


@pytest.fixture
def archive(spark: Any, broker: BrokerProcess, tmp_path: Path) -> Callable[..., None]:
    def archive(stream: str, table: str = "lake") -> None:
        given = {"servers": broker.address, "streams": stream, "table": str(tmp_path / table)}
        Archive(archive_configured(written(tmp_path, "archive", **given)), spark).run()

    return archive


@pytest.fixture
def ask(spark: Any, broker: BrokerProcess, tmp_path: Path) -> Ask:
    def ask(sql: str, **given: object) -> list[tuple[object, ...]]:
        defaults: dict[str, object] = {"table": str(tmp_path / "lake"), "servers": broker.address}
        named = {name: value for name, value in {**defaults, **given}.items() if value is not None}
        config, wanted = configured(written(tmp_path, "query", **named), sql)
        return Query(config, spark).run(wanted).rows

    return ask


def fill(client: BlockingClient, stream: str, first: int, end: int) -> None:
    for number in range(2):
        client.publish_many(stream, [b"%d" % n for n in range(first, end)], partition=number)


def rows(end: int) -> list[tuple[object, ...]]:
    return [(number, n, str(n)) for number in range(2) for n in range(end)]


def test_rows_come_once_from_the_archive_or_the_stream(
    client: BlockingClient, archive: Callable[[str], None], ask: Ask, broker: BrokerProcess
) -> None:
    client.create_stream("joined", partitions=2)
    fill(client, "joined", 0, 50)
    archive("joined")
    assert ask(EVERYTHING) == rows(50)
    fill(client, "joined", 50, 80)
    assert ask(EVERYTHING) == rows(80)
    remove(broker, "joined", 50)  # what is archived is there all the same
    assert ask(EVERYTHING) == rows(80)
    assert ask("select count(*), max(offset) from joined where value is not null") == [(160, 79)]
    assert ask("select distinct date = to_date(timestamp), stream from joined") == [(True, "joined")]
    assert len(ask("select * from messages", limit=7)) == 7


@pytest.mark.parametrize(
    ("module", "name", "call"), [(parquet, "make_folder", 2), (ledger, "replace_file", 2)], ids=["moving", "committing"]
)
def test_an_archive_whose_driver_died_is_queried_as_it_is(
    client: BlockingClient,
    archive: Callable[[str], None],
    ask: Ask,
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    name: str,
    call: int,
) -> None:
    stream = f"died-{name.replace('_', '-')}"
    client.create_stream(stream, partitions=2)
    fill(client, stream, 0, 20)
    with monkeypatch.context() as patched:
        crash_at(patched, module, name, call)
        with pytest.raises(Killed):
            archive(stream)
    assert ask(EVERYTHING, streams=stream) == rows(20)
    archive(stream)
    fill(client, stream, 20, 30)
    with monkeypatch.context() as patched:
        crash_at(patched, module, name, call - (module is ledger))
        with pytest.raises(Killed):
            archive(stream)
    assert ask(EVERYTHING) == rows(30)


def test_a_stream_that_was_made_again_is_not_joined(
    client: BlockingClient, archive: Callable[[str], None], ask: Ask, spark: Any, tmp_path: Path
) -> None:
    client.create_stream("other", partitions=2)
    fill(client, "other", 0, 5)
    archive("other")
    client.delete_stream("other")
    client.create_stream("other", partitions=2)
    with pytest.raises(FailedPrecondition, match="was deleted and made again since it was archived"):
        ask(EVERYTHING)
    config, sql = configured(written(tmp_path, "alone", table=str(tmp_path / "lake")), EVERYTHING)
    assert Query(config, spark).run(sql).rows == rows(5)


def test_of_a_stream_that_was_deleted_the_archive_is_what_there_is(
    client: BlockingClient, archive: Callable[[str], None], ask: Ask
) -> None:
    client.create_stream("deleted-since", partitions=2)
    fill(client, "deleted-since", 0, 5)
    archive("deleted-since")
    client.delete_stream("deleted-since")
    with pytest.raises(
        FailedPrecondition, match="stream deleted-since was deleted since it was archived: query the arch"
    ):
        ask(EVERYTHING)
    assert ask(EVERYTHING, failOnDataLoss=False) == rows(5)


def test_a_table_may_have_any_name_of_a_folder(
    client: BlockingClient, archive: Callable[..., None], ask: Ask, spark: Any, broker: BrokerProcess, tmp_path: Path
) -> None:
    client.create_stream("oddly-kept", partitions=2)
    fill(client, "oddly-kept", 0, 5)
    table = r"lake[1]{a,b}*?\d"
    archive("oddly-kept", table)
    fill(client, "oddly-kept", 5, 7)
    assert ask(EVERYTHING, table=str(tmp_path / table)) == rows(7)
    given = {"servers": broker.address, "table": str(tmp_path / table), "to": "oddly-kept-again"}
    assert Restore(restore_configured(written(tmp_path, "restore", **given)), spark).run().rows == 10
    assert [client.log_bounds("oddly-kept-again", number).end for number in range(2)] == [5, 5]


def test_a_stream_takes_no_view_from_others(client: BlockingClient, ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    names = ("messages", "views", "twin", "Twin")
    for count, name in enumerate(names, 1):
        client.create_stream(name)
        client.publish_many(name, [b"x"] * count)

    def rows_of(view: str) -> list[tuple[object, ...]]:
        sql = f"select stream, count(*) from {view} group by stream order by 2"
        return ask(sql, streams=",".join(names), table=None)

    assert rows_of("messages") == [("messages", 1), ("views", 2), ("twin", 3), ("Twin", 4)]
    assert rows_of("views") == [("views", 2)]
    assert "Twin, messages, twin: no view of its own" in caplog.text
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        rows_of("twin")


@pytest.mark.parametrize(
    ("given", "sql", "said"),
    [
        ({}, "select 1", "name what is queried"),
        ({"table": "x"}, "", "there is no query: give --sql"),
        ({"table": "x", "tabel": "y"}, "select 1", "did you mean table"),
        ({"servers": "a:1"}, "select 1", 'either the option "streams" or "streamPattern"'),
    ],
)
def test_a_configuration_that_cannot_be_used_is_told(
    tmp_path: Path, given: dict[str, object], sql: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        configured(written(tmp_path, "query", **given), sql)
