"""Which brokers hold a new partition, which of them leads it, and who leads instead when that one is gone.

Least loaded first, and the load counts what the same CreateStream has just placed: the partitions *and* the leaders
of one stream spread over the brokers. Ties go by id, so the choice is the same wherever it is computed.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from bascule.core.metadata.isr import Circumstances, Departure, leave, minimum
from bascule.core.metadata.streams import Partition, Stream
from bascule.types import PartitionId


def place(
    partitions: int,
    replication_factor: int,
    servers: Sequence[str],
    streams: Iterable[Stream],
    absent: Sequence[str] = (),
    draining: Sequence[str] = (),
) -> tuple[Partition, ...]:
    """Brokers that are `absent` right now are taken last, lead nothing and are in sync with nothing. One that drains is
    taken only where the others are too few, and leads nothing."""
    replicas_of: Counter[str] = Counter()
    leaders_of: Counter[str] = Counter()
    for stream in streams:
        for existing in stream:
            if not existing.paused:
                replicas_of.update(existing.replicas)
                leaders_of[existing.leader] += 1
    placed = []
    for partition in range(partitions):
        by_load = sorted(
            servers,
            key=lambda server: (
                server in absent,
                server in draining,
                replicas_of[server],
                leaders_of[server],
                server,
            ),
        )
        replicas = tuple(by_load[:replication_factor])
        isr = tuple(server for server in replicas if server not in absent) or replicas
        leader = min(isr, key=lambda server: (server in draining, leaders_of[server], replicas_of[server], server))
        replicas_of.update(replicas)
        leaders_of[leader] += 1
        placed.append(Partition(PartitionId(partition), replicas, leader, isr=isr))
    return tuple(placed)


Changed = dict[str, dict[int, Partition]]
"""Partitions that change, by stream and number."""


def fail_over(streams: Mapping[str, Stream], broker: str, how: Departure, now: Circumstances) -> Changed:
    """The partitions that change when `broker` is gone or about to go."""
    leaders_of = count_leaders(streams)
    changed: Changed = {}
    for name in sorted(streams):
        least = minimum(streams[name].config)
        for item in streams[name]:
            if broker in item.replicas:
                moved = leave(item, broker, how, least, now, leaders_of)
                if moved is not item:
                    changed.setdefault(name, {})[item.id] = moved
    return changed


def begin_life(
    streams: Mapping[str, Stream],
    broker: str,
    doubtful: Collection[tuple[str, int]],
    unclean: bool,
    now: Circumstances,
) -> Changed:
    """The partitions that change when `broker` starts. It keeps its place, for it has what it promised, except where it
    finds its log `doubtful`, or after an `unclean` end of its last life everywhere. What it leads it leads under a new
    epoch. Where it is not in sync the partition has another epoch too: what was asked for its last life is void.
    """
    leaders_of = count_leaders(streams)
    doubted = dict.fromkeys(doubtful)
    changed: Changed = {}
    for name in sorted(streams):
        least = minimum(streams[name].config)
        for item in streams[name]:
            if broker not in item.replicas:
                continue
            if (name, item.id) in doubted:
                moved = leave(item, broker, Departure.DOUBTFUL, least, now, leaders_of)
            elif unclean:
                moved = leave(item, broker, Departure.UNCLEAN, least, now, leaders_of)
            elif item.leader == broker:
                moved = replace(item, epoch=now.epoch, leader_epoch=now.epoch)
            elif broker not in item.isr:
                moved = replace(item, epoch=now.epoch)
            else:
                continue
            changed.setdefault(name, {})[item.id] = moved
    return changed


def count_leaders(streams: Mapping[str, Stream]) -> Counter[str]:
    return Counter(item.leader for stream in streams.values() for item in stream)
