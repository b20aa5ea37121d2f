"""Members of a group, as processes, over three brokers: one is killed, then the broker that coordinates them. Nothing
that was acked is left out, and only what was not committed is read again."""

import asyncio
from pathlib import Path

import pytest

from bascule.client import Client
from tests.harness.clients import with_client
from tests.harness.cluster_load import Brokers
from tests.harness.group_load import Workers, Writer, committed, coordinator, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PARTITIONS = 4
STREAM = "shared"
SETTINGS = {
    "groups.consumer.timeout": "2s",
    "groups.coordinator.timeout": "1s",
    "cursors.stream.partitions": 2,
    "cursors.stream.replication.factor": 3,
}


def test_every_message_is_read_though_a_member_and_the_coordinator_are_killed(tmp_path: Path) -> None:
    async def use(client: Client) -> None:
        await client.create_stream(STREAM, partitions=PARTITIONS, replication_factor=3, timeout=30)
        workers = Workers(brokers.addresses, STREAM)
        writer = Writer(client, STREAM)
        try:
            for _ in range(3):
                workers.add()
            await until(lambda: {partition for partition, _ in workers.look()} == set(range(PARTITIONS)))
            await writer.more(200)

            before = await committed(client, STREAM, PARTITIONS)
            workers.kill()
            first = len(workers.read)
            written = set(writer.places())
            await writer.more(200)
            await until(lambda: written <= set(workers.look()))

            again = await committed(client, STREAM, PARTITIONS)
            killed = await coordinator(client, STREAM)
            await asyncio.to_thread(brokers[killed].kill9)
            workers.look()
            second = len(workers.read)
            await writer.more(200)
            async with asyncio.timeout(30):
                while await coordinator(client, STREAM) == killed:
                    await asyncio.sleep(0.1)
            await writer.stop()
            await until(lambda: set(writer.places()) <= set(workers.look()))
            assert workers.repeated(first, before) == []
            assert workers.repeated(second, again) == []
        finally:
            await writer.stop()
            workers.close()

    with Brokers(tmp_path, peers=True, config=SETTINGS) as brokers:
        with_client(brokers.addresses, use)
