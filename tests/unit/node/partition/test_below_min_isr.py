"""Partitions below their minimal in-sync set: one line for all of them, and another one when their number changes."""

import asyncio
import logging

import pytest

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node

COUNT = 40


def test_many_partitions_below_their_minimum_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    def said() -> list[str]:
        return [each.getMessage() for each in caplog.records if "this broker leads" in each.getMessage()]

    async def scenario() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        for name in ("first", "second"):
            request = api.CreateStreamRequest(name=name, subject=name, partitions=COUNT)
            request.minIsr.value = 2
            assert (await node.call("CreateStream", request))[0] is Status.OK
            await asyncio.sleep(5)
        assert [text.split(" (")[0] for text in said()] == [
            f"{count} partitions that this broker leads are below min ISR" for count in (COUNT, 80)
        ]
        assert "(first/0, first/1, first/2, first/3, first/4, …)" in said()[0]
        for name in ("first", "second"):
            assert (await node.call("DeleteStream", api.DeleteStreamRequest(name=name)))[0] is Status.OK
        await asyncio.sleep(5)
        assert said()[-1] == "all partitions that this broker leads have enough replicas in sync again"
        assert len(said()) <= 4

    run(scenario())
