"""The consumer: several partitions and streams in one iteration, fairly, from a position that was saved, through the
death of a broker."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bascule.client import BlockingClient, Client, ClientClosed, InvalidArgument, NotFound, Outgoing
from bascule.testing.processes import BrokerProcess, start_broker
from tests.harness.clients import with_client


async def fill(client: Client, stream: str, partitions: int, each: int, size: int = 0) -> None:
    await client.create_stream(stream, partitions=partitions)
    values = [Outgoing(b"%d" % n + bytes(size), partition=p) for n in range(each) for p in range(partitions)]
    await client.publish_many(stream, values)


def test_all_partitions_of_all_streams_are_read_each_in_its_order(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        names = [stream, f"{stream}-other"]
        for name in names:
            await fill(client, name, 5, 100)
        seen: dict[tuple[str, int], list[int]] = {}
        async with client.consumer(names, stop="latest") as consumer:
            async for message in consumer:
                seen.setdefault((message.stream, message.partition), []).append(message.offset)
            assert consumer.position == {name: dict.fromkeys(range(5), 100) for name in names}
        assert seen == {(name, partition): list(range(100)) for name in names for partition in range(5)}

    with_client(broker.address, use)


def test_only_the_named_partitions_are_read_and_one_that_is_not_there_is_an_error(
    broker: BrokerProcess, stream: str
) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, 3, 10)
        consumer = client.consumer(stream, partitions=[0, 2], stop="latest")
        assert Counter([message.partition async for message in consumer]) == {0: 10, 2: 10}
        await consumer.close()
        with pytest.raises(NotFound, match="no such partition: 7"):
            async with client.consumer(stream, partitions=[0, 7]):
                pytest.fail("it is open")
        with pytest.raises(NotFound, match="no such stream"):
            async with client.consumer([stream, "nowhere"]):
                pytest.fail("it is open")
        wrongs: list[dict[str, Any]] = [{"partitions": "some"}, {"start": -1}, {"last": -1}, {"last": 3, "start": 5}]
        for wrong in wrongs:
            with pytest.raises(InvalidArgument):
                client.consumer(stream, **wrong)
        with pytest.raises(InvalidArgument):
            client.consumer([])

    with_client(broker.address, use)


def test_a_partition_with_much_to_read_holds_up_no_other(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream, partitions=3)
        await client.publish_many(stream, [bytes(2000)] * 10_000, partition=1)
        await client.publish_many(stream, [b"few"] * 3, partition=0)
        await client.publish_many(stream, [b"few"] * 3, partition=2)
        seen: list[int] = []
        async with client.consumer(stream) as consumer:
            async for batch in consumer.batches():
                assert len({message.partition for message in batch}) == 1
                seen += [message.partition for message in batch]
                if {0, 2} <= set(seen):
                    break
        assert len(seen) < 8000

    with_client(broker.address, use)


def test_a_consumer_goes_on_where_another_one_stopped(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, 4, 50)
        seen: list[tuple[int, int]] = []
        saved = "{}"
        for _ in range(20):
            async with client.consumer(stream, start=json.loads(saved), stop="latest") as consumer:
                for _ in range(17):
                    message = await consumer.next(timeout=5)
                    if message is not None:
                        seen.append((message.partition, message.offset))
                saved = json.dumps(consumer.position)
        assert sorted(seen) == [(p, n) for p in range(4) for n in range(50)], "each once"

    with_client(broker.address, use)


def test_next_waits_no_longer_than_it_was_told(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream, partitions=2)
        async with client.consumer(stream) as consumer:
            for number in range(3):
                assert await consumer.next(timeout=0.05) is None
                await client.publish(stream, b"%d" % number, partition=number % 2)
                message = await consumer.next(timeout=5)
                assert message is not None
                assert message.value == b"%d" % number
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(consumer), 0.05)
            await client.publish(stream, b"last")
            assert (await asyncio.wait_for(anext(consumer), 5)).value == b"last"

    with_client(broker.address, use)


def test_break_off_and_go_on(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, 3, 40)
        consumer = client.consumer(stream, stop="latest")
        seen: list[tuple[int, int]] = []
        for _ in range(5):
            async for message in consumer:
                seen.append((message.partition, message.offset))
                if len(seen) % 10 == 0:
                    break
        async for batch in consumer.batches():
            seen += [(message.partition, message.offset) for message in batch]
        assert sorted(seen) == [(p, n) for p in range(3) for n in range(40)]
        await consumer.close()

    with_client(broker.address, use)


def test_the_last_messages_of_each_partition(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, 2, 20)
        await client.publish(stream, b"v", partition=1)
        async with client.consumer(stream, last=3, stop="latest") as consumer:
            offsets = sorted([(message.partition, message.offset) async for message in consumer])
        assert offsets == [(0, 17), (0, 18), (0, 19), (1, 18), (1, 19), (1, 20)]

    with_client(broker.address, use)


def test_two_tasks_and_a_closed_client_are_told(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream, partitions=2)
        consumer = client.consumer(stream)
        first = asyncio.create_task(anext(consumer))
        await asyncio.sleep(0.1)
        with pytest.raises(RuntimeError, match="two tasks"):
            await anext(consumer)
        await client.close()
        with pytest.raises(ClientClosed):
            await first
        await consumer.close()

    with_client(broker.address, use)


def test_a_consumer_that_is_dropped_leaves_no_task(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, 3, 10)
        async for _ in client.consumer(stream):
            break
        await asyncio.sleep(0.1)
        (channels,) = client._cluster.connections._readers.values()
        assert [channel.calls for channel in channels] == [0]

    with_client(broker.address, use)


def test_it_goes_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        await fill(client, "s", 3, 20)
        seen: list[tuple[int, int]] = []
        async with client.consumer("s", stop=39) as consumer:
            async for message in consumer:
                seen.append((message.partition, message.offset))
                if len(seen) == 40:
                    await asyncio.to_thread(broker.kill9)
                    await asyncio.to_thread(lambda: broker.start().wait_ready())
                    more = [Outgoing(b"v", partition=p) for _ in range(20) for p in range(3)]
                    await client.publish_many("s", more, retry_s=10)
        assert sorted(seen) == [(p, n) for p in range(3) for n in range(40)]

    with start_broker(tmp_path) as broker:
        with_client(broker.address, use)


def test_the_blocking_consumer_does_the_same(broker: BrokerProcess, stream: str) -> None:
    with BlockingClient(broker.address) as client:
        client.create_stream(stream, partitions=2)
        client.publish_many(stream, [b"v"] * 20, spread=True)
        with client.consumer(stream, stop="latest") as consumer:
            first = consumer.next(timeout=5)
            assert first is not None
            assert sum(1 for _ in consumer) == 19
            assert consumer.position == {stream: {0: 10, 1: 10}}
        with client.consumer(stream) as consumer:
            batches = consumer.batches()
            assert len(next(batches)) + len(next(batches)) == 20
            assert consumer.next(timeout=0.1) is None
