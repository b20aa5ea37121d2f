"""What is told about a partition when its log says little: when its messages came, and what is kept while it is
paused."""

import asyncio
import random
from typing import Any

import pytest

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node

MESSAGES = 12


async def filled(**fields: Any) -> tuple[Node, tuple[int, int]]:
    """A broker, and when its first and its last message came."""
    node = await Node(MemoryDisk(), MemoryNats()).start()
    await node.create("s", segmentMaxBytes=api.NullableInt64(value=200), **fields)
    times: list[int] = []
    for number in range(MESSAGES):
        times.append((await node.publish("s", b"%03d" % number)).receptionTimestamp)
        await asyncio.sleep(0.01)
    return node, (times[0], times[-1])


async def restarted(node: Node) -> Node:
    node.power_off(random.Random(1))
    node = await Node(node.disk, MemoryNats(), seed=node.seed + 1).start()
    await asyncio.sleep(1.0)
    return node


async def pause(node: Node) -> None:
    assert (await node.call("PauseStream", api.PauseStreamRequest(name="s")))[0] is Status.OK


async def described(node: Node) -> api.PartitionMetadata:
    """By FetchMetadata, which any broker answers."""
    _, _, responses = await node.call("FetchMetadata", api.FetchMetadataRequest(streams=["s"]))
    found = api.FetchMetadataResponse.FromString(b"".join(responses)).streamMetadata[0].partitions[0]
    assert isinstance(found, api.PartitionMetadata)
    return found


def received(item: api.PartitionMetadata) -> tuple[int, int]:
    times = item.messagesReceivedTimestamps
    return times.firstTimestamp, times.latestTimestamp


async def as_an_administrator(node: Node, method: str, request: Any) -> bytes:
    status, text, responses = await node.call(f"/bascule.v1.Admin/{method}", request)
    assert status is Status.OK, text
    return responses[0] if responses else b""


def gauge(node: Node, name: str) -> dict[str, float]:
    return next(dict(each.values) for each in node.broker.environment.metrics.read() if each.name == name)


def test_when_messages_came_is_known_when_they_have_expired_also_after_a_restart() -> None:
    async def main() -> None:
        second = api.NullableInt64(value=1_000)
        node, times = await filled(retentionMaxAge=second, segmentMaxAge=second, cleanerInterval=second)
        await asyncio.sleep(9.0)
        replica = node.broker.replicas.find("s", 0)
        assert replica is not None
        log = replica.log
        assert log.start == log.end == MESSAGES
        for _ in range(3):
            assert received(await described(node)) == times
            node = await restarted(node)
        await pause(node)
        assert received(await described(node)) == times
        later = (await node.publish("s", b"later")).receptionTimestamp
        assert received(await described(node)) == (times[0], later)

    run(main())


def test_when_messages_came_is_known_when_they_are_deleted_within_a_segment() -> None:
    async def main() -> None:
        node, times = await filled()
        await as_an_administrator(node, "DeleteRecords", admin.DeleteRecordsRequest(stream="s", before=MESSAGES))
        for _ in range(2):
            assert received(await described(node)) == times
            node = await restarted(node)

    run(main())


@pytest.mark.parametrize("restarts", [False, True])
def test_a_paused_partition_is_described_as_it_was_closed(restarts: bool) -> None:
    async def main() -> None:
        node, times = await filled()
        await as_an_administrator(node, "SetHold", admin.SetHoldRequest(stream="s", name="archive", offset=3))
        before = await described(node)
        request = admin.DescribeStreamRequest(stream="s")
        info = admin.DescribeStreamResponse.FromString(await as_an_administrator(node, "DescribeStream", request))
        bytes_before = gauge(node, "bascule_hold_bytes")
        await asyncio.sleep(1.0)
        await pause(node)
        if restarts:
            node = await restarted(node)
        item = await described(node)
        assert item.paused
        assert (item.highWatermark, item.newestOffset) == (before.highWatermark, before.newestOffset)
        assert (item.highWatermark, received(item)) == (MESSAGES - 1, times)
        now = admin.DescribeStreamResponse.FromString(await as_an_administrator(node, "DescribeStream", request))
        (was,), (is_,) = info.partitions[0].replicas, now.partitions[0].replicas
        assert is_ == was
        assert is_.bytes > 0
        assert now.partitions[0].holds == info.partitions[0].holds
        assert gauge(node, "bascule_hold_bytes") == bytes_before
        assert bytes_before["s/0/archive"] > 0
        assert gauge(node, "bascule_hold_age_seconds")["s/0/archive"] > 0

    run(main())


def test_what_is_known_of_a_paused_partition_goes_when_it_is_resumed_and_when_it_is_deleted() -> None:
    async def main() -> None:
        node, _ = await filled()
        replicas = node.broker.replicas
        for end in ("resumed", "deleted"):
            await pause(node)
            assert len(replicas._closed) == 1
            if end == "resumed":
                await node.publish("s", b"back")
            else:
                assert (await node.call("DeleteStream", api.DeleteStreamRequest(name="s")))[0] is Status.OK
            assert len(replicas._closed) == 0

    run(main())
