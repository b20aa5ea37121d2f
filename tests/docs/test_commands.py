"""What the documents show works: commands and programs run, links lead somewhere, files and make targets exist.

The commands of one document run in order in one empty folder, as a reader would type them. Only the ports differ,
because others may have the usual ones: a `bascule` that stands before the real one on the PATH adds them to the
commands that listen, and the environment tells the others.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from bascule.testing.probe import call
from bascule.testing.processes import HOST
from bascule.wire.pb import health_pb2
from tests.harness.documents import DOCUMENTS, FENCE, name_of, prose
from tests.harness.java import OPTIONS, QUICK
from tests.harness.paths import ROOT

COMMAND_LIMIT_S = 240.0
READY_LIMIT_S = 60.0

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_OWN_PATH = re.compile(r"(?:tests|bench|tools|docs|src)/[\w./-]+")

# Leaves everything to the real one, and moves the ports of what listens.
WRAPPER = """#!/bin/sh
case "$1" in
  up) exec {real} "$@" --port {port} --nats-port {nats_port} ;;
  server) exec {real} "$@" --port {port} --embedded-nats-config {nats_config} ;;
  *) exec {real} "$@" ;;
esac
"""


@dataclass(frozen=True)
class Block:
    kind: str
    text: str

    @property
    def needs_spark(self) -> bool:
        return self.kind == "python" and "bascule.spark" in self.text


def blocks(document: Path) -> list[Block]:
    return [Block(kind, text) for kind, text in FENCE.findall(document.read_text())]


def runnable(document: Path) -> list[Block]:
    """Every console block; the programs of the README too."""
    kinds = ("console", "python") if document.name == "README.md" else ("console",)
    return [block for block in blocks(document) if block.kind in kinds]


def free_ports(count: int) -> list[int]:
    """Ports in a row: the brokers of a local cluster take one after the other."""
    for _ in range(100):
        with ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind((HOST, 0))
            ports = [int(first.getsockname()[1])]
            try:
                for _ in range(count - 1):
                    following = stack.enter_context(socket.socket())
                    following.bind((HOST, ports[-1] + 1))
                    ports.append(ports[-1] + 1)
            except (OSError, OverflowError):
                continue
            return ports
    raise AssertionError(f"no {count} free ports in a row")


class Reader:
    """Types what a document shows, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        *brokers, nats_port = free_ports(4)
        self.port = brokers[0]
        self.outputs: dict[str, str] = {}
        self._folder = folder / "work"
        self._background: list[subprocess.Popen[bytes]] = []
        self._folder.mkdir()
        scripts = sysconfig.get_path("scripts")
        programs = folder / "bin"
        programs.mkdir()
        nats_config = folder / "nats.conf"
        nats_config.write_text(f"host: {HOST}\nport: {nats_port}\n")
        wrapper = programs / "bascule"
        wrapper.write_text(
            WRAPPER.format(real=f"{scripts}/bascule", port=self.port, nats_port=nats_port, nats_config=nats_config)
        )
        wrapper.chmod(0o755)
        self._env = {
            **os.environ,
            "PATH": f"{programs}:{scripts}:{os.environ['PATH']}",
            "BASCULE_SERVER": ",".join(f"{HOST}:{port}" for port in brokers),
            OPTIONS: QUICK,
        }

    def run(self, block: Block) -> None:
        if block.kind == "python":
            program = block.text.replace("localhost:9292", f"{HOST}:{self.port}")
            self.outputs[block.text] = self._finish([sys.executable, "-c", program])
            return
        command = ""
        for line in block.text.splitlines():
            if line.startswith("$ "):
                command = line[2:]
                self._type(command)
            elif line:
                assert line in self.outputs[command], f"`{command}` does not print what is shown"

    def _type(self, command: str) -> None:
        if command.endswith(" &"):
            self._start(command.removesuffix(" &"))
            self.outputs[command] = ""
        else:
            self.outputs[command] = self._finish(["bash", "-c", f"set -o pipefail; {command}"])

    def _finish(self, arguments: list[str]) -> str:
        done = subprocess.run(
            arguments,
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{arguments[-1]}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _start(self, command: str) -> None:
        log = (self._folder.parent / f"background-{len(self._background)}.log").open("wb")
        with log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
            )
        self._background.append(process)
        deadline = time.monotonic() + READY_LIMIT_S
        while not self._serves() or (" up " in command and "is running" not in Path(log.name).read_text()):
            said = Path(log.name).read_text()
            assert process.poll() is None, f"`{command}` ended: {said}"
            assert time.monotonic() < deadline, f"`{command}` is not ready: {said}"
            time.sleep(0.05)

    def _serves(self) -> bool:
        health = health_pb2.HealthCheckRequest(service="proto.API").SerializeToString()
        try:
            answer = call(HOST, self.port, "/grpc.health.v1.Health/Check", health, 2.0)
        except OSError:
            return False
        serving = health_pb2.HealthCheckResponse.FromString(answer.message).status
        return answer.status == 0 and serving == health_pb2.HealthCheckResponse.SERVING

    def leave(self) -> list[int]:
        """Ends what runs in the background as a closing terminal does not: in order. Gives the exit codes."""
        for process in self._background:
            process.terminate()
        try:
            return [process.wait(30) for process in self._background]
        finally:
            self.kill()

    def kill(self) -> None:
        for process in self._background:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    typing = Reader(tmp_path)
    try:
        yield typing
    finally:
        typing.kill()


@pytest.mark.timeout(600)  # of a document as a whole; each command has a limit of its own
@pytest.mark.parametrize("document", [path for path in DOCUMENTS if runnable(path)], ids=name_of)
def test_every_command_of_a_document_runs(document: Path, reader: Reader) -> None:
    for block in runnable(document):
        if not block.needs_spark:
            reader.run(block)
    assert all(code == 0 for code in reader.leave())
    if document.name == "README.md":
        listed = reader.outputs["bascule sub orders --json"]
        assert [line.count('"value"') for line in listed.splitlines()] == [1, 1, 1]
        assert "first order" in listed
        (program,) = [text for text in reader.outputs if text.startswith("import asyncio")]
        assert reader.outputs[program].splitlines()[0] == "0 b'first order'"
        assert reader.outputs[program].splitlines()[-1] == "3 b'fourth'"


@pytest.mark.spark
def test_the_readme_runs_in_spark_too(reader: Reader) -> None:
    shown = runnable(ROOT / "README.md")
    assert any(block.needs_spark for block in shown)
    for block in shown:
        reader.run(block)
        if block.needs_spark:
            rows = re.findall(r"\|\s*(\d+)\|\s*(\d+)\|", reader.outputs[block.text])
            assert rows == [("0", "4")], reader.outputs[block.text]


def test_some_document_shows_each_command() -> None:
    """So that the test above cannot pass by finding nothing."""
    shown = " ".join(block.text for path in DOCUMENTS for block in blocks(path) if block.kind == "console")
    for command in (
        "bascule up",
        "bascule pub",
        "bascule sub",
        "bascule server",
        "bascule version",
        "bascule cluster",
        "bascule stream",
        "bascule cursor",
        "bascule group",
        "bascule pipeline",
    ):
        assert command in shown


def test_every_make_target_that_is_mentioned_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    mentioned = {
        (name_of(path), target)
        for path in DOCUMENTS
        for code in [*_CODE.findall(path.read_text()), *(block.text for block in blocks(path))]
        for target in re.findall(r"(?:^|[\s(])make ([a-z][a-z-]*)", code)
    }
    assert ("README.md", "test") in mentioned
    assert {(path, target) for path, target in mentioned if target not in targets} == set()


def slug(heading: str) -> str:
    """The anchor GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower().strip()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def broken(document: Path, target: str) -> bool:
    path_text, _, anchor = target.partition("#")
    path = (document.parent / path_text).resolve() if path_text else document
    if not path.exists():
        return True
    return bool(anchor) and anchor not in {slug(heading) for heading in _HEADING.findall(prose(path))}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_relative_links_lead_somewhere(document: Path) -> None:
    links = [target for target in _LINK.findall(prose(document)) if not re.match(r"[a-z]+:", target)]
    assert [target for target in links if broken(document, target)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_files_that_are_named_exist(document: Path) -> None:
    """Paths from the top of the repository, such as tests/unit/test_log.py."""
    named = [path.rstrip(".") for code in _CODE.findall(prose(document)) for path in _OWN_PATH.findall(code)]
    assert [path for path in named if not (ROOT / path).exists()] == []
