"""Numbered bulk writes to a real broker: what a writer that crashed wrote before is not stored twice."""

import asyncio
from pathlib import Path

import pytest

from bascule.client import Client, Identity, WriteTo
from bascule.client.numberedwrite import OWN_IDS_FROM
from bascule.client.requests import frame_messages
from bascule.errors import FailedPrecondition, Unavailable
from bascule.testing.processes import BrokerProcess, start_broker

TIMEOUT_S = 60.0
VALUES = [b"%d" % number for number in range(20_000)]
WRITER = Identity(OWN_IDS_FROM | 7, 1)


async def write(client: Client, stream: str, size: int, values: list[bytes], identity: Identity = WRITER) -> int:
    """In batches of this size; how many messages the partition had of this writer before."""
    writing = client.numbered_write(WriteTo(stream, 0), identity, 30.0)
    try:
        await writing.open()
        for first in range(0, len(values), size):
            piece = values[first : first + size]
            await writing.send(len(piece), frame_messages(piece))
        await writing.finish()
    finally:
        writing.close()
    return writing.found


def test_a_writer_that_begins_again_stores_only_what_is_not_there(broker: BrokerProcess, stream: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            await client.create_stream(stream)
            assert await write(client, stream, 1000, VALUES[:17_500]) == 0
            assert await write(client, stream, 300, VALUES) == 17_500  # more than the window of a producer
            assert await write(client, stream, 4000, VALUES) == len(VALUES)
            assert [each.value async for each in client.subscribe(stream, stop="latest")] == VALUES

    asyncio.run(main())


def test_a_writer_of_an_older_epoch_is_fenced(broker: BrokerProcess, stream: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            await client.create_stream(stream)
            await write(client, stream, 10, VALUES[:10], WRITER._replace(epoch=2))
            with pytest.raises(FailedPrecondition, match="fenced"):
                await write(client, stream, 10, VALUES[:10])
            assert (await client.log_bounds(stream)).end == 10

    asyncio.run(main())


def test_it_gives_up_when_its_patience_is_over(tmp_path: Path) -> None:
    async def main(broker: BrokerProcess) -> None:
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            await client.create_stream("w")
            acked = client.numbered_write(WriteTo("w", 0), WRITER, 1.0)
            await acked.open()
            await acked.send(3, frame_messages([b"v"] * 3))
            while acked._unacked:
                await asyncio.sleep(0)
            unacked = client.numbered_write(WriteTo("w", 0), WRITER._replace(id=WRITER.id + 1), 1.0)
            await unacked.open()
            await asyncio.to_thread(broker.kill9)
            await unacked.send(3, frame_messages([b"v"] * 3))
            await acked.finish()  # everything is acked
            with pytest.raises(Unavailable, match="has acked nothing for 1 s"):
                await unacked.finish()
            opening = client.numbered_write(WriteTo("w", 0), WRITER, 1.0)
            with pytest.raises(Unavailable):
                await opening.open()
            for each in (acked, unacked, opening):
                each.close()

    with start_broker(tmp_path) as broker:
        asyncio.run(main(broker))


def test_an_idle_write_outlives_a_broker_that_is_back_in_time(tmp_path: Path) -> None:
    """It is idle for longer than its patience: that begins when the call is lost."""

    async def main(broker: BrokerProcess) -> None:
        async with asyncio.timeout(TIMEOUT_S), await Client.connect(broker.address) as client:
            await client.create_stream("w")
            writing = client.numbered_write(WriteTo("w", 0), WRITER, 20.0)
            await writing.open()
            writing._progress_at -= 100.0
            await asyncio.to_thread(broker.kill9)
            await asyncio.to_thread(lambda: broker.start().wait_ready())
            await writing.send(3, frame_messages([b"v"] * 3))
            await writing.finish()
            assert (await client.log_bounds("w")).end == 3

    with start_broker(tmp_path) as broker:
        asyncio.run(main(broker))
