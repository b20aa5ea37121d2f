"""Which brokers hold a new partition, which of them leads it, and who leads instead when that one is gone.

Least loaded first, and the load counts what the same CreateStream has just placed: the partitions *and* the leaders
of one stream spread over the brokers. Ties go by id, so the choice is the same wherever it is computed.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bascule.core.metadata.streams import Partition, Stream
from bascule.types import Epoch, PartitionId


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


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What decides who leads instead."""

    index: int
    """Of the command: the new epoch."""
    alive: Sequence[str] = ()
    """Who may lead; () = everybody."""
    draining: Sequence[str] = ()
    """Who leads only if nobody else can."""


def fail_over(streams: Mapping[str, Stream], broker: str, now: Circumstances, lost: bool = False) -> Changed:
    """The partitions that change when `broker` is gone or about to go; with its disk, if that is `lost`."""
    leaders_of = count_leaders(streams)
    changed: Changed = {}
    for name in sorted(streams):
        least = 0 if lost else max(1, streams[name].config.min_isr or 1)
        for item in streams[name]:
            if broker in item.isr and (moved := without(item, broker, least, now, leaders_of)) is not item:
                changed.setdefault(name, {})[item.id] = moved
    return changed


def begin_life(
    streams: Mapping[str, Stream], broker: str, doubtful: Collection[tuple[str, int]] | None, now: Circumstances
) -> Changed:
    """The partitions that change when `broker` starts. It keeps its place in the in-sync sets, for it has what it
    promised, except of the partitions it finds `doubtful` (None: all): these are as if it was gone. What it leads it
    leads under a new epoch.
    """
    leaders_of = count_leaders(streams)
    doubted = None if doubtful is None else dict.fromkeys(doubtful)
    epoch = Epoch(now.index)
    changed: Changed = {}
    for name in sorted(streams):
        for item in streams[name]:
            if broker not in item.isr:
                continue
            if doubted is None or (name, item.id) in doubted:
                moved = without(item, broker, 1, now, leaders_of)
            elif item.leader == broker:
                moved = replace(item, epoch=epoch, leader_epoch=epoch)
            else:
                continue
            if moved is not item:
                changed.setdefault(name, {})[item.id] = moved
    return changed


def count_leaders(streams: Mapping[str, Stream]) -> Counter[str]:
    return Counter(item.leader for stream in streams.values() for item in stream)


def without(item: Partition, broker: str, least: int, now: Circumstances, leaders_of: Counter[str]) -> Partition:
    """This partition if it has to do without `broker`, and its in-sync set is to have `least` members.

    A new leader is the living in-sync replica with the fewest leaderships, one that drains only if there is no other.
    Where there is none the old one stays, under a new epoch, for it may come back: what it wrote last, and lost, may
    have reached replicas under the old epoch.

    The in-sync set never gets smaller than the minimum it commits with: all that are left in it have everything that
    was ever acked, so that any of them may lead. Only a lost disk (`least` is 0) has nothing; if it was the last copy
    in sync, nobody leads until somebody decides what to do without it.
    """
    others = tuple(replica for replica in item.isr if replica != broker)
    able = [replica for replica in others if not now.alive or replica in now.alive]
    isr = others if len(others) >= least else item.isr
    epoch = Epoch(now.index)
    if item.leader != broker:
        return item if isr == item.isr else replace(item, isr=isr, epoch=epoch)
    if not able and least:
        return replace(item, leader_epoch=epoch, epoch=epoch)
    leader = min(able or others, key=lambda server: (server in now.draining, leaders_of[server], server), default="")
    leaders_of[broker] -= 1
    leaders_of[leader] += 1
    return replace(item, isr=isr, leader=leader, leader_epoch=epoch, epoch=epoch)
