"""What a subscription is told at once: where nothing is to be read any more, and where its request makes no sense."""

import asyncio
from typing import Any

import pytest

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.kernels import decode_records
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node

HANDSHAKE_BYTES = 5
BEFORE_THE_LOG = "Failed to lookup offset for timestamp: timestamp is before the beginning of the log"
DRAINED = (Status.RESOURCE_EXHAUSTED, "End of readonly partition", HANDSHAKE_BYTES)
EVERY_START = [api.NEW_ONLY, api.OFFSET, api.EARLIEST, api.LATEST, api.TIMESTAMP]


async def one(messages: int = 0) -> tuple[Node, list[int]]:
    """A broker, and when each message came."""
    node = await Node(MemoryDisk(), MemoryNats()).start()
    await node.create("s")
    times: list[int] = []
    for number in range(messages):
        times.append((await node.publish("s", b"%d" % number)).receptionTimestamp)
        await asyncio.sleep(0.01)
    return node, times


async def delete_before(node: Node, offset: int) -> None:
    request = admin.DeleteRecordsRequest(stream="s", before=offset)
    status, text, _ = await node.call("/bascule.v1.Admin/DeleteRecords", request)
    assert status is Status.OK, text


async def set_readonly(node: Node) -> None:
    request = api.SetStreamReadonlyRequest(name="s", readonly=True)
    assert (await node.call("SetStreamReadonly", request))[0] is Status.OK


async def subscribe(node: Node, **fields: Any) -> tuple[Status, str, int]:
    """How it ended, and how much was sent, the handshake included."""
    call = MemoryCall(3.0)
    call.request(api.SubscribeRequest(stream="s", **fields).SerializeToString())
    status, text = await call.run(node.handler("Subscribe"))
    return status, text, len(call.responses)


@pytest.mark.parametrize("position", EVERY_START)
@pytest.mark.parametrize("messages", [0, 10])
def test_an_empty_readonly_partition_has_been_read(position: int, messages: int) -> None:
    """Also where messages were, which are all deleted."""

    async def main() -> None:
        node, _ = await one(messages)
        if messages:
            await delete_before(node, messages)
        await set_readonly(node)
        assert await subscribe(node, startPosition=position) == DRAINED

    run(main())


def test_a_stop_at_what_is_deleted_is_before_the_beginning() -> None:
    async def main() -> None:
        node, times = await one(10)
        await delete_before(node, 5)
        stop: dict[str, Any] = {"startPosition": api.EARLIEST, "stopPosition": api.STOP_TIMESTAMP}
        for number in (2, 4):
            told = await subscribe(node, **stop, stopTimestamp=times[number])
            assert told == (Status.INTERNAL, BEFORE_THE_LOG, 0)
        status, text, sent = await subscribe(node, **stop, stopTimestamp=times[5])
        assert (status, text) == (Status.RESOURCE_EXHAUSTED, "Stop offset reached")
        assert sent > HANDSHAKE_BYTES
        await delete_before(node, 10)
        told = await subscribe(node, **stop, stopTimestamp=times[9])
        assert told == (Status.INTERNAL, BEFORE_THE_LOG, 0)

    run(main())


@pytest.mark.parametrize("since", [0, 2])
def test_a_time_before_the_first_message_is_that_of_the_first_message(since: int) -> None:
    """Backwards, too, and where the log still has what is deleted."""

    async def main() -> None:
        node, times = await one(10)
        start: dict[str, Any] = {"startPosition": api.TIMESTAMP, "startTimestamp": times[since]}
        await delete_before(node, 5)
        call = MemoryCall(3.0)
        call.request(api.SubscribeRequest(stream="s", reverse=True, **start).SerializeToString())
        assert await call.run(node.handler("Subscribe")) == (Status.RESOURCE_EXHAUSTED, "Stop offset reached")
        frames = bytes(call.responses[HANDSHAKE_BYTES:])
        assert [record[0] for record in decode_records(frames, 0, len(frames), 1 << 30)[1]] == [5]
        status, text, sent = await subscribe(node, **start, stopPosition=api.STOP_OFFSET, stopOffset=4)
        assert (status, text, sent) == (Status.INVALID_ARGUMENT, "Stop offset is before start offset: 4 < 5", 0)

    run(main())


UNKNOWN = [
    ({"startPosition": 99}, "Unknown StartPosition 99"),
    ({"stopPosition": -1}, "Unknown StopPosition -1"),
]


@pytest.mark.parametrize(("fields", "text"), UNKNOWN)
@pytest.mark.parametrize("resume", [True, False])
def test_an_unknown_position_resumes_nothing(fields: dict[str, Any], text: str, resume: bool) -> None:
    async def main() -> None:
        node, _ = await one(1)
        assert (await node.call("PauseStream", api.PauseStreamRequest(name="s")))[0] is Status.OK
        assert await subscribe(node, resume=resume, **fields) == (Status.INVALID_ARGUMENT, text, 0)
        assert node.broker.cluster.metadata.streams["s"].partitions[0].paused

    run(main())


@pytest.mark.parametrize(("fields", "text"), UNKNOWN)
def test_an_unknown_position_takes_no_partition_over(fields: dict[str, Any], text: str) -> None:
    async def main() -> None:
        node, _ = await one(1)
        member = api.Consumer(groupId="g", groupEpoch=1, consumerId="a")
        reading = asyncio.create_task(subscribe(node, consumer=member))
        await asyncio.sleep(0.5)
        other = api.Consumer(groupId="g", groupEpoch=2, consumerId="b")
        assert await subscribe(node, consumer=other, **fields) == (Status.INVALID_ARGUMENT, text, 0)
        await asyncio.sleep(0.5)
        assert not reading.done()
        reading.cancel()

    run(main())
