"""A user's program that names everything which `bascule.client` has, with the types that a user sees. It is checked and
not run."""

from datetime import datetime
from typing import assert_type

from bascule import client as api
from bascule.client import (
    Ack,
    AckPolicy,
    Assignment,
    BlockingClient,
    Client,
    Message,
    Metadata,
    Outgoing,
    Position,
    batches_of,
)

ERRORS: tuple[type[api.BasculeError], ...] = (
    api.AckTimeout,
    api.AlreadyExists,
    api.CallerError,
    api.Cancelled,
    api.ClientClosed,
    api.ClusterError,
    api.CorruptError,
    api.DeadlineExceeded,
    api.FailedPrecondition,
    api.IncorrectOffset,
    api.Internal,
    api.Interrupted,
    api.InvalidArgument,
    api.NotFound,
    api.NotSent,
    api.OutOfRange,
    api.PermissionDenied,
    api.PublishError,
    api.ResourceExhausted,
    api.RpcError,
    api.SendTimeout,
    api.TimedOut,
    api.TlsRefused,
    api.Unavailable,
    api.Unconfirmed,
    api.Unimplemented,
    api.UnknownOutcome,
    api.WrongServer,
)


async def administer(client: Client) -> None:
    await client.create_stream("orders", partitions=4, exist_ok=True, retention_max_age_ms=1000)
    known = assert_type(await client.fetch_metadata(), Metadata)
    brokers: list[api.Broker] = list(known.brokers.values())
    streams: list[api.Stream] = list(known.streams.values())
    partition = assert_type(await client.fetch_partition_metadata("orders", 0), api.Partition)
    assert_type(client.admin, api.Admin)
    bounds = assert_type(await client.log_bounds("orders"), api.LogBounds)
    await client.set_cursor("me", "orders", 0, partition.high_watermark + bounds.start + len(brokers) + len(streams))
    assert_type(await client.fetch_cursor("me", "orders"), int)


async def write(client: Client) -> None:
    ack = assert_type(await client.publish("orders", b"value", key=b"k", headers={"h": b"v"}), Ack)
    print(ack.policy is AckPolicy.ALL, assert_type(ack.commit_time, datetime))
    assert_type(await client.publish_many("orders", [b"value", Outgoing(b"value", b"key")], on_acks=print), int)
    async with client.producer("orders", partitioner=lambda message, count: len(message.value) % count) as producer:
        assert_type(producer, api.Producer)
        receipt = assert_type(await producer.send(b"value"), api.Receipt)
        assert_type(await receipt, api.Sent)
        async with producer.batch() as batch:
            assert_type(batch, api.ProducerBatch)
            await batch.send(b"value")
        assert_type(await producer.send_batch([b"value"]), api.StoredBatch)
    write = assert_type(client.write_batches("orders", batches_of([b"value"], 10)), api.BulkWrite)
    async for written in write:
        assert_type(written, api.WrittenBatch)


def on_assigned(partitions: Assignment) -> None:
    print(partitions["orders"])


async def read(client: Client, start: api.StartAt, stop: api.StopAt, saved: Position) -> None:
    subscription = assert_type(client.subscribe("orders", 1, start=start, stop=stop), api.Subscription)
    async for message in subscription:
        assert_type(message, Message)
        assert_type(message.key, bytes | None)
        assert_type(message.headers, dict[str, bytes])
    async with client.consumer("orders", start=saved) as consumer:
        assert_type(consumer, api.Consumer)
        assert_type(await consumer.next(timeout=1.0), Message | None)
        async for batch in consumer.batches():
            assert_type(batch, list[Message])
        assert_type(consumer.position, dict[str, dict[int, int]])
    async with client.consumer(["orders"], group="billing", on_assigned=on_assigned) as member:
        assert_type(member, api.GroupConsumer)
        assert_type(await member.commit(), dict[str, dict[int, int]])
    async for piece in assert_type(client.read_range("orders"), api.BulkRead):
        assert_type(piece, api.LogRange)
    assert_type(client.arrow("orders"), api.ArrowRead)
    assert_type(await client.export_parquet("orders", "folder"), api.ExportReport)


def number(client: Client, to: api.WriteTo, identity: api.Identity) -> api.NumberedWrite:
    return client.numbered_write(to, identity, 1.0)


def settings(chosen: api.StreamOverrides) -> None:
    chosen["min_isr"] = 2


async def connect() -> Client:
    async with Client.connect("localhost:9292") as client:
        assert_type(client, Client)
    return await Client.connect(["a:9292", "b:9292"])


def block() -> None:
    with BlockingClient("localhost:9292") as client:
        assert_type(client.publish("orders", b"value"), Ack)
        assert_type(client.admin, api.BlockingAdmin)
        assert_type(client.admin.set_hold("orders", 0, "mine", offset=7), int)
        client.admin.alter_stream("orders", retention_max_age_ms=1000)
        with client.producer("orders") as producer:
            assert_type(producer, api.BlockingProducer)
            assert_type(producer.send(b"value"), api.BlockingReceipt)
            with producer.batch() as batch:
                assert_type(batch, api.BlockingProducerBatch)
                batch.send(b"value")
        with client.consumer("orders") as consumer:
            assert_type(consumer, api.BlockingConsumer)
        with client.consumer("orders", group="billing") as member:
            assert_type(member, api.BlockingGroupConsumer)
        assert_type(client.arrow("orders"), api.BlockingArrowRead)
