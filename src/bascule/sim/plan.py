"""The parameters of a run, drawn from its seed: how many brokers, which faults, network conditions and bounds."""

import random
from dataclasses import dataclass

from bascule.limits import NATS_DEFAULT_PAYLOAD_BYTES
from bascule.log.sync import SyncMode
from bascule.testing.bus import NetworkConditions


@dataclass(frozen=True, slots=True)
class StreamPlan:
    partitions: int
    replication: int
    min_isr: int


@dataclass(frozen=True, slots=True)
class KeyedPlan:
    """A stream whose clients know keys."""

    stream: StreamPlan
    compacts: bool
    keys: int
    segment_bytes: int
    cleaned_every_ms: int
    min_lag_ms: int
    tombstone_delay_ms: int
    map_bytes: int
    """Of the keys that a pass of compaction knows, in every stream."""


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    brokers: int
    duration_s: float
    segment_max_bytes: int
    faults: tuple[str, ...]
    """The kinds of faults that may happen; empty = a run without faults."""
    fault_every_s: float
    harsh: bool
    """Messages are dropped, repeated and reordered one by one."""
    max_delay_s: float
    disk_latency_s: float
    sync_delay_s: float
    cached_reads: bool
    wildcard: bool
    sync: SyncMode
    streams: tuple[StreamPlan, ...]
    peers: tuple[str, ...] = ()
    """The brokers that found the cluster together; () = the first broker founds it, and the others join."""
    max_quorum: int = 0
    snapshot_threshold: int = 3
    max_lag_s: float = 15.0
    pace: float = 1.0
    """How many times longer clients pause: so a long run is no more work than a short one."""
    max_payload: int = NATS_DEFAULT_PAYLOAD_BYTES
    """What NATS takes in one message."""
    value_bytes: tuple[int, ...] = (0, 10, 40, 100, 100, 300, 700)
    burst: int = 12
    """Messages that one client sends at once, at most."""
    many: int = 0
    """Partitions of a further stream, of which few are written to."""
    keyed: KeyedPlan | None = None
    knobs: tuple[tuple[str, float], ...] = ()
    """Bounds that are smaller in this run, by the names of `knobs`."""

    def chance(self, purpose: str) -> random.Random:
        """A random source for each purpose: draws for one do not change the draws for another."""
        return random.Random(f"{self.seed} {purpose}")

    def conditions(self) -> NetworkConditions:
        conditions = NetworkConditions(self.chance("weather"), self.max_delay_s / 10, self.max_delay_s)
        if self.harsh:
            conditions.drop, conditions.duplicate, conditions.reorder = 0.02, 0.03, 0.05
        return conditions
