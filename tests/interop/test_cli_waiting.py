"""A command that waits says for what, soon, and goes on waiting."""

import asyncio
import subprocess
import time
from pathlib import Path

from bascule.client import AckPolicy, Client
from bascule.testing.processes import BrokerProcess, script, start_broker


async def below_min_isr(broker: BrokerProcess) -> None:
    """A stream whose only message is stored, and never committed."""
    async with await Client.connect(broker.address) as client:
        await client.create_stream("s", min_isr=2)
        await client.publish("s", b"v", ack=AckPolicy.LEADER)


def test_sub_of_a_partition_below_min_isr_says_soon_what_it_waits_for(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        asyncio.run(below_min_isr(broker))
        broker.terminate()
        broker.start().wait_ready()
        began = time.monotonic()
        reading = subprocess.Popen(
            [str(script("bascule")), "sub", "s", "--server", broker.address],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            assert reading.stderr is not None
            said = reading.stderr.readline().decode()
            took_s = time.monotonic() - began
            assert said.startswith("waiting: s/0 has a new leader, and too few replicas are in sync"), said
            assert took_s < 8.0, "it waited as long as it tried"
            assert reading.poll() is None, "it did not go on waiting"
        finally:
            reading.kill()
            reading.communicate()


def test_following_says_that_its_connection_is_lost_and_goes_on(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        command = [str(script("bascule")), "--server", broker.address]
        subprocess.run([command[0], "pub", "--create", "s", "first", *command[1:]], check=True, timeout=60.0)
        reading = subprocess.Popen(
            [command[0], "sub", "s", "--follow", *command[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            assert reading.stdout is not None
            assert reading.stderr is not None
            assert reading.stdout.readline() == b"first\n"
            time.sleep(0.5)  # until it follows
            broker.kill9()
            assert b"looking for the broker that leads now" in reading.stderr.readline()
            broker.start().wait_ready()
            subprocess.run([command[0], "pub", "s", "second", *command[1:]], check=True, timeout=60.0)
            assert reading.stdout.readline() == b"second\n"
            said = [reading.stderr.readline() for _ in range(1)]
            while b"connected again" not in said[-1]:
                assert said[-1].startswith(b"waiting: "), said
                said.append(reading.stderr.readline())
        finally:
            reading.kill()
            reading.communicate()


def test_publishes_that_nobody_confirms_say_where_to_look(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        asyncio.run(below_min_isr(broker))
        done = subprocess.run(
            [str(script("bascule")), "pub", "s", "x", "--server", broker.address],
            capture_output=True,
            text=True,
            timeout=60.0,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: no ack within 5 s: 0 of 1 messages")
    assert "`bascule cluster status` shows whether the partition has a leader" in done.stderr
    assert len(done.stderr.splitlines()) == 1
