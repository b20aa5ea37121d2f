"""What is under way when a client is closed or a connection is lost has an end; what is asked later has an answer."""

import asyncio
import itertools
import os
import time
from pathlib import Path

import pytest

from bascule.client import Client, Identity, WriteTo
from bascule.client.numberedwrite import OWN_IDS_FROM
from bascule.client.requests import frame_messages
from bascule.errors import BasculeError, ClientClosed, NotSent, Unavailable, Unconfirmed
from bascule.testing.processes import BrokerProcess, start_broker
from tests.harness.clients import read_all, with_client


def test_a_lost_connection_leaves_no_task(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        await client.create_stream("s")
        for _ in range(3):
            await client.publish("s", b"before")
            await asyncio.to_thread(broker.kill9)
            await asyncio.to_thread(lambda: broker.start().wait_ready())
            await client.publish("s", b"after", timeout=20.0)

    with start_broker(tmp_path) as broker:
        with_client(broker.address, use)  # checks the tasks


def test_publishers_under_way_all_get_an_answer_when_the_client_is_closed(broker: BrokerProcess, stream: str) -> None:
    outcomes: list[object] = []

    async def use(client: Client) -> None:
        async def publish() -> None:
            while True:
                try:
                    outcomes.append(await client.publish(stream, b"v"))
                except BasculeError as error:
                    outcomes.append(error)
                    return

        await client.create_stream(stream)
        tasks = [asyncio.create_task(publish()) for _ in range(100)]
        await asyncio.sleep(0.2)
        await client.close()
        async with asyncio.timeout(1):
            await asyncio.gather(*tasks)

    with_client(broker.address, use)
    errors = [each for each in outcomes if isinstance(each, BasculeError)]
    acks = [each for each in outcomes if not isinstance(each, BasculeError)]
    assert {type(error) for error in errors} <= {ClientClosed, Unconfirmed, NotSent}
    assert len(errors) == 100

    async def count(client: Client) -> None:
        stored = len(await read_all(client, stream))
        assert len(acks) <= stored <= len(acks) + sum(isinstance(error, Unconfirmed) for error in errors)

    with_client(broker.address, count)


def test_a_closed_client_says_so_at_once(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        async with client.subscribe(stream) as open_one:
            waiting = asyncio.create_task(anext(open_one))
            await asyncio.sleep(0.1)
            await client.close()
            began = time.monotonic()
            for attempt in (
                waiting,
                client.publish(stream, b"v"),
                client.publish(stream, b"v", key=b"k"),
                client.publish_many(stream, [b"v"]),
                client.publish_many(stream, [b"v"], retry_s=10.0),
                client.fetch_metadata(),
                client.fetch_partition_metadata(stream),
                client.create_stream("another"),
                client.subscribe(stream).ready(),
                anext(client.subscribe(stream)),
                client.log_bounds(stream),
                anext(aiter(client.read_range(stream))),
                client.admin.cluster_status(),
                client.set_cursor("id", stream, 0, 0),
            ):
                with pytest.raises(ClientClosed, match="closed"):
                    await attempt
            assert time.monotonic() - began < 1
            await client.close()  # again is harmless

    with_client(broker.address, use)


def test_what_is_under_way_is_told_that_its_client_was_closed(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        await client.create_stream(f"{stream}-to")
        await client.publish_many(stream, [b"x" * 1000] * 5000)

        async def read() -> None:
            while True:
                async for _ in client.read_range(stream, 0, 0):
                    await asyncio.sleep(0)

        async def arrow() -> None:
            while True:
                async for _ in client.arrow(stream):
                    await asyncio.sleep(0)

        async def write() -> None:
            async for _ in client.write_batches(f"{stream}-to", itertools.repeat([b"v"])):
                pass

        async def number() -> None:
            writing = client.numbered_write(WriteTo(f"{stream}-to", 0), Identity(OWN_IDS_FROM + 5, 1), 30.0)
            try:
                await writing.open()
                while True:
                    await writing.send(1, frame_messages([b"v"]))
                    await asyncio.sleep(0)
            finally:
                writing.close()

        producer = client.producer(stream)
        await (await producer.send(b"v"))
        tasks = [asyncio.create_task(each()) for each in (read, arrow, write, number)]
        async with asyncio.timeout(60):
            while (await client.log_bounds(f"{stream}-to")).end < 100:
                await asyncio.sleep(0)
        await client.close()
        async with asyncio.timeout(10):
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes[:2]] == [ClientClosed] * 2
        assert {type(outcome) for outcome in outcomes[2:]} <= {ClientClosed, Unconfirmed}
        with pytest.raises(ClientClosed):
            await producer.send(b"v")

    with_client(broker.address, use)


def test_a_member_of_a_group_is_told_that_its_client_was_closed(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        await client.create_stream("s")
        consumer = client.consumer("s", group="g")
        await consumer.ready()
        await client.publish("s", b"v")
        await anext(consumer)
        waiting = asyncio.create_task(anext(consumer))
        await asyncio.sleep(0)
        await client.close()
        async with asyncio.timeout(10):
            with pytest.raises(ClientClosed):
                await waiting
            with pytest.raises(ClientClosed):
                await consumer.commit({"s": {0: 1}})
            await asyncio.gather(consumer.close(), return_exceptions=True)

    with start_broker(tmp_path, config={"cursors.stream.partitions": 2}) as broker:
        with_client(broker.address, use)


def test_a_child_process_cannot_close_the_client_of_its_parent(broker: BrokerProcess, stream: str) -> None:
    """Its connections are those of the parent, who goes on."""

    async def use() -> None:
        client = await Client.connect(broker.address)
        await client.create_stream(stream)
        await client.publish(stream, b"v")
        if not (child := os.fork()):
            try:
                await client.close()
            except RuntimeError as error:
                os._exit(0 if "before a fork" in str(error) else 2)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert (await client.publish(stream, b"v")).offset == 1
        await client.close()

    asyncio.run(use())


def test_a_client_is_not_closed_in_another_loop(broker: BrokerProcess, stream: str) -> None:
    with asyncio.Runner() as first, asyncio.Runner() as second:

        async def connect() -> Client:
            return await Client.connect(broker.address)

        client = first.run(connect())
        first.run(client.create_stream(stream))
        with pytest.raises(RuntimeError, match="another event loop"):
            second.run(client.close())
        assert first.run(client.publish(stream, b"v")).offset == 0
        first.run(client.close())


def test_connecting_ends_in_time_although_a_server_is_silent() -> None:
    async def main() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for timeout in (0.5, 2.0):
            began = time.monotonic()
            with pytest.raises(Unavailable, match=f"127.0.0.1:{port}"):
                await Client.connect(f"127.0.0.1:{port}", timeout=timeout)
            assert timeout - 0.2 < time.monotonic() - began < timeout + 0.5
        server.close()
        await server.wait_closed()

    asyncio.run(main())


def test_a_client_in_another_loop_is_refused(broker: BrokerProcess, stream: str) -> None:
    client = None

    async def connect() -> None:
        nonlocal client
        client = await Client.connect(broker.address)
        await client.create_stream(stream)
        await client.close()
        client = await Client.connect(broker.address)
        client._cluster.connections.closed = False

    async def use() -> None:
        assert client is not None
        for attempt in (client.publish(stream, b"v"), client.fetch_metadata(), client.subscribe(stream).ready()):
            with pytest.raises(RuntimeError, match="another event loop"):
                await attempt

    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(connect())
        second.run(use())
        assert client is not None
        first.run(client.close())


def test_a_member_whose_end_is_cancelled_leaves_its_group(tmp_path: Path) -> None:
    """It would be missed after 15 s only."""

    async def use(client: Client) -> None:
        await client.create_stream("s")
        consumer = client.consumer("s", group="g")
        await consumer.ready()
        ending = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        async with asyncio.timeout(10), client.consumer("s", group="g") as another:
            while another.assignment != {"s": [0]}:
                await another.next(timeout=0.05)

    with start_broker(tmp_path, config={"cursors.stream.partitions": 2}) as broker:
        with_client(broker.address, use)
