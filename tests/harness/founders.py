"""Clusters that are founded in memory: who is in them, and who votes."""

import asyncio

from tests.harness.members import Member


def clusters_of(members: dict[str, Member]) -> set[str]:
    return {member.broker.cluster.subjects.cluster for member in members.values() if member.process is not None}


def voters_of(member: Member) -> tuple[str, ...]:
    return member.broker.cluster.raft.membership.voters


def controllers_of(members: dict[str, Member]) -> list[str]:
    return [name for name, each in members.items() if each.process is not None and each.broker.cluster.raft.is_leader]


async def published(member: Member, value: bytes) -> None:
    """As soon as the in-sync set allows it."""
    for _ in range(100):
        try:
            await member.publish("s", value, timeout_s=1.0)
            return
        except AssertionError:
            await asyncio.sleep(0.1)
    raise AssertionError("it was never taken")


async def started(members: dict[str, Member], names: str = "") -> None:
    await asyncio.gather(*(members[name].start() for name in names or members))
