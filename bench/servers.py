"""The servers under test, each started when first needed, and what they cost.

All of them keep their data in one folder on a real disk. Only one is under load at a time; the others idle.
"""

import os
import platform
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Self, TypeVar

import psutil

from bascule.testing.processes import BrokerProcess, NatsProcess, Process, start_broker, start_nats

IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

P = TypeVar("P", bound=Process)


class Servers:
    """`servers.broker("group")`, `servers.jetstream(sync_always=True)`: the same one each time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._running: dict[str, Process] = {}

    def broker(self, sync: str) -> BrokerProcess:
        name = f"bascule-{sync}"
        return self._once(name, BrokerProcess, lambda: start_broker(self.folder, sync=sync, name=name))

    def jetstream(self, *, sync_always: bool = False) -> NatsProcess:
        name = "jetstream-always" if sync_always else "jetstream"
        return self._once(
            name, NatsProcess, lambda: start_nats(self.folder, jetstream=True, sync_always=sync_always, name=name)
        )

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
