"""Partitions of brokers in memory, as the metadata has them."""

from bascule.core.metadata.streams import Partition
from tests.harness.members import Member, leader_of

REPLICATION, CONTROL = 3, 0


def item_of(members: dict[str, Member]) -> Partition:
    """As the living broker that knows most has it."""
    known = [m.broker.cluster.metadata for m in members.values() if m.life is not None]
    item = max(known, key=lambda metadata: metadata.index).partition("s", 0)
    assert item is not None
    return item


def followers(members: dict[str, Member]) -> list[Member]:
    leader = leader_of(members, "s")
    return [member for member in members.values() if member is not leader]
