"""`bascule up --brokers 3`: a cluster by one command. Its brokers may be killed and wiped, and end with it."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bascule.testing.processes import HOST, free_port, poll, script
from tests.harness.command import running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
TIMEOUT_S = 120.0


class Up:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self.process = process
        line = process.stdout.readline()
        assert line, process.communicate()[1].decode()
        self.info: Any = json.loads(line)
        self.servers = ",".join(broker["address"] for broker in self.info["brokers"])
        self.pids = {broker["id"]: broker["pid"] for broker in self.info["brokers"]}

    def run(self, *args: str, stdin: bytes = b"", code: int = 0) -> str:
        """What it says: to stdout if it works, to stderr if not."""
        done = subprocess.run(
            [str(script("bascule")), *args, "--server", self.servers],
            input=stdin,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == code, done.stderr.decode()
        return (done.stderr if code else done.stdout).decode()

    def kill9(self) -> None:
        self.process.kill()
        self.process.wait()

    def partition(self, stream: str) -> Any:
        return json.loads(self.run("stream", "info", stream, "--json"))["partitions"][0]

    def in_sync(self, stream: str) -> int:
        return sum(replica["in_sync"] for replica in self.partition(stream)["replicas"])


def command(folder: Path, *more: str) -> list[str]:
    ports = ["--port", "0", "--nats-port", str(free_port())]
    return [str(script("bascule")), "up", "--brokers", "3", "--json", "--data-dir", str(folder), *ports, *more]


@contextmanager
def up(folder: Path, *more: str) -> Iterator[Up]:
    with running(command(folder, *more)) as process:
        yield Up(process)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_killed_leader_is_replaced_and_comes_back_and_nothing_is_lost(tmp_path: Path) -> None:
    numbers = "".join(f"{number}\n" for number in range(5000))
    with up(tmp_path / "cluster", "--restart-after", "1") as cluster:
        cluster.run("stream", "create", "s", "--replication-factor", "3", "--min-isr", "2")
        cluster.run("pub", "s", stdin=numbers.encode())
        before = cluster.partition("s")
        leader = before["leader"]
        os.kill(cluster.pids[leader], signal.SIGKILL)
        # On a busy machine it may be back before anybody missed it; it leads under a new epoch then.
        assert poll(lambda: cluster.partition("s")["leader_epoch"] > before["leader_epoch"], TIMEOUT_S)
        assert cluster.run("sub", "s") == numbers
        assert poll(lambda: cluster.in_sync("s") == 3, TIMEOUT_S)
        assert cluster.run("sub", "s", "--replica", leader) == numbers
        assert "has no replica of s/0: " in cluster.run("sub", "s", "--replica", "z", code=1)
    assert all(gone(pid) for pid in cluster.pids.values())


def test_after_a_crash_of_all_a_wiped_first_broker_joins_instead_of_founding(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with up(folder) as cluster:
        cluster.run("pub", "s", "kept", "--create", "--replication-factor", "3")
        cluster.kill9()
        assert poll(lambda: all(gone(pid) for pid in cluster.pids.values()))
    shutil.rmtree(folder / "a")
    with up(folder) as cluster:
        assert cluster.run("sub", "s") == "kept\n"
        assert poll(lambda: cluster.in_sync("s") == 3, TIMEOUT_S)
        assert cluster.run("sub", "s", "--replica", "a") == "kept\n"


def test_a_folder_that_a_removed_broker_left_behind_is_named_and_the_others_start(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with up(folder) as cluster:
        cluster.run("pub", "s", "kept", "--create", "--replication-factor", "3")
        cluster.run("cluster", "drain", "c")
        cluster.run("cluster", "remove", "c")
    with up(folder) as cluster:
        assert [broker["id"] for broker in cluster.info["brokers"]] == ["a", "b"]
        assert cluster.run("sub", "s") == "kept\n"
        cluster.process.send_signal(signal.SIGINT)
        said = cluster.process.communicate(timeout=TIMEOUT_S)[1].decode()
        assert (
            f"broker c is not started: it was removed from this cluster with `bascule cluster remove`, and {folder}/c"
            in (said)
        )
        assert "Delete this folder: then the next start has c join as a new member" in said
    shutil.rmtree(folder / "c")
    with up(folder) as cluster:
        assert [broker["id"] for broker in cluster.info["brokers"]] == ["a", "b", "c"]


def test_everything_ends_with_it_even_on_sigkill_and_status_can_be_watched(tmp_path: Path) -> None:
    with up(tmp_path / "cluster") as cluster:
        watching = subprocess.Popen(
            [str(script("bascule")), "cluster", "status", "--watch", "--json", "--server", cluster.servers],
            stdout=subprocess.PIPE,
        )
        try:
            assert watching.stdout is not None
            seen = [json.loads(watching.stdout.readline()) for _ in range(2)]
            watching.send_signal(signal.SIGINT)
            assert watching.wait(TIMEOUT_S) == 130
        finally:
            watching.kill()
            watching.communicate()
        assert [[member["id"] for member in status["members"]] for status in seen] == [["a", "b", "c"]] * 2
        cluster.kill9()
        assert poll(lambda: all(gone(pid) for pid in cluster.pids.values()))
        port = int(cluster.info["nats_url"].rpartition(":")[2])
        assert poll(lambda: not listens(port))


def test_a_port_in_use_is_one_line_and_nothing_stays(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        began = time.monotonic()
        done = subprocess.run(
            command(tmp_path / "cluster", "--port", port), capture_output=True, timeout=TIMEOUT_S, check=False
        )
    error = done.stderr.decode()
    assert done.returncode == 1
    assert error.startswith("error: broker a did not start: "), error
    assert port in error
    assert len(error.splitlines()) == 1
    assert time.monotonic() - began < 60
    assert not (tmp_path / "cluster").exists(), "a start that failed left something behind"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])  # SIGHUP: its terminal is closed
def test_brokers_that_stop_together_end_in_good_order_and_none_is_killed(
    tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "cluster"
    with up(folder) as cluster:
        cluster.run("pub", "s", "kept", "--create", "--replication-factor", "3")
        cluster.process.send_signal(number)
        cluster.process.communicate(timeout=TIMEOUT_S)
        assert cluster.process.returncode == 0
    said = [(folder / f"{name}.log").read_text() for name in "abc"]
    assert all("stopping: no new calls" in text for text in said)
    assert all(text.splitlines()[-1].endswith("stopped") for text in said), "one was killed"
    assert all((folder / name / "clean-shutdown").exists() for name in "abc")
