"""Every number a client can set, at its extremes: an answer or a clear refusal, never an error of our own."""

import asyncio
import itertools

import pytest

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.kernels import decode_records
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node

LEAST64, MOST64 = -(2**63), 2**63 - 1
LEAST32, MOST32 = -(2**31), 2**31 - 1
EXTREMES64 = (LEAST64, LEAST64 + 1, -2, -1, 0, 1, MOST64 - 1, MOST64)
EXTREMES32 = (LEAST32, -2, -1, 1, MOST32)
COUNT = 30


async def filled() -> Node:
    node = await Node(MemoryDisk(), MemoryNats()).start()
    await node.create("s")
    for number in range(COUNT):
        await node.publish("s", b"value %d" % number)
    await asyncio.sleep(0.1)
    return node


async def subscribed(node: Node, **fields: object) -> tuple[Status, str, list[int]]:
    call = MemoryCall(1.0)
    call.request(api.SubscribeRequest(stream="s", **fields).SerializeToString())  # type: ignore[arg-type]
    status, text = await call.run(node.handler("Subscribe"))
    frames = bytes(call.responses[5:])
    return status, text, [record[0] for record in decode_records(frames, 0, len(frames), 1 << 30)[1]]


@pytest.mark.parametrize("reverse", [False, True])
def test_subscriptions_from_and_to_every_extreme(reverse: bool) -> None:
    async def scenario() -> None:
        node = await filled()
        starts = [{"startPosition": api.OFFSET, "startOffset": each} for each in EXTREMES64]
        starts += [{"startPosition": api.TIMESTAMP, "startTimestamp": each} for each in EXTREMES64]
        stops = [{"stopPosition": api.STOP_OFFSET, "stopOffset": each} for each in EXTREMES64]
        stops += [{"stopPosition": api.STOP_TIMESTAMP, "stopTimestamp": each} for each in EXTREMES64]
        for start, stop in itertools.product(starts, stops):
            status, text, offsets = await subscribed(node, reverse=reverse, **start, **stop)
            refused = (Status.INVALID_ARGUMENT, Status.RESOURCE_EXHAUSTED, Status.DEADLINE_EXCEEDED)
            early = "timestamp is before the beginning of the log"
            assert status in refused or early in text, (start, stop, status, text)
            assert offsets == sorted(offsets, reverse=reverse)

    run(scenario())


def test_the_last_moment_is_after_everything_and_the_first_before_it() -> None:
    async def scenario() -> None:
        node = await filled()
        whole = list(range(COUNT))
        latest = {"stopPosition": api.STOP_TIMESTAMP, "stopTimestamp": MOST64}
        assert (await subscribed(node, startPosition=api.EARLIEST, **latest))[2] == whole
        first = {"startPosition": api.TIMESTAMP, "startTimestamp": LEAST64}
        assert (await subscribed(node, stopPosition=api.STOP_LATEST, **first))[2] == whole
        assert (await subscribed(node, startPosition=api.EARLIEST, stopPosition=3, stopTimestamp=MOST64))[2] == whole
        far = {"stopPosition": api.STOP_OFFSET, "stopOffset": MOST64}
        assert (await subscribed(node, startPosition=api.EARLIEST, **far))[2] == whole

    run(scenario())


def test_partitions_that_cannot_be() -> None:
    async def scenario() -> None:
        node = await filled()
        for partition in EXTREMES32:
            assert (await subscribed(node, partition=partition))[0] is Status.NOT_FOUND
            asked = api.FetchPartitionMetadataRequest(stream="s", partition=partition)
            assert (await node.call("FetchPartitionMetadata", asked))[0] is Status.NOT_FOUND
            request = api.PublishRequest(stream="s", partition=partition, value=b"x", ackPolicy=api.ALL)
            status, text, _ = await node.call("Publish", request)
            assert status in (Status.NOT_FOUND, Status.INVALID_ARGUMENT), (partition, status, text)
        assert len(await node.read("s")) == COUNT

    run(scenario())


def test_expected_offsets_at_their_extremes() -> None:
    async def scenario() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s", optimisticConcurrencyControl=api.NullableBool(value=True))
        for expected in (LEAST64, LEAST64 + 1, -2, MOST64 - 1, MOST64, 2**62):
            request = api.PublishRequest(stream="s", value=b"x", expectedOffset=expected, ackPolicy=api.ALL)
            status, text, _ = await node.call("Publish", request)
            assert (status, text) == (Status.UNKNOWN, "incorrect expected offset"), expected
        assert (await node.publish("s", b"x", expectedOffset=len(await node.read("s")) - 1)).offset >= 0

    run(scenario())


@pytest.mark.parametrize("value", EXTREMES64)
@pytest.mark.parametrize(
    "field",
    [
        "retentionMaxBytes",
        "retentionMaxMessages",
        "retentionMaxAge",
        "cleanerInterval",
        "segmentMaxBytes",
        "segmentMaxAge",
        "autoPauseTime",
    ],
)
def test_a_stream_with_any_setting_is_refused_or_works(field: str, value: int) -> None:
    async def scenario() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        request = api.CreateStreamRequest(name="t", subject="t", **{field: api.NullableInt64(value=value)})  # type: ignore[arg-type]
        status, text, _ = await node.call("CreateStream", request)
        assert status is (Status.OK if value >= 0 else Status.INVALID_ARGUMENT), text
        if status is Status.OK:
            for number in range(3):
                assert (await node.publish("t", b"x")).offset == number
            await asyncio.sleep(1)
            assert len(await node.read("t")) == 3

    run(scenario())


@pytest.mark.parametrize("value", EXTREMES32)
@pytest.mark.parametrize("field", ["replicationFactor", "partitions", "minIsr", "compactMaxGoroutines"])
def test_small_numbers_of_a_new_stream(field: str, value: int) -> None:
    async def scenario() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        number = api.NullableInt32(value=value) if field in ("minIsr", "compactMaxGoroutines") else value
        request = api.CreateStreamRequest(name="t", subject="t", **{field: number})  # type: ignore[arg-type]
        status, text, _ = await node.call("CreateStream", request)
        assert status in (Status.OK, Status.INVALID_ARGUMENT, Status.FAILED_PRECONDITION), (status, text)
        assert status is Status.OK or text

    run(scenario())
