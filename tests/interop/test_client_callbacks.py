"""What a user's own code raises or does while it publishes: it reaches the user as it is, and stops nothing else."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from bascule.client import Client, Outgoing
from bascule.errors import PublishError, Unavailable
from bascule.testing.processes import BrokerProcess
from tests.harness.clients import read_all, with_client


@pytest.mark.parametrize("retry_s", [0.0, 5.0])
@pytest.mark.parametrize("error", [ValueError("mine"), KeyError("mine"), Unavailable("mine"), TimeoutError("mine")])
def test_an_error_of_on_acks_reaches_the_user_at_once(
    broker: BrokerProcess, stream: str, error: Exception, retry_s: float
) -> None:
    acked = 0

    def on_acks(acks: list[tuple[int, int, int]]) -> None:
        nonlocal acked
        acked += len(acks)
        raise error

    async def use(client: Client) -> None:
        await client.create_stream(stream)
        began = time.monotonic()
        with pytest.raises(type(error)) as caught:
            await client.publish_many(stream, [b"v"] * 3000, on_acks=on_acks, retry_s=retry_s)
        assert caught.value is error
        assert f"{acked} messages" in "".join(error.__notes__)
        assert time.monotonic() - began < 3
        assert len(await read_all(client, stream)) <= 3000, "nothing was sent twice"

    with_client(broker.address, use)


@pytest.mark.parametrize("retry_s", [0.0, 5.0])
@pytest.mark.parametrize("error", [ValueError("mine"), Unavailable("mine")])
def test_what_a_source_gave_before_it_failed_is_published_and_acked(
    broker: BrokerProcess, stream: str, error: Exception, retry_s: float
) -> None:
    acked: list[int] = []

    def source() -> Iterator[bytes]:
        yield from [b"v"] * 1500
        raise error

    async def use(client: Client) -> None:
        await client.create_stream(stream)
        with pytest.raises(type(error)) as caught:
            await client.publish_many(
                stream, source(), on_acks=lambda acks: acked.extend(each[0] for each in acks), retry_s=retry_s
            )
        assert caught.value is error
        assert "1500 messages" in "".join(error.__notes__)
        assert sorted(acked) == list(range(1500))
        assert len(await read_all(client, stream)) == 1500

    with_client(broker.address, use)


@pytest.mark.parametrize("retry_s", [0.0, 5.0])
def test_a_slow_synchronous_source_lets_acks_and_other_tasks_through(
    broker: BrokerProcess, stream: str, retry_s: float
) -> None:
    acked = 0
    acked_while_it_ran: list[int] = []

    def source() -> Iterator[bytes]:
        for number in range(60):
            time.sleep(0.02)
            acked_while_it_ran.append(acked)
            yield b"%d" % number

    def on_acks(acks: list[tuple[int, int, int]]) -> None:
        nonlocal acked
        acked += len(acks)

    async def use(client: Client) -> None:
        await client.create_stream(stream)
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        ticking = asyncio.create_task(tick())
        assert await client.publish_many(stream, source(), on_acks=on_acks, retry_s=retry_s) == 60
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)
        assert turns >= 60
        assert acked_while_it_ran[-1] > 30, "acks come while the source goes on"

    with_client(broker.address, use)


def test_messages_acked_in_the_same_batch_as_a_refusal_are_told(broker: BrokerProcess, stream: str) -> None:
    acked: list[int] = []

    async def use(client: Client) -> None:
        await client.create_stream(stream)
        with pytest.raises(PublishError, match="no such partition: 9") as caught:
            await client.publish_many(
                stream,
                [b"v", b"v", Outgoing(b"v", partition=9)],
                on_acks=lambda acks: acked.extend(each[0] for each in acks),
            )
        assert len(acked) == caught.value.acked

    with_client(broker.address, use)
