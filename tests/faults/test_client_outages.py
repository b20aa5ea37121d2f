"""Our client while the leader is killed or frozen, or its link is dead: it says so in time, and goes on with the next
leader."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from bascule import limits
from bascule.client import Client
from bascule.client.values import Address
from bascule.errors import BasculeError, NotSent, Unconfirmed
from bascule.testing.processes import HOST, BrokerProcess
from bascule.testing.proxy import Proxy
from tests.harness.clients import read_all, with_client
from tests.harness.cluster_load import Brokers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NOTICED_S = (limits.GRPC_KEEPALIVE_DEAD_TICKS + 1) * limits.GRPC_KEEPALIVE_TICK_S
FAIL_OVER_S = 3.5
"""Of the cluster itself, on a busy machine."""


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with Brokers(tmp_path_factory.mktemp("outages"), peers=True) as running:
        yield running


async def leader_of(client: Client, stream: str) -> str:
    return (await client.fetch_metadata([stream])).streams[stream].partitions[0].leader


async def whole(client: Client, stream: str) -> None:
    while len((await client.fetch_metadata([stream])).streams[stream].partitions[0].isr) < 3:
        await asyncio.sleep(0.1)


async def until_it_works(attempt: Callable[[], Awaitable[object]]) -> None:
    while True:
        try:
            await attempt()
            return
        except (NotSent, Unconfirmed):
            continue


def struck(
    brokers: Brokers,
    stream: str,
    strike: Callable[[BrokerProcess], None],
    use: Callable[[Client, str], Awaitable[None]],
) -> None:
    """With a stream of three replicas, whose leader is struck in `use`, and well again afterwards."""

    async def main(client: Client) -> None:
        await client.create_stream(stream, replication_factor=3, timeout=30)
        await whole(client, stream)
        await client.publish(stream, b"first")
        leader = await leader_of(client, stream)
        try:
            await asyncio.to_thread(strike, brokers[leader])
            await use(client, leader)
        finally:
            brokers[leader].resume()
            if not brokers[leader].running:
                await asyncio.to_thread(lambda: brokers[leader].start().wait_ready())
        await whole(client, stream)

    with_client(brokers.addresses, main, timeout_s=120)


def test_publish_is_out_for_no_longer_than_the_fail_over_after_the_leader_was_killed(brokers: Brokers) -> None:
    async def use(client: Client, leader: str) -> None:
        began = time.monotonic()
        try:
            await client.publish("killed", b"second", timeout=10.0)
        except Unconfirmed:  # it was on its way when the connection ended
            await client.publish("killed", b"second", timeout=10.0)
        assert time.monotonic() - began < FAIL_OVER_S + 0.5
        assert [message.value for message in await read_all(client, "killed")] == [b"first", b"second"]

    struck(brokers, "killed", BrokerProcess.kill9, use)


def test_nothing_is_sent_while_nobody_leads(brokers: Brokers) -> None:
    def strike(leader: BrokerProcess) -> None:
        other = next(broker for broker in brokers.brokers.values() if broker is not leader)
        other.pause()  # one broker is left, no majority: nobody leads until it goes on
        paused.append(other)
        leader.kill9()

    async def publish(client: Client) -> None:
        await client.publish("led-by-nobody", b"too early", timeout=1.5)

    async def use(client: Client, leader: str) -> None:
        cluster = client._cluster
        try:
            async with asyncio.timeout(10):
                while cluster.connections.live(cluster._address(leader)) is not None:
                    await asyncio.sleep(0.01)  # with nothing on its way that would tell the client as well
            for _ in range(2):
                with pytest.raises(NotSent, match="it was not sent"):
                    await publish(client)
        finally:
            for broker in paused:
                broker.resume()

    paused: list[BrokerProcess] = []
    struck(brokers, "led-by-nobody", strike, use)


def test_a_frozen_leader_is_noticed_by_publish_and_replaced(brokers: Brokers) -> None:
    async def use(client: Client, leader: str) -> None:
        began = time.monotonic()
        await until_it_works(lambda: client.publish("frozen", b"second"))
        assert time.monotonic() - began < max(NOTICED_S, FAIL_OVER_S) + 1.5
        values = [message.value for message in await read_all(client, "frozen")]
        assert values[0] == b"first"
        assert values[-1] == b"second"

    struck(brokers, "frozen", BrokerProcess.pause, use)


def test_a_subscription_goes_on_after_its_leader_froze(brokers: Brokers) -> None:
    async def main(client: Client) -> None:
        await client.create_stream("followed", replication_factor=3, timeout=30)
        await whole(client, "followed")
        await client.publish("followed", b"first")
        leader = await leader_of(client, "followed")
        others = [broker.address for name, broker in brokers.brokers.items() if name != leader]
        async with await Client.connect(others) as other, client.subscribe("followed") as messages:
            assert (await anext(messages)).value == b"first"
            brokers[leader].pause()
            try:
                frozen_at = time.monotonic()
                await until_it_works(lambda: other.publish("followed", b"second", timeout=1.0))
                published_at = time.monotonic()
                while (await anext(messages)).value != b"second":
                    pass
                assert time.monotonic() - max(published_at, frozen_at + NOTICED_S) < 2.0
            finally:
                brokers[leader].resume()
        await whole(client, "followed")

    with_client(brokers.addresses, main, timeout_s=120)


def test_the_metadata_come_from_a_broker_that_answers(brokers: Brokers) -> None:
    async def main(client: Client) -> None:
        for name in "abc":
            brokers[name].pause()
            try:
                for _ in range(3):
                    began = time.monotonic()
                    assert len((await client.fetch_metadata(timeout=3.0)).brokers) >= 2
                    assert time.monotonic() - began < 2.0
                    async with await Client.connect(brokers.addresses, timeout=3.0) as other:
                        assert len((await other.fetch_metadata(timeout=3.0)).brokers) >= 2
            finally:
                brokers[name].resume()
            await asyncio.sleep(0.5)

    with_client(brokers.addresses, main, timeout_s=120)


@pytest.mark.parametrize("timeout", [1.0, 3.0])
def test_publishing_many_to_a_frozen_broker_ends_in_time(brokers: Brokers, timeout: float) -> None:
    name = f"many-{timeout:g}"

    async def use(client: Client, leader: str) -> None:
        began = time.monotonic()
        with pytest.raises(BasculeError) as caught:
            await client.publish_many(name, (bytes(100_000) for _ in range(1000)), timeout=timeout)
        assert time.monotonic() - began < timeout + 1.5
        assert isinstance(caught.value, Unconfirmed | NotSent)

    struck(brokers, name, BrokerProcess.pause, use)


def test_publishing_many_goes_on_after_a_freeze_and_a_kill(brokers: Brokers) -> None:
    count = 600

    async def main(client: Client) -> None:
        await client.create_stream("going-on", replication_factor=3, timeout=30)
        await whole(client, "going-on")
        strikes = iter([BrokerProcess.pause, BrokerProcess.kill9])
        acked: dict[int, int] = {}

        async def source() -> AsyncIterator[bytes]:
            for number in range(count):
                while number == 400 and len(acked) < 400:  # one broker is away at a time
                    await asyncio.sleep(0.05)
                if number in (200, 400):
                    leader = await leader_of(client, "going-on")
                    await asyncio.to_thread(next(strikes), brokers[leader])
                await asyncio.sleep(0.005)
                yield b"%d" % number

        def on_acks(acks: list[tuple[int, int, int]]) -> None:
            acked.update({index: offset for index, offset, _ in acks})
            for broker in brokers.brokers.values() if len(acked) > 300 else ():
                broker.resume()

        assert await client.publish_many("going-on", source(), on_acks=on_acks, retry_s=30.0, timeout=5.0) == count
        for broker in brokers.brokers.values():
            broker.resume()
            if not broker.running:
                await asyncio.to_thread(broker.start().wait_ready)
        await whole(client, "going-on")
        stored = {message.offset: message.value for message in await read_all(client, "going-on")}
        assert all(stored[offset] == b"%d" % index for index, offset in acked.items())

    with_client(brokers.addresses, main, timeout_s=200)


def test_a_reader_of_a_replica_falls_back_to_the_leader(brokers: Brokers) -> None:
    async def main(client: Client) -> None:
        await client.create_stream("fallen-back", replication_factor=3, timeout=30)
        await whole(client, "fallen-back")
        await client.publish("fallen-back", b"first")
        leader = await leader_of(client, "fallen-back")
        replica = next(name for name in "abc" if name != leader)
        async with client.subscribe("fallen-back", replica=replica) as messages:
            assert (await anext(messages)).value == b"first"
            await asyncio.to_thread(brokers[replica].kill9)
            await until_it_works(lambda: client.publish("fallen-back", b"second"))
            async with asyncio.timeout(5):
                assert (await anext(messages)).value == b"second"
        await asyncio.to_thread(lambda: brokers[replica].start().wait_ready())
        await whole(client, "fallen-back")

    with_client(brokers.addresses, main, timeout_s=120)


def test_a_dead_link_is_noticed_while_the_broker_is_well(brokers: Brokers) -> None:
    async def main(client: Client) -> None:
        await client.create_stream("linked", replication_factor=3, timeout=30)
        await client.publish("linked", b"first")
        lost: list[BasculeError | None] = []
        leader = brokers[await leader_of(client, "linked")]
        with Proxy(HOST, leader.port) as proxy:
            # A cluster of three advertises addresses of its own, so the link is cut below the address.
            client._cluster._address = lambda broker: Address(HOST, proxy.port)  # type: ignore[method-assign]
            async with client.subscribe("linked", on_lost=lost.append) as messages:
                assert (await anext(messages)).value == b"first"
                proxy.cut()
                waiting = asyncio.create_task(anext(messages))
                await asyncio.sleep(NOTICED_S + 1)
                assert len(lost) == 1
                assert "has not answered for 3 seconds" in str(lost[0])
                proxy.heal()
                await client.publish("linked", b"second", timeout=10)
                assert (await waiting).value == b"second"
            del client._cluster._address

    with_client(brokers.addresses, main, timeout_s=120)
