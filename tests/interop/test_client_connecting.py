"""Connecting in the ways people write it, and what the errors of the client say of themselves."""

import asyncio
import time

import pytest

import bascule.client as package
from bascule import errors
from bascule.client import AckTimeout, BasculeError, Client, NotFound, SendTimeout, TimedOut, Unconfirmed
from bascule.testing.processes import BrokerProcess, free_port
from tests.harness.clients import nothing_is_left, with_client


def test_a_client_is_connected_by_entering_and_by_awaiting(broker: BrokerProcess) -> None:
    async def main() -> None:
        async with Client.connect(broker.address) as client:
            assert (await client.fetch_metadata()).brokers
        async with await Client.connect(broker.address) as client:
            assert (await client.fetch_metadata()).brokers
        client = await Client.connect(broker.address)
        await client.close()
        client = await asyncio.create_task(Client.connect(broker.address))
        await client.close()
        client = await asyncio.wait_for(Client.connect(broker.address), 5)
        await client.close()
        Client.connect(broker.address)  # nothing happens before it is awaited
        await nothing_is_left()

    asyncio.run(main(), debug=True)
    with asyncio.Runner() as runner:
        client = runner.run(Client.connect(broker.address))
        runner.run(client.close())


def test_a_failure_to_connect_is_raised_where_it_is_entered() -> None:
    async def main() -> None:
        with pytest.raises(package.Unavailable):
            async with Client.connect(f"127.0.0.1:{free_port()}", timeout=0.2):
                pytest.fail("connected")

    asyncio.run(main())


def test_time_outs_are_timeout_errors(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        await client.publish(stream, b"v")
        broker.pause()
        try:
            for attempt, kind in (
                (client.fetch_partition_metadata(stream, timeout=0.2), TimedOut),
                (client.publish(stream, b"v", timeout=0.2), AckTimeout),
                (client.publish_many(stream, [b"v"], timeout=0.2), SendTimeout),
            ):
                began = time.monotonic()
                with pytest.raises(TimeoutError) as caught:
                    await attempt
                assert type(caught.value) is kind
                assert time.monotonic() - began < 1
        finally:
            broker.resume()

    with_client(broker.address, use)


def test_each_error_says_whether_the_same_request_may_be_made_again() -> None:
    again = {name for name in package.__all__ if getattr(getattr(package, name), "retryable", False) is True}
    assert again == {"DeadlineExceeded", "NotSent", "ResourceExhausted", "SendTimeout", "TimedOut", "Unavailable"}
    assert not Unconfirmed("may be stored").retryable
    assert not AckTimeout("may be stored").retryable
    assert SendTimeout("was not sent").retryable
    assert not NotFound("no such stream").retryable


def test_what_the_client_raises_can_be_imported_from_its_package() -> None:
    servers_own = {"AckError", "Status", "BusUnavailable", "ConfigError", "Http2Error", "HungUp", "LogError"}
    servers_own |= {"NatsProtocolError", "Outdated", "PeerError", "PeerLacks", "PeerNotCleared", "StartError"}
    servers_own |= {"PackageMissing"}  # of what needs packages of its own, and says which
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, BasculeError)}
    assert kinds - servers_own <= set(package.__all__)
