"""A damaged stretch with nothing behind it yet: what a peer has there is not given up, and taken once it is known."""

import asyncio
import random

import pytest

from bascule.errors import PeerError
from bascule.log.refill import refill
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import FOLDER, open_bench, start_ends
from bascule.testing.loop import run
from tests.harness.ended_logs import segments

SEGMENT_BYTES = 60
"""One record in each segment."""


def test_records_of_a_peer_that_cannot_be_compared_yet_are_not_taken_for_lost() -> None:
    """A power loss without sync left the names of the last two files, and nothing in them."""

    async def scenario() -> None:
        disk = MemoryDisk()
        bench = await open_bench(disk, SEGMENT_BYTES, ends=await start_ends(disk), replicated=True)
        for number in range(4):
            await bench.store([b"%d" % number * 30])
        await asyncio.sleep(1)
        *_, third, last = segments(disk)
        missing, following = disk.content(third), disk.content(last)
        disk.kill(random.Random(1))
        disk.put(third, b"")
        disk.put(last, b"")
        bench = await open_bench(disk, SEGMENT_BYTES, ends=await start_ends(disk), replicated=True)
        log = bench.log
        assert (log.end, log.folder) == (3, FOLDER)
        (segment,) = log.damaged

        async def fetch(first: int, end: int) -> bytes:
            return {(2, 3): missing, (3, 4): following}[first, end]

        async def lacks(first: int, end: int) -> bytes:
            return b""

        assert not await refill(log, segment, lacks), "a peer without a record there is no help"
        with pytest.raises(PeerError):
            await refill(log, segment, fetch)
        log.append(following, 1, 4, log.last_timestamp + 1)
        await log.flushed()
        assert await refill(log, segment, fetch)
        assert [offset for offset, _ in await bench.read_all()] == [0, 1, 2, 3]

    run(scenario())
