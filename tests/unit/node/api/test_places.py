"""Clients that begin bulk reads and writes and do nothing with them keep nobody away."""

import asyncio

import pytest

from bascule.errors import Status
from bascule.limits import IDLE_PLACE_S
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import log_pb2 as log
from tests.harness.broker import Node
from tests.harness.bulk_write import Writer, with_stream
from tests.harness.members import followers, leader_of, three

READ = "/bascule.v1.Log/Read"


def read(node: Node, taking: bool) -> "tuple[MemoryCall, asyncio.Task[tuple[Status, str]]]":
    call = MemoryCall(None)
    call.taking = taking
    call.request(log.ReadRequest(stream="s").SerializeToString())
    return call, asyncio.create_task(call.run(node.handler(READ)))


def test_a_writer_that_says_nothing_makes_room_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bascule.node.api.bulkwrite.BULK_WRITES", 3)

    async def main() -> None:
        node = await with_stream()
        writers = [Writer(node, None) for _ in range(3)]
        await asyncio.sleep(IDLE_PLACE_S - 1.0)
        writers[0].send(b"first")
        await asyncio.sleep(0.5)
        assert (await Writer(node).ends())[0] is Status.RESOURCE_EXHAUSTED
        await asyncio.sleep(1.0)
        another = Writer(node)
        another.send(b"another")
        assert await another.ends() == (Status.OK, "")
        status, text = await writers[1].running
        assert (status, "its place is another one's now" in text) == (Status.UNAVAILABLE, True)
        writers[0].send(b"second")
        assert await writers[0].ends() == (Status.OK, "")
        assert await writers[2].ends() == (Status.OK, "")
        assert [value for _, value in await node.read("s")] == [b"first", b"another", b"second"]

    run(main())


def test_a_writer_whose_acks_are_due_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bascule.node.api.bulkwrite.BULK_WRITES", 1)

    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
        request.minIsr.value = 3
        await members["a"].call("CreateStream", request)
        leader = leader_of(members, "s")
        writer = Writer(leader, None)
        await asyncio.sleep(0.1)
        followers(members)[0].kill()
        writer.send(b"waits")
        await asyncio.sleep(2 * IDLE_PLACE_S)
        assert (await Writer(leader).ends())[0] is Status.RESOURCE_EXHAUSTED
        assert not writer.running.done()
        writer.running.cancel()

    run(main())


def test_a_reader_that_takes_nothing_makes_room_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bascule.node.api.bulk.BULK_READS", 2)

    async def main() -> None:
        node = await with_stream()
        await node.publish("s", b"v")
        idle = [read(node, taking=False) for _ in range(2)]
        await asyncio.sleep(IDLE_PLACE_S - 0.5)
        assert (await read(node, taking=True)[1])[0] is Status.RESOURCE_EXHAUSTED
        await asyncio.sleep(1.0)
        assert (await read(node, taking=True)[1])[0] is Status.OK
        assert (await idle[0][1])[0] is Status.UNAVAILABLE
        idle[1][0].take()
        assert (await idle[1][1])[0] is Status.OK

    run(main())
