"""Which brokers hold a new partition, which of them leads it, and which one leads after that.

Least loaded first, and the load counts what the same CreateStream has just placed: the partitions *and* the leaders
of one stream spread over the brokers. Ties go by id, so the choice is the same wherever it is computed.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from bascule.core.metadata.isr import ClusterState, Departure, leave, minimum
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
    loads = {server: _Load(server in absent, server in draining, 0, 0, server) for server in servers}
    for stream in streams:
        for existing in stream:
            if not existing.paused:
                for server in existing.replicas:
                    if server in loads:
                        loads[server].replicas += 1
                if existing.leader in loads:
                    loads[existing.leader].leaders += 1
    by_load = list(loads.values())
    placed = []
    for partition in range(partitions):
        by_load.sort(key=_RANK)
        chosen = by_load[:replication_factor]
        in_sync = [load for load in chosen if not load.absent] or chosen
        leader = min(in_sync, key=_RANK_TO_LEAD)
        for load in chosen:
            load.replicas += 1
        leader.leaders += 1
        replicas = tuple([load.server for load in chosen])
        isr = replicas if len(in_sync) == len(chosen) else tuple([load.server for load in in_sync])
        placed.append(Partition(PartitionId(partition), replicas, leader.server, isr=isr))
    return tuple(placed)


@dataclass(slots=True)
class _Load:
    """What a server has, and gets."""

    absent: bool
    draining: bool
    replicas: int
    leaders: int
    server: str


_RANK = attrgetter("absent", "draining", "replicas", "leaders", "server")
_RANK_TO_LEAD = attrgetter("draining", "leaders", "replicas", "server")


Changed = dict[str, dict[int, Partition]]
"""Partitions that change, by stream and number."""


def fail_over(streams: Mapping[str, Stream], broker: str, how: Departure, now: ClusterState) -> Changed:
    """The partitions that change when `broker` is dead or about to stop."""
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


def broker_started(
    streams: Mapping[str, Stream],
    broker: str,
    suspect: Collection[tuple[str, int]],
    unclean: bool,
    now: ClusterState,
) -> Changed:
    """The partitions that change when `broker` starts. It stays in the ISR, because it has what it promised, except
    where its log is `suspect`, or everywhere if its last stop was `unclean`. It leads under new leader epochs. Where it
    is not in sync the partition gets a new epoch too, which refuses requests made before this start.
    """
    leaders_of = count_leaders(streams)
    suspected = dict.fromkeys(suspect)
    changed: Changed = {}
    for name in sorted(streams):
        least = minimum(streams[name].config)
        for item in streams[name]:
            if broker not in item.replicas:
                continue
            if (name, item.id) in suspected:
                moved = leave(item, broker, Departure.SUSPECT, least, now, leaders_of)
            elif unclean:
                moved = leave(item, broker, Departure.UNCLEAN, least, now, leaders_of)
            elif item.leader == broker:
                moved = item._replace(epoch=now.epoch, leader_epoch=now.epoch)
            elif broker not in item.isr:
                moved = item._replace(epoch=now.epoch)
            else:
                continue
            changed.setdefault(name, {})[item.id] = moved
    return changed


def count_leaders(streams: Mapping[str, Stream]) -> Counter[str]:
    return Counter(item.leader for stream in streams.values() for item in stream)
