"""What a seed stands for: how many brokers, which faults, which weather. The same seed is the same scenario."""

import random
from dataclasses import dataclass, field

from bascule.log.sync import GROUP, SyncMode
from bascule.testing.bus import Weather

CONTROL_EVERY = 10
"""Each so-manyth seed runs without any fault: others have failed just that."""


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    brokers: int
    duration_s: float
    segment_max_bytes: int
    faults: tuple[str, ...]
    """The kinds that may strike; empty = the control run."""
    fault_every_s: float
    harsh: bool
    """Messages are dropped, repeated and reordered one by one."""
    max_delay_s: float
    disk_latency_s: float
    sync_delay_s: float
    cached_reads: bool
    wildcard: bool
    sync: SyncMode
    """Only `group` promises anything about power, so only with it is it lost."""
    streams: tuple[int, ...] = field(default=(1,))
    """How many partitions each has."""

    def chance(self, purpose: str) -> random.Random:
        """A source of its own for each purpose: what one draws does not change what another one gets."""
        return random.Random(f"{self.seed} {purpose}")

    def weather(self) -> Weather:
        weather = Weather(self.chance("weather"), self.max_delay_s / 10, self.max_delay_s)
        if self.harsh:
            weather.drop, weather.duplicate, weather.reorder = 0.02, 0.03, 0.05
        return weather


KINDS: dict[str, tuple[str, ...]] = {
    "crash": ("kill", "kill", "power", "power", "power", "double", "restart"),
    "pause": ("pause",),
    "network": ("cut", "cut", "outage", "hold", "hold", "sever"),
    "disk": ("slow", "eio", "eio", "full"),
    "flip": ("flip", "flip"),
    "clock": ("clock",),
}
_LIKELY = {"crash": 0.9, "pause": 0.35, "network": 0.6, "disk": 0.4, "flip": 0.3, "clock": 0.4}
RELAXED = (SyncMode("interval", 100_000_000), SyncMode("os"))
NEEDS_SYNC = ("power", "double", "eio")
"""What relaxed syncing does not promise to survive."""


def scenario(seed: int) -> Scenario:
    chance = random.Random(f"{seed} scenario")
    families = [name for name in KINDS if chance.random() < _LIKELY[name]]
    faults = tuple(kind for name in families for kind in KINDS[name])
    control = seed % CONTROL_EVERY == 0
    sync = chance.choice(RELAXED) if chance.random() < 0.15 else GROUP
    if sync.relaxed:
        faults = tuple(kind for kind in faults if kind not in NEEDS_SYNC)
    return Scenario(
        seed=seed,
        brokers=2 if chance.random() < 0.15 else 1,
        duration_s=chance.uniform(4, 9),
        segment_max_bytes=chance.choice((400, 2_000, 2_000, 20_000)),
        faults=() if control else faults or ("kill",),
        fault_every_s=chance.choice((0.6, 1.0, 2.0)),
        harsh=not control and chance.random() < 0.2,
        max_delay_s=chance.choice((0.0, 0.001, 0.005, 0.05)),
        disk_latency_s=chance.choice((0.0, 0.0002, 0.002)),
        sync_delay_s=chance.choice((0.0, 0.001, 0.02)),
        cached_reads=chance.random() < 0.7,
        wildcard=chance.random() < 0.4,
        sync=sync,
        streams=tuple(chance.randint(1, 3) for _ in range(chance.randint(1, 2))),
    )
