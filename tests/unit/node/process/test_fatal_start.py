"""A broker that cannot go on before it serves: its process ends and says why, as it does later."""

import asyncio
import sys
from contextlib import AsyncExitStack

import pytest

from bascule.errors import StartError
from bascule.node.config import load
from bascule.node.process import server as server_module
from bascule.node.process.server import RunningInfo, Server

LIMIT_S = 20.0


class Stuck(Server):
    """It would wait for its cluster for ever."""

    async def start(self, stack: AsyncExitStack) -> RunningInfo:
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, self._process().on_fatal, "Raft ended unexpectedly")
        await loop.create_future()
        raise AssertionError("it never started")


class Asked(Stuck):
    async def start(self, stack: AsyncExitStack) -> RunningInfo:
        loop = asyncio.get_running_loop()
        on_stop = self._process().on_stop
        assert on_stop is not None
        loop.call_later(0.01, on_stop)
        await loop.create_future()
        raise AssertionError("it never started")


async def run() -> int:
    running = asyncio.get_running_loop().create_task(server_module.run(load()))
    ended, _ = await asyncio.wait({running}, timeout=LIMIT_S)
    running.cancel()
    assert ended, "it waits on"
    return await running


@pytest.fixture(autouse=True)
def leave_the_interpreter_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "setswitchinterval", lambda seconds: None)
    monkeypatch.setattr(server_module, "keep_freed_memory", lambda: None)


def test_a_broker_that_cannot_go_on_while_it_starts_ends_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "Server", Stuck)
    with pytest.raises(StartError, match="Raft ended unexpectedly"):
        asyncio.run(run())


def test_a_broker_that_an_administrator_stops_while_it_starts_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "Server", Asked)
    assert asyncio.run(run()) == 0
