"""What a user gives that cannot be meant is refused with a sentence, and what has changed meanwhile is noticed."""

import asyncio
import time
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from bascule import limits
from bascule.client import AckPolicy, BlockingClient, Client, Outgoing
from bascule.client.requests import partition_for
from bascule.errors import InvalidArgument, NotFound, OutOfRange, PublishError
from bascule.testing.processes import BrokerProcess
from tests.harness.clients import read_all, with_client


def test_a_message_over_the_maximum_payload_of_nats_is_the_callers_error(broker: BrokerProcess, stream: str) -> None:
    large = bytes(limits.MIB + 1000)

    async def use(client: Client) -> None:
        await client.create_stream(stream)
        for policy in (AckPolicy.ALL, AckPolicy.LEADER):
            with pytest.raises(
                InvalidArgument, match=r"larger than the NATS server takes, and was not sent.*max_payload"
            ):
                await client.publish(stream, large, ack=policy)
        with pytest.raises(PublishError, match="message 1 was refused: it is larger") as caught:
            await client.publish_many(stream, [b"small", large], retry_s=5.0)
        assert isinstance(caught.value.__cause__, InvalidArgument)

    with_client(broker.address, use)


@pytest.mark.parametrize("start", [None, 1.5, True, b"earliest"])
def test_what_is_no_start_is_refused(broker: BrokerProcess, stream: str, start: Any) -> None:
    async def use(client: Client) -> None:
        with pytest.raises(InvalidArgument, match="use new, earliest, latest, an offset or a datetime"):
            client.subscribe(stream, start=start)

    with_client(broker.address, use)


@pytest.mark.parametrize("position", [-1, -5])
def test_a_negative_offset_is_refused(broker: BrokerProcess, stream: str, position: int) -> None:
    async def use(client: Client) -> None:
        with pytest.raises(InvalidArgument, match=f"start={position}: the first offset is 0"):
            client.subscribe(stream, start=position)
        with pytest.raises(InvalidArgument, match=f"stop={position}: the first offset is 0"):
            client.subscribe(stream, stop=position)

    with_client(broker.address, use)


@pytest.mark.parametrize("expected", [-2, -5, "3", 1.0, True, None, 2**63])
def test_what_is_no_expected_offset_is_refused(broker: BrokerProcess, stream: str, expected: Any) -> None:
    """It was taken for none, so that the message was stored wherever the log ended, or it was an error of protobuf."""

    async def use(client: Client) -> None:
        await client.create_stream(stream, optimistic_concurrency_control=True)
        with pytest.raises(InvalidArgument, match=r"expected_offset=.*: it is a number, -1 or more"):
            await client.publish(stream, b"v", expected_offset=expected)
        assert await read_all(client, stream) == []

    with_client(broker.address, use)


@pytest.mark.parametrize("partition", [-1, "0", 2**31])
def test_what_is_no_partition_has_no_cursor(broker: BrokerProcess, stream: str, partition: Any) -> None:
    async def use(client: Client) -> None:
        with pytest.raises(InvalidArgument, match="partitions are numbered from 0"):
            await client.set_cursor("c", stream, partition, 1)
        with pytest.raises(InvalidArgument, match="partitions are numbered from 0"):
            await client.fetch_cursor("c", stream, partition)
        with pytest.raises(InvalidArgument, match="it is a number, -2 or more"):
            await client.set_cursor("c", stream, 0, 2**63)

    with_client(broker.address, use)


def test_a_time_in_nanoseconds_is_not_taken_for_an_offset(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        for number in (time.time_ns(), time.time_ns() // 1000):
            with pytest.raises(InvalidArgument, match=r"looks like a time .* as a datetime"):
                client.subscribe(stream, start=number)
            with pytest.raises(InvalidArgument, match=r"looks like a time .* as a datetime"):
                client.subscribe(stream, stop=number)

    with_client(broker.address, use)


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1)])
def test_a_stream_that_was_made_anew_with_other_partitions_is_noticed(
    broker: BrokerProcess, stream: str, before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CLIENT_METADATA_AGE_S", 0.3)
    keys = [b"key %d" % n for n in range(20)]

    async def use(client: Client) -> None:
        await client.create_stream(stream, partitions=before)
        for key in keys:
            await client.publish(stream, b"v", key=key)
        async with await Client.connect(broker.address) as other:
            await other.delete_stream(stream)
            await other.create_stream(stream, partitions=after)
        if after > before:
            await asyncio.sleep(0.4)  # nothing shows it but a look at the metadata
        for key in keys:
            assert (await client.publish(stream, key, key=key)).partition == partition_for(key, after)
        await client.publish_many(stream, [Outgoing(key, key) for key in keys])
        for partition in range(after):
            mine = [key for key in keys if partition_for(key, after) == partition]
            assert [message.value for message in await read_all(client, stream, partition)] == mine * 2

    with_client(broker.address, use)


def test_a_partition_that_is_not_there_is_said(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        with pytest.raises(NotFound, match="no such partition: 3"):
            await client.publish(stream, b"v", partition=3)
        with pytest.raises(NotFound, match="no such partition: 3"):
            await anext(client.subscribe(stream, 3))

    with_client(broker.address, use)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("text", "the value is text"),
        (None, "the value is of type NoneType"),
        (Outgoing("text"), "the value is text"),  # type: ignore[arg-type]
        (Outgoing(None), "the value is of type NoneType"),  # type: ignore[arg-type]
        (Outgoing(b"v", "key"), "the key is text"),  # type: ignore[arg-type]
        (Outgoing(b"v", headers={"h": "text"}), "header 'h' is text"),  # type: ignore[dict-item]
        (Outgoing(b"v", headers={1: b"v"}), "the name of header 1 is not text"),  # type: ignore[dict-item]
        (Outgoing(b"v", headers={"\ud800": b"v"}), "the name of header .* has no form in UTF-8"),
        (memoryview(array("i", [1, 2, 3])), "the value is a memoryview whose items are no bytes"),
        (memoryview(b"abcdef")[::2], "the value is a memoryview whose items are no bytes, or lie apart"),
        (memoryview(bytes(8)).cast("B", (2, 4)), "the value is a memoryview"),
        (array("i", [1, 2, 3]), "the value is of type array"),
        (Outgoing(b"v", memoryview(array("d", [1.0]))), "the key is a memoryview"),  # type: ignore[arg-type]
        (Outgoing(b"v", headers={"h": array("d", [1.0])}), "header 'h' is of type array"),  # type: ignore[dict-item]
        (Outgoing(b"v", headers=[("h", b"v")]), "headers=.*: they are a mapping"),  # type: ignore[arg-type]
        (Outgoing(b"v", headers={"subject": b"v"}), "header 'subject' would be lost"),
        (Outgoing(b"v", headers={"h": b"v", "reply": b"v"}), "header 'reply' would be lost"),
        (Outgoing(b"v", partition=True), "partition=True"),
        (Outgoing(b"v", partition="1"), "partition='1'"),  # type: ignore[arg-type]
        (Outgoing(b"v", partition=1.5), r"partition=1\.5"),  # type: ignore[arg-type]
        (Outgoing(b"v", partition=2**31), "partition=2147483648"),
    ],
)
@pytest.mark.parametrize("retry_s", [0.0, 5.0])
def test_what_is_no_bytes_is_refused_with_a_sentence_everywhere(
    broker: BrokerProcess, stream: str, message: object, reason: str, retry_s: float
) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        with pytest.raises(PublishError, match=f"message 1.*: {reason}"):
            await client.publish_many(stream, [b"first", message], retry_s=retry_s)  # type: ignore[list-item]
        value, key, headers, partition = message if isinstance(message, Outgoing) else Outgoing(message)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=reason):
            await client.publish(stream, value, key=key, headers=headers, partition=partition, retry_s=retry_s)
        if partition is None:
            with pytest.raises(InvalidArgument, match=f"message 1 of batch 0: {reason}"):
                await anext(client.write_batches(stream, [[b"first", message]]).written())  # type: ignore[list-item]
        else:
            with pytest.raises(InvalidArgument, match=reason):
                await client.publish_many(stream, [b"v"], partition=partition, retry_s=retry_s)
        assert await client.publish_many(stream, [bytearray(b"v"), memoryview(b"w")], retry_s=retry_s) == 2  # type: ignore[list-item]

    with_client(broker.address, use)
    with BlockingClient(broker.address) as client, pytest.raises(PublishError, match=f"message 1.*: {reason}"):
        client.publish_many(stream, [b"first", message], retry_s=retry_s)  # type: ignore[list-item]


def calls(client: Any) -> dict[str, tuple[Callable[[], Any], str]]:
    """Each, and what is said."""
    return {
        "publish to bytes": (lambda: client.publish(b"s", b"v"), "stream=b's': the name of a stream is text"),
        "publish to None": (lambda: client.publish(None, b"v"), "stream=None"),
        "publish with a text as ack": (lambda: client.publish("s", b"v", ack="ALL"), "ack='ALL': it is AckPolicy.ALL"),
        "publish without a time": (lambda: client.publish("s", b"v", timeout=None), "timeout=None: it is a number"),
        "publish_many to a number": (lambda: client.publish_many(5, [b"v"]), "stream=5"),
        "publish_many, no time": (lambda: client.publish_many("s", [b"v"], timeout=float("nan")), "timeout=nan"),
        "metadata of a text": (lambda: client.fetch_metadata("orders"), "streams='orders': give a list"),
        "no partitions": (lambda: client.create_stream("s", partitions=0), "partitions=0: it is a number, 1 or more"),
        "a cursor below the first": (lambda: client.set_cursor("c", "s", 0, -5), "offset=-5"),
        "a subscription to bytes": (lambda: client.subscribe(b"s"), "stream=b's'"),
        "a consumer of bytes": (lambda: client.consumer([b"s"]), "stream=b's'"),
        "no columns": (lambda: client.arrow("s", columns=[]), r"columns=\[\]: give a list of some of"),
        "linger as text": (lambda: client.producer("s", linger="1"), "linger='1': it is a number of seconds"),
        "linger below 0": (lambda: client.producer("s", linger=-1), "linger=-1"),
        "retry_for below 0": (lambda: client.producer("s", retry_for=-1), "retry_for=-1"),
        "no ack": (lambda: client.producer("s", ack=None), "ack=None"),
        "idempotent as text": (lambda: client.producer("s", idempotent="yes"), "idempotent='yes'"),
        "one partition of a consumer": (lambda: client.consumer("s", partitions=1), r"partitions=1: .* as in \[0\]"),
        "one partition of arrow": (lambda: client.arrow("s", partitions=1), r"partitions=1: .* as in \[0\]"),
        "last below 0": (lambda: client.consumer("s", last=-1), "last=-1: it is a number, 0 or more"),
        "last and a start": (lambda: client.consumer("s", last=1, start=5), "last=1 and start=5: .* one of them"),
        "no connection": (lambda: Client("localhost:9292"), r"Client\.connect\('localhost:9292'\)"),  # type: ignore[arg-type]
        "no partitioner": (lambda: client.producer("s", partitioner=5), "partitioner=5"),
    }


def test_arguments_that_cannot_be_meant_are_refused_with_a_sentence(broker: BrokerProcess) -> None:
    async def use(client: Client) -> None:
        for call, said in calls(client).values():
            with pytest.raises(InvalidArgument, match=said):
                await call()
        for servers in (None, [], [None], 5):
            with pytest.raises(InvalidArgument, match="no server address was given"):
                await Client.connect(servers)  # type: ignore[arg-type]

    with_client(broker.address, use)


def test_a_position_of_partitions_that_are_not_there_is_of_another_stream(broker: BrokerProcess, stream: str) -> None:
    """It was made again with fewer of them."""

    async def use(client: Client) -> None:
        await client.create_stream(stream, partitions=2)
        position = {stream: {"0": 0, "1": 0, "2": 3}}
        for reader in (client.consumer(stream, start=position), client.arrow(stream, start=position)):  # type: ignore[arg-type]
            with pytest.raises(OutOfRange, match=f"names partition 2 of stream {stream}, which has 2"):
                await anext(reader)
        async with client.consumer(stream, start={stream: {0: 0, 2: 0}}, stop="latest") as consumer:
            assert await consumer.next() is None, "it had nothing of it"

    with_client(broker.address, use)


@pytest.mark.parametrize(
    ("position", "said"),
    [
        ({0: 1}, "a position is {stream: {partition: offset}}"),
        ({"s": 1}, "a position is"),
        ({"s": {"first": 1}}, "a position is"),
        ({"s": {0: -1}}, "a position is"),
        ({"s": {0: "1000 "}}, "a position is"),
        ({"another": {0: 1}}, "the position is of another, and s is read"),
    ],
)
def test_a_position_of_another_shape_or_stream_is_refused(broker: BrokerProcess, position: Any, said: str) -> None:
    async def use(client: Client) -> None:
        with pytest.raises(InvalidArgument, match=said):
            client.consumer("s", start=position)
        with pytest.raises(InvalidArgument, match=said):
            client.arrow("s", start=position)

    with_client(broker.address, use)
