"""Messages over the limit that come straight by NATS: not stored, counted, and said without filling the log."""

import asyncio
import logging
from dataclasses import replace

import pytest

from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from tests.harness.broker import DEFAULTS, Node

MOST = 1_000


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.harness.broker.DEFAULTS", replace(DEFAULTS, max_message_bytes=MOST))


def test_plain_messages_over_the_limit_are_counted_and_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def scenario() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        for _ in range(20):
            node.nats.publish(b"s", b"fits")
            node.nats.publish(b"s", bytes(MOST + 7))
            await asyncio.sleep(0.1)
        node.nats.publish(b"s", bytes(MOST))
        await asyncio.sleep(20)
        node.nats.publish(b"s", bytes(MOST + 1))
        await asyncio.sleep(1)
        assert len(await node.read("s")) == 21

    run(scenario())
    said = [record.getMessage() for record in caplog.records if "over the limit" in record.getMessage()]
    assert len(said) == 2
    assert said[0].startswith("s/0: 1 messages over the limit not stored")
    assert f"the largest has {MOST + 7} bytes, the most is {MOST}" in said[0]
    assert "21 since" in said[1]
    assert "19 more since the last such line" in said[1]


def test_a_large_batch_of_small_messages_is_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(batch: bytes) -> None:
        raise AssertionError("a hot path")

    monkeypatch.setattr("bascule.node.partition.leading.messages", never)

    async def scenario() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        for _ in range(100):
            node.nats.publish(b"s", bytes(100))
        await asyncio.sleep(1)
        assert len(await node.read("s")) == 100

    run(scenario())
