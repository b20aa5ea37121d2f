"""Which brokers hold a new partition, which of them leads it, and who leads instead when that one is gone.

Least loaded first, and the load counts what the same CreateStream has just placed: the partitions *and* the leaders
of one stream spread over the brokers. Ties go by id, so the choice is the same wherever it is computed.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

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


def fail_over(streams: Mapping[str, Stream], broker: str, index: int, draining: Sequence[str] = ()) -> Changed:
    """The partitions that change when `broker` is gone or about to go, by stream.

    A new leader is the in-sync replica with the fewest leaderships, one that drains only if there is no other. A
    partition whose in-sync set is `broker` alone keeps it: nobody else has everything that was acked, and the leader
    may come back. It comes back under a new epoch: what it wrote last, and lost, may have reached replicas under the
    old one.
    """
    return begin_life(streams, broker, index, None, draining)


def begin_life(
    streams: Mapping[str, Stream],
    broker: str,
    index: int,
    doubtful: Collection[tuple[str, int]] | None,
    draining: Sequence[str] = (),
) -> Changed:
    """The partitions that change when `broker` starts. It keeps its place in the in-sync sets, for it has what it
    promised, except of the partitions it finds `doubtful` (None: all): these are as if it was gone. What it leads it
    leads under a new epoch.
    """
    leaders_of: Counter[str] = Counter(item.leader for stream in streams.values() for item in stream)
    doubted = None if doubtful is None else dict.fromkeys(doubtful)
    changed: Changed = {}
    for name in sorted(streams):
        for item in streams[name]:
            others = [replica for replica in item.isr if replica != broker]
            if broker not in item.isr:
                continue
            sure = doubted is not None and (name, item.id) not in doubted
            if sure and item.leader != broker:
                continue
            if sure or not others:
                changed.setdefault(name, {})[item.id] = replace(item, epoch=Epoch(index), leader_epoch=Epoch(index))
                continue
            moved = replace(item, epoch=Epoch(index), isr=tuple(others))
            if item.leader == broker:
                leader = min(others, key=lambda server: (server in draining, leaders_of[server], server))
                leaders_of[broker] -= 1
                leaders_of[leader] += 1
                moved = replace(moved, leader=leader, leader_epoch=Epoch(index))
            changed.setdefault(name, {})[item.id] = moved
    return changed
