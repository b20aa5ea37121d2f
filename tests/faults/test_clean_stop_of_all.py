"""Three real brokers stopped in good order, one after the other: two of them are enough to read what was committed."""

import asyncio
import itertools
import time
from pathlib import Path

import pytest

from bascule.client import Client
from bascule.errors import BasculeError
from tests.harness.cluster_load import Brokers

SOON_S = 2.0
SLOW_MACHINE_S = 3.0
"""Tests share their cores."""
GIVE_UP_S = 30.0
EXPECTED = [b"%d" % number for number in range(10)]


async def write(brokers: Brokers) -> None:
    async with await Client.connect(brokers.addresses) as client:
        await client.create_stream("s", replication_factor=3, min_isr=2)
        for value in EXPECTED:
            await client.publish("s", value)


async def read(addresses: list[str]) -> list[bytes]:
    deadline = time.monotonic() + GIVE_UP_S
    while True:
        try:
            async with asyncio.timeout(1.0), await Client.connect(addresses) as client:
                found = [each.value async for each in client.subscribe("s", start="earliest", stop="latest")]
                if found:
                    return found
        except (BasculeError, TimeoutError):
            pass
        assert time.monotonic() < deadline, "what was committed cannot be read"
        await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("back", list(itertools.combinations("abc", 2)))
def test_after_a_clean_stop_of_all_two_are_enough(tmp_path: Path, back: tuple[str, str]) -> None:
    with Brokers(tmp_path, peers=True) as brokers:
        asyncio.run(write(brokers))
        for broker in brokers.brokers.values():
            assert broker.terminate() == 0, broker.log_tail()
        first, second = (brokers[name] for name in back)
        first.start()
        time.sleep(4.0)  # it waits for a majority
        began = time.monotonic()
        second.start()
        assert asyncio.run(read([first.address, second.address])) == EXPECTED
        took_s = time.monotonic() - began
        print(f"readable {took_s:.2f} s after the start of {back[1]}")
        assert took_s < SOON_S + SLOW_MACHINE_S
