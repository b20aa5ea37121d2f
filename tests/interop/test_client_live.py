"""The client against a real broker, also one that dies."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from bascule import limits
from bascule.client import AckPolicy, BlockingClient, Client, Message, Outgoing
from bascule.client.requests import partition_for
from bascule.errors import (
    AlreadyExists,
    IncorrectOffset,
    InvalidArgument,
    NotFound,
    PublishError,
    Unavailable,
    Unconfirmed,
    WrongServer,
)
from bascule.testing.processes import BrokerProcess, free_port, start_broker

TIMEOUT_S = 60.0


def run(broker: BrokerProcess, use: Callable[[Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            await use(client)

    asyncio.run(main())


async def read_all(client: Client, stream: str, partition: int = 0) -> list[Message]:
    return [message async for message in client.subscribe(stream, partition, start="earliest", stop="latest")]


def test_what_is_published_is_read_back_with_key_headers_and_offsets(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        first = await client.publish(stream, b"one", key=b"k", headers={"colour": b"blue"})
        second = await client.publish(stream, b"", ack=AckPolicy.LEADER)
        assert (first.stream, first.offset, first.policy) == (stream, 0, AckPolicy.ALL)
        assert second.offset == 1
        assert second.commit_timestamp >= second.reception_timestamp > first.reception_timestamp
        one, two = await read_all(client, stream)
        assert (one.offset, one.key, one.value, one.stream, one.subject) == (0, b"k", b"one", stream, stream)
        assert (one.headers, two.headers, one.reply) == ({"colour": b"blue"}, {}, "")
        assert one.timestamp == first.reception_timestamp
        assert (two.offset, two.key, two.value) == (1, None, b"")

    run(broker, use)


def test_many_messages_keep_their_order_and_every_ack_is_told(broker: BrokerProcess, stream: str) -> None:
    count = 3 * limits.CLIENT_PUBLISH_WINDOW + 17
    acks: list[tuple[int, int, int]] = []

    async def use(client: Client) -> None:
        await client.create_stream(stream)
        values = (b"message %d" % n for n in range(count))
        assert await client.publish_many(stream, values, on_acks=acks.extend) == count
        messages = await read_all(client, stream)
        assert [m.value for m in messages] == [b"message %d" % n for n in range(count)]

    run(broker, use)
    assert sorted(acks) == [(n, n, 0) for n in range(count)]


def test_a_slow_source_is_sent_message_by_message(broker: BrokerProcess, stream: str) -> None:
    acked = asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        yield b"first"
        await acked.wait()  # would wait for ever if the first message stayed in an unfilled batch
        yield b"second"

    async def use(client: Client) -> None:
        await client.create_stream(stream)
        assert await client.publish_many(stream, source(), on_acks=lambda _: acked.set()) == 2

    run(broker, use)


def test_keys_choose_partitions_and_partitions_are_read_one_by_one(broker: BrokerProcess, stream: str) -> None:
    keys = [b"key-%d" % n for n in range(40)]

    async def use(client: Client) -> None:
        await client.create_stream(stream, partitions=3)
        await client.publish_many(stream, [Outgoing(key, key) for key in keys[:20]])
        for key in keys[20:]:
            assert (await client.publish(stream, key, key=key)).partition == partition_for(key, 3)
        for partition in range(3):
            values = [m.value for m in await read_all(client, stream, partition)]
            assert values == [key for key in keys if partition_for(key, 3) == partition]

    run(broker, use)


def test_messages_without_a_key_are_spread_if_asked_and_acks_name_the_partition(
    broker: BrokerProcess, stream: str
) -> None:
    acks: list[tuple[int, int, int]] = []

    async def use(client: Client) -> None:
        await client.create_stream(stream, partitions=3)
        await client.publish_many(stream, [b"%d" % n for n in range(9)], spread=True, on_acks=acks.extend)
        await client.publish_many(stream, [Outgoing(b"h", headers={"a": b"b"})] * 3, spread=True)
        await client.publish_many(stream, [b"zero"])
        for partition in range(3):
            stored = await read_all(client, stream, partition)
            mine = {(index, offset) for index, offset, at in acks if at == partition}
            assert {(int(m.value), m.offset) for m in stored if m.value.isdigit()} == mine
            assert len(mine) == 3
            assert [m.value for m in stored[3:]] == [b"h"] + [b"zero"] * (partition == 0)

    run(broker, use)


def test_a_value_that_is_text_is_refused_with_a_sentence(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        with pytest.raises(InvalidArgument, match=r"the value is text .*'text'\.encode\(\)"):
            await client.publish(stream, "text")  # type: ignore[arg-type]
        with pytest.raises(PublishError, match=r"message 1: the value is text") as caught:
            await client.publish_many(stream, [b"first", "second"])  # type: ignore[list-item]
        assert caught.value.index == 1
        with pytest.raises(PublishError, match=r"message 1: the value is of type int"):
            await client.publish_many(stream, [b"first", 2])  # type: ignore[list-item]

    run(broker, use)


def test_a_nats_server_in_the_place_of_a_broker_is_named(broker: BrokerProcess) -> None:
    nats = broker.nats_url.rpartition("//")[2]
    with pytest.raises(WrongServer, match=r"a NATS server answers there, and not a broker: .*9292"):
        asyncio.run(Client.connect(nats))


def test_a_publish_counts_only_the_ack_of_its_own_stream(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        await client.create_stream(f"{stream}-copy", subject=stream)
        await client.publish_many(stream, [b"x"] * 50)
        await client.create_stream(f"{stream}-late", subject=stream)
        for offset in range(50, 100):
            ack = await client.publish(stream, b"y")
            assert (ack.stream, ack.offset) == (stream, offset)
        assert len(await read_all(client, f"{stream}-copy")) == 100
        assert len(await read_all(client, f"{stream}-late")) == 50

    run(broker, use)


def test_publishers_at_the_same_time_share_one_call(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        acks = await asyncio.gather(*(client.publish(stream, b"%d" % n) for n in range(500)))
        stored = {m.offset: m.value for m in await read_all(client, stream)}
        assert {ack.offset: b"%d" % n for n, ack in enumerate(acks)} == stored

    run(broker, use)


def test_without_acks_everything_handed_over_still_arrives(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        assert (await client.publish(stream, b"first", ack=AckPolicy.NONE)).offset == -1
        assert await client.publish_many(stream, [b"more"] * 3000, ack=AckPolicy.NONE) == 3000
        while (await client.fetch_partition_metadata(stream)).high_watermark < 3000:
            await asyncio.sleep(0.01)

    run(broker, use)


def test_errors_say_what_was_wrong_and_which_message(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        with pytest.raises(NotFound, match=f"no such stream: {stream}"):
            await client.publish(stream, b"x")
        with pytest.raises(NotFound, match=f"no such stream: {stream}"):
            await read_all(client, stream)
        await client.create_stream(stream)
        with pytest.raises(AlreadyExists):
            await client.create_stream(stream)
        with pytest.raises(NotFound, match="no such partition: 4"):
            await client.publish_many(stream, [b"x"], partition=4)
        with pytest.raises(InvalidArgument, match="use publish"):
            await client.publish_many(stream, b"bytes")  # type: ignore[arg-type]
        with pytest.raises(PublishError, match="message 2 was refused: no such partition: 9") as caught:
            await client.publish_many(stream, [b"a", b"b", Outgoing(b"c", partition=9)])
        assert caught.value.index == 2
        with pytest.raises(InvalidArgument, match="start 'soon'"):
            client.subscribe(stream, start="soon")  # type: ignore[arg-type]

    run(broker, use)


def test_an_error_of_the_source_ends_the_publishing(broker: BrokerProcess, stream: str) -> None:
    def source() -> Iterator[bytes]:
        yield b"good"
        raise OSError("the disk the values came from is gone")

    async def use(client: Client) -> None:
        await client.create_stream(stream)
        with pytest.raises(OSError, match="is gone"):
            await client.publish_many(stream, source())

    run(broker, use)


def test_an_expected_offset_is_checked_where_the_stream_asks_for_it(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream, optimistic_concurrency_control=True)
        assert (await client.publish(stream, b"0", expected_offset=0)).offset == 0
        with pytest.raises(IncorrectOffset):
            await client.publish(stream, b"again", expected_offset=0)
        assert (await client.publish(stream, b"any")).offset == 1

    run(broker, use)


def test_positions_and_reverse(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        assert await read_all(client, stream) == []
        await client.publish_many(stream, [b"%d" % n for n in range(10)])
        messages = await read_all(client, stream)

        async def offsets(**where: object) -> list[int]:
            return [m.offset async for m in client.subscribe(stream, **where)]  # type: ignore[arg-type]

        assert await offsets(start=3, stop=5) == [3, 4, 5]
        assert await offsets(start="latest", stop="latest") == [9]
        assert await offsets(start=messages[4].time, stop=6)  # datetimes are coarser than timestamps
        assert await offsets(start=9, reverse=True) == list(range(9, -1, -1))
        assert await offsets(reverse=True) == list(range(9, -1, -1)), "from the newest on"

    run(broker, use)


def test_new_means_after_the_subscription_was_accepted(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        await client.publish(stream, b"old")
        async with client.subscribe(stream, start="new") as subscription:
            await client.publish(stream, b"new")
            async for message in subscription:
                assert (message.offset, message.value) == (1, b"new")
                break

    run(broker, use)


def test_a_deleted_stream_ends_its_readers_with_not_found(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        async with client.subscribe(stream, start="earliest") as subscription:
            await client.delete_stream(stream)
            with pytest.raises(NotFound):
                await anext(aiter(subscription))
        await client.create_stream(stream)
        assert (await client.publish(stream, b"again")).offset == 0

    run(broker, use)


def test_metadata_names_brokers_and_partitions(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream, subject=f"{stream}.subject", partitions=2)
        metadata = await client.fetch_metadata([stream])
        (only,) = metadata.brokers.values()
        assert (only.host, only.port) == ("127.0.0.1", broker.port)
        assert metadata.streams[stream].subject == f"{stream}.subject"
        assert [p.leader for p in metadata.streams[stream].partitions.values()] == [only.id] * 2
        assert (await client.fetch_partition_metadata(stream, 1)).high_watermark == -1

    run(broker, use)


def test_the_blocking_client_does_the_same_without_an_event_loop(broker: BrokerProcess, stream: str) -> None:
    with BlockingClient(broker.address) as client:
        client.create_stream(stream)
        assert client.publish(stream, b"0").offset == 0
        assert client.publish_many(stream, [b"1", b"2"]) == 2
        assert [m.value for m in client.subscribe(stream, start="earliest", stop="latest")] == [b"0", b"1", b"2"]
        for message in client.subscribe(stream, start="earliest"):
            assert message.offset == 0
            break
        client.delete_stream(stream)
        assert stream not in client.fetch_metadata().streams
    with pytest.raises(RuntimeError, match="closed"):
        client.fetch_metadata()


def test_no_broker_is_said_with_every_address_and_the_next_step() -> None:
    port = free_port()
    with pytest.raises(Unavailable, match=rf"127\.0\.0\.1:{port}.*bascule up"):
        asyncio.run(Client.connect(f"127.0.0.1:{port}", timeout=0.2))


def test_a_subscription_goes_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        await client.create_stream("s")
        await client.publish_many("s", [b"%d" % n for n in range(100)])
        seen: list[int] = []
        async with client.subscribe("s", start="earliest", stop=199) as subscription:
            async for batch in subscription.batches():
                seen += [message.offset for message in batch]
                if seen[-1] == 99:
                    await asyncio.to_thread(kill_and_start)
                    await client.publish_many("s", [b"%d" % n for n in range(100, 200)])
        assert seen == list(range(200))

    def kill_and_start() -> None:
        broker.kill9()
        broker.start().wait_ready()

    with start_broker(tmp_path) as broker:
        run(broker, use)


def test_a_subscription_that_lost_its_connection_says_so_and_when_it_goes_on(tmp_path: Path) -> None:
    said: list[str] = []

    async def use(client: Client) -> None:
        await client.create_stream("s")
        await client.publish("s", b"first")
        on_lost = lambda error: said.append("lost" if error else "back")  # noqa: E731
        async with client.subscribe("s", on_lost=on_lost) as subscription:
            messages = aiter(subscription)
            assert (await anext(messages)).value == b"first", "it begins with the earliest"
            assert said == []
            await asyncio.to_thread(broker.kill9)
            await asyncio.to_thread(lambda: broker.start().wait_ready())
            await client.publish("s", b"second")
            assert (await anext(messages)).value == b"second"

    with start_broker(tmp_path) as broker:
        run(broker, use)
    assert said == ["lost", "back"]


def test_messages_without_an_answer_are_unconfirmed_and_the_confirmed_ones_are_there(tmp_path: Path) -> None:
    acks: list[tuple[int, int, int]] = []

    def endless() -> Iterator[bytes]:
        number = 0
        while True:
            yield b"%d" % number
            number += 1

    def on_acks(some: list[tuple[int, int, int]]) -> None:
        acks.extend(some)
        if len(acks) > 5000 and broker.running:
            broker.kill9()

    async def use(client: Client) -> None:
        await client.create_stream("s")
        with pytest.raises(Unconfirmed) as caught:
            await client.publish_many("s", endless(), on_acks=on_acks)
        assert caught.value.acked == len(acks)
        await asyncio.to_thread(lambda: broker.start().wait_ready())
        stored = {m.offset: m.value for m in await read_all(client, "s")}
        assert all(stored[offset] == b"%d" % index for index, offset, _ in acks)
        assert (await client.publish("s", b"after")).offset == len(stored)

    with start_broker(tmp_path) as broker:
        run(broker, use)


def test_a_source_that_outlives_the_broker_is_told_that_all_it_gave_is_safe(tmp_path: Path) -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"only"
        await asyncio.Event().wait()

    async def use(client: Client) -> None:
        await client.create_stream("s")
        with pytest.raises(Unavailable, match="All 1 messages sent to stream s before are safe"):
            await client.publish_many("s", source(), on_acks=lambda _: broker.kill9())

    with start_broker(tmp_path) as broker:
        run(broker, use)
