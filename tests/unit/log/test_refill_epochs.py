"""A damaged stretch that a peer has, whose log ends before anything proves that it is the same one: epochs do."""

from collections.abc import Sequence

import pytest

from bascule.log.refill import refill
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import Bench, open_bench
from bascule.testing.loop import run
from bascule.testing.records import record_starts

EPOCHS = (1, 1, 1, 2, 2, 2)


async def stored(epochs: Sequence[int]) -> MemoryDisk:
    disk = MemoryDisk()
    bench = await open_bench(disk)
    for number, epoch in enumerate(epochs):
        bench.append([b"%d" % number * 20], epoch=epoch)
    await bench.log.flushed()
    await bench.close()
    return disk


async def damaged(disk: MemoryDisk, offsets: Sequence[int]) -> Bench:
    (path,) = (path for path in disk.paths() if path.endswith(".log"))
    places = record_starts(disk.content(path))
    for offset in offsets:
        disk.flip(path, places[offset] + 20, 1)
    return await open_bench(disk, replicated=True)


async def heal(bench: Bench, peer: Bench, at_once: int = 1 << 20) -> bool:
    async def fetch(start: int, end: int) -> bytes:
        return await peer.log.reader(start, uncommitted=True).read(at_once, end) or b""

    (segment,) = bench.log.damaged
    return await refill(bench.log, segment, fetch)


@pytest.mark.parametrize("at_once", [1, 1 << 20])
@pytest.mark.parametrize(
    ("lost", "peer_end"),
    [((0,), 1), ((0, 1), 2), ((1,), 2), ((3,), 4), ((3, 4), 5), ((2, 3), 4), ((1, 2, 3, 4), 5)],
)
def test_a_peer_that_ends_within_a_stretch_heals_it(lost: tuple[int, ...], peer_end: int, at_once: int) -> None:
    """Also the first record of all, which has none before it, and one of an epoch before the last of the stretch."""

    async def scenario() -> None:
        disk = await stored(EPOCHS)
        whole = disk.copy()
        peer = await open_bench(await stored(EPOCHS[:peer_end]))
        bench = await damaged(disk, lost)
        assert await heal(bench, peer, at_once)
        assert not bench.log.damaged
        path = bench.log.segments[0].path
        assert disk.content(path) == whole.content(path)

    run(scenario())


@pytest.mark.parametrize("lost", [(0,), (1, 2)])
def test_records_of_another_epoch_are_not_taken(lost: tuple[int, ...]) -> None:
    """A peer that parted from this log has records at the same offsets, and they are not the missing ones."""

    async def scenario() -> None:
        bench = await damaged(await stored((3, 3, 3, 5)), lost)
        peer = await open_bench(await stored((3, 4, 4) if lost[0] else (1,)))
        try:
            assert not await heal(bench, peer)
        finally:
            assert [offset for offset, _ in await bench.read_all()] == [each for each in range(4) if each not in lost]

    run(scenario())
