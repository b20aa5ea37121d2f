"""Readers of a stream that is paused: with `resume_paused` it is as if it had not been, else they say that it is."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bascule.client import Client, FailedPrecondition, Outgoing, OutOfRange
from bascule.testing.processes import BrokerProcess, start_broker
from tests.harness.clients import with_client


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("paused")
    with start_broker(folder, config={"cursors.stream.partitions": 1}) as running:
        yield running


async def paused(client: Client, stream: str) -> None:
    """With five messages in each of two partitions."""
    await client.create_stream(stream, partitions=2)
    await client.publish_many(stream, [Outgoing(b"v", partition=p) for _ in range(5) for p in range(2)])
    await client.pause_stream(stream)


@pytest.mark.parametrize(
    ("given", "offsets"),
    [
        ({"start": "earliest"}, [0, 1, 2, 3, 4]),
        ({"start": "latest"}, [4]),
        ({"start": "new"}, []),
        ({"start": 3}, [3, 4]),
        ({"start": datetime.now(UTC) - timedelta(hours=1)}, [0, 1, 2, 3, 4]),
        ({"last": 2}, [3, 4]),
        ({"last": 9}, [0, 1, 2, 3, 4]),
    ],
)
def test_a_consumer_resumes_it_wherever_it_begins(
    own: BrokerProcess, stream: str, given: dict[str, Any], offsets: list[int]
) -> None:
    async def use(client: Client) -> None:
        await paused(client, stream)
        found: dict[int, list[int]] = {0: [], 1: []}
        async with client.consumer(stream, stop="latest", resume_paused=True, **given) as consumer:
            async for message in consumer:
                found[message.partition].append(message.offset)
        assert found == {0: offsets, 1: offsets}

    with_client(own.address, use, timeout_s=15)


def test_a_position_beyond_its_end_is_told(own: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await paused(client, stream)
        start = {stream: {0: 2, 1: 6}}
        with pytest.raises(OutOfRange, match=r"the position 6 of partition 1 .* is beyond its end, 5"):
            await client.consumer(stream, start=start, stop="latest", resume_paused=True).next()

    with_client(own.address, use)


def test_a_group_that_begins_with_what_is_new_resumes_it(own: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await paused(client, stream)
        async with client.consumer(stream, group=stream, start="new", resume_paused=True) as consumer:
            while (await client.fetch_cursor(f"__group:{stream}", stream, 1)) == -1:
                assert await consumer.next(timeout=0.1) is None
            await client.publish(stream, b"later", partition=1)
            message = await consumer.next(timeout=5)
            assert message is not None
            assert message.offset == 5

    with_client(own.address, use, timeout_s=25)


@pytest.mark.parametrize("given", [{"start": "earliest"}, {"start": "new"}, {"last": 2}, {"start": {}}])
def test_without_it_every_reader_says_that_it_is_paused(own: BrokerProcess, stream: str, given: dict[str, Any]) -> None:
    said = rf"partition [01] of stream {stream} is paused.*resume_paused=True.*`bascule stream resume {stream}`"

    async def use(client: Client) -> None:
        await paused(client, stream)
        start = given | ({"start": {stream: {0: 1, 1: 1}}} if given.get("start") == {} else {})
        async with asyncio.timeout(5):
            with pytest.raises(FailedPrecondition, match=said):
                async with client.consumer(stream, **start) as consumer:
                    await consumer.next()

    with_client(own.address, use)


def test_what_is_asked_of_its_leader_says_so_soon(own: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await paused(client, stream)
        async with asyncio.timeout(5):
            with pytest.raises(FailedPrecondition, match=r"partition 1 .* is paused"):
                await client.fetch_partition_metadata(stream, 1)
        await client.admin.resume_stream(stream)
        assert (await client.fetch_partition_metadata(stream, 1)).high_watermark == 4

    with_client(own.address, use)


def test_a_reader_is_told_that_it_was_paused_meanwhile(own: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        async with client.consumer(stream) as consumer:
            await client.pause_stream(stream)
            with pytest.raises(FailedPrecondition, match=f"partition 0 of stream {stream} is paused"):
                await consumer.next(timeout=5)
            await client.publish(stream, b"v")
            message = await consumer.next(timeout=5)
            assert message is not None, "it goes on when it is resumed"
            assert message.offset == 0

    with_client(own.address, use)
