"""The servers under test, each started when first needed, and what they cost.

All of them have their data in one folder on a real disk. Only one is under load at a time; the others idle.

The clusters have three servers each: brokers on one NATS server, and JetStream servers with routes to each other.
"""

import os
import platform
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import psutil

from bascule.testing.processes import (
    HOST,
    BrokerProcess,
    NatsProcess,
    Process,
    free_port,
    start_broker,
    start_nats,
)

IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

REPLICAS = 3
MIN_ISR = 2

P = TypeVar("P", bound=Process)


@dataclass(frozen=True)
class BasculeCluster:
    nats: NatsProcess
    brokers: dict[str, BrokerProcess]

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in self.brokers.values()]


@dataclass(frozen=True)
class JetStreamCluster:
    servers: list[NatsProcess]

    @property
    def nats_urls(self) -> str:
        return ",".join(server.nats_url for server in self.servers)


class Servers:
    """`servers.broker("group")`, `servers.jetstream(sync_always=True)`: the same one each time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._running: dict[str, Process] = {}
        self._routes: list[int] = []

    def broker(self, sync: str) -> BrokerProcess:
        name = f"bascule-{sync}"
        return self._once(name, BrokerProcess, lambda: start_broker(self.folder, sync=sync, name=name))

    def jetstream(self, *, sync_always: bool = False) -> NatsProcess:
        name = "jetstream-always" if sync_always else "jetstream"
        return self._once(
            name, NatsProcess, lambda: start_nats(self.folder, jetstream=True, sync_always=sync_always, name=name)
        )

    def bascule_cluster(self, env: Mapping[str, Mapping[str, str]] | None = None) -> BasculeCluster:
        """`env`: for the process of each broker, by its id."""
        name = "cluster"
        nats = self._once(f"{name}-nats", NatsProcess, lambda: start_nats(self.folder, name=f"{name}-nats"))

        def start(letter: str) -> BrokerProcess:
            settings = {"clustering.server.id": letter, "clustering.min.insync.replicas": MIN_ISR}
            return start_broker(
                self.folder,
                name=f"{name}-{letter}",
                config=settings,
                env=(env or {}).get(letter),
                nats_url=nats.nats_url,
                seed=letter == "a",
            )

        brokers = {letter: self._once(f"{name}-{letter}", BrokerProcess, partial(start, letter)) for letter in "abc"}
        return BasculeCluster(nats, brokers)

    def jetstream_cluster(self) -> JetStreamCluster:
        if not self._routes:
            self._routes = [free_port() for _ in range(REPLICAS)]
        routes = ", ".join(f'"nats://{HOST}:{port}"' for port in self._routes)

        def start(name: str, port: int) -> NatsProcess:
            cluster = f"cluster {{\n  name: bench\n  listen: {HOST}:{port}\n  routes: [{routes}]\n}}"
            more = [f"server_name: {name}", cluster]
            return NatsProcess(self.folder / name, jetstream=True, more=more).start()

        named = {f"jetstream-{number}": port for number, port in enumerate(self._routes)}
        servers = [self._once(name, NatsProcess, partial(start, name, port)) for name, port in named.items()]
        for server in servers:
            server.wait_ready()
        return JetStreamCluster(servers)

    def _once(self, name: str, kind: type[P], start: Callable[[], P]) -> P:
        if name not in self._running:
            self._running[name] = self._stack.enter_context(start())
        found = self._running[name]
        assert isinstance(found, kind)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


def cpu_seconds(pid: int) -> float:
    """Processor time this process has used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def tree_cpu_seconds(pid: int) -> float:
    """The same with the processes it started, such as an embedded NATS server."""
    return cpu_seconds(pid) + sum(cpu_seconds(child.pid) for child in psutil.Process(pid).children(recursive=True))


def file_system(folder: Path) -> str:
    """The type of the file system a folder is on."""
    mounts = [mount for mount in psutil.disk_partitions(all=True) if folder.resolve().is_relative_to(mount.mountpoint)]
    return str(max(mounts, key=lambda mount: len(mount.mountpoint)).fstype)


def machine() -> str:
    """One line about where this ran."""
    kernel = ".".join(platform.release().split(".")[:2])
    return f"{os.cpu_count()} cores, Linux {kernel}, Python {platform.python_version()}"
