"""Real brokers and NATS servers as processes, for tests and benchmarks.

Every process gets free ports, a folder of its own and a log file in it. It is waited for until it answers. It
is ended when its `with` block ends or, failing that, when this program exits, with everything in its process group.
A broker's embedded NATS server is in a group of its own and ends with the broker by itself, however that ended.

Known to be imperfect: when this program itself is killed by SIGKILL nothing runs at its exit, and processes stay.

    with start_broker(tmp_path) as broker:
        ...  # broker.address, broker.nats_url
        broker.kill9()
        broker.start()  # the same folder and ports again
"""

import atexit
import os
import random
import signal
import socket
import subprocess
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from bascule.testing.probe import call
from bascule.wire.pb import api_pb2, health_pb2

HOST = "127.0.0.1"
FIRST_PORT = 10_000
PORT_TRIES = 1000
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
CLOSE_TIMEOUT_S = 3.0
POLL_INTERVAL_S = 0.02
LOG_TAIL_BYTES = 8000


class ProcessError(RuntimeError):
    """A process did not become ready, or ended by itself. The text carries the end of its log."""


def free_port() -> int:
    """A port nobody listens on right now, and that no outgoing connection is given before it is used."""
    for _ in range(PORT_TRIES):
        port = random.SystemRandom().randrange(FIRST_PORT, _first_ephemeral_port())
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise ProcessError(f"no free port found between {FIRST_PORT} and {_first_ephemeral_port()}")


def _first_ephemeral_port() -> int:
    try:
        return max(FIRST_PORT + 1000, int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]))
    except OSError:
        return 32768


def script(name: str) -> Path:
    """A program installed beside this Python."""
    return Path(sysconfig.get_path("scripts")) / name


class Process:
    """A child process with a log file, ended at the latest when this program exits."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.command = list(command)
        self.log = log
        self.env = {**os.environ, **(env or {})}
        self.process: subprocess.Popen[bytes] | None = None
        atexit.register(self.kill9)

    def start(self) -> Self:
        """Start it (again). Returns before it is ready: see `wait_ready`."""
        if self.running:
            raise ProcessError(f"{self.command[0]} is running already, as process {self.pid}")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.env, process_group=0
            )
        return self

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        if self.process is None:
            raise ProcessError(f"{self.command[0]} was never started")
        return self.process.pid

    def ready(self) -> bool:
        """Whether it answers. Raises OSError when it does not yet."""
        return self.running

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> Self:
        """Returns when it answers; raises ProcessError with its log when it ends or takes too long."""

        def answers() -> bool:
            if not self.running:
                raise ProcessError(f"{' '.join(self.command)} ended by itself ({self.exit_code}):\n{self.log_tail()}")
            try:
                return self.ready()
            except OSError:
                return False

        if not poll(answers, timeout_s):
            self.kill9()
            raise ProcessError(f"{' '.join(self.command)} was not ready in {timeout_s} s:\n{self.log_tail()}")
        return self

    @property
    def exit_code(self) -> int | None:
        return None if self.process is None else self.process.poll()

    def kill9(self) -> None:
        """SIGKILL to it and everything it started. Fine on what has ended already."""
        self._signal_group(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def terminate(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM to it alone, so that it can stop its own children in order. Returns the exit code."""
        if self.process is None:
            return 0
        if self.running:
            self.process.terminate()
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise ProcessError(f"{self.command[0]} ignored SIGTERM for {timeout_s} s:\n{self.log_tail()}") from None
        self._signal_group(signal.SIGKILL)
        return code

    def pause(self) -> None:
        """Returns when every thread of it stands still: the signal alone takes a while to reach them all."""
        self._signal_group(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")
        poll(lambda: all(_state(task) in "TtZX" for task in tasks.iterdir()))

    def resume(self) -> None:
        self._signal_group(signal.SIGCONT)

    def _signal_group(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def logs(self) -> str:
        """Everything it has written, over all its starts."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def log_tail(self) -> str:
        return self.logs()[-LOG_TAIL_BYTES:]

    def close(self) -> None:
        """SIGTERM, and SIGKILL if it does not end."""
        if self.running and self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(CLOSE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                pass
        self.kill9()
        atexit.unregister(self.kill9)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class NatsProcess(Process):
    """A plain nats-server, with JetStream on the real disk if asked. `more` is more lines of its configuration."""

    def __init__(
        self,
        folder: Path,
        *,
        jetstream: bool = False,
        sync_always: bool = False,
        port: int = 0,
        more: Sequence[str] = (),
    ) -> None:
        self.port = port or free_port()
        self.nats_url = f"nats://{HOST}:{self.port}"
        self.data_dir = folder / "jetstream"
        config = folder / "nats.conf"
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"host: {HOST}", f"port: {self.port}", *more]
        if jetstream:
            sync = "  sync_interval: always\n" if sync_always else ""
            lines.append(f'jetstream {{\n  store_dir: "{self.data_dir}"\n{sync}}}')
        config.write_text("\n".join(lines) + "\n")
        super().__init__([str(script("nats-server")), "-c", str(config)], folder / "nats.log")

    def ready(self) -> bool:
        with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
            return connection.recv(4) == b"INFO"


class BrokerProcess(Process):
    """`bascule server` with a NATS server of its own, or on one that runs already."""

    def __init__(
        self,
        folder: Path,
        *,
        config: Mapping[str, Any] | None = None,
        sync: str = "group",
        env: Mapping[str, str] | None = None,
        nats_url: str | None = None,
        port: int = 0,
        seed: bool = True,
        program: Path | None = None,
    ) -> None:
        """`program`: the `bascule` of another version than this one."""
        folder.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        self.address = f"{HOST}:{self.port}"
        self.data_dir = folder / "data"
        self.config_path = folder / "bascule.yaml"
        settings: dict[str, Any] = {
            "listen": self.address,
            "host": HOST,
            "port": self.port,
            "streams.sync": sync,
            **(config or {}),
        }
        command = [str(program or script("bascule")), "server", "-c", str(self.config_path)]
        command += ["-d", str(self.data_dir), "-p", str(self.port)]
        if seed:
            command.append("--raft-bootstrap-seed")
        if nats_url is None:
            nats_config = folder / "nats.conf"
            nats_port = free_port()
            nats_config.write_text(f"host: {HOST}\nport: {nats_port}\n")
            settings.setdefault("nats.embedded.config", str(nats_config))
            self.nats_url = f"nats://{HOST}:{nats_port}"
            command.append("--embedded-nats")
        else:
            self.nats_url = nats_url
            command += ["-n", nats_url]
        self.config_path.write_text(yaml.safe_dump(settings))
        super().__init__(command, folder / "bascule.log", env)

    def ready(self) -> bool:
        health = health_pb2.HealthCheckRequest(service="proto.API").SerializeToString()
        answer = call(HOST, self.port, "/grpc.health.v1.Health/Check", health, 1.0)
        serving = health_pb2.HealthCheckResponse.FromString(answer.message).status
        if answer.status != 0 or serving != health_pb2.HealthCheckResponse.SERVING:
            return False
        # Of a stream that does not exist: the list of all may be larger than what the probe can take.
        request = api_pb2.FetchMetadataRequest(streams=["-"]).SerializeToString()
        answer = call(HOST, self.port, "/proto.API/FetchMetadata", request, 5.0)
        if "waiting for the cluster" in answer.text:
            return True  # it serves, and waits for other brokers
        return answer.status == 0 and len(api_pb2.FetchMetadataResponse.FromString(answer.message).brokers) > 0


def _state(task: Path) -> str:
    """The letter /proc shows for a thread; X when it has ended."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def start_broker(
    tmp_path: Path,
    *,
    config: Mapping[str, Any] | None = None,
    sync: str = "group",
    env: Mapping[str, str] | None = None,
    nats_url: str | None = None,
    port: int = 0,
    name: str = "broker",
    seed: bool = True,
) -> BrokerProcess:
    """A ready broker in `tmp_path/name`. `config` has the server's dotted keys and wins over our defaults. One that is
    no `seed` joins the cluster on `nats_url`."""
    broker = BrokerProcess(tmp_path / name, config=config, sync=sync, env=env, nats_url=nats_url, port=port, seed=seed)
    broker.start().wait_ready()
    return broker


def start_nats(
    tmp_path: Path, *, jetstream: bool = False, sync_always: bool = False, port: int = 0, name: str = "nats"
) -> NatsProcess:
    """A ready nats-server in `tmp_path/name`."""
    server = NatsProcess(tmp_path / name, jetstream=jetstream, sync_always=sync_always, port=port)
    server.start().wait_ready()
    return server


def poll(condition: Callable[[], bool], timeout_s: float = READY_TIMEOUT_S) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL_S)
    return True
