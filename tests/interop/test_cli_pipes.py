"""What `bascule pub` reads from and `bascule sub` writes to: pipes that others have made non-blocking, disks that are
full, input that cannot be read. What is missing is told.
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from bascule.testing.processes import BrokerProcess, script
from tests.harness.grpc_calls import create, values
from tests.harness.stub import Stub

TIMEOUT_S = 60.0
LINES = [b"%05d" % number + bytes(95).replace(b"\0", b"x") for number in range(5_000)]


@pytest.fixture
def filled(broker: BrokerProcess, stream: str) -> str:
    assert run(broker, "pub", "--create", stream, input=b"\n".join(LINES)).returncode == 0
    return stream


def run(broker: BrokerProcess, *args: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [str(script("bascule")), *args, "--server", broker.address]
    return subprocess.run(
        command,
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=False,
        **options,
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_all_that_is_read_is_printed_also_when_it_is_stopped_for_a_while(
    broker: BrokerProcess, filled: str, unbuffered: str
) -> None:
    """As with Ctrl-Z: the system ends a write with a part of it. With PYTHONUNBUFFERED the rest was left out."""
    command = [str(script("bascule")), "sub", filled, "--server", broker.address]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    printed = b""
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as reader:
        assert reader.stdout is not None
        try:
            while part := os.read(reader.stdout.fileno(), 8192):
                printed += part
                reader.send_signal(signal.SIGSTOP)
                time.sleep(0.005)
                reader.send_signal(signal.SIGCONT)
                time.sleep(0.005)
            assert reader.wait(TIMEOUT_S) == 0
        finally:
            reader.kill()
    assert printed.splitlines() == LINES


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "utf-8"])
def test_json_is_utf8_whatever_the_terminal_has(broker: BrokerProcess, stream: str, encoding: str) -> None:
    """It was an error, about a name that is no UTF-8, and the end of the output."""
    value = "ä ☃ \U0001f600"
    run(broker, "pub", "--create", stream, value)
    done = run(broker, "sub", stream, "--json", env={**os.environ, "PYTHONIOENCODING": encoding})
    assert json.loads(done.stdout.decode())["value"] == value


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_that_takes_no_more_is_an_error(broker: BrokerProcess, filled: str, unbuffered: str) -> None:
    """Non-blocking, and full: the command ended with 0."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    done = run(broker, "sub", filled, stdout=theirs, env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
    os.close(ours)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (1, b"error: write could not complete without blocking\n")


@pytest.mark.parametrize(
    "args", [("version",), ("--help",), ("stream", "list"), ("pub", "s", "x", "--create", "--json")]
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line_of_error(broker: BrokerProcess, args: tuple[str, ...], unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "BASCULE_SERVER": broker.address}
    with Path("/dev/full").open("wb") as full:
        command = [str(script("bascule")), *args]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == b"error: No space left on device"


def test_lines_come_from_a_stdin_that_others_made_non_blocking(broker: BrokerProcess, stream: str) -> None:
    """It waited for ever."""
    theirs, ours = os.pipe()
    os.set_blocking(theirs, False)
    command = [str(script("bascule")), "pub", "--create", stream, "--server", broker.address]
    with subprocess.Popen(command, stdin=theirs) as writer:
        try:
            for line in (b"one\n", b"two\n"):
                time.sleep(0.7)
                os.write(ours, line)
            os.close(ours)
            assert writer.wait(TIMEOUT_S) == 0
        finally:
            writer.kill()
            os.close(theirs)
    with Stub(broker.address) as stub:
        assert values(stub, stream) == [b"one", b"two"]


def test_a_stdin_that_cannot_be_read_ends_it(broker: BrokerProcess, stream: str) -> None:
    """It waited for ever."""
    with Stub(broker.address) as stub, Path("/proc/self/mem").open("rb") as unreadable:
        create(stub, stream)
        done = run(broker, "pub", stream, stdin=unreadable)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        f"stopped: 0 messages are confirmed, what else was sent to {stream} may be stored or not",
        "error: stdin: Input/output error",
    ]


def test_what_was_confirmed_is_told_when_the_input_is_no_text(broker: BrokerProcess, stream: str) -> None:
    done = run(broker, "pub", "--create", stream, input=b"line\n" * 100 + bytes(9_000_000))
    assert done.returncode == 1
    told = done.stderr.decode().splitlines()
    assert told[-1] == "error: a line of stdin is longer than a message may be: is it text?"
    with Stub(broker.address) as stub:
        assert told[0].startswith(f"stopped: {len(values(stub, stream))} messages are confirmed")
