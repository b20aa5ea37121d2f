"""What a program with our client leaves behind, in a process of its own: no memory, no task, no warning."""

import os
import subprocess
import sys

import pytest

from bascule.testing.processes import BrokerProcess

LONG = """
import asyncio, sys
from pathlib import Path
from bascule.client import Client

COUNT, ROUNDS = 65_000, 10


def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


async def main(address, stream):
    async with Client.connect(address) as client:
        await client.create_stream(stream, partitions=2)
        async with client.consumer(stream) as consumer, client.producer(stream) as producer:
            seen = []
            for _ in range(ROUNDS):
                await client.publish_many(stream, (b"%d" % number for number in range(COUNT)), spread=True)
                for number in range(COUNT // 2):
                    await producer.send(b"%d" % number, key=b"%d" % (number % 100), headers={"h": b"v"})
                await producer.flush()
                await asyncio.gather(*(client.publish(stream, b"v") for _ in range(COUNT // 50)))
                read, sent = 0, COUNT + COUNT // 2 + COUNT // 50
                while read < sent:
                    read += len(await consumer.next_batch())
                seen.append(resident_mb())
    print(seen[1], seen[-1])


asyncio.run(main(*sys.argv[1:]))
"""

STRICT = """
import asyncio, gc, sys
from bascule.client import Client


async def main(address, stream):
    async with Client.connect(address) as client:
        await client.create_stream(stream, partitions=4)
        async with client.producer(stream) as producer:
            receipts = [await producer.send(b"%d" % number) for number in range(100)]
            await receipts[0]
        await asyncio.gather(*(client.publish(stream, b"v") for _ in range(100)))
        await client.publish_many(stream, [b"a", b"b"], retry_s=1.0)
        async with client.consumer(stream) as consumer:
            async for message in consumer:
                break
            assert await consumer.next(timeout=1.0) is not None
        left = client.subscribe(stream)  # neither read to its end nor closed
        await anext(left)
        waiting = asyncio.create_task(anext(client.subscribe(stream, start="new")))
        publishing = asyncio.create_task(client.publish(stream, b"v"))
        await asyncio.sleep(0.1)
        waiting.cancel()
        publishing.cancel()
        await asyncio.gather(waiting, publishing, return_exceptions=True)
        del left
    assert asyncio.all_tasks() == {asyncio.current_task()}
    other = await Client.connect(address)  # outside of a block
    await other.publish(stream, b"v")
    await other.close()


asyncio.run(main(*sys.argv[1:]))
gc.collect()
"""


def run(program: str, broker: BrokerProcess, stream: str, *options: str) -> str:
    command = [sys.executable, *options, "-c", program, broker.address, stream]
    environment = {**os.environ, "PYTHONASYNCIODEBUG": "1"} if options else None
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_memory_is_flat_over_a_million_messages(broker: BrokerProcess, stream: str) -> None:
    """Written in three ways and read: 98,800 in each of ten rounds."""
    after_two, after_ten = map(float, run(LONG, broker, stream).split())
    assert after_ten < after_two + 10


def test_nothing_is_left_in_development_mode(broker: BrokerProcess, stream: str) -> None:
    run(STRICT, broker, stream, "-X", "dev", "-W", "error")
