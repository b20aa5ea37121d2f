"""Streams that are deleted and made again while a client holds on to them: no message of the new one is left out, and
nothing is read quietly at an offset of the one before."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from bascule.client import Client, GroupConsumer, NotFound, Outgoing, OutOfRange
from bascule.client.cursors import GROUP
from bascule.testing.processes import BrokerProcess, start_broker
from tests.harness.clients import lose_readers, with_client


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path_factory.mktemp("remade"), config={"cursors.stream.partitions": 2}) as running:
        yield running


async def fill(client: Client, stream: str, values: list[bytes], partitions: int = 1) -> None:
    await client.create_stream(stream, partitions=partitions)
    await client.publish_many(stream, [Outgoing(value, partition=p) for value in values for p in range(partitions)])


async def values_of_group(client: Client, stream: str) -> list[bytes]:
    """What a member is given, until nothing comes, or everything came that is there."""
    found: list[bytes] = []
    async with client.consumer(stream, group=stream) as consumer:
        end = (await client.fetch_partition_metadata(stream)).high_watermark
        while (message := await consumer.next(timeout=5.0)) is not None:
            found.append(message.value)
            if message.offset == end:
                break
    return found


def test_a_group_reads_a_stream_that_was_made_again_from_its_beginning(grouped: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, [b"old"] * 10)
        assert await values_of_group(client, stream) == [b"old"] * 10
        await client.delete_stream(stream)
        await fill(client, stream, [b"new %d" % n for n in range(13)])
        assert await values_of_group(client, stream) == [b"new %d" % n for n in range(13)]

    with_client(grouped.address, use)


def test_a_member_is_told_that_its_stream_was_made_again_and_goes_on_with_that(
    grouped: BrokerProcess, stream: str
) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, [b"old"] * 3, partitions=2)
        async with client.consumer(stream, group=stream) as consumer:
            for _ in range(6):
                assert (await anext(consumer)).value == b"old"
            async with await Client.connect(grouped.address) as other:
                await other.delete_stream(stream)
                await fill(other, stream, [b"new"] * 5, partitions=2)
            with pytest.raises(NotFound, match=f"{stream} was deleted"):
                await consumer.next(timeout=20)
            seen = [await anext(consumer) for _ in range(10)]
        assert sorted((message.partition, message.offset) for message in seen) == [
            (p, n) for p in range(2) for n in range(5)
        ]
        assert {message.value for message in seen} == {b"new"}

    with_client(grouped.address, use)


async def assigned(consumer: GroupConsumer, streams: set[str]) -> None:
    async with asyncio.timeout(60):
        while set(consumer.assignment) != streams:
            await consumer.next(timeout=0.05)


def test_a_member_that_reads_nothing_of_a_stream_gets_it_when_it_was_made_again(
    grouped: BrokerProcess, stream: str
) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, [b"old"])
        async with (
            Client.connect(grouped.address) as other,
            client.consumer(stream, group=stream) as reader,
            other.consumer(stream, group=stream) as waiting,
        ):
            assert (await anext(reader)).value == b"old"
            assert waiting.assignment == {}
            await client.delete_stream(stream)
            await fill(client, stream, [b"new"])
            with pytest.raises(NotFound, match=f"{stream} was deleted"):
                await reader.next(timeout=20)
            await reader.close()
            message = await waiting.next(timeout=60)
            assert message is not None
            assert message.value == b"new"

    with_client(grouped.address, use)


def test_a_member_that_reads_another_stream_gets_one_that_was_made_again_without_an_error(
    grouped: BrokerProcess, stream: str
) -> None:
    async def use(client: Client) -> None:
        streams = [f"{stream}-a", f"{stream}-b"]
        for each in streams:
            await client.create_stream(each)
        async with (
            Client.connect(grouped.address) as other,
            client.consumer(streams, group=stream) as first,
            other.consumer(streams, group=stream) as second,
        ):
            async with asyncio.timeout(60):
                while {len(first.assignment), len(second.assignment)} != {1}:
                    await asyncio.gather(first.next(timeout=0.05), second.next(timeout=0.05))
            (remade,) = second.assignment
            await client.delete_stream(remade)
            await client.create_stream(remade)
            with pytest.raises(NotFound, match=f"{remade} was deleted"):
                await second.next(timeout=20)
            await second.close()
            await assigned(first, set(streams))

    with_client(grouped.address, use)


def test_a_cursor_beyond_the_end_is_none_and_a_warning(
    grouped: BrokerProcess, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As another server has it for a stream that was made again."""

    async def use(client: Client) -> None:
        await fill(client, stream, [b"0", b"1", b"2"])
        await client.set_cursor(GROUP + stream, stream, 0, 999)
        assert await values_of_group(client, stream) == [b"0", b"1", b"2"]
        assert await client.fetch_cursor(GROUP + stream, stream) == 2, "its commits count"

    with caplog.at_level(logging.WARNING, "bascule.client"):
        with_client(grouped.address, use)
    assert "its position 1000 of partition 0" in caplog.text


def test_a_cursor_at_the_end_is_where_a_group_goes_on(grouped: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, [b"0", b"1", b"2"])
        await client.set_cursor(GROUP + stream, stream, 0, 2)
        async with client.consumer(stream, group=stream) as consumer:
            await client.publish(stream, b"3")
            message = await consumer.next(timeout=10)
            assert message is not None
            assert message.value == b"3"

    with_client(grouped.address, use)


def test_a_subscription_that_comes_back_to_another_stream_of_the_name_says_so(
    broker: BrokerProcess, stream: str
) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, [b"old"] * 5)
        subscription = client.subscribe(stream, start="earliest")
        assert [(await anext(subscription)).value for _ in range(5)] == [b"old"] * 5
        connect = client._cluster.connections.reader
        up = asyncio.Event()

        async def when_up(address: Any) -> Any:
            await up.wait()
            return await connect(address)

        client._cluster.connections.reader = when_up  # type: ignore[method-assign]
        waiting = asyncio.create_task(anext(subscription))
        await asyncio.sleep(0)
        lose_readers(client)
        async with await Client.connect(broker.address) as other:
            await other.delete_stream(stream)
            await fill(other, stream, [b"new"] * 10)
        up.set()
        with pytest.raises(NotFound, match=f"{stream} was deleted"):
            await waiting

    with_client(broker.address, use)


def test_a_position_beyond_the_end_is_an_error(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, [b"v"] * 5)
        async with client.consumer(stream, start={stream: {0: 5}}) as consumer:
            assert await consumer.next(timeout=0.05) is None
        with pytest.raises(OutOfRange, match=r"position 6 of partition 0 .* is beyond its end, 5"):
            await client.consumer(stream, start={stream: {0: 6}}).ready()
        with pytest.raises(OutOfRange, match=r"position 6 .* is beyond its end, 5"):
            await anext(client.arrow(stream, start={stream: {0: 6}}))
        assert [batch async for batch in client.arrow(stream, start={stream: {0: 5}})] == []

    with_client(broker.address, use)


def test_all_partitions_are_read_of_a_stream_that_another_client_made_again_with_more(
    broker: BrokerProcess, stream: str
) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, [b"old"])
        async with await Client.connect(broker.address) as other:
            await other.delete_stream(stream)
            await fill(other, stream, [b"new"], partitions=4)
        async with client.consumer(stream, stop="latest") as consumer:
            assert sorted([message.partition async for message in consumer]) == [0, 1, 2, 3]

    with_client(broker.address, use)


def test_columns_have_all_partitions_of_a_stream_that_another_client_made_again_with_more(
    broker: BrokerProcess, stream: str
) -> None:
    async def use(client: Client) -> None:
        await fill(client, stream, [b"old"])
        async with await Client.connect(broker.address) as other:
            await other.delete_stream(stream)
            await fill(other, stream, [b"new"], partitions=4)
        assert sum([batch.num_rows async for batch in client.arrow(stream)]) == 4

    with_client(broker.address, use)
