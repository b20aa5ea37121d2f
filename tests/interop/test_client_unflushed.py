"""Producers that nobody closes: what they have taken is sent when their client is closed, or the program ends, and a
warning says so if it is not."""

import asyncio
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from bascule.client import BlockingClient, Client, NotFound, Producer
from bascule.testing.processes import BrokerProcess, start_broker
from tests.harness.clients import read_all, with_client


def test_the_end_of_a_client_flushes_its_producers(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)
        async with Client.connect(broker.address) as other:
            producer = other.producer(stream)
            for number in range(3000):
                await producer.send(b"%d" % number)
        assert producer.unanswered == 0
        assert len(await read_all(client, stream)) == 3000

    with_client(broker.address, use)


def test_the_end_of_a_client_raises_what_failed(broker: BrokerProcess, stream: str) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(stream)

        async def forgetful() -> None:
            async with Client.connect(broker.address) as other:
                await other.producer(stream).send(b"v", partition=7)

        with pytest.raises(NotFound, match="no such partition: 7"):
            await forgetful()

    with_client(broker.address, use)


def test_a_blocking_client_flushes_its_producers_too(broker: BrokerProcess, stream: str) -> None:
    with BlockingClient(broker.address) as client:
        client.create_stream(stream)
        producer = client.producer(stream)
        for number in range(1000):
            producer.send(b"%d" % number)
    with BlockingClient(broker.address) as client:
        assert len(list(client.subscribe(stream, stop="latest"))) == 1000


PROGRAM = """
import sys
from bascule.client import BlockingClient
client = BlockingClient(sys.argv[1])
producer = client.producer(sys.argv[2])
for number in range(1000):
    producer.send(b"%d" % number)
"""


def test_a_program_that_closes_nothing_loses_nothing(broker: BrokerProcess, stream: str) -> None:
    with BlockingClient(broker.address) as client:
        client.create_stream(stream)
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, broker.address, stream], check=False, capture_output=True, text=True
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert len(list(client.subscribe(stream, stop="latest"))) == 1000


def test_an_error_ends_a_client_at_once_and_a_warning_says_what_has_no_ack(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    producers: list[Producer] = []

    async def fails(broker: BrokerProcess) -> None:
        async with Client.connect(broker.address) as client:
            await client.create_stream("s")
            producers.append(client.producer("s"))
            await (await producers[0].send(b"v"))
            broker.pause()
            for _ in range(10):
                await producers[0].send(b"v")
            raise ValueError("of the program")

    with start_broker(tmp_path) as broker, caplog.at_level(logging.WARNING, logger="bascule.client"):
        with pytest.raises(ValueError, match="of the program"):
            asyncio.run(fails(broker))
        broker.resume()
    (said,) = [each.getMessage() for each in caplog.records if "the client is closed" in each.getMessage()]
    assert "10 messages" in said
    assert not any("are sent again" in each.getMessage() for each in caplog.records), "they are not"
