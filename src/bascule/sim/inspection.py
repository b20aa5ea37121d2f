"""Whether the brokers agree with each other, which no client can see. Only for times without load."""

import asyncio

from bascule.errors import LogError
from bascule.log.commitlog import CommitLog
from bascule.sim.history import TOMBSTONE
from bascule.sim.host import Host
from bascule.sim.trace import Part
from bascule.sim.world import World
from bascule.testing.records import split
from bascule.wire.kernels import decode_records
from bascule.wire.record import Record

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
        if part in world.checker.compacted:
            if different := _keys_differ(found, expected) or _keys_differ(expected, found):
                return f"{name} and its leader {leader.name}, below {led.hw_end}: {different}"
        elif found != expected:
            first = next((at for at, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), -1)
            return (
                f"{name} has {len(found)} bytes below {led.hw_end} and its leader {leader.name} {len(expected)}; "
                f"the first that differs: {first}"
            )
    return ""


def _keys_differ(found: bytes, other: bytes) -> str:
    """I12: compaction may have left other records on each replica: what one lacks of the records of the other, a later
    one of the same key supersedes that it has; or it is a tombstone, and there is nothing of its key. What both have is
    the same."""
    ours, theirs = _records(found), _records(other)
    newest = {record.key: offset for offset, (record, _) in ours.items()}
    for offset, (record, stored) in theirs.items():
        if offset not in ours:
            if record.key and record.key not in newest and not record.value and TOMBSTONE in record.headers:
                continue  # it is gone on one of them, with all that it deletes
            if not record.key or newest.get(record.key, -1) < offset:
                return f"the newest record of {record.key!r}, at {offset}, is on one of them only"
        elif ours[offset][1] != stored:
            return f"they have different records at {offset}"
    return ""


def _records(content: bytes) -> dict[int, tuple[Record, bytes]]:
    decoded = decode_records(content, 0, len(content), 1 << 30)[1]
    pairs = zip(map(Record._make, decoded), split(content), strict=True)
    return {record.offset: (record, stored) for record, stored in pairs}


async def content(log: CommitLog, end: int) -> bytes:
    reader = log.reader(log.start, uncommitted=True)
    found = []
    try:
        while (records := await reader.read(READ_BYTES, end)) is not None:
            found.append(records)
    except LogError as error:
        found.append(str(error).encode())
    return b"".join(found)


def left_files(world: World) -> str:
    """Of any log; "" if there are none."""
    for host in world.cluster.serving():
        for replica in host.broker.replicas.values() if host.broker is not None else ():
            if left := left_file(host, replica.log):
                return left
    return ""


def left_file(host: Host, log: CommitLog) -> str:
    """A file in the folder of this log that is no segment any more."""
    segments = {each.path for each in log.segments}
    paths = [path for path in host.disk.stored(log.folder, durable=False) if path.endswith(".log")]
    left = next((path for path in paths if path not in segments), "")
    return f"{host.name} has {left}, which is no segment any more" if left else ""


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
