"""Damaged ends of logs: the last records of a broker that is down are flipped or truncated.

Within the contract: on one broker at a time, records that another replica in sync has on its disk; in a partition with
one replica only after a clean shutdown, which records where the log ended.
"""

import asyncio

from bascule.sim.faults.damage import part_of
from bascule.sim.faults.kinds import Family, fault
from bascule.sim.faults.strikes import Faults
from bascule.sim.host import Host
from bascule.sim.trace import Part
from bascule.testing.records import record_starts
from bascule.wire.kernels import decode_records, scan_records
from bascule.wire.record import Record

MAX_LATE_S = 12.0
MAX_CUT_RECORDS = 3
TAIL = Family("tail", likely=0.3)


@fault(TAIL, weight=14, needs_copies=True)
async def flip_tail(faults: Faults, host: Host) -> None:
    """The last record has a bit that flipped."""
    await _harm(faults, host, "flip_tail")


@fault(TAIL, weight=5, needs_copies=True)
async def cut_tail(faults: Faults, host: Host) -> None:
    """The file ends within its last records, or before them, although they were synced."""
    await _harm(faults, host, "cut_tail")


async def _harm(faults: Faults, host: Host, kind: str) -> None:
    """The broker stops, alone or with all the others; its log is damaged; it starts again, before or after them."""
    if not await faults.claimed(host):
        return
    chance = faults.chance
    hosts = list(faults.world.cluster.hosts.values())
    gone = [host, *(other for other in hosts if other is not host)] if chance.random() < 0.5 else [host]
    clean = await _go(faults, host)
    for other in gone[1:]:
        await _go(faults, other)
    if not host.running:
        _damage(faults, host, kind, clean)
    chance.shuffle(gone)
    for number, other in enumerate(gone):
        if number and number + 1 == len(gone):
            await faults.last(chance.uniform(0, MAX_LATE_S))
        await faults.come_back(other)
    await faults.recovered()


async def _go(faults: Faults, host: Host) -> bool:
    """Whether it was a clean shutdown."""
    if faults.chance.random() < 0.4:
        return await host.stop()
    if faults.world.scenario.sync.relaxed or faults.chance.random() < 0.5:
        faults.kill(host)
    else:
        faults.cut_power(host)
    await asyncio.sleep(0)
    return False


def _damage(faults: Faults, host: Host, kind: str, clean: bool) -> None:
    """Of one partition whose records others have."""
    logs = [path for path in host.disk.paths() if path.startswith("streams/") and path.endswith(".log")]
    last = {path.rpartition("/")[0]: path for path in logs}
    paths = list(last.values())
    faults.chance.shuffle(paths)
    for path in paths:
        data = host.disk.durable(path)
        good, count, *_ = scan_records(data, 0, len(data), 0)
        if not count or good < len(data) or data != host.disk.content(path):
            continue
        starts = record_starts(data)
        number = max(0, len(starts) - (faults.chance.randint(1, MAX_CUT_RECORDS) if kind == "cut_tail" else 1))
        records = [Record._make(entry) for entry in decode_records(data, starts[number], len(data), 1 << 30)[1]]
        part = part_of(faults, records[0])
        if part is None or not _allowed(faults, host, path, part, records, clean):
            continue
        faults.flips += 1
        offsets = f"{records[0].offset} to {records[-1].offset}"
        faults.note(kind, f"{part} @{offsets} of {host.name}, which is down{', cleanly' * clean}: {path}")
        for record in records:
            faults.world.omniscience.destroyed(host, path.rpartition("/")[0], record.offset)
            if faults.world.history.replication(part) == 1:
                faults.world.checker.known(part).damaged[record.offset] = None
        if kind == "cut_tail":
            between = faults.chance.random() < 0.5  # between two records: the log looks as if it was never longer
            host.disk.shorten(path, starts[number] + (0 if between else faults.chance.randrange(1, 40)))
        else:
            host.disk.flip(path, faults.chance.randrange(starts[number], len(data)), faults.chance.randrange(8))
        return


def _allowed(faults: Faults, host: Host, path: str, part: Part, records: list[Record], clean: bool) -> bool:
    world, folder = faults.world, path.rpartition("/")[0]
    if any((part, record.offset) in faults.flipped for record in records):
        return False
    if world.history.replication(part) == 1:
        return clean
    return all(world.omniscience.others_have(host, folder, record.offset) for record in records)
