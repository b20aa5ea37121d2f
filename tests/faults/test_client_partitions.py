"""Our client while the leader is partitioned from the other brokers, and answers as if nothing had happened: it goes on
with the next leader."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager

import pytest

from bascule.client import Client, Unconfirmed
from bascule.client.numberedwrite import OWN_IDS_FROM, Identity, NumberedWrite, WriteTo
from bascule.client.requests import frame_messages
from bascule.errors import Internal
from tests.harness.clients import read_all, with_client
from tests.harness.cluster_load import Brokers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    # Connections of the proxies, which brokers open while they are ended, end with the event loop of their proxy.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

LEFT_S = 15.0
"""The cluster's fail-over on a busy machine, and what the client takes to notice: far less than the timeouts of its
calls."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with Brokers(tmp_path_factory.mktemp("partitions"), peers=True, proxied=True) as running:
        yield running


async def led(client: Client, stream: str) -> str:
    while True:
        partition = (await client.fetch_metadata([stream])).streams[stream].partitions[0]
        if len(partition.isr) == 3:
            return partition.leader
        await asyncio.sleep(0.1)


@asynccontextmanager
async def partitioned(brokers: Brokers, client: Client, stream: str) -> AsyncIterator[str]:
    """Its leader is, until the end of the block."""
    leader = await led(client, stream)
    brokers.proxies[leader].cut()
    try:
        yield leader
    finally:
        brokers.proxies[leader].heal()
    await led(client, stream)


async def begun(client: Client, stream: str) -> None:
    """Its leader may be the broker that was partitioned before, and refuse messages until it is in contact again."""
    while True:
        try:
            await client.publish(stream, b"first")
            return
        except Internal as error:
            if "takes no writes" not in str(error):
                raise
            await asyncio.sleep(0.1)


def struck(brokers: Brokers, stream: str, use: Callable[[Client], Awaitable[None]]) -> None:
    async def main(client: Client) -> None:
        await client.create_stream(stream, replication_factor=3, timeout=30)
        await begun(client, stream)
        await use(client)

    with_client(brokers.addresses, main, timeout_s=120)


def test_publish_leaves_a_leader_that_is_partitioned_however_long_its_timeout(brokers: Brokers) -> None:
    async def use(client: Client) -> None:
        async with partitioned(brokers, client, "published"):
            began = time.monotonic()
            with pytest.raises(Unconfirmed, match="leads partition 0 of stream published now"):
                await client.publish("published", b"lost", timeout=60.0)
            await client.publish("published", b"second", timeout=60.0)
            assert time.monotonic() - began < LEFT_S
        values = [message.value for message in await read_all(client, "published")]
        assert set(values) <= {b"first", b"lost", b"second"}, "it may be stored, as the error said"
        assert [value for value in values if value != b"lost"] == [b"first", b"second"]

    struck(brokers, "published", use)


def test_a_producer_goes_on_with_the_next_leader_and_stores_each_message_once(brokers: Brokers) -> None:
    async def use(client: Client) -> None:
        async with client.producer("produced", timeout=60.0) as producer:
            await (await producer.send(b"second"))
            async with partitioned(brokers, client, "produced"):
                began = time.monotonic()
                receipts = [await producer.send(b"%d" % number) for number in range(100)]
                await receipts[-1]
                assert time.monotonic() - began < LEFT_S
        stored = Counter(message.value for message in await read_all(client, "produced"))
        assert stored == Counter([b"first", b"second", *(b"%d" % number for number in range(100))])

    struck(brokers, "produced", use)


def test_a_subscription_follows_the_next_leader(brokers: Brokers) -> None:
    async def use(client: Client) -> None:
        async with client.subscribe("subscribed") as messages, client.producer("subscribed", timeout=60.0) as producer:
            assert (await anext(messages)).value == b"first"
            async with partitioned(brokers, client, "subscribed"):
                began = time.monotonic()
                waiting = asyncio.create_task(anext(messages))
                await producer.send(b"second")
                assert (await waiting).value == b"second"
                assert time.monotonic() - began < LEFT_S + 2.5

    struck(brokers, "subscribed", use)


def test_a_bulk_read_goes_on_at_the_next_leader(brokers: Brokers) -> None:
    async def use(client: Client) -> None:
        await client.publish_many("ranges", [b"%d" % number for number in range(100)])
        async with partitioned(brokers, client, "ranges"):
            began = time.monotonic()
            found = [each.value async for part in client.read_range("ranges", 0) for each in part.messages()]
            assert found == [b"first", *(b"%d" % number for number in range(100))]
            assert time.monotonic() - began < LEFT_S

    struck(brokers, "ranges", use)


def test_a_bulk_write_says_so_and_the_next_one_goes_to_the_next_leader(brokers: Brokers) -> None:
    async def use(client: Client) -> None:
        async with partitioned(brokers, client, "written"):
            began = time.monotonic()
            async with aclosing(client.write_batches("written", [[b"lost"]], timeout=60.0).written()) as written:
                with pytest.raises(Unconfirmed, match="leads partition 0 of stream written now"):
                    await anext(written)
            again = client.write_batches("written", [[b"second"]], timeout=60.0)
            assert len([each async for each in again]) == 1
            assert time.monotonic() - began < LEFT_S
        values = [message.value for message in await read_all(client, "written")]
        assert [value for value in values if value != b"lost"] == [b"first", b"second"]

    struck(brokers, "written", use)


def test_a_numbered_write_goes_on_at_the_next_leader_and_stores_each_batch_once(brokers: Brokers) -> None:
    async def use(client: Client) -> None:
        identity = Identity(OWN_IDS_FROM + 7, 1)
        write = NumberedWrite(client._cluster, WriteTo("numbered", 0), identity, timeout=60.0)
        await write.open()
        await write.send(1, frame_messages([b"second"]))
        async with partitioned(brokers, client, "numbered"):
            began = time.monotonic()
            for number in range(10):
                await write.send(1, frame_messages([b"%d" % number]))
            await write.finish()
            assert time.monotonic() - began < LEFT_S
        values = [message.value for message in await read_all(client, "numbered")]
        assert values == [b"first", b"second", *(b"%d" % number for number in range(10))]

    struck(brokers, "numbered", use)


def test_an_atomic_batch_goes_to_the_next_leader_and_is_stored_once(brokers: Brokers) -> None:
    async def use(client: Client) -> None:
        async with client.producer("atomic", timeout=60.0) as producer:
            await producer.send_batch([b"second", b"third"])
            async with partitioned(brokers, client, "atomic"):
                began = time.monotonic()
                await producer.send_batch([b"fourth", b"fifth"])
                assert time.monotonic() - began < LEFT_S
        values = [message.value for message in await read_all(client, "atomic")]
        assert values == [b"first", b"second", b"third", b"fourth", b"fifth"]

    struck(brokers, "atomic", use)


def test_a_broker_that_is_partitioned_is_not_believed_who_leads(brokers: Brokers) -> None:
    async def use(client: Client) -> None:
        async with partitioned(brokers, client, "believed") as leader:
            others = set(brokers.brokers) - {leader}
            async with asyncio.timeout(30):
                while True:
                    known = await client.fetch_metadata(["believed"])
                    if known.streams["believed"].partitions[0].leader in others:
                        break
                    await asyncio.sleep(0.1)
            for _ in range(20):
                known = await client.fetch_metadata(["believed"])
                assert set(known.brokers) == others
                assert known.streams["believed"].partitions[0].leader in others

    struck(brokers, "believed", use)
