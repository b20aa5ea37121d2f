"""What a broker uses while it is called: memory, descriptors, tasks, and what holds its event loop.

The meter of the benchmarks (`bench/meter`) runs inside of each broker. Here it counts a callback's time as well while
it is blocked, in a system call, say, as long as the machine has processors enough.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bascule.testing.processes import BrokerProcess

METER = Path(__file__).resolve().parents[2] / "bench" / "meter"
_MIB = 1 << 20


@dataclass
class Usage:
    """Of one broker, each with the time of its measurement."""

    rss: list[tuple[float, int]] = field(default_factory=list)

    def grown(self, began: float, ended: float) -> tuple[float, float]:
        """The memory in MiB, in the middle of the time and at its end: medians, because it comes and goes."""
        third = (ended - began) / 6
        middle = [rss for at, rss in self.rss if began + 2 * third <= at < began + 3 * third]
        last = [rss for at, rss in self.rss if at >= ended - third]
        return statistics.median(middle or [0]) / _MIB, statistics.median(last or [0]) / _MIB

    @property
    def highest_mib(self) -> float:
        return max(rss for _, rss in self.rss) / _MIB


class Watch:
    def __init__(self, folder: Path, names: str) -> None:
        self._meters = {name: folder / f"loop-{name}" for name in names}
        self.usage = {name: Usage() for name in names}

    @property
    def environments(self) -> dict[str, dict[str, str]]:
        paths = os.pathsep.join([str(METER), os.environ.get("PYTHONPATH", "")])
        return {
            name: {"PYTHONPATH": paths, "BASCULE_LOOP_METER": str(file), "BASCULE_LOOP_METER_ALL": "1"}
            for name, file in self._meters.items()
        }

    def look(self, brokers: Mapping[str, BrokerProcess]) -> None:
        now = time.monotonic()
        for name, broker in brokers.items():
            if broker.running:
                self.usage[name].rss.append((now, _rss(broker.pid)))

    def held(self, began: float) -> list[tuple[float, str, str]]:
        """Callbacks since then that held an event loop: how long in ms, on which broker, and what it was; the longest
        first."""
        found = []
        for name, file in self._meters.items():
            for line in file.read_text().splitlines() if file.exists() else ():
                ended, took, collecting, what = line.split(" ", 3)
                if float(ended) >= began:
                    cause = " (garbage collection)" if float(collecting) > float(took) / 2 else ""
                    found.append((float(took) * 1000, name, what + cause))
        return sorted(found, reverse=True)

    def tasks(self, name: str) -> list[tuple[float, int]]:
        """How many tasks its event loop had, with the time."""
        file = self._meters[name].with_suffix(".tasks")
        lines = file.read_text().splitlines() if file.exists() else []
        return [(float(at), int(count)) for at, count in (line.split() for line in lines)]


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(broker: BrokerProcess) -> Counter[str]:
    """What a broker has open, by name: sockets, and all files but those of its data folder. Of these it keeps up to 512
    open, whether it needs them or not; one that was deleted it must not keep."""
    found: Counter[str] = Counter()
    for link in Path(f"/proc/{broker.pid}/fd").iterdir():
        try:
            name = str(link.readlink())
        except OSError:
            continue  # closed meanwhile
        if not name.startswith(str(broker.data_dir)) or name.endswith("(deleted)"):
            found[re.sub(r"\[\d+\]", "", name)] += 1
    return found
