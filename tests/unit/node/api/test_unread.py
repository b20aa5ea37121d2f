"""However many clients take nothing, what was read for them is bounded, and others are served."""

import asyncio
from typing import Any

import pytest

from bascule.errors import Status
from bascule.node.api import unread
from bascule.node.api.subscribe import HANDSHAKE
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import log_pb2 as log
from tests.harness.broker import Node, split

CALLS = {
    "Subscribe": api.SubscribeRequest(stream="s", startPosition=api.EARLIEST),
    "reverse": api.SubscribeRequest(stream="s", startPosition=api.LATEST, reverse=True),
    "/bascule.v1.Log/Read": log.ReadRequest(stream="s", maxBytes=150_000),
}
VALUE = 1000
BOUND = 300_000


async def filled() -> Node:
    node = await Node(MemoryDisk(), MemoryNats()).start()
    await node.create("s", segmentMaxBytes=api.NullableInt64(value=1 << 22))
    for number in range(400):
        await node.publish("s", b"%d" % number + bytes(VALUE))
    return node


def held_by(node: Node) -> float:
    held: float = next(
        each.values[""] for each in node.broker.environment.metrics.read() if each.name == "bascule_unread_bytes"
    )
    return held


def begin(node: Node, method: str, taking: bool) -> tuple[MemoryCall, "asyncio.Task[tuple[Status, str]]"]:
    call = MemoryCall(None)
    call.taking = taking
    call.request(CALLS[method].SerializeToString())
    name = "Subscribe" if method == "reverse" else method
    return call, asyncio.create_task(call.run(node.handler(name)))


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread, "UNREAD_BYTES", BOUND)


async def idle(node: Node, method: str, count: int) -> list[Any]:
    begun = []
    for _ in range(count):
        call, task = begin(node, method, taking=False)
        begun.append((call, task))
        for _ in range(100):
            if not call.queued_bytes:
                await asyncio.sleep(0.001)
        if call.queued_bytes == len(HANDSHAKE):
            call.take()
    await asyncio.sleep(0.1)
    return begun


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("method", CALLS)
def test_many_clients_that_take_nothing_are_held_little_for_each(method: str) -> None:
    async def main() -> None:
        node = await filled()
        await idle(node, method, 5)
        held = held_by(node)
        assert BOUND * 0.6 < held < BOUND * 1.1
        call, served = begin(node, "/bascule.v1.Log/Read", taking=True)
        assert await served == (Status.OK, "")
        answers = [log.ReadResponse.FromString(each) for each in split(bytes(call.responses))]
        assert sum(each.count for each in answers) == 400
        assert len(answers) > 10, "it is served in smaller pieces"
        assert held_by(node) == held

    run(main())


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("method", CALLS)
def test_without_room_a_reader_waits_and_is_sent_away(method: str) -> None:
    async def main() -> None:
        node = await filled()
        begun = await idle(node, "Subscribe", 20)
        refused = [task.result() for _, task in begun if task.done()]
        assert held_by(node) >= BOUND
        call, served = begin(node, method, taking=True)
        await asyncio.sleep(5.0)
        assert not served.done()
        status, text = await served
        assert (status, "have not taken" in text) == (Status.UNAVAILABLE, True)
        assert refused == []
        call, served = begin(node, method, taking=True)
        await asyncio.sleep(5.0)
        begun[0][0].cancel()
        begun[1][0].taking = True
        begun[1][0].take()
        await asyncio.sleep(5.0)
        assert len(bytes(call.responses)) > 400 * VALUE, "it was let in"

    run(main())


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("method", CALLS)
def test_nothing_is_held_for_clients_that_are_gone(method: str) -> None:
    async def main() -> None:
        node = await filled()
        begun = await idle(node, method, 10)
        assert held_by(node) > 0
        for call, task in begun:
            call.cancel()
            task.cancel()
        await asyncio.gather(*(task for _, task in begun), return_exceptions=True)
        assert held_by(node) == 0

    run(main())
