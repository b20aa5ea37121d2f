"""What a command says when it fails: one line, and what to do."""

import io
import json
import subprocess
import sys
from datetime import datetime

import pytest
from click.testing import CliRunner
from rich.console import Console

from bascule.cli import output
from bascule.cli.cluster import _accepting, _not_stopped
from bascule.cli.connect import say_waits
from bascule.cli.main import cli
from bascule.cli.output import CommandFailed, harmless, harmless_json, reported, say, showing_progress
from bascule.cli.pub import pub
from bascule.cli.up import up
from bascule.client import Outgoing
from bascule.client.failures import NO_METADATA_LEADER
from bascule.client.subscription import nanoseconds
from bascule.errors import Internal, InvalidArgument, NotFound, Unavailable
from bascule.wire.pb import admin_pb2 as admin


def test_texts_of_the_go_server_get_a_hint() -> None:
    for text in (NO_METADATA_LEADER, "context deadline exceeded"):
        with pytest.raises(CommandFailed, match=f"^{text}: .*`bascule cluster status`"), reported():
            raise Internal(text)
    with pytest.raises(CommandFailed, match=r"^no such stream$"), reported():
        raise NotFound("no such stream")


def test_the_command_that_accepts_a_loss_names_nobody_where_nobody_is_in_sync() -> None:
    """`--in-sync` without a name would take the next flag for one."""
    lost = admin.ElectLeaderResponse(leader="c")
    assert _accepting("s", 2, lost) == "bascule cluster elect s 2 --replica c --accept-loss"
    known = admin.ElectLeaderResponse(leader="c", inSync=["a", "b"], eligible=["d"])
    expected = "bascule cluster elect s 2 --replica c --in-sync a,b --eligible d --accept-loss"
    assert _accepting("s", 2, known) == expected


def test_a_broker_that_drain_did_not_stop_says_why_and_what_to_do() -> None:
    single = admin.PartitionRef(stream="s", partition=1, reason="in sync: b")
    text = _not_stopped("b", admin.DrainBrokerResponse(done=True, kept=[single]))
    assert "only in-sync copy of s/1 (in sync: b)" in text
    assert "`bascule cluster remove b`" in text
    assert "`bascule cluster undrain b` cancels the drain" in text
    assert "stop its process (SIGTERM)" not in text, "that would take s/1 away from everybody"
    assert "stop its process (SIGTERM)" in _not_stopped("b", admin.DrainBrokerResponse(done=True))


def test_what_a_command_waits_for_is_said_once_and_not_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    on_wait = say_waits()
    on_wait(Unavailable("waiting for 0 s: start b"), 0.4)
    assert capsys.readouterr().err == "", "most of it passes sooner"
    on_wait(Unavailable("waiting for 2 s: start b"), 1.5)
    on_wait(Unavailable("waiting for 3 s: start b"), 2.5)
    on_wait(Unavailable("waiting for 4 s: start c"), 3.5)
    said = capsys.readouterr()
    assert said.err.splitlines() == ["waiting for 2 s: start b", "waiting for 4 s: start c"]
    assert not said.out
    on_wait(Unavailable("no known metadata leader"), 5.0)
    assert capsys.readouterr().err.startswith("waiting: no known metadata leader: a majority of the voters is away")


def test_a_command_that_is_interrupted_says_so_and_exits_as_shells_expect(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, reported():
        raise KeyboardInterrupt
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_copies_of_a_stream_that_is_not_created_are_refused() -> None:
    result = CliRunner().invoke(pub, ["s", "x", "--replication-factor", "3", "--server", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert "--replication-factor is for a stream that --create creates" in result.output


def test_ports_behind_the_last_one_are_refused_before_anything_starts() -> None:
    result = CliRunner().invoke(up, ["--brokers", "3", "--port", "65534", "--data-dir", "unused"])
    assert result.exit_code == 1
    assert "3 brokers need the ports from 65534 on, and 65535 is the last one" in result.output


def test_lines_for_people_go_above_a_progress_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Written past the console of the bar they would end up in the middle of it."""
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=60, highlight=False)
    monkeypatch.setattr(output, "console", lambda: terminal)
    line = "no ack within 5 s [of 3]; sending 3 again, some of which may be stored already, a long line"
    with showing_progress():
        say(line)
        say_waits()(Unavailable("waiting for 2 s: start b"), 1.5)
    assert screen.getvalue().splitlines() == [line, "waiting for 2 s: start b"], "neither wrapped nor marked up"
    assert capsys.readouterr().err == ""
    say(line)
    assert capsys.readouterr().err == line + "\n"


def test_what_a_terminal_would_obey_is_shown_and_not_sent() -> None:
    assert harmless("a\tb\n\x1b[2J\x7f\x9b\x00é".encode()) == "a\tb\n\\x1b[2J\\x7f\\x9b\\x00é"
    assert harmless(b"\xff\x9b") == "\\xff\\x9b"
    text = json.dumps({"value": "\x1b\x7f\x9bé"}, ensure_ascii=False)
    assert harmless_json(text).isprintable()
    assert json.loads(harmless_json(text)) == json.loads(text)


NOBODY = "127.0.0.1:1"


def test_a_name_that_is_no_utf_8_is_refused_in_one_line() -> None:
    with pytest.raises(CommandFailed, match=r"^'s.{1,2}xff' is not valid UTF-8"), reported():
        admin.DescribeStreamRequest(stream="s\udcff")


@pytest.mark.parametrize(
    "arguments",
    [
        ["pub", "s", "x", "--create", "--replication-factor", "2147483648"],
        ["stream", "create", "s", "--partitions", "2147483648"],
        ["stream", "create", "s", "--replication-factor", "9999999999999999999999"],
        ["stream", "create", "s", "--min-isr", "2147483648"],
        ["stream", "delete-records", "s", "--partition", "2147483648", "--before", "1"],
        ["stream", "delete-records", "s", "--partition", "0", "--before", str(1 << 63)],
        ["stream", "hold", "set", "s", "h", "--offset", str(1 << 63)],
        ["cluster", "elect", "s", "2147483648"],
        ["sub", "s", "--last", "99999999999999999999"],
    ],
)
def test_a_number_that_no_request_can_carry_is_wrong_usage(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli, [*arguments, "--server", NOBODY])
    assert result.exit_code == 2
    assert "is too large: it is at most" in result.output


@pytest.mark.parametrize("text", ["2999-01-01", "0001-01-01", "9999-12-31T23:59:59", "1600-01-01T00:00:00+00:00"])
def test_a_time_that_no_message_has_is_an_error_that_says_so(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is no time of a message"):
        nanoseconds(datetime.fromisoformat(text))
    assert nanoseconds(datetime.fromisoformat("1969-12-31T23:59:59+00:00")) == -1_000_000_000


@pytest.mark.parametrize("redirections", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_a_command_without_its_standard_streams_ends_as_with_them(redirections: str) -> None:
    command = f"{sys.executable} -m bascule.cli.main pub s --server {NOBODY} {redirections}"
    done = subprocess.run(
        ["sh", "-c", command], check=False, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    if "2>&-" not in redirections:
        assert done.stderr.startswith("error: no broker can be reached")


@pytest.mark.parametrize("arguments", ["--help", "--version", "version", "pub --help"])
def test_output_that_cannot_be_written_is_an_error_of_one_line(arguments: str) -> None:
    command = f"{sys.executable} -m bascule.cli.main {arguments} >/dev/full"
    done = subprocess.run(["sh", "-c", command], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device\n"


def test_keys_and_headers_are_the_bytes_that_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Outgoing] = []

    async def publish(server: str, stream: str, messages: object, template: Outgoing, *others: object) -> int:
        given.append(template)
        return 1

    monkeypatch.setattr("bascule.cli.pub._publish", publish)
    result = CliRunner().invoke(pub, ["s", "x", "--key", "k\udcff", "--header", "h=v\udcfe"])
    assert result.exit_code == 0, result.output
    assert given == [Outgoing(b"", b"k\xff", {"h": b"v\xfe"})]


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e400"])
@pytest.mark.parametrize(
    "command",
    [["pub", "s", "v", "--retry"], ["up", "--restart-after"], ["cluster", "drain", "b", "--timeout"]],
    ids=lambda command: str(command[0]),
)
def test_a_time_without_an_end_is_refused(command: list[str], seconds: str) -> None:
    result = CliRunner().invoke(cli, [*command, seconds])
    assert result.exit_code == 2
    assert f"{seconds} is no time in seconds, or too long" in result.output
