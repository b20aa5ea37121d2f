"""The scenario of a seed. The same seed always gives the same scenario."""

import random

from bascule.limits import NATS_DEFAULT_PAYLOAD_BYTES
from bascule.log.sync import GROUP, SyncMode
from bascule.sim import knobs
from bascule.sim.faults.every import KINDS
from bascule.sim.faults.every import families as families_of
from bascule.sim.plan import Scenario, StreamPlan

CONTROL_EVERY = 10
"""One seed in so many runs without any fault."""
CLUSTER_SIZES = (3, 3, 5)
RELAXED = (SyncMode("interval", 100_000_000), SyncMode("os"))
SHORT_S = (4.0, 9.0)
LONG_S = (20.0, 60.0)
"""The duration of runs in which brokers are down for long."""
SHORT_LAGS_S = (1.5, 3.0, 15.0)
LONG_LAGS_S = (2.0, 5.0, 15.0)
"""How long a replica may lag: mostly less than such a run takes, so that the timeout is reached."""
SMALL_PAYLOAD_BYTES = 8192
MANY_PARTITIONS = (100, 250)
MANY_EVERY, MANY_OF = 40, 23


def scenario(seed: int, brokers: int = 0, families: tuple[str, ...] = ()) -> Scenario:
    """With that many brokers; 0 = three or five, as the seed says. With faults of these families; () = the same."""
    chance = random.Random(f"{seed} {brokers} scenario")
    brokers = brokers or chance.choice(CLUSTER_SIZES)
    control = seed % CONTROL_EVERY == 0 and not families
    sync = chance.choice(RELAXED) if chance.random() < 0.15 or "relaxed" in families else GROUP
    chosen = _families(chance, brokers, families)
    faults = () if control else _faults(chosen, brokers, sync)
    duration_s = chance.uniform(*(LONG_S if "away" in chosen and not control else SHORT_S))
    long = duration_s > SHORT_S[1]
    small = chance.random() < 0.25
    max_lag_s = chance.choice(LONG_LAGS_S if long else SHORT_LAGS_S)
    return Scenario(
        seed=seed,
        brokers=brokers,
        duration_s=duration_s,
        segment_max_bytes=chance.choice((400, 2_000, 2_000, 20_000)),
        faults=faults,
        fault_every_s=chance.choice((2.0, 4.0, 8.0) if long else (0.6, 1.0, 2.0)),
        harsh=not control and chance.random() < 0.2,
        max_delay_s=chance.choice((0.0, 0.001, 0.005, 0.05)),
        disk_latency_s=chance.choice((0.0, 0.0002, 0.002)),
        sync_delay_s=chance.choice((0.0, 0.001, 0.02)),
        cached_reads=chance.random() < 0.7,
        wildcard=chance.random() < 0.4,
        sync=sync,
        streams=tuple(_stream(chance, brokers, faults) for _ in range(chance.randint(1, 2))),
        peers=tuple(f"broker{number + 1}" for number in range(brokers)) if chance.random() < 0.3 else (),
        max_quorum=3 if brokers > 3 and chance.random() < 0.3 else 0,
        snapshot_threshold=chance.choice((3, 3, 20)),
        max_lag_s=max_lag_s,
        pace=max(1.0, duration_s / 8.0),
        max_payload=SMALL_PAYLOAD_BYTES if small else NATS_DEFAULT_PAYLOAD_BYTES,
        value_bytes=(10, 100, 300, 700, 2_000, 6_000) if small else (0, 10, 40, 100, 100, 300, 700),
        burst=chance.choice((12, 12, 80)),
        many=chance.randint(*MANY_PARTITIONS) if seed % MANY_EVERY == MANY_OF and not small else 0,
        knobs=_knobs(chance),
    )


def _knobs(chance: random.Random) -> tuple[tuple[str, float], ...]:
    return tuple(knobs.draw(chance)) if chance.random() < 0.5 else ()


def _families(chance: random.Random, brokers: int, wanted: tuple[str, ...]) -> list[str]:
    possible = families_of(brokers)
    drawn = [family.name for family in possible if chance.random() < family.likely]
    names = [family.name for family in possible]
    return [name for name in wanted if name in names] if wanted else drawn


def _faults(families: list[str], brokers: int, sync: SyncMode) -> tuple[str, ...]:
    faults = tuple(
        kind.name
        for kind in KINDS.values()
        for _ in range(kind.weight)
        if kind.family.name in families
        and (brokers > 1 or not kind.several)
        and not (kind.needs_sync and sync.relaxed)
        and not (kind.relaxed and not sync.relaxed)
    )
    return faults or ("kill",)


def _stream(chance: random.Random, brokers: int, faults: tuple[str, ...]) -> StreamPlan:
    """The contract covers a lost or damaged disk with three replicas of which two are in sync."""
    partitions = chance.randint(1, 3)
    if brokers == 1:
        return StreamPlan(partitions, 1, 1)
    if any(KINDS[kind].needs_copies for kind in faults):
        return StreamPlan(partitions, chance.choice((3, brokers)), 2)
    replication = chance.choice((3, 3, 3, 2, 1, brokers))
    return StreamPlan(partitions, replication, chance.randint(1, min(2, replication)))
