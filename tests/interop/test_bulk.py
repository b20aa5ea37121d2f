"""Bulk reads from real brokers, also ones that die."""

import asyncio
from pathlib import Path

import pytest

from bascule.client import Client, LogRange, Message, Outgoing, bulk
from bascule.errors import FailedPrecondition, NotFound, Unavailable
from bascule.net.channel import Channel, ClientCall
from bascule.testing.processes import BrokerProcess, start_broker
from tests.harness.clients import with_client

TIMEOUT_S = 60.0
COUNT = 40_000


async def ranges(client: Client, stream: str, *, start: int = 0, end: int | None = None) -> list[LogRange]:
    return [each async for each in client.read_range(stream, 0, start, end)]


def test_a_bulk_read_gives_what_a_subscription_gives(broker: BrokerProcess, stream: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            await client.create_stream(stream)
            assert await ranges(client, stream) == [LogRange(0, 0, b"", 0, 0, 0, 0, (await only(client)).creation)]
            sent = (Outgoing(b"%d" % n, b"k%d" % (n % 7) if n % 3 else None, {"n": b"%d" % n}) for n in range(COUNT))
            await client.publish_many(stream, sent)
            subscribed: list[Message] = []
            async for batch in client.subscribe(stream, stop="latest").batches():
                subscribed += batch
            pieces = await ranges(client, stream)
            assert len(pieces) > 1
            assert [message for piece in pieces for message in piece.messages()] == subscribed
            assert [(piece.start, piece.end) for piece in pieces] == list(
                zip(
                    [0, *(piece.end for piece in pieces[:-1])],
                    [*(piece.end for piece in pieces[:-1]), COUNT],
                    strict=True,
                )
            )
            middle = await ranges(client, stream, start=123, end=30_456)
            assert [m.offset for piece in middle for m in piece.messages()] == list(range(123, 30_456))
            assert await ranges(client, stream, start=5, end=5) == []

    async def only(client: Client) -> LogRange:
        (piece,) = await ranges(client, stream)
        return piece

    asyncio.run(main())


def test_a_bulk_read_goes_on_after_the_broker_was_killed(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            await client.create_stream("s", segment_max_bytes=1 << 20)
            await client.publish_many("s", (b"%d" % n * 50 for n in range(COUNT)))
            offsets: list[int] = []
            killed = False
            async for piece in client.read_range("s"):
                offsets += [message.offset for message in piece.messages()]
                if not killed:
                    killed = True
                    await asyncio.to_thread(kill_and_start)
                    await client.publish_many("s", [b"after the range began"] * 10)
            assert offsets == list(range(COUNT))

    def kill_and_start() -> None:
        broker.kill9()
        broker.start().wait_ready()

    with start_broker(tmp_path) as broker:
        asyncio.run(main())


def test_errors_say_what_is_wrong(broker: BrokerProcess, stream: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            with pytest.raises(NotFound, match="no such stream"):
                await ranges(client, stream)
            await client.create_stream(stream)
            await client.publish(stream, b"x")
            (piece,) = await ranges(client, stream)
            await client.delete_stream(stream)
            await client.create_stream(stream)
            with pytest.raises(FailedPrecondition, match="deleted and made again"):
                async for _ in client.read_range(stream, creation=piece.creation):
                    pass
            await client.pause_stream(stream)
            with pytest.raises(FailedPrecondition, match="paused"):
                await ranges(client, stream)

    asyncio.run(main())


def test_a_replica_that_cannot_be_reached_is_replaced_by_the_leader(
    broker: BrokerProcess, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        await client.publish_many(stream, [b"v"] * 10)
        (own,) = (await client.fetch_metadata([stream])).brokers
        with pytest.raises(NotFound, match="has no replica"):
            await anext(client.read_range(stream, replica="nobody").ranges())

        async def unreachable(*_: object) -> Channel:
            raise Unavailable("it is down")

        monkeypatch.setattr(client._cluster, "replica", unreachable)
        pieces = [each async for each in client.read_range(stream, replica=own)]
        assert sum(each.count for each in pieces) == 10

    with_client(broker.address, use)


def test_a_replica_that_refuses_is_replaced_by_the_leader(
    broker: BrokerProcess, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that the partition was moved away from."""

    async def use(client: Client) -> None:
        await client.create_stream(stream)
        await client.publish_many(stream, [b"v"] * 10)
        asked: list[bool] = []
        receive = bulk.BulkRead._received

        async def refused(read: bulk.BulkRead, call: ClientCall) -> bytes | None:
            asked.append(read._request.fromReplica)
            if read._request.fromReplica:
                raise FailedPrecondition("Server not partition leader")
            return await receive(read, call)

        monkeypatch.setattr(bulk.BulkRead, "_received", refused)
        (own,) = (await client.fetch_metadata([stream])).brokers
        pieces = [each async for each in client.read_range(stream, replica=own)]
        assert sum(each.count for each in pieces) == 10
        assert asked[:2] == [True, False]

    with_client(broker.address, use)
