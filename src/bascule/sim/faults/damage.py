"""Bit flips in files at rest."""

from bascule.sim.faults.kinds import Family, fault
from bascule.sim.faults.strikes import Faults
from bascule.sim.history import StreamInfo
from bascule.sim.host import Host
from bascule.sim.trace import Part
from bascule.testing.records import record_starts
from bascule.wire.kernels import decode_records, scan_records
from bascule.wire.record import Record

MAX_FLIPS = 5
"""In one run: each may destroy a record, and with more too few would be left to check."""
FLIP = Family("flip", likely=0.35)


@fault(FLIP, weight=4)
async def flip(faults: Faults, host: Host) -> None:
    """A bit of an index, or of a record that is not the last one of its log: a damaged last record may look like a torn
    write."""
    paths = [path for path in host.disk.paths() if path.startswith("streams/")]
    path = faults.chance.choice(paths) if paths and faults.flips < MAX_FLIPS else ""
    if path.endswith(".index"):
        _flip_anywhere(faults, "flip", host, path)
    elif path.endswith(".log"):
        _flip_record(faults, host, path)


@fault(FLIP, weight=3)
async def flip_snapshot(faults: Faults, host: Host) -> None:
    """The newest snapshot of Raft, if there is an older one to fall back on: losing both cannot be repaired."""
    snapshots = [path for path in host.disk.paths() if path.startswith("raft/") and path.endswith(".snapshot")]
    if len(snapshots) > 1 and not faults.counts["flip_snapshot"]:
        _flip_anywhere(faults, "flip_snapshot", host, snapshots[-1])


def _flip_anywhere(faults: Faults, kind: str, host: Host, path: str) -> None:
    size = len(host.disk.durable(path))
    if size and host.disk.durable(path) == host.disk.content(path):
        faults.flips += 1
        faults.note(kind, f"a bit of {path} of {host.name} flips")
        host.disk.flip(path, faults.chance.randrange(size), faults.chance.randrange(8))


def _flip_record(faults: Faults, host: Host, path: str) -> None:
    data = host.disk.durable(path)
    good, count, *_ = scan_records(data, 0, len(data), 0)
    if count < 2 or good < len(data) or data != host.disk.content(path)[: len(data)]:
        return
    starts = record_starts(data)
    number = faults.chance.randrange(len(starts) - 1)
    start, end = starts[number], starts[number + 1]
    record = Record._make(decode_records(data, start, end, 1)[1][0])
    part = part_of(faults, record)
    if part is None or (part, record.offset) in faults.flipped or faults.harmed is not None:
        return
    folder, replicated = path.rpartition("/")[0], faults.world.history.replication(part) > 1
    if replicated and not faults.world.omniscience.others_have(host, folder, record.offset):
        return  # the contract covers only replicated records
    faults.flips += 1
    faults.flipped[part, record.offset] = None
    position, bit = faults.chance.randrange(start, end), faults.chance.randrange(8)
    faults.note("flip", f"bit {bit} of byte {position - start} of {part} @{record.offset} flips, {host.name} {path}")
    host.disk.flip(path, position, bit)
    _destroyed(faults, host, path, part, record.offset)


def _destroyed(faults: Faults, host: Host, path: str, part: Part, offset: int) -> None:
    folder, replicated = path.rpartition("/")[0], faults.world.history.replication(part) > 1
    faults.world.omniscience.destroyed(host, folder, offset)
    if not replicated:
        faults.world.checker.known(part).damaged[offset] = None


def part_of(faults: Faults, record: Record) -> Part | None:
    stream: StreamInfo | None = faults.world.history.streams.get(record.stream)
    return None if stream is None else Part(stream.name, stream.incarnation, record.partition)
