"""Which brokers hold a new partition, and which of them leads it.

Least loaded first, and the load counts what the same CreateStream has just placed: the partitions *and* the leaders
of one stream spread over the brokers. Ties go by id, so the choice is the same wherever it is computed.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from bascule.core.metadata.streams import Partition, Stream
from bascule.types import PartitionId


def place(
    partitions: int, replication_factor: int, servers: Sequence[str], streams: Iterable[Stream]
) -> tuple[Partition, ...]:
    replicas_of: Counter[str] = Counter()
    leaders_of: Counter[str] = Counter()
    for stream in streams:
        for existing in stream:
            if not existing.paused:
                replicas_of.update(existing.replicas)
                leaders_of[existing.leader] += 1
    placed = []
    for partition in range(partitions):
        by_load = sorted(servers, key=lambda server: (replicas_of[server], leaders_of[server], server))
        replicas = tuple(by_load[:replication_factor])
        leader = min(replicas, key=lambda server: (leaders_of[server], replicas_of[server], server))
        replicas_of.update(replicas)
        leaders_of[leader] += 1
        placed.append(Partition(PartitionId(partition), replicas, leader, isr=replicas))
    return tuple(placed)
