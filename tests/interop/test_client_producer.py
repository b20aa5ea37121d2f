"""The producer: receipts, flushing, back-pressure, partitions, refusals, and brokers that die meanwhile."""

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from bascule.client import (
    AckPolicy,
    Client,
    ClientClosed,
    InvalidArgument,
    NotFound,
    NotSent,
    Outgoing,
    Producer,
    Receipt,
    Sent,
    StoredBatch,
    Unconfirmed,
    Unimplemented,
)
from bascule.client.requests import partition_for
from bascule.errors import RpcError, Status
from bascule.testing.processes import BrokerProcess, start_broker
from tests.harness.clients import read_all, with_client


def test_a_receipt_is_awaited_for_the_ack(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        async with client.producer(stream) as producer:
            first = await producer.send(b"one", key=b"k", headers={"h": b"v"})
            second = await producer.send(b"two")
            assert await first == Sent(stream, 0, 0)
            assert await second == Sent(stream, 0, 1)
            assert await second == Sent(stream, 0, 1), "as often as one likes"
            assert first.done()
        one, two = await read_all(client, stream)
        assert (one.value, one.key, one.headers["h"]) == (b"one", b"k", b"v")
        assert two.value == b"two"

    with_client(broker.address, use)


def test_the_end_of_the_block_waits_for_everything(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        async with client.producer(stream) as producer:
            for number in range(2000):
                await producer.send(b"%d" % number)
        assert [message.value for message in await read_all(client, stream)] == [b"%d" % n for n in range(2000)]
        with pytest.raises(ClientClosed, match="this producer is closed"):
            await producer.send(b"late")
        await producer.close()  # again is harmless

    with_client(broker.address, use)


def test_flush_waits_for_what_was_sent_before(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        async with client.producer(stream) as producer:
            await producer.flush()
            receipts = [await producer.send(b"v") for _ in range(1000)]
            await producer.flush()
            assert all(receipt.done() for receipt in receipts)
            assert [(await receipt).offset for receipt in receipts] == list(range(1000))
            assert "0 messages in flight" in repr(producer)

    with_client(broker.address, use)


def test_many_tasks_share_a_producer(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        async with client.producer(stream) as producer:

            async def work(name: int) -> list[int]:
                receipts = [await producer.send(b"%d %d" % (name, number)) for number in range(100)]
                return [(await receipt).offset for receipt in receipts]

            offsets = await asyncio.gather(*(work(name) for name in range(30)))
        assert all(found == sorted(found) for found in offsets), "each in its order"
        assert sorted(offset for found in offsets for offset in found) == list(range(3000))

    with_client(broker.address, use)


def test_send_waits_for_room(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        async with client.producer(stream, max_in_flight=10) as producer:
            await (await producer.send(b"first"))
            broker.pause()
            try:
                receipts = [await producer.send(b"v") for _ in range(10)]
                waiting = asyncio.create_task(producer.send(b"one more"))
                await asyncio.sleep(0.3)
                assert not waiting.done()
                assert not any(receipt.done() for receipt in receipts)
            finally:
                broker.resume()
            assert (await (await waiting)).offset == 11

    with_client(broker.address, use)


def test_keys_choose_partitions_and_messages_without_one_take_all_in_turn(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream, partitions=4)
        async with client.producer(stream) as producer:
            keyed = {key: await producer.send(b"v", key=key) for key in (b"key %d" % n for n in range(20))}
            for key, receipt in keyed.items():
                assert (await receipt).partition == partition_for(key, 4)
            turns = [await producer.send(b"v") for _ in range(8)]
            assert sorted([(await receipt).partition for receipt in turns]) == [0, 0, 1, 1, 2, 2, 3, 3]
            assert (await (await producer.send(b"v", partition=2))).partition == 2

        def longest(message: Outgoing, partitions: int) -> int:
            return len(message.value) % partitions

        async with client.producer(stream, partitioner=longest) as producer:
            receipts = [await producer.send(bytes(size)) for size in range(8)]
            assert [(await receipt).partition for receipt in receipts] == [0, 1, 2, 3] * 2

    with_client(broker.address, use)


def test_a_refused_message_says_why_and_the_producer_goes_on(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        producer = client.producer(stream)
        assert (await (await producer.send(b"good"))).offset == 0
        bad = await producer.send(b"bad", partition=9)
        with pytest.raises(NotFound, match="no such partition: 9"):
            await bad
        later = await producer.send(b"later")
        assert (await later).offset == 1
        with pytest.raises(InvalidArgument, match="the value is text"):
            await producer.send("text")  # type: ignore[arg-type]
        unawaited = await producer.send(b"bad", partition=9)
        with pytest.raises(NotFound):
            await producer.flush()
        assert unawaited.done()
        await producer.close()

    with_client(broker.address, use)


async def failed(producer: Producer) -> Receipt:
    """Of a message that was refused, some time ago."""
    receipt = await producer.send(b"bad", partition=9)
    async with asyncio.timeout(10):
        while not receipt.done():
            await asyncio.sleep(0.01)
    return receipt


def test_what_failed_before_a_flush_is_raised_by_it_once(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        producer = client.producer(stream)
        for _ in range(3):
            await failed(producer)
        with pytest.raises(NotFound, match="no such partition: 9") as caught:
            await producer.flush()
        assert caught.value.__notes__ == ["2 other messages failed, too"]
        await producer.flush()
        await failed(producer)
        with pytest.raises(NotFound, match="no such partition: 9"):
            await producer.close()
        await producer.close()

    with_client(broker.address, use)


def test_what_a_receipt_has_raised_is_not_raised_again(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        async with client.producer(stream) as producer:
            first, second = await failed(producer), await failed(producer)
            with pytest.raises(NotFound):
                await first
            assert isinstance((await asyncio.gather(second, return_exceptions=True))[0], NotFound)
            await producer.flush()
            unheard = await producer.send(b"bad", partition=9)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(unheard, 0.0)
            with pytest.raises(NotFound):
                await producer.flush()

    with_client(broker.address, use)


def test_an_error_of_the_block_comes_before_what_failed(broker: BrokerProcess, stream: str) -> None:
    mine = KeyError("mine")

    async def use(client: Client) -> None:
        await client.create_stream(stream)

        async def block() -> None:
            async with client.producer(stream) as producer:
                await failed(producer)
                raise mine

        with pytest.raises(KeyError) as caught:
            await block()
        assert caught.value is mine
        assert mine.__notes__ == [f"a message to stream {stream} failed, too: NotFound: no such partition: 9"]

    with_client(broker.address, use)


def test_failures_that_nobody_asks_for_take_little_memory(
    broker: BrokerProcess, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bascule.limits.CLIENT_UNRAISED_FAILURES", 2)

    async def use(client: Client) -> None:
        await client.create_stream(stream)
        producer = client.producer(stream)
        receipts = [await failed(producer) for _ in range(5)]
        assert len(producer._unraised) == 2
        await asyncio.gather(*receipts, return_exceptions=True)
        with pytest.raises(NotFound):  # one of those that were not kept
            await producer.close()
        await producer.close()

    with_client(broker.address, use)


@pytest.mark.parametrize("retry_for", [0.0, 30.0])
@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ({"headers": {"\ud800": b"v"}}, "the name of header"),
        ({"partition": 2**40}, "partition=1099511627776"),
        ({"partition": -1}, "partition=-1"),
        ({"partition": "1"}, "partition='1'"),
        ({"partition": 1.5}, "partition=1.5"),
    ],
)
def test_an_unfit_message_is_refused_at_once_and_the_producer_goes_on(
    broker: BrokerProcess, stream: str, retry_for: float, sent: dict[str, Any], reason: str
) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        async with client.producer(stream, retry_for=retry_for) as producer:
            with pytest.raises(InvalidArgument, match=reason):
                await producer.send(b"v", **sent)
            assert (await (await producer.send(b"good"))).offset == 0
            if "partition" in sent:
                producer._partitioner = lambda message, count: sent["partition"]
                with pytest.raises(InvalidArgument, match=reason):
                    await producer.send(b"v")
                with pytest.raises(InvalidArgument, match=reason):
                    await producer.send_batch([b"v"])
                producer._partitioner = None
            assert (await (await producer.send(b"good"))).offset == 1

    with_client(broker.address, use)


def test_whatever_fails_inside_it_the_producer_answers_and_goes_on(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        async with client.producer(stream) as producer:
            publish_many, errors = producer._publish_many, [ValueError("odd"), RpcError(Status.UNAUTHENTICATED, "who")]

            async def fails_twice(*args: Any, **options: Any) -> int:
                if errors:
                    raise errors.pop(0)
                return await publish_many(*args, **options)

            producer._publish_many = fails_twice
            with pytest.raises(Unconfirmed, match="odd"):
                await (await producer.send(b"v"))
            with pytest.raises(RpcError, match="who"):
                await (await producer.send(b"v"))
            assert (await (await producer.send(b"good"))).offset == 0

    with_client(broker.address, use)


def test_a_producer_that_is_cancelled_answers_what_waits_and_takes_no_more(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        producer = client.producer(stream, linger=60)
        receipts = [await producer.send(b"v") for _ in range(2)]
        assert producer._running is not None
        await asyncio.sleep(0)
        producer._running.cancel()
        async with asyncio.timeout(10):
            outcomes = await asyncio.gather(*receipts, return_exceptions=True)
        assert {type(each) for each in outcomes} == {NotSent}
        with pytest.raises(ClientClosed):
            await producer.send(b"v")
        await producer.close()

    with_client(broker.address, use)


def test_a_stream_that_is_not_there_fails_the_receipts(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        producer = client.producer(stream)
        receipt = await producer.send(b"v")
        with pytest.raises(NotFound, match="no such stream"):
            await receipt
        await client.create_stream(stream)
        assert (await (await producer.send(b"v"))).offset == 0
        await producer.close()

    with_client(broker.address, use)


def test_a_producer_needs_acks_and_room(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        with pytest.raises(InvalidArgument, match="waits for acks"):
            client.producer(stream, ack=AckPolicy.NONE)
        with pytest.raises(InvalidArgument, match="max_in_flight=0"):
            client.producer(stream, max_in_flight=0)

    with_client(broker.address, use)


def test_linger_waits_for_more(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        async with client.producer(stream, linger=0.3) as producer:
            began = time.monotonic()
            await (await producer.send(b"v"))
            assert 0.25 < time.monotonic() - began < 2

    with_client(broker.address, use)


def test_messages_in_flight_outlive_the_broker(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        await client.create_stream("s")
        receipts: list[Receipt] = []
        async with client.producer("s") as producer:
            for number in range(300):
                receipts.append(await producer.send(b"%d" % number))
                if number in (100, 200):
                    await asyncio.to_thread(broker.kill9)
                    await asyncio.to_thread(lambda: broker.start().wait_ready())
                await asyncio.sleep(0.002)
        stored = {message.offset: message.value for message in await read_all(client, "s")}
        for number, receipt in enumerate(receipts):
            sent = await receipt
            if sent.offset >= 0:
                assert stored[sent.offset] == b"%d" % number
        assert {b"%d" % n for n in range(300)} == set(stored.values())

    with start_broker(tmp_path) as broker:
        with_client(broker.address, use)


def test_whether_messages_are_numbered_is_chosen_or_said(
    broker: BrokerProcess, stream: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def said() -> list[str]:
        """Not by asyncio, about a slow machine."""
        return [record.getMessage() for record in caplog.records if record.name.startswith("bascule.")]

    async def publish(client: Client, **chosen: Any) -> None:
        async with client.producer(stream, **chosen) as producer:
            await producer.send(b"v")

    async def use(client: Client) -> None:
        await client.create_stream(stream)
        with pytest.raises(InvalidArgument, match=r"AckPolicy\.ALL only"):
            client.producer(stream, ack=AckPolicy.LEADER, idempotent=True)
        await publish(client, idempotent=True)
        await publish(client, idempotent=False)
        await publish(client, ack=AckPolicy.LEADER)
        assert said() == []
        assert len(await read_all(client, stream)) == 3

    async def use_another(client: Client) -> None:
        with pytest.raises(Unimplemented, match="does not number messages"):
            await publish(client, idempotent=True)
        await publish(client, idempotent=False)
        assert said() == []
        await publish(client)
        await publish(client)
        await client.publish(stream, b"v", retry_s=5.0)
        assert len(said()) == 1
        assert "may be stored twice" in said()[0]
        assert len(await read_all(client, stream)) == 7

    caplog.set_level("INFO", "bascule.client")
    with_client(broker.address, use)
    monkeypatch.setattr("bascule.client.producers.INIT_PRODUCER", "/bascule.v1.Producers/NotThere")
    with_client(broker.address, use_another)


def test_that_messages_are_sent_again_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def use(client: Client) -> None:
        await client.create_stream("s")
        async with client.producer("s") as producer:
            await (await producer.send(b"first"))
            await asyncio.to_thread(broker.kill9)
            await producer.send(b"second")
            async with asyncio.timeout(30):
                while "have no ack" not in caplog.text:
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(lambda: broker.start().wait_ready())
        said = [record for record in caplog.records if record.name == "bascule.client.producer"]
        assert [record.levelno for record in said] == [logging.WARNING, logging.INFO]
        assert "stream s: 1 messages have no ack, and are sent again" in said[0].getMessage()
        assert "acked again" in said[1].getMessage()

    caplog.set_level("INFO", "bascule.client")
    with start_broker(tmp_path) as broker:
        with_client(broker.address, use)


def test_an_idle_producer_tries_as_long_as_it_was_told(tmp_path: Path) -> None:
    """The time without messages does not count."""

    async def use(client: Client) -> None:
        await client.create_stream("s")
        async with client.producer("s", retry_for=3.0, timeout=1.0) as producer:
            await (await producer.send(b"first"))
            await asyncio.sleep(3.5)
            await asyncio.to_thread(broker.kill9)
            began = time.monotonic()
            receipt = await producer.send(b"second")
            with pytest.raises((NotSent, Unconfirmed)):
                await receipt
            assert 2.5 < time.monotonic() - began < 10

    with start_broker(tmp_path) as broker:
        with_client(broker.address, use)


def test_closing_the_client_first_leaves_no_receipt_without_an_answer(broker: BrokerProcess, stream: str) -> None:
    producers: list[Producer] = []
    receipts: list[Receipt] = []

    async def use(client: Client) -> None:
        await client.create_stream(stream)
        producers.append(client.producer(stream, retry_for=5.0))
        receipts.extend([await producers[0].send(b"v") for _ in range(3000)])
        await client.close()
        outcomes = await asyncio.gather(*receipts, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {Sent, Unconfirmed, ClientClosed}
        try:
            await producers[0].close()
        except (Unconfirmed, ClientClosed):
            pass

    with_client(broker.address, use)


# --- atomic batches ---------------------------------------------------------------------------------------


def test_a_batch_is_stored_whole_behind_what_was_sent_before(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream, partitions=3)
        async with client.producer(stream) as producer:
            for number in range(500):
                await producer.send(b"%d" % number, partition=1)
            batch = producer.batch(partition=1)
            async with batch:
                await batch.send(b"debit", key=b"a", headers={"h": b"v"})
                await batch.send(b"credit", key=b"b")
                assert repr(batch) == "<ProducerBatch of 2 messages, not stored>"
            assert batch.stored == StoredBatch(stream, 1, 500, 501)
            assert await producer.send_batch([b"x", b"y", b"z"], partition=1) == StoredBatch(stream, 1, 502, 504)
            assert await (await producer.send(b"after", partition=1)) == Sent(stream, 1, 505)
        found = [message async for message in client.subscribe(stream, 1, stop="latest")]
        assert [message.value for message in found[500:]] == [b"debit", b"credit", b"x", b"y", b"z", b"after"]
        assert (found[500].key, found[500].headers["h"]) == (b"a", b"v")

    with_client(broker.address, use)


async def fail_in_a_batch(producer: Producer) -> None:
    async with producer.batch() as batch:
        await batch.send(b"never")
        await batch.send("text")  # type: ignore[arg-type]


def test_nothing_of_a_batch_is_sent_if_its_block_fails_or_its_messages_part(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream, partitions=2)
        keys = {partition_for(key, 2): key for key in (b"%d" % number for number in range(20))}
        async with client.producer(stream) as producer:
            with pytest.raises(InvalidArgument):
                await fail_in_a_batch(producer)
            async with producer.batch() as batch:
                pass
            with pytest.raises(InvalidArgument, match="in its block"):
                await batch.send(b"late")
            with pytest.raises(InvalidArgument, match="in its block"):
                producer.batch().add(b"early")
            with pytest.raises(InvalidArgument, match="go to one partition, and these go to 0, 1"):
                await producer.send_batch([Outgoing(b"v", keys[0]), Outgoing(b"v", keys[1])])
            with pytest.raises(InvalidArgument, match="message 1 of the batch: the value is text"):
                await producer.send_batch([b"v", "text"])  # type: ignore[list-item]
            with pytest.raises(InvalidArgument, match="a batch has 1 to"):
                await producer.send_batch([])
            with pytest.raises(InvalidArgument, match="message exceeds max replication size"):
                await producer.send_batch([b"x" * 1000] * 1040)
            with pytest.raises(InvalidArgument, match="larger than the NATS server takes"):
                await producer.send_batch([b"x" * 1_000_000] * 2)
            assert await producer.send_batch([Outgoing(b"v", keys[1]), b"w"]) == StoredBatch(stream, 1, 0, 1)
        assert not await read_all(client, stream)

    with_client(broker.address, use)


def test_batches_are_stored_once_each_and_whole_although_the_broker_is_killed(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        await client.create_stream("s")
        done = 0
        async with client.producer("s", timeout=2.0) as producer, client.producer("s", timeout=2.0) as other:

            async def work(name: int, through: Producer) -> list[StoredBatch]:
                nonlocal done
                found = []
                for number in range(60):
                    found.append(await through.send_batch([b"%d %d %d" % (name, number, at) for at in range(5)]))
                    done += 1
                return found

            works = [asyncio.create_task(work(name, through)) for name, through in enumerate((producer, other, other))]
            for mark in (30, 90):
                while done < mark:
                    await asyncio.sleep(0.002)
                await asyncio.to_thread(broker.kill9)
                await asyncio.to_thread(lambda: broker.start().wait_ready())
            stored = [each for found in await asyncio.gather(*works) for each in found]
        values = [message.value for message in await read_all(client, "s")]
        assert len(values) == len(set(values)) == 3 * 60 * 5
        for batch in stored:
            found = [value.rsplit(b" ", 1) for value in values[batch.first_offset : batch.last_offset + 1]]
            assert [at for _, at in found] == [b"0", b"1", b"2", b"3", b"4"]
            assert len({name for name, _ in found}) == 1

    with start_broker(tmp_path) as broker:
        with_client(broker.address, use)
