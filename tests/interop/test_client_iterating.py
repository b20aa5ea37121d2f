"""Iterating over a subscription: what ends it and what does not, empty ranges, and going on after any interruption."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from bascule.client import BlockingClient, Client, StartAt, StopAt
from bascule.errors import ResourceExhausted, Status
from bascule.net.grpc import Call, GrpcServer
from bascule.testing.processes import BrokerProcess
from bascule.wire.grpc import frame
from bascule.wire.pb import api_pb2 as pb
from tests.harness.clients import nothing_is_left, with_client


def served(status_text: str, use: Callable[[Client], object]) -> None:
    """A server of Liftbridge's protocol that ends each subscription with ResourceExhausted and this text."""

    async def main() -> None:
        async def fetch_metadata(call: Call) -> None:
            await call.receive()
            partition = pb.PartitionMetadata(id=0, leader="a", replicas=["a"], isr=["a"])
            answer = pb.FetchMetadataResponse(
                brokers=[pb.Broker(id="a", host="127.0.0.1", port=port)],
                streamMetadata=[pb.StreamMetadata(name="s", subject="s", partitions={0: partition})],
            )
            await call.send(frame(answer.SerializeToString()))

        async def subscribe(call: Call) -> None:
            await call.receive()
            await call.send(frame(b"") + frame(pb.Message(offset=0, value=b"only").SerializeToString()))
            raise ResourceExhausted(status_text)

        server = GrpcServer({"/proto.API/FetchMetadata": fetch_metadata, "/proto.API/Subscribe": subscribe})
        port = await server.start("127.0.0.1", 0)
        async with await Client.connect(f"127.0.0.1:{port}") as client:
            await use(client)  # type: ignore[misc]
        await server.close(Status.UNAVAILABLE, "stopped", 2.0)
        await nothing_is_left()

    asyncio.run(main(), debug=True)


def test_only_the_ends_of_the_protocol_end_an_iteration() -> None:
    async def ends(client: Client) -> None:
        assert [message.value async for message in client.subscribe("s")] == [b"only"]

    async def fails(client: Client) -> None:
        subscription = client.subscribe("s")
        assert (await anext(subscription)).value == b"only"
        with pytest.raises(ResourceExhausted, match="too many subscriptions"):
            await anext(subscription)

    for text in ("Stop offset reached", "End of readonly partition", "Stream is empty"):
        served(text, ends)
    served("too many subscriptions", fails)


def test_two_tasks_on_one_subscription_are_told(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        async with client.subscribe(stream) as subscription:
            first = asyncio.create_task(anext(subscription))
            await asyncio.sleep(0.05)
            with pytest.raises(RuntimeError, match="two tasks read from one subscription"):
                await anext(subscription)
            with pytest.raises(RuntimeError, match="two tasks read from one subscription"):
                await anext(subscription.batches())
            await client.publish(stream, b"for the first")
            assert (await first).value == b"for the first"

    with_client(broker.address, use)


def test_an_empty_range_is_empty(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)

        async def offsets(start: StartAt, stop: StopAt = None, reverse: bool = False) -> list[int]:
            async with asyncio.timeout(5):
                return [m.offset async for m in client.subscribe(stream, start=start, stop=stop, reverse=reverse)]

        assert await offsets("earliest", "latest") == []
        assert await offsets(0, "latest") == []
        assert await offsets("latest", reverse=True) == []
        await client.publish_many(stream, [b"v"] * 3)
        long_ago, soon = datetime(2001, 1, 1, tzinfo=UTC), datetime.now(UTC) + timedelta(hours=1)
        assert await offsets(2, "latest") == [2]
        assert await offsets(3, "latest") == [], "a worker with a checkpoint, and nothing new"
        assert await offsets(7, "latest") == []
        assert await offsets(3, 2) == []
        assert await offsets(2, 1) == []
        assert await offsets("earliest", long_ago) == []
        assert await offsets(soon, "latest") == []
        assert await offsets(1, 2, reverse=True) == []
        assert sum([each.count async for each in client.read_range(stream, 0, 3)]) == 0
        assert [each async for each in client.read_range(stream, 0, 3, 3)] == []
        assert [each async for each in client.read_range(stream, 0, 3, 2)] == []

    with_client(broker.address, use)
    with BlockingClient(broker.address) as client:
        assert list(client.subscribe(stream, start=3, stop="latest")) == []
        assert sum(each.count for each in client.read_range(stream, 0, 3)) == 0


def test_a_timeout_of_one_message_ends_nothing(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        async with client.subscribe(stream) as subscription:
            for number in range(3):
                for _ in range(3):
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(anext(subscription), 0.02)
                await client.publish(stream, b"%d" % number)
                assert (await asyncio.wait_for(anext(subscription), 5)).value == b"%d" % number

    with_client(broker.address, use)


def test_cancelling_at_any_moment_loses_no_message(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        await client.publish_many(stream, [bytes(1000)] * 3000)
        subscription = client.subscribe(stream, stop=2999)
        await subscription.ready()
        seen: list[int] = []
        for turns in range(100_000):
            task = asyncio.ensure_future(subscription.next_batch())
            for _ in range(turns % 20):
                await asyncio.sleep(0)
            task.cancel()
            try:
                batch = await task
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                continue
            if not batch:
                break
            seen += [message.offset for message in batch]
        assert seen == list(range(3000))

    with_client(broker.address, use)


def test_whoever_breaks_off_goes_on_with_the_next_message(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        await client.publish_many(stream, [b"v"] * 10)
        subscription = client.subscribe(stream, stop=9)
        seen: list[int] = []
        for _ in range(3):
            async for message in subscription:
                seen.append(message.offset)
                if len(seen) % 2 == 0:
                    break
        async for batch in subscription.batches():
            seen += [message.offset for message in batch]
            break
        assert seen == list(range(10))
        assert [message async for message in subscription] == []

    with_client(broker.address, use)


def test_a_subscription_that_is_dropped_ends_its_call(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        await client.publish(stream, b"v")
        for _ in range(5):
            async for _message in client.subscribe(stream):
                break
        await asyncio.sleep(0.05)
        (channels,) = client._cluster.connections._readers.values()
        assert [channel.calls for channel in channels] == [0]

    with_client(broker.address, use)
