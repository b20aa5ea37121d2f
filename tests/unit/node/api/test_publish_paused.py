"""PublishAsync to paused partitions: who publishes there waits until they are resumed, and nobody else does."""

import asyncio
from typing import Any

import pytest

from bascule.errors import Status, Unavailable
from bascule.limits import PUBLISH_SINGLY
from bascule.node.membership.controllerclient import ControllerClient
from bascule.node.partition.routes import PAUSED
from bascule.node.partition.sender import RESUME_TIMEOUT_S
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node, split

NOT_FOUND, INTERNAL = api.PublishAsyncError.NOT_FOUND, api.PublishAsyncError.INTERNAL
Places = list[tuple[str, tuple[int, ...]]]


async def paused(*streams: str, partitions: int = 1) -> Node:
    node = await Node(MemoryDisk(), MemoryNats()).start()
    for stream in streams:
        await node.create(stream, partitions=partitions)
        status, text, _ = await node.call("PauseStream", api.PauseStreamRequest(name=stream))
        assert status is Status.OK, text
    return node


def publishing(node: Node, *messages: tuple[str, int, str], over: bool = True) -> tuple[MemoryCall, Any]:
    """A call that publishes these, each with its stream, partition and correlation id; and its work."""
    call = MemoryCall(None)
    request(call, *messages)
    if over:
        call.half_close()
    return call, asyncio.ensure_future(call.run(node.handler("PublishAsync")))


def request(call: MemoryCall, *messages: tuple[str, int, str]) -> None:
    for stream, partition, name in messages:
        message = api.PublishRequest(
            stream=stream, partition=partition, value=name.encode(), correlationId=name, ackPolicy=api.ALL
        )
        call.request(message.SerializeToString())


def answers(call: MemoryCall) -> list[api.PublishResponse]:
    return [api.PublishResponse.FromString(data) for data in split(bytes(call.responses))]


async def values(node: Node, stream: str, partition: int = 0) -> list[bytes]:
    return [value for _, value in await node.read(stream, partition)]


def counted(monkeypatch: pytest.MonkeyPatch, fails: bool = False, wait_s: float = 0.0) -> Places:
    """What is asked to be resumed from now on. That takes so long, and fails."""
    asked: Places = []
    resume_stream = ControllerClient.resume_stream

    async def counting(self: ControllerClient, name: str, partitions: tuple[int, ...], timeout_s: float | None) -> None:
        asked.append((name, partitions))
        await asyncio.sleep(wait_s)
        if fails:
            raise Unavailable("planted")
        await resume_stream(self, name, partitions, timeout_s)

    monkeypatch.setattr(ControllerClient, "resume_stream", counting)
    return asked


def test_who_waits_for_a_paused_partition_makes_nobody_else_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        counted(monkeypatch, fails=True, wait_s=RESUME_TIMEOUT_S)
        node = await paused("s")
        waiting, work = publishing(node, *(("s", 0, str(number)) for number in range(10)))
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        began = loop.time()
        other, done = publishing(node, ("nope", 0, "mine"))
        assert (await done)[0] is Status.OK
        assert [answer.asyncError.code for answer in answers(other)] == [NOT_FOUND]
        assert loop.time() == began
        assert not waiting.responses
        assert (await work)[0] is Status.OK
        assert loop.time() < began + RESUME_TIMEOUT_S + 0.1, "all of them are refused at once"
        refused = answers(waiting)
        assert [answer.correlationId for answer in refused] == [str(number) for number in range(10)]
        assert {(answer.asyncError.code, answer.asyncError.message) for answer in refused} == {
            (INTERNAL, "failed to resume stream: planted")
        }

    run(main())


def test_messages_that_wait_are_stored_in_their_order_before_those_of_the_next_reads() -> None:
    async def main() -> None:
        node = await paused("s", "t")
        await node.create("u")
        count = 2 * PUBLISH_SINGLY
        names = [str(number) for number in range(2 * count)]
        call, work = publishing(node, *((stream, 0, name) for name in names[:count] for stream in "stu"), over=False)
        await asyncio.sleep(0)
        request(call, *((stream, 0, name) for name in names[count:] for stream in "stu"))
        call.half_close()
        assert (await work)[0] is Status.OK
        for stream in "stu":
            assert await values(node, stream) == [name.encode() for name in names]
        assert not any(answer.HasField("asyncError") for answer in answers(call))

    run(main())


def test_a_message_does_not_pass_those_of_its_call_that_wait() -> None:
    """The partition is resumed, for somebody else, while the messages of one read are looked at, some a turn."""

    async def main() -> None:
        node = await paused("s")
        names = [str(number) for number in range(5 * PUBLISH_SINGLY)]
        _, work = publishing(node, *(("s", 0, name) for name in names))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        node.broker.environment.routes.table[b"s"] = [
            route and (route[0], route[1] & ~PAUSED, *route[2:]) for route in node.broker.environment.routes.table[b"s"]
        ]
        assert (await work)[0] is Status.OK
        assert await values(node, "s") == [name.encode() for name in names]

    run(main())


def test_a_partition_that_is_being_resumed_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        asked = counted(monkeypatch, wait_s=1.0)
        node = await paused("s", partitions=4)
        calls = [publishing(node, ("s", 0, "a"), ("s", 1, "b"), ("s", 0, "c"))]
        await asyncio.sleep(0.1)
        calls += [publishing(node, ("s", 1, "d"), ("s", 2, "e"))]
        for call, work in calls:
            assert (await work)[0] is Status.OK
            assert not any(answer.HasField("asyncError") for answer in answers(call))
        assert asked == [("s", (0, 1)), ("s", (2,))]
        stored = [await values(node, "s", partition) for partition in range(3)]
        assert [stored[0], sorted(stored[1]), stored[2]] == [[b"a", b"c"], [b"b", b"d"], [b"e"]]
        item = node.broker.cluster.metadata.partition("s", 3)
        assert item is not None
        assert item.paused

    run(main())


def test_what_is_resumed_too_late_is_refused_and_the_rest_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr("bascule.node.partition.sender.RESUME_TIMEOUT_S", 1.0)
        monkeypatch.setattr("bascule.node.partition.sender.RESUMPTIONS_AT_ONCE", 1)
        asked = counted(monkeypatch, wait_s=0.6)
        node = await paused("s", "t", "u")
        call, work = publishing(node, ("s", 0, "a"), ("t", 0, "b"), ("u", 0, "c"))
        assert (await work)[0] is Status.OK
        assert asked == [("s", (0,)), ("t", (0,))]
        (refused,) = [answer for answer in answers(call) if answer.HasField("asyncError")]
        assert refused.correlationId == "c"
        assert "too many others" in refused.asyncError.message

    run(main())
