"""A log with anything at all done to its files becomes, record by record, what its peer has."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.log.commitlog import CommitLog, LogConfig
from bascule.log.reader import Healing
from bascule.log.refill import refill
from bascule.log.segment import Segment
from bascule.log.sync import SyncScheduler
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, Bench, ManualClock, open_bench
from bascule.testing.loop import run


def log_bytes(disk: MemoryDisk) -> bytes:
    return b"".join(disk.content(path) for path in disk.paths() if path.startswith(FOLDER) and path.endswith(".log"))


async def filled(chance: random.Random) -> MemoryDisk:
    disk = MemoryDisk()
    bench = await open_bench(disk, segment_max_bytes=2_000)
    for number in range(chance.randrange(3, 12)):
        bodies = [chance.randbytes(chance.choice([0, 10, 300])) for _ in range(chance.randrange(1, 8))]
        bench.append(bodies, epoch=1 + number // 4)
        await bench.log.settled()
    await bench.log.close()
    return disk


def harm(disk: MemoryDisk, chance: random.Random) -> None:
    """A flipped bit, a cut, zeros or a lost file, somewhere."""
    paths = [path for path in disk.paths() if path.startswith(FOLDER)]
    if not paths:
        return
    path = chance.choice(paths)
    data = disk.content(path)
    position = chance.randrange(len(data) or 1)
    match chance.randrange(5):
        case 0 | 1 if data:
            disk.flip(path, position, chance.randrange(8))
        case 2:
            disk.put(path, data[:position])
        case 3:
            disk.put(path, data[:position] + bytes(min(len(data) - position, 600)) + data[position + 600 :])
        case _:
            del disk._files[FOLDER][path]


async def open_replica(disk: MemoryDisk) -> Bench:
    clock = ManualClock()
    bench = Bench(disk, SyncScheduler(disk, clock), clock)
    bench.log = await CommitLog.open(
        disk, bench.scheduler, FOLDER, LogConfig(2_000), clock, bench.promises.append, bench.failures.append, True
    )
    return bench


async def everything(log: CommitLog, start: int = 0) -> bytes:
    reader = log.reader(start, uncommitted=True)
    pieces = []
    while (records := await reader.read()) is not None:
        pieces.append(records)
    return b"".join(pieces)


async def copy_tail(replica: CommitLog, leader: CommitLog) -> None:
    """As replication does."""
    reader = leader.reader(replica.end, uncommitted=True)
    while (records := await reader.read()) is not None:
        replica.append(records, reader.count, reader.next_offset, leader.last_timestamp)
        await replica.settled()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 32))
def test_whatever_is_done_to_a_replicas_files_it_becomes_its_peers_log_again(seed: int) -> None:
    async def scenario() -> None:
        chance = random.Random(seed)
        disk = await filled(chance)
        peer = await open_bench(disk.copy(), segment_max_bytes=2_000)

        async def fetch(start: int, end: int) -> bytes:
            return await peer.log.reader(start, uncommitted=True).read(500, end) or b""

        before = log_bytes(disk)
        for _ in range(chance.randrange(1, 4)):
            harm(disk, chance)
        bench = await open_replica(disk)
        healed: list[bool] = []

        async def on_damage(segment: Segment, wait: bool) -> Healing:
            healed.append(await refill(bench.log, segment, fetch))
            return Healing.HEALED if healed[-1] else Healing.UNKNOWN

        await copy_tail(bench.log, peer.log)
        for segment in list(bench.log.damaged):
            assert await refill(bench.log, segment, fetch)
        bench.log.on_damage = on_damage
        assert await everything(bench.log) == before
        assert not bench.log.damaged
        assert log_bytes(disk) == before
        again = await open_replica(disk)
        assert not again.log.damaged
        assert await everything(again.log) == before

    run(scenario())
