"""The command line: the Go server's flags end in the right settings, errors are one line, logs are one line each."""

import importlib
import io
import json
import logging
import subprocess
import sys
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from bascule import __version__
from bascule.cli.logs import OneLineFormatter, set_up
from bascule.cli.main import COMMANDS, cli
from bascule.errors import StartError
from bascule.node.config import Config, load
from bascule.node.config.settings import SETTINGS
from bascule.wire.kernels import TWIN


@dataclass
class FakeServer:
    """Stands where `bascule.node.process.server` is imported, and keeps what it was asked to run."""

    config: Config | None = None
    error: Exception | None = None
    exit_code: int = 0

    async def run(self, config: Config, *, ready: Callable[[Any], None] | None = None) -> int:
        if self.error is not None:
            raise self.error
        self.config = config
        if ready is not None:
            ready(types.SimpleNamespace(broker_id="b1", host="h", port=7, nats_url="nats://u:p@n:4222", data_dir="/d"))
        return self.exit_code


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeServer:
    fake = FakeServer()
    module = types.ModuleType("bascule.node.process.server")
    module.__dict__["run"] = fake.run
    monkeypatch.setitem(sys.modules, "bascule.node.process.server", module)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return fake


def started(fake: FakeServer, *args: str) -> Config:
    result = CliRunner().invoke(cli, ["server", *args])
    assert result.exit_code == 0, result.output
    assert fake.config is not None
    return fake.config


def test_the_launch_that_clients_use(fake: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "cfg.yml").write_text("port: 9293\nlogging.level: debug\n")
    args = ["-c", str(tmp_path / "cfg.yml"), "-d", str(tmp_path / "data"), "--embedded-nats", "--raft-bootstrap-seed"]
    for order in (args, [*args[4:], *args[:4]]):
        config = started(fake, *order)
        assert config.port == 9293
        assert config.data_dir == str(tmp_path / "data")
        assert config.nats.embedded
        assert config.clustering.raft_bootstrap_seed


@pytest.mark.parametrize(
    ("args", "key", "value"),
    [
        (["-p", "1"], "port", 1),
        (["--port=0"], "port", 0),
        (["-port", "1"], "port", 1),
        (["--p", "1"], "port", 1),
        (["-p=1"], "port", 1),
        (["-p1"], "port", 1),
        (["-l", "error"], "logging.level", "error"),
        (["-n", "a, b", "-n", " c:1 ,"], "nats.servers", ("nats://a:4222", "nats://b:4222", "nats://c:1")),
        (["--nats-servers", "nats://a:1"], "nats.servers", ("nats://a:1",)),
        (["-e"], "nats.embedded", True),
        (["-ep", "1"], "nats.embedded", True),
        (["-embedded-nats"], "nats.embedded", True),
        (["--embedded-nats=true"], "nats.embedded", True),
        (["--embedded-nats=false"], "nats.embedded", False),
        (["--no-embedded-nats"], "nats.embedded", False),
        (["--id", "x"], "clustering.server.id", "x"),
        (["-id=x"], "clustering.server.id", "x"),
        (["--server-id", "-x"], "clustering.server.id", "-x"),
        (["-ns", "y"], "clustering.namespace", "y"),
        (["--namespace", "y"], "clustering.namespace", "y"),
        (
            ["--raft-bootstrap-peers", "a,b", "--raft-bootstrap-peers", "c"],
            "clustering.raft.bootstrap.peers",
            tuple("abc"),
        ),
    ],
)
def test_flags_in_every_spelling_go_takes(fake: FakeServer, args: list[str], key: str, value: object) -> None:
    assert started(fake, *args).value(key) == value


@pytest.mark.parametrize("flag", ["-nc", "--nc", "--embedded-nats-config"])
def test_the_flag_for_the_nats_configuration_switches_the_embedded_server_on(
    fake: FakeServer, tmp_path: Path, flag: str
) -> None:
    (tmp_path / "nats.conf").write_text("")
    (tmp_path / "cfg.yml").write_text("nats.embedded: false\n")
    config = started(fake, "-c", str(tmp_path / "cfg.yml"), flag, str(tmp_path / "nats.conf"))
    assert config.nats.embedded
    assert config.nats.embedded_config == str(tmp_path / "nats.conf")


def test_tls_flags_must_name_files_that_are_there(fake: FakeServer, tmp_path: Path) -> None:
    key, cert = tmp_path / "k", tmp_path / "c"
    result = CliRunner().invoke(cli, ["server", "--tls-key", str(key), "--tls-cert", str(cert)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "tls.key setting: No such file" in result.stderr
    key.write_text("")
    cert.write_text("")
    assert started(fake, "--tls-key", str(key), "--tls-cert", str(cert)).tls.enabled


def test_flags_win_over_the_environment(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFTBRIDGE_PORT", "5")
    assert started(fake).port == 5
    assert started(fake, "-p", "6").port == 6


def test_every_flag_of_the_table_is_in_the_help() -> None:
    text = CliRunner().invoke(cli, ["server", "--help"]).stdout
    missing = [flag for setting in SETTINGS for flag in setting.flags if flag not in text]
    assert missing == []
    assert "bascule server --embedded-nats" in text
    assert CliRunner().invoke(cli, ["server", "help"]).stdout == text


# --- what it says -------------------------------------------------------------------------------------------


def test_the_start_names_the_kernels_and_the_warnings(fake: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "cfg.yml").write_text('listen: ":9292"\n')
    result = CliRunner().invoke(cli, ["server", "-c", str(tmp_path / "cfg.yml")])
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert f"INFO  bascule.cli.server: bascule {__version__} starting: kernels {TWIN}" in lines[0]
    assert any("WARN" in line and "listen has no host" in line for line in lines)
    assert "ready: clients connect to h:7, NATS is at nats://***@n:4222" in lines[-1]


def test_debug_shows_the_settings_and_no_secret(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIFTBRIDGE_NATS_PASSWORD", "hunter2")
    result = CliRunner().invoke(cli, ["server", "-l", "debug"])
    assert "setting nats.password = ***" in result.stderr
    assert "hunter2" not in result.output
    assert "setting " not in CliRunner().invoke(cli, ["server"]).stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-l", "loud"], 'error: Invalid logging.level setting "loud" (flag --level)'),
        (["-p", "x"], 'error: Invalid port setting "x" (flag --port)'),
        (["-c", "/does/not/exist"], "error: There is no configuration file /does/not/exist"),
        (["--id", "a.b"], 'error: Invalid clustering.server.id setting "a.b" (flag --server-id)'),
    ],
)
def test_wrong_settings_are_one_line_and_exit_code_1(fake: FakeServer, args: list[str], message: str) -> None:
    result = CliRunner().invoke(cli, ["server", *args])
    assert result.exit_code == 1
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1
    assert fake.config is None


def test_a_broker_that_cannot_start_says_so_in_one_line(fake: FakeServer) -> None:
    fake.error = StartError("Port 9292 is taken:\n choose another with --port")
    result = CliRunner().invoke(cli, ["server"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "error: Port 9292 is taken: choose another with --port"
    assert "Traceback" not in result.output


def test_what_the_system_refuses_is_one_line_with_the_path(fake: FakeServer) -> None:
    fake.error = PermissionError(13, "Permission denied", "/var/lib/x")
    result = CliRunner().invoke(cli, ["server"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "error: /var/lib/x: Permission denied"
    debug = CliRunner().invoke(cli, ["server", "-l", "debug"])
    assert "Traceback" in debug.stderr


def test_the_exit_code_is_the_brokers(fake: FakeServer) -> None:
    fake.exit_code = 3
    assert CliRunner().invoke(cli, ["server"]).exit_code == 3


@pytest.mark.parametrize("args", [["--foo"], ["--embedded-nats=maybe"], ["--port"], ["extra"]])
def test_wrong_usage_has_exit_code_2(fake: FakeServer, args: list[str]) -> None:
    result = CliRunner().invoke(cli, ["server", *args])
    assert result.exit_code == 2
    assert fake.config is None


# --- logging ------------------------------------------------------------------------------------------------


def test_an_event_is_one_line_even_with_a_traceback() -> None:
    record = logging.LogRecord("bascule.x", logging.ERROR, __file__, 1, "two\nlines", (), None)
    try:
        raise ValueError("a\nb")
    except ValueError:
        record.exc_info = sys.exc_info()
    record.created = 0.25
    record.msecs = 250
    text = OneLineFormatter().format(record)
    assert text.startswith("1970-01-01T00:00:00.250Z ERROR bascule.x: two\\nlines\\nTraceback")
    assert len(text.splitlines()) == 1


def test_levels_and_the_switch_for_raft(fake: FakeServer) -> None:
    stream = io.StringIO()
    for overrides, expected in (
        ({"logging.level": "info"}, ["i"]),
        ({"logging.level": "error"}, []),
        ({"logging.level": "info", "logging.raft": True}, ["i", "r"]),
        ({"logging.level": "debug"}, ["d", "i"]),
    ):
        stream.seek(0)
        stream.truncate()
        set_up(load(None, {"HOME": "/"}, overrides).logging, stream)
        logging.getLogger("bascule.node").debug("d")
        logging.getLogger("bascule.node").info("i")
        logging.getLogger("bascule.node.membership.raft").info("r")
        logging.getLogger("hpack").info("library")
        assert [line.rsplit(" ", 1)[1] for line in stream.getvalue().splitlines()] == expected


# --- a real broker ------------------------------------------------------------------------------------------


def test_a_wrapper_stands_in_for_the_go_binary(tmp_path: Path) -> None:
    """Start as clients' pipelines do, wait until it serves, and stop by SIGTERM with exit code 0."""
    wrapper, nats, config, log = (tmp_path / name for name in ("liftbridge", "nats.conf", "cfg.yml", "log"))
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bascule.cli.main server "$@"\n')
    wrapper.chmod(0o700)
    nats.write_text("host: 127.0.0.1\nport: -1\n")
    config.write_text(f"listen: 127.0.0.1:0\nport: 0\nnats.embedded.config: {nats}\n")
    flags = ["-c", str(config), "-d", str(tmp_path / "data"), "--embedded-nats", "--raft-bootstrap-seed"]
    with log.open("w") as stderr:
        process = subprocess.Popen([str(wrapper), *flags], stderr=stderr, stdout=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 30
        while "ready: clients connect to" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        process.terminate()
        stdout, _ = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, stdout) == (0, b"")
    assert f"kernels {TWIN}" in log.read_text()


# --- the group and version ----------------------------------------------------------------------------------


def test_help_is_fast_because_it_imports_no_subcommand() -> None:
    code = (
        "import sys; from bascule.cli.main import cli; from click.testing import CliRunner\n"
        "result = CliRunner().invoke(cli, ['--help']); assert result.exit_code == 0\n"
        "assert 'server' in result.stdout and '_BASCULE_COMPLETE' in result.stdout\n"
        "heavy = [m for m in sys.modules if m.startswith(('bascule.', 'yaml', 'rich', 'google', 'asyncio'))]\n"
        "allowed = {'bascule.cli', 'bascule.cli.main', 'bascule.cli.output', 'bascule.errors'}\n"
        "assert set(heavy) <= allowed, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_exists_and_its_help_carries_an_example(name: str) -> None:
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0
    assert f"bascule {name} " in result.stdout.partition("Example")[2]


def test_an_unknown_command_is_wrong_usage() -> None:
    assert CliRunner().invoke(cli, ["srever"]).exit_code == 2


@pytest.mark.parametrize("args", [["-v"], ["--version"], ["server", "-v"], ["server", "-version"]])
def test_version_flags(args: list[str]) -> None:
    assert CliRunner().invoke(cli, args).stdout == f"bascule {__version__}\n"


def test_version_names_the_kernels_python_and_nats_server() -> None:
    versions = json.loads(CliRunner().invoke(cli, ["version", "--json"]).stdout)
    assert versions["bascule"] == __version__
    assert versions["kernels"] == TWIN
    assert versions["python"].startswith("3.")
    assert versions["nats_server"][0].isdigit()
    text = CliRunner().invoke(cli, ["version"]).stdout
    assert f"kernels {TWIN}\n" in text
    assert f"nats-server {versions['nats_server']}\n" in text
