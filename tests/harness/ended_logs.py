"""Logs that ended cleanly or in a crash, with their promised ends."""

import asyncio

from bascule.log import cleanshutdown
from bascule.log.promised import PromisedEnds
from bascule.log.tail import Tail
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, Bench, open_bench, start_ends, stop_ends

SEGMENT_BYTES = 400
COUNT = 12


def body(number: int) -> bytes:
    return b"message %d" % number


def numbered(*offsets: int) -> list[tuple[int, bytes]]:
    return [(number, body(number)) for number in offsets]


NOT_SUSPECT = (Tail.SURE, Tail.LIKELY)


def segments(disk: MemoryDisk) -> list[str]:
    return [path for path in disk.paths() if path.startswith(FOLDER) and path.endswith(".log")]


async def opened(disk: MemoryDisk, replicated: bool = False) -> tuple[PromisedEnds, Bench]:
    ends = await start_ends(disk)
    return ends, await open_bench(disk, SEGMENT_BYTES, ends=ends, replicated=replicated)


async def on_record() -> None:
    """Longer than anything promised takes to be on record."""
    await asyncio.sleep(0.2)


async def filled(replicated: bool = False, count: int = COUNT) -> tuple[MemoryDisk, PromisedEnds, Bench]:
    disk = MemoryDisk()
    ends, bench = await opened(disk, replicated)
    for number in range(count):
        await bench.store([body(number)])
    assert len(bench.log.segments) > 2
    await on_record()
    return disk, ends, bench


async def stopped(clean: bool, replicated: bool = False) -> MemoryDisk:
    """A disk as a stop leaves it, or a kill some time after the last promise."""
    disk, ends, bench = await filled(replicated)
    if clean:
        await stop_ends(ends, bench)
        assert cleanshutdown.FILE in disk.paths()
    else:
        assert cleanshutdown.FILE not in disk.paths()
    return disk.copy()
