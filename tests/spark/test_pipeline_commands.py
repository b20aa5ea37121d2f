"""The commands `bascule pipeline aggregate`, `dead-letter` and `restore`: what they print, their bar, how they stop."""

import io
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from rich.console import Console

from bascule.cli.main import cli
from bascule.client import BlockingClient
from bascule.testing.processes import BrokerProcess, poll

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]
Invoke = Callable[..., Result]


@pytest.fixture
def invoke(spark: Any, broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """A command in this process, with the session that there is."""

    @contextmanager
    def shared(*_: object) -> Iterator[Any]:
        yield spark

    monkeypatch.setattr("bascule.pipelines.running.spark_session", shared)

    def invoke(name: str, *arguments: str, **given: object) -> Result:
        config = tmp_path / f"{name}.yaml"
        config.write_text(yaml.safe_dump({"servers": broker.address, **given}))
        return CliRunner().invoke(cli, ["pipeline", name, "--config", str(config), *arguments])

    return invoke


def test_an_aggregate_says_how_many_rows_it_wrote_and_what_it_left_out(
    invoke: Invoke, client: BlockingClient, tmp_path: Path
) -> None:
    client.create_stream("cli-ticks")
    times = ["00:00:01", "00:00:02", "01:00:00"]
    client.publish_many("cli-ticks", [*(b'{"at": "2026-01-01T%sZ"}' % each.encode() for each in times), b"no json"])
    given = {"streams": "cli-ticks", "schema": "at timestamp", "time": "at", "window": "1m", "watermark": "1s"}
    to = {"checkpoint": str(tmp_path / "checkpoint"), "table": str(tmp_path / "totals")}
    done = invoke("aggregate", **given, **to, select={"n": "count(*)"})
    assert (done.exit_code, done.stdout) == (0, f"{to['table']}: 1 rows of 4 messages, in 2 batches\n"), done.output
    assert done.stderr == "1 messages were left out: they are no JSON of the schema, or have no time\n"
    again = invoke("aggregate", "--json", **given, **to, select={"n": "count(*)"})
    assert json.loads(again.stdout)["read"] == 0


def test_dead_letter_shows_a_bar_and_restore_says_what_it_knew(
    invoke: Invoke, client: BlockingClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_stream("cli-mail")
    client.publish_many("cli-mail", [b'{"id": 1}', b"no json", b'{"id": 2}'])
    terminal = io.StringIO()
    with monkeypatch.context() as patched:
        patched.setattr("bascule.cli.pipeline.console", lambda: Console(file=terminal, force_terminal=True, width=150))
        done = invoke("dead-letter", streams="cli-mail", schema="id int", checkpoint=str(tmp_path / "checkpoint"))
    assert (done.exit_code, done.stdout) == (0, "cli-mail.dlq: 1 rows of 3 messages, in 1 batches\n"), done.output
    assert "dead-letter" in terminal.getvalue()
    assert "3 of 3 messages" in terminal.getvalue()
    lake = str(tmp_path / "lake")
    assert invoke("archive", streams="cli-mail", table=lake, hold=False).exit_code == 0
    assert invoke("restore", table=lake, to="cli-back").stdout == "cli-mail to cli-back: 3 messages in 1 batches\n"
    again = invoke("restore", table=lake, to="cli-back").stdout
    assert again == "cli-mail to cli-back: 3 messages in 1 batches, 3 of which an earlier run had restored\n"


def test_the_first_signal_lets_the_batch_end_and_the_command_reports(
    invoke: Invoke, client: BlockingClient, tmp_path: Path
) -> None:
    client.create_stream("cli-forever")
    client.publish_many("cli-forever", [b"no json"] * 3)
    gives_up = threading.Event()

    def has_letters() -> bool:
        streams = client.fetch_metadata(["cli-forever.dlq"]).streams
        return gives_up.is_set() or ("cli-forever.dlq" in streams and client.log_bounds("cli-forever.dlq").end == 3)

    def stop() -> None:
        if poll(has_letters, 120) and not gives_up.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    before = signal.getsignal(signal.SIGTERM)
    given = {"streams": "cli-forever", "schema": "id int", "checkpoint": str(tmp_path / "checkpoint")}
    try:
        done = invoke("dead-letter", **given, trigger="continuous", interval="50ms")
    finally:
        gives_up.set()
        stopping.join()
    assert (done.exit_code, done.stdout) == (0, "cli-forever.dlq: 3 rows of 3 messages, in 1 batches\n"), done.output
    assert "stopping after this batch; once more interrupts it" in done.stderr
    assert signal.getsignal(signal.SIGTERM) == before
