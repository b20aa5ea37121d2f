"""Where readers begin, and what they are given after a lost connection, a timeout, or a start from a saved position."""

import asyncio
import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bascule.client import Client, Outgoing
from bascule.client.consumer import Consumer
from bascule.client.subscription import Subscription
from bascule.errors import Unavailable
from bascule.testing.processes import BrokerProcess
from tests.harness.clients import lose_readers, with_client


async def fill(client: Client, stream: str, partitions: int = 1, each: int = 5) -> None:
    await client.create_stream(stream, partitions=partitions)
    await client.publish_many(stream, [Outgoing(b"v", partition=p) for _ in range(each) for p in range(partitions)])


@pytest.mark.parametrize("start", ["latest", "new"])
@pytest.mark.parametrize("stored", [0, 3])
def test_what_is_published_while_the_connection_is_lost_is_given(
    broker: BrokerProcess, stream: str, start: Any, stored: int
) -> None:
    """Also before the first message: a start that means "now" is that of the first connection."""

    async def use(client: Client) -> None:
        await fill(client, stream, each=stored)
        readers: list[Subscription | Consumer] = [
            client.subscribe(stream, start=start),
            client.consumer(stream, start=start),
        ]
        for reader in readers:
            await reader.ready()
        connect, up = client._cluster.connections.reader, asyncio.Event()

        async def when_up(address: Any) -> Any:
            if not up.is_set():
                raise Unavailable("the link is down")
            return await connect(address)

        client._cluster.connections.reader = when_up  # type: ignore[method-assign]
        waiting = [asyncio.create_task(anext(reader)) for reader in readers]
        await asyncio.sleep(0)
        lose_readers(client)
        for _ in range(3):
            await client.publish(stream, b"v")
        up.set()
        expected = max(0, stored - 1) if start == "latest" else stored
        assert [(await task).offset for task in waiting] == [expected, expected]
        for reader in readers:
            assert (await anext(reader)).offset == expected + 1

    with_client(broker.address, use)


def test_a_consumer_begins_once_however_often_the_first_message_is_asked_for(
    broker: BrokerProcess, stream: str
) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, partitions=3)
        consumer = client.consumer(stream, start="new")
        ask, asked, go_on = client._cluster.ask_leader, asyncio.Event(), asyncio.Event()

        async def slowly(*arguments: Any) -> bytes:
            found = await ask(*arguments)
            asked.set()
            await go_on.wait()
            return found

        client._cluster.ask_leader = slowly  # type: ignore[method-assign, assignment]
        assert await consumer.next(timeout=0.05) is None
        await asked.wait()
        assert await consumer.next(timeout=0.05) is None
        client._cluster.ask_leader = ask  # type: ignore[method-assign]
        for partition in range(3):
            await client.publish(stream, b"new", partition=partition)
        go_on.set()
        seen = [message for _ in range(3) if (message := await consumer.next(timeout=10)) is not None]
        assert sorted((message.partition, message.offset) for message in seen) == [(0, 5), (1, 5), (2, 5)]
        await consumer.close()

    with_client(broker.address, use)


def test_a_consumer_that_is_closed_while_it_begins_ends(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream)
        for close_first in (True, False):
            consumer = client.consumer(stream, start="new")
            client._cluster.forget(stream)
            first = asyncio.create_task(consumer.next())
            await asyncio.sleep(0)
            if close_first:
                await consumer.close()
            else:
                first.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await first
                await consumer.close()
            assert await consumer.next() is None
            assert first.done() or await first is None

    with_client(broker.address, use)


@pytest.mark.parametrize("start", ["new", "latest", "since"])
def test_a_position_names_the_partitions_that_have_given_nothing(
    broker: BrokerProcess, stream: str, start: Any
) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, partitions=3)
        begin = datetime.now(UTC) if start == "since" else start
        async with client.consumer(stream, start=begin) as consumer:
            first = 4 if start == "latest" else 5
            assert consumer.position == {stream: dict.fromkeys(range(3), first)}
            await client.publish(stream, b"new", partition=0)
            message = await consumer.next(timeout=10)
            assert message is not None
            saved = json.dumps(consumer.position)
            assert json.loads(saved)[stream][str(message.partition)] == message.offset + 1
        async with client.consumer(stream, start=json.loads(saved), stop="latest") as consumer:
            rest = sorted([(each.partition, each.offset) async for each in consumer])
        everything = [(p, n) for p in range(3) for n in range(first, 6 if p == 0 else 5)]
        assert sorted([*rest, (message.partition, message.offset)]) == everything

    with_client(broker.address, use)


def test_a_time_begins_with_the_first_message_since_then(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, partitions=2, each=1)
        await asyncio.sleep(0.01)  # times are told apart by microseconds
        await client.publish(stream, b"v", partition=1)
        message = await anext(client.subscribe(stream, 1, start=1))
        for at, expected in ((message.time, 1), (message.time - timedelta(days=1), 0)):
            async with client.consumer(stream, partitions=[1], start=at) as consumer:
                assert consumer.position == {stream: {1: expected}}
                assert (await anext(consumer)).offset == expected

    with_client(broker.address, use)


def test_a_position_that_retention_has_overtaken_is_a_warning(
    broker: BrokerProcess, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, each=10)
        await client.admin.delete_records(stream, 0, 7)
        async with client.consumer(stream, start={stream: {0: 3}}, stop="latest") as consumer:
            assert [message.offset async for message in consumer] == [7, 8, 9]
        assert "messages 3 to 6 of partition 0" in caplog.text
        caplog.clear()
        async with client.consumer(stream, start={stream: {0: 7}}, stop="latest") as consumer:
            assert [message.offset async for message in consumer] == [7, 8, 9]
        assert not caplog.text

    with caplog.at_level(logging.WARNING, "bascule.client"):
        with_client(broker.address, use)


def test_a_subscription_that_another_task_closes_ends(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, each=1)
        subscription = client.subscribe(stream, start="earliest")
        seen: list[int] = []

        async def read() -> None:
            async for message in subscription:
                seen.append(message.offset)

        reading = asyncio.create_task(read())
        while not seen:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        subscription.close()
        await asyncio.wait_for(reading, 10)
        assert seen == [0]
        opening = client.subscribe(stream)
        reading = asyncio.create_task(opening.ready())
        await asyncio.sleep(0)
        opening.close()
        await asyncio.wait_for(reading, 10)
        assert await opening.next_batch() == []
        (channels,) = client._cluster.connections._readers.values()
        assert [channel.calls for channel in channels] == [0]

    with_client(broker.address, use)
