"""A log with anything at all done to its files becomes, record by record, what its peer has."""

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bascule.errors import PeerError, PeerLacks
from bascule.log.commitlog import CommitLog
from bascule.log.fill import Fetch
from bascule.log.healing import Healing
from bascule.log.refill import refill
from bascule.log.segment import Segment
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, Bench, open_bench
from bascule.testing.loop import run
from bascule.wire.kernels import scan_records
from tests.harness.segments import harm_anywhere


def log_bytes(disk: MemoryDisk) -> bytes:
    return b"".join(disk.content(path) for path in disk.paths() if path.startswith(FOLDER) and path.endswith(".log"))


async def filled(chance: random.Random) -> MemoryDisk:
    disk = MemoryDisk()
    bench = await open_bench(disk, segment_max_bytes=2_000)
    for number in range(chance.randrange(3, 12)):
        bodies = [chance.randbytes(chance.choice([0, 10, 300])) for _ in range(chance.randrange(1, 8))]
        bench.append(bodies, epoch=1 + number // 4)
        await bench.log.flushed()
    await bench.log.close()
    return disk


def harm(disk: MemoryDisk, chance: random.Random) -> None:
    """A flipped bit, a truncation, zeros or a lost file, somewhere."""
    paths = [path for path in disk.paths() if path.startswith(FOLDER)]
    if not paths:
        return
    path = chance.choice(paths)
    if chance.randrange(5):
        harm_anywhere(disk, path, chance)
    else:
        del disk._files[FOLDER][path]


async def open_replica(disk: MemoryDisk) -> Bench:
    return await open_bench(disk, segment_max_bytes=2_000, replicated=True)


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
        await replica.flushed()


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
        bench.log.segments.on_damage = on_damage
        assert await everything(bench.log) == before
        assert not bench.log.damaged
        assert log_bytes(disk) == before
        again = await open_replica(disk)
        assert not again.log.damaged
        assert await everything(again.log) == before

    run(scenario())


def by_offset(data: bytes) -> dict[int, bytes]:
    """Each record of good ones."""
    found: dict[int, bytes] = {}
    position = 0
    while position < len(data):
        end = position + 5 + int.from_bytes(data[position + 1 : position + 5], "big")
        good, count, first, _, _, _, _ = scan_records(data[position:end], 0, end - position, 0)
        assert count == 1
        assert good == end - position
        found[first] = data[position:end]
        position = end
    return found


def spoil(disk: MemoryDisk, chance: random.Random, share: float) -> None:
    """Flip a bit in the value of some records, not in the last one of the log."""
    paths = sorted(path for path in disk.paths() if path.startswith(FOLDER) and path.endswith(".log"))
    for path in paths:
        data, starts, position = disk.content(path), [], 0
        while position < len(data):
            starts.append(position)
            position += 5 + int.from_bytes(data[position + 1 : position + 5], "big")
        for start in starts if path != paths[-1] else starts[:-1]:
            if chance.random() < share:
                disk.flip(path, start + 8, chance.randrange(8))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 32))
def test_replicas_that_are_all_damaged_get_everything_that_one_of_them_has(seed: int) -> None:
    async def scenario() -> None:
        chance = random.Random(seed)
        disk = await filled(chance)
        disks = [disk.copy() for _ in range(3)]
        for each in disks:
            spoil(each, chance, chance.choice((0.05, 0.3, 0.6)))
        there = by_offset(log_bytes(disk))
        logs = [(await open_replica(each)).log for each in disks]
        union: dict[int, bytes] = {}
        for log in logs:
            union |= by_offset(await everything(log))  # readers note what a start does not scan

        def fetch_from(peer: CommitLog) -> Fetch:
            async def fetch(start: int, end: int) -> bytes:
                """As peers answer."""
                reader = peer.reader(start, uncommitted=True, heals=False)
                records = await reader.read(500, end) or b""
                if reader.skipped or peer.segments.lacks(start, end):
                    raise PeerLacks("damaged")
                return records

            return fetch

        for _ in range(50):
            helped = False
            for log in logs:
                for peer in logs:
                    for segment in list(log.damaged) if peer is not log else ():
                        with contextlib.suppress(PeerLacks):
                            helped |= await refill(log, segment, fetch_from(peer))
            if not helped:
                break
        assert not helped
        for log, each in zip(logs, disks, strict=True):
            assert await everything(log) == b"".join(union[offset] for offset in sorted(union))
            assert bool(log.damaged) == (len(union) < len(there))
            await log.close()
            again = (await open_replica(each)).log
            assert await everything(again) == b"".join(union[offset] for offset in sorted(union))

    run(scenario())


async def ten_records(epoch: int) -> MemoryDisk:
    bench = await open_bench(MemoryDisk(), segment_max_bytes=100_000)
    bench.append([b"%d" % number for number in range(4)], epoch=1)
    bench.append([b"%d" % number for number in range(4, 10)], epoch=epoch)
    await bench.log.flushed()
    await bench.log.close()
    disk = bench.disk
    assert isinstance(disk, MemoryDisk)
    return disk


@pytest.mark.parametrize(("epoch", "helps"), [(1, True), (2, False)])
def test_a_peer_that_is_shorter_helps_with_records_of_the_epoch_that_is_missing(epoch: int, helps: bool) -> None:
    """It may be the only one that has them, and has not been sent the record that follows here yet."""

    async def scenario() -> None:
        own, other = await ten_records(1), await ten_records(epoch)
        before = log_bytes(own)
        (path,) = (path for path in own.paths() if path.startswith(FOLDER) and path.endswith(".log"))
        starts = [len(before) * number // 10 for number in range(10)]
        assert all(before[start] == 0 for start in starts), "ten records of one size"
        own.flip(path, starts[7] + 8, 3)  # offset 7: what follows it is 8
        other.put(path, other.content(path)[: starts[8]])  # not as far as offset 8
        own_log, peer = (await open_replica(own)).log, (await open_replica(other)).log
        assert peer.end == 8

        async def fetch(start: int, end: int) -> bytes:
            return await peer.reader(start, uncommitted=True).read(500, end) or b""

        (segment,) = own_log.damaged
        assert await refill(own_log, segment, fetch) is helps
        assert (log_bytes(own) == before) is helps
        assert bool(own_log.damaged) is not helps

    run(scenario())


def test_what_a_peer_sends_is_verified() -> None:
    async def scenario() -> None:
        own, other = await ten_records(1), await ten_records(1)
        before = log_bytes(own)
        (path,) = (path for path in own.paths() if path.startswith(FOLDER) and path.endswith(".log"))
        own.flip(path, len(before) * 5 // 10 + 8, 3)
        damaged = log_bytes(own)
        own_log, peer = (await open_replica(own)).log, (await open_replica(other)).log

        async def fetch(start: int, end: int) -> bytes:
            records = await peer.reader(start, uncommitted=True).read(500, end) or b""
            return records + b"junk" if start == 5 else records

        (segment,) = own_log.damaged
        with pytest.raises(PeerError):
            await refill(own_log, segment, fetch)
        assert log_bytes(own) == damaged

    run(scenario())


def test_nothing_is_taken_of_a_log_that_becomes_another_one_meanwhile() -> None:
    """The peer truncates its log, and follows another leader, between the record that shows that it is the same one and
    the records that are missing."""

    async def scenario() -> None:
        own, same, parted = await ten_records(1), await ten_records(1), await ten_records(2)
        (path,) = (path for path in own.paths() if path.startswith(FOLDER) and path.endswith(".log"))
        own.flip(path, len(log_bytes(own)) * 5 // 10 + 8, 3)
        damaged = log_bytes(own)
        own_log, peer = (await open_replica(own)).log, (await open_replica(same)).log
        later = (await open_replica(parted)).log

        async def fetch(start: int, end: int) -> bytes:
            nonlocal peer
            if start == 5:
                peer = later
            return await peer.reader(start, uncommitted=True).read(500, end) or b""

        (segment,) = own_log.damaged
        assert not await refill(own_log, segment, fetch)
        assert log_bytes(own) == damaged

    run(scenario())
