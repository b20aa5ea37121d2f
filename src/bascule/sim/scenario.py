"""The scenario of a seed. The same seed always gives the same scenario."""

import random
from dataclasses import replace

from bascule.limits import MIB, NATS_DEFAULT_PAYLOAD_BYTES
from bascule.log.sync import GROUP, SyncMode
from bascule.sim import knobs
from bascule.sim.faults.every import KINDS
from bascule.sim.faults.every import families as families_of
from bascule.sim.plan import KeyedPlan, Scenario, StreamPlan

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
    chosen = _families(seed, chance, brokers, families)
    faults = () if control else _faults(chosen, brokers, sync)
    duration_s = chance.uniform(*(LONG_S if "away" in chosen and not control else SHORT_S))
    long = duration_s > SHORT_S[1]
    small = chance.random() < 0.25
    max_lag_s = chance.choice(LONG_LAGS_S if long else SHORT_LAGS_S)
    hundreds = seed % MANY_EVERY == MANY_OF and not small
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
        streams=_with_one(seed, [_stream(chance, brokers, faults) for _ in range(chance.randint(1, 2))], faults),
        peers=tuple(f"broker{number + 1}" for number in range(brokers)) if chance.random() < 0.3 else (),
        max_quorum=3 if brokers > 3 and chance.random() < 0.3 else 0,
        snapshot_threshold=chance.choice((3, 3, 20)),
        max_lag_s=max_lag_s,
        pace=max(1.0, duration_s / 8.0),
        max_payload=SMALL_PAYLOAD_BYTES if small else NATS_DEFAULT_PAYLOAD_BYTES,
        value_bytes=(10, 100, 300, 700, 2_000, 6_000) if small else (0, 10, 40, 100, 100, 300, 700),
        burst=chance.choice((12, 12, 80)),
        many=chance.randint(*MANY_PARTITIONS) if hundreds else 0,
        keyed=_keyed(random.Random(f"{seed} {brokers} keyed"), brokers, faults),
        knobs=_knobs(chance, hundreds),
    )


def _with_one(seed: int, streams: list[StreamPlan], faults: tuple[str, ...]) -> tuple[StreamPlan, ...]:
    """Where only ends of logs are damaged the contract covers min ISR 1, too, while two are in sync. Drawn apart."""
    chance = random.Random(f"{seed} one in sync")
    copied = {KINDS[kind].family.name for kind in faults if KINDS[kind].needs_copies}
    one = copied == {"tail"} and chance.random() < 0.5
    return tuple(replace(stream, min_isr=1) if one else stream for stream in streams)


def _keyed(chance: random.Random, brokers: int, faults: tuple[str, ...]) -> KeyedPlan | None:
    """In half of the runs; drawn apart, so that the others are as they would be without it."""
    if chance.random() < 0.5:
        return None
    stream = _stream(chance, brokers, faults)
    if chance.random() < 0.35 and not any(KINDS[kind].needs_copies for kind in faults):
        stream = StreamPlan(stream.partitions, 1, 1)  # tombstones go without the other replicas
    return KeyedPlan(
        stream,
        compacts=chance.random() < 0.9,
        keys=chance.choice((4, 12, 40)),
        segment_bytes=chance.choice((300, 1_000, 3_000)),
        cleaned_every_ms=chance.choice((200, 1_000)),
        min_lag_ms=chance.choice((0, 0, 0, 500)),
        tombstone_delay_ms=chance.choice((300, 1_000, 3_000)),
        map_bytes=chance.choice((200, 400, 32 * MIB)),
    )


def _knobs(chance: random.Random, hundreds: bool) -> tuple[tuple[str, float], ...]:
    return knobs.draw(chance, chance.random() < 0.5, hundreds)


def _families(seed: int, chance: random.Random, brokers: int, wanted: tuple[str, ...]) -> list[str]:
    possible = families_of(brokers)
    apart = {family: random.Random(f"{seed} {family.name}") for family in possible if family.drawn_apart}
    drawn = [family.name for family in possible if apart.get(family, chance).random() < family.likely]
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
