"""Whether the brokers agree with each other, which no client can see. Only for times without load."""

import asyncio

from bascule.errors import LogError
from bascule.log.commitlog import CommitLog
from bascule.sim.trace import Part
from bascule.sim.world import World

READ_BYTES = 1 << 20
HEALING_S = 20


async def compare_replicas(world: World, part: Part, when: str) -> None:
    """I8: below the high watermark all replicas have the same bytes. Damage that no read had found is found now, and
    gets the time to be repaired."""
    if world.checker.known(part).damaged:
        return  # it was the only copy in sync, and cannot be repaired
    for _ in range(HEALING_S):
        different = await _difference(world, part)
        if not different:
            return
        await asyncio.sleep(1.0)
    world.checker.violate("I8", f"{when} {different}", part)


async def _difference(world: World, part: Part) -> str:
    leader = world.cluster.leader(part)
    led = leader.replica(part) if leader is not None else None
    if leader is None or led is None:
        return "nobody leads it"
    expected = await content(led.log, led.hw_end)
    for name in led.partition.replicas:
        replica = world.cluster.hosts[name].replica(part)
        found = await content(replica.log, led.hw_end) if replica is not None else b""
        if found != expected:
            first = next((at for at, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), -1)
            return (
                f"{name} has {len(found)} bytes below {led.hw_end} and its leader {leader.name} {len(expected)}; "
                f"the first that differs: {first}"
            )
    return ""


async def content(log: CommitLog, end: int) -> bytes:
    reader = log.reader(log.start, uncommitted=True)
    found = []
    try:
        while (records := await reader.read(READ_BYTES, end)) is not None:
            found.append(records)
    except LogError as error:
        found.append(str(error).encode())
    return b"".join(found)


def same_index(world: World) -> bool:
    """Whether all brokers have applied the same number of commands: one may be in flight."""
    brokers = [host.broker for host in world.cluster.serving() if host.broker is not None]
    return len({broker.cluster.metadata.index for broker in brokers}) <= 1


def compare_metadata(world: World, when: str) -> None:
    known: dict[bytes, str] = {}
    for host in world.cluster.serving():
        if host.broker is not None:
            known.setdefault(host.broker.cluster.metadata.snapshot(), host.name)
    if len(known) > 1:
        text = f"{when} the metadata differs between {', '.join(known.values())}"
        world.checker.violate("raft", text)
