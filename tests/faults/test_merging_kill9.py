"""kill -9 of the real process while it merges segments of one message each: every acked message is there, once."""

import asyncio
import random
import time
from pathlib import Path

import pytest

from bascule import limits
from bascule.client import Client
from bascule.log.manifest import MANIFEST_SUFFIX
from bascule.testing.processes import poll, start_broker

KILLS = 6
MOST_MESSAGES = 1_000
"""Until a merge is met."""
LOG = "**/streams/orders@*/0"


def swaps(folder: Path) -> bool:
    return any(folder.glob(f"{LOG}/*{MANIFEST_SUFFIX}*"))


async def fill(address: str, folder: Path, expected: list[tuple[int, bytes]]) -> None:
    """Publish until segments are merged."""
    async with await Client.connect(address) as client:
        if not expected:
            await client.create_stream("orders", segment_max_bytes=1, cleaner_interval_ms=500)
        for number in range(MOST_MESSAGES):
            await client.publish("orders", b"%d" % number)
            expected.append((len(expected), b"%d" % number))
            if swaps(folder):
                break


async def stored(address: str) -> list[tuple[int, bytes]]:
    async with await Client.connect(address) as client:
        subscription = client.subscribe("orders", start="earliest", stop="latest")
        return [(message.offset, message.value) async for batch in subscription.batches() for message in batch]


@pytest.mark.slow
def test_every_acked_message_is_there_once_whenever_the_process_is_killed(tmp_path: Path) -> None:
    chance = random.Random(5)
    expected: list[tuple[int, bytes]] = []
    amid = 0
    with start_broker(tmp_path) as broker:
        for _ in range(KILLS):
            asyncio.run(fill(broker.address, tmp_path, expected))
            time.sleep(chance.choice((0.0, 0.0, 0.002, 0.01)))
            broker.kill9()
            amid += swaps(tmp_path)
            broker.start()
            broker.wait_ready()
            assert asyncio.run(stored(broker.address)) == expected
        assert poll(lambda: len(list(tmp_path.glob(f"{LOG}/*.log"))) < limits.MERGED_FROM_SEGMENTS, 60.0)
        assert asyncio.run(stored(broker.address)) == expected
    assert amid, "killed in the middle of a swap"
