"""However much is unread or unsent, a client's other calls go on; what was not sent is told from what is unknown."""

import asyncio
import time

import pytest

from bascule import limits
from bascule.client import AckPolicy, Client
from bascule.client.publisher import Session
from bascule.errors import AckTimeout, NotSent, SendTimeout, Unconfirmed
from bascule.net.channel import ClientCall
from bascule.testing.processes import BrokerProcess
from tests.harness.clients import read_all, with_client

UNREAD = 24
PIECE = bytes(60_000)


def test_subscriptions_that_nobody_reads_hold_up_no_other_call(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        await client.publish_many(stream, [PIECE] * 40)  # more than the window of a subscription
        unread = [client.subscribe(stream) for _ in range(UNREAD)]
        for subscription in unread:
            async with asyncio.timeout(5):
                await subscription.ready()
        await asyncio.sleep(0.5)  # their windows fill
        assert (await client.publish(stream, b"published")).offset == 40
        assert stream in (await client.fetch_metadata()).streams
        async with asyncio.timeout(10):
            assert len(await read_all(client, stream)) == 41
        for subscription in unread:
            async with asyncio.timeout(5):
                assert [(await anext(subscription)).offset for _ in range(41)] == list(range(41))
            subscription.close()

    with_client(broker.address, use)


def test_messages_go_from_each_partition_to_another_stream(broker: BrokerProcess, stream: str) -> None:
    """Read and publish, with one client, over more partitions than fit the window of a connection."""
    partitions, each = 20, 30
    done = 0

    async def use(client: Client) -> None:
        await client.create_stream(stream, partitions=partitions)
        await client.create_stream(f"{stream}-copy")
        await client.publish_many(stream, [PIECE] * (partitions * each), spread=True)

        async def move(partition: int) -> None:
            nonlocal done
            async for message in client.subscribe(stream, partition, stop="latest"):
                await client.publish(f"{stream}-copy", message.value[:10])
                done += 1

        await asyncio.gather(*(move(partition) for partition in range(partitions)))
        assert done == partitions * each

    with_client(broker.address, use)


def test_more_subscriptions_than_a_connection_carries_are_all_served(broker: BrokerProcess, stream: str) -> None:
    count = limits.HTTP2_MAX_CONCURRENT_STREAMS + 50

    async def use(client: Client) -> None:
        await client.create_stream(stream)
        subscriptions = [client.subscribe(stream, start="new") for _ in range(count)]
        for subscription in subscriptions:
            async with asyncio.timeout(5):
                await subscription.ready()
        await client.publish(stream, b"for all")
        messages = await asyncio.gather(*(anext(subscription) for subscription in subscriptions))
        assert {message.value for message in messages} == {b"for all"}
        for subscription in subscriptions:
            subscription.close()

    with_client(broker.address, use)


def test_many_more_publishes_at_once_than_the_window_all_succeed(broker: BrokerProcess, stream: str) -> None:
    count = 40_000

    async def main() -> None:  # without asyncio's debug mode, which makes it ten times as slow
        async with await Client.connect(broker.address) as client:
            await client.create_stream(stream)
            acks = await asyncio.gather(*(client.publish(stream, b"%d" % n) for n in range(count)))
            assert sorted(ack.offset for ack in acks) == list(range(count))

    asyncio.run(main())


def test_publishing_without_acks_lets_others_run_and_buffers_little(
    broker: BrokerProcess, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = longest = 0.0
    sessions: list[Session] = []
    made = Session.__init__

    def noted(self: Session, call: ClientCall, broker: str | None = None) -> None:
        made(self, call, broker)
        sessions.append(self)

    monkeypatch.setattr(Session, "__init__", noted)

    async def use(client: Client) -> None:
        nonlocal longest, most
        ended = False

        async def tick() -> None:
            nonlocal longest
            while not ended:
                before = time.monotonic()
                await asyncio.sleep(0)
                longest = max(longest, time.monotonic() - before)

        await client.create_stream(stream)
        ticking = asyncio.create_task(tick())
        for _ in range(20_000):
            await client.publish(stream, bytes(500), ack=AckPolicy.NONE)
            most = max(most, sum(session._outbox_bytes for session in sessions))
        ended = True
        await ticking
        await client.publish(stream, b"last")
        assert (await client.fetch_partition_metadata(stream)).high_watermark == 20_000

    with_client(broker.address, use)
    assert most <= 2 * limits.CLIENT_UNACKED_OUTBOX_BYTES
    assert longest < 1.0


def test_what_was_not_sent_is_told_from_what_may_be_stored(broker: BrokerProcess, stream: str) -> None:
    """The broker stands still: what fits the connection may be stored, the rest was not sent."""

    async def use(client: Client) -> None:
        await client.create_stream(stream)
        await client.publish(stream, b"first")
        broker.pause()
        try:
            large = [asyncio.create_task(client.publish(stream, bytes(100_000), timeout=2.0)) for _ in range(200)]
            for _ in range(100):
                await asyncio.sleep(0)  # until as many are on their way as the connection takes
            with pytest.raises(SendTimeout):
                await client.publish(stream, b"behind them", timeout=1.0)
            outcomes = await asyncio.gather(*large, return_exceptions=True)
        finally:
            broker.resume()
        kinds = {type(outcome) for outcome in outcomes}
        assert kinds == {SendTimeout, AckTimeout}
        sent = sum(isinstance(outcome, Unconfirmed) for outcome in outcomes)
        while True:  # until the broker answers again
            try:
                await client.publish(stream, b"last")
                break
            except (NotSent, Unconfirmed):
                continue
        messages = [message.value for message in await read_all(client, stream)]
        assert b"behind them" not in messages
        assert messages.count(bytes(100_000)) <= sent

    with_client(broker.address, use)
