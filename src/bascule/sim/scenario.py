"""What a seed stands for: how many brokers, which faults, which weather. The same seed is the same scenario."""

import random
from dataclasses import dataclass

from bascule.log.sync import GROUP, SyncMode
from bascule.testing.bus import Weather

CONTROL_EVERY = 10
"""Each so-manyth seed runs without any fault: others have failed just that."""
CLUSTER_SIZES = (3, 3, 5)


@dataclass(frozen=True, slots=True)
class StreamPlan:
    partitions: int
    replication: int
    min_isr: int


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
    streams: tuple[StreamPlan, ...]
    peers: tuple[str, ...] = ()
    """Who founds the cluster together; () = the first broker founds it, and the others join."""
    max_quorum: int = 0
    snapshot_threshold: int = 3
    max_lag_s: float = 15.0

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
CLUSTER_KINDS: dict[str, tuple[str, ...]] = {
    "crash": ("several", "blackout", "blackout"),
    "network": ("isolate", "isolate", "split"),
    "contest": ("contest", "contest", "contest"),
    "wipe": ("wipe",),
    "members": ("join", "join", "drain", "remove", "remove"),
}
"""What takes more than one broker."""
_LIKELY = {
    "crash": 0.9,
    "pause": 0.35,
    "network": 0.6,
    "disk": 0.4,
    "flip": 0.3,
    "clock": 0.4,
    "contest": 0.4,
    "wipe": 0.25,
    "members": 0.25,
}
RELAXED = (SyncMode("interval", 100_000_000), SyncMode("os"))
NEEDS_SYNC = ("power", "double", "blackout", "contest", "eio", "wipe")
"""What relaxed syncing does not promise to survive."""


def scenario(seed: int, brokers: int = 0, families: tuple[str, ...] = ()) -> Scenario:
    """With that many brokers; 0 = three or five, as the seed says. With faults of these families; () = the same."""
    chance = random.Random(f"{seed} {brokers} scenario")
    brokers = brokers or chance.choice(CLUSTER_SIZES)
    control = seed % CONTROL_EVERY == 0 and not families
    sync = chance.choice(RELAXED) if chance.random() < 0.15 else GROUP
    faults = _faults(chance, brokers, sync, families)
    disk_may_be_lost = "wipe" in faults
    return Scenario(
        seed=seed,
        brokers=brokers,
        duration_s=chance.uniform(4, 9),
        segment_max_bytes=chance.choice((400, 2_000, 2_000, 20_000)),
        faults=() if control else faults,
        fault_every_s=chance.choice((0.6, 1.0, 2.0)),
        harsh=not control and chance.random() < 0.2,
        max_delay_s=chance.choice((0.0, 0.001, 0.005, 0.05)),
        disk_latency_s=chance.choice((0.0, 0.0002, 0.002)),
        sync_delay_s=chance.choice((0.0, 0.001, 0.02)),
        cached_reads=chance.random() < 0.7,
        wildcard=chance.random() < 0.4,
        sync=sync,
        streams=tuple(_stream(chance, brokers, disk_may_be_lost) for _ in range(chance.randint(1, 2))),
        peers=tuple(f"broker{number + 1}" for number in range(brokers)) if chance.random() < 0.3 else (),
        max_quorum=3 if brokers > 3 and chance.random() < 0.3 else 0,
        snapshot_threshold=chance.choice((3, 3, 20)),
        max_lag_s=chance.choice((5.0, 8.0, 15.0)),
    )


def _faults(chance: random.Random, brokers: int, sync: SyncMode, chosen: tuple[str, ...]) -> tuple[str, ...]:
    kinds = {**KINDS}
    if brokers > 1:
        for name, more in CLUSTER_KINDS.items():
            kinds[name] = (*kinds.get(name, ()), *more)
    families = [name for name in kinds if chance.random() < _LIKELY[name]]
    if chosen:
        families = [name for name in chosen if name in kinds]
    faults = tuple(kind for name in families for kind in kinds[name])
    if sync.relaxed:
        faults = tuple(kind for kind in faults if kind not in NEEDS_SYNC)
    return faults or ("kill",)


def _stream(chance: random.Random, brokers: int, disk_may_be_lost: bool) -> StreamPlan:
    """The contract about a lost disk is for three replicas of which two are in sync."""
    partitions = chance.randint(1, 3)
    if brokers == 1:
        return StreamPlan(partitions, 1, 1)
    if disk_may_be_lost:
        return StreamPlan(partitions, chance.choice((3, brokers)), 2)
    replication = chance.choice((3, 3, 3, 2, 1, brokers))
    return StreamPlan(partitions, replication, chance.randint(1, min(2, replication)))
