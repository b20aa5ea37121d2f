"""A message that is refused fails alone: those behind it are stored, once each and in their order."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bascule import limits
from bascule.client import (
    AckPolicy,
    Client,
    FailedPrecondition,
    Interrupted,
    InvalidArgument,
    NotFound,
    Outgoing,
    PublishError,
    Sent,
)
from bascule.client.failures import Deadline
from bascule.client.requests import Encoder, Prepared
from bascule.testing.processes import BrokerProcess, start_broker
from bascule.wire.producers import numbered, producer_prefix
from tests.harness.clients import read_all, with_client

LARGE = b"x" * (1 << 20)
"""More than NATS takes, with what it is wrapped in."""


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_message_that_is_too_large_fails_alone(broker: BrokerProcess, stream: str, idempotent: bool) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        values = [b"%d" % number for number in range(2000)]

        async def send_all() -> None:
            async with client.producer(stream, idempotent=idempotent) as producer:
                for value in values:
                    await producer.send(value)
                    if value in (b"0", b"1000", b"1001", b"1999"):
                        await producer.send(LARGE)

        with pytest.raises(InvalidArgument, match="larger than the NATS server takes"):
            await send_all()
        stored = [message.value for message in await read_all(client, stream)]
        assert stored == values

    with_client(broker.address, use)


def test_the_first_of_a_producer_and_those_between_others_fail_alone(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream, partitions=3)
        async with client.producer(stream) as producer:
            first = await producer.send(LARGE, partition=0)
            others = [await producer.send(b"%d" % number, partition=number % 3) for number in range(300)]
            second = await producer.send(LARGE, partition=1)
            others += [await producer.send(b"%d" % number, partition=number % 3) for number in range(300, 600)]
            for receipt in (first, second):
                with pytest.raises(InvalidArgument, match="send it in parts"):
                    await receipt
            sent = await asyncio.gather(*others)
        for partition in range(3):
            offsets = [each.offset for each in sent if each.partition == partition]
            values = [message.value for message in await read_all(client, stream, partition)]
            assert values == [b"%d" % number for number in range(partition, 600, 3)]
            assert [offset for offset in offsets if offset >= 0] == list(range(200))

    with_client(broker.address, use)


def test_what_goes_to_other_partitions_goes_on(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream, partitions=2)
        await client.set_stream_readonly(stream, True, [1])
        async with client.producer(stream) as producer:
            receipts = [await producer.send(b"%d" % number, partition=number % 3) for number in range(300)]
            outcomes = await asyncio.gather(*receipts, return_exceptions=True)
            await client.set_stream_readonly(stream, False, [1])
            assert (await (await producer.send(b"later", partition=1))).offset == 0
        for partition, kind in enumerate((Sent, FailedPrecondition, NotFound)):
            assert {type(outcome) for outcome in outcomes[partition::3]} == {kind}
        assert [each.value for each in await read_all(client, stream)] == [b"%d" % n for n in range(0, 300, 3)]

    with_client(broker.address, use)


def test_what_is_longer_than_a_request_is_refused_at_once(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        async with client.producer(stream) as producer:
            with pytest.raises(InvalidArgument, match="send it in parts"):
                await producer.send(LARGE * 4 + b"x")
            nearly = await producer.send(LARGE * 4)
            after = await producer.send(b"after")
            with pytest.raises(InvalidArgument):
                await nearly
            assert (await after).offset == 0

    with_client(broker.address, use)


def test_publish_many_says_how_many_are_confirmed_when_one_is_refused(broker: BrokerProcess, stream: str) -> None:
    """What was sent with it has its answers by then."""

    async def use(client: Client) -> None:
        await client.create_stream(stream)
        acked: list[int] = []
        values: list[bytes | Outgoing] = [*[b"v"] * 500, LARGE, b"behind"]
        with pytest.raises(PublishError, match="message 500 was refused") as caught:
            await client.publish_many(stream, values, on_acks=lambda acks: acked.extend(index for index, *_ in acks))
        assert (caught.value.index, caught.value.acked) == (500, len(acked))
        assert len(await read_all(client, stream)) == len(acked)
        assert set(range(500)) <= set(acked)

    with_client(broker.address, use)


# --- a producer that is not known any more -----------------------------------------------------------------


async def flood(client: Client, stream: str) -> None:
    """So many other producers write to the partition that it forgets those before."""
    known = await client._cluster.stream(stream, Deadline(5.0))
    session = await client._producers.take(known, Deadline(5.0))
    assert session is not None
    creation, encoder = session._identity[2], Encoder(stream, AckPolicy.ALL)

    async def values() -> AsyncIterator[Prepared]:
        for number in range(limits.MAX_PARTITION_PRODUCERS + 50):
            prefix = producer_prefix(1 << 40 | number, 1, creation, 0)
            yield encoder.prepare(Outgoing(b"x"), 0, lambda partition, prefix=prefix: numbered(prefix, 0))  # type: ignore[misc]

    await client._many._once(stream, values(), 0, False, AckPolicy.ALL, 20.0, None)


def test_a_producer_that_its_partition_has_forgotten_begins_anew(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream, partitions=2)
        async with client.producer(stream, retry_for=5.0) as producer:
            for part in (0, 1):
                assert (await (await producer.send(b"one", partition=part))).offset == 0
            await flood(client, stream)
            end = (await client.log_bounds(stream)).end
            receipts = [await producer.send(b"%d" % number, partition=number % 2) for number in range(20)]
            sent = await asyncio.gather(*receipts)
            assert [each.offset for each in sent if each.partition == 0] == list(range(end, end + 10))
            assert [each.offset for each in sent if each.partition == 1] == list(range(1, 11))

    with_client(broker.address, use)


@pytest.mark.parametrize("how", ["publish", "publish_many", "producer", "batch"])
def test_who_publishes_goes_on_with_a_stream_that_was_made_again(broker: BrokerProcess, stream: str, how: str) -> None:
    """Its metadata, and the producer that was used before, are of the earlier stream."""

    async def use(client: Client) -> None:
        producer = client.producer(stream)

        async def publish(value: bytes) -> None:
            if how == "publish":
                await client.publish(stream, value, retry_s=10.0)
            elif how == "publish_many":
                await client.publish_many(stream, [value], retry_s=10.0)
            elif how == "batch":
                await producer.send_batch([value])
            else:
                await (await producer.send(value))

        async with await Client.connect(broker.address) as other:
            await other.create_stream(stream)
            await publish(b"old")
            await other.delete_stream(stream)
            await other.create_stream(stream, partitions=2)
            for value in (b"new", b"newer"):
                await publish(value)
        found = [each.value for part in (0, 1) for each in await read_all(client, stream, part)]
        assert sorted(found) == [b"new", b"newer"]
        await producer.close()

    with_client(broker.address, use)


# --- after the last ack ------------------------------------------------------------------------------------


def test_a_connection_that_is_lost_behind_the_last_ack_is_no_matter(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        await client.create_stream("s")
        acked: list[int] = []

        def on_acks(acks: list[tuple[int, int, int]]) -> None:
            acked.extend(index for index, *_ in acks)
            if len(acked) == 100:
                broker.kill9()

        assert await client.publish_many("s", [b"v"] * 100, on_acks=on_acks) == 100
        assert sorted(acked) == list(range(100))

    with start_broker(tmp_path) as broker:
        with_client(broker.address, use)


def test_what_was_sent_before_a_connection_is_lost_is_not_to_be_sent_again(tmp_path: Path) -> None:
    """The source has more, which was not sent: to repeat the call would store the first ones twice."""

    async def use(client: Client) -> None:
        await client.create_stream("s")
        acked = asyncio.Event()

        async def source() -> AsyncIterator[bytes]:
            for _ in range(10):
                yield b"v"
            await acked.wait()
            await asyncio.to_thread(broker.kill9)
            await asyncio.Event().wait()

        def on_acks(acks: list[tuple[int, int, int]]) -> None:
            done.extend(acks)
            if len(done) == 10:
                acked.set()

        done: list[tuple[int, int, int]] = []
        with pytest.raises(Interrupted, match="All 10 messages sent") as caught:
            await client.publish_many("s", source(), on_acks=on_acks)
        assert (caught.value.acked, caught.value.retryable) == (10, False)

    with start_broker(tmp_path) as broker:
        with_client(broker.address, use)


def test_without_acks_a_lost_connection_is_no_reason_to_repeat_the_call(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        await client.create_stream("s")

        async def source() -> AsyncIterator[bytes]:
            for _ in range(10):
                yield b"v"
            async with asyncio.timeout(30):
                while len(await read_all(client, "s")) < 10:
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(broker.kill9)
            await asyncio.Event().wait()

        with pytest.raises(Interrupted, match="10 messages had been sent, and no acks asked for") as caught:
            await client.publish_many("s", source(), ack=AckPolicy.NONE)
        assert not caught.value.retryable

    with start_broker(tmp_path) as broker:
        with_client(broker.address, use)
