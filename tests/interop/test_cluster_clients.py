"""Foreign clients of a cluster whose brokers are killed and restarted: they ride on, and read everything acked."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from gufo.liftbridge.client import LiftbridgeClient
from gufo.liftbridge.types import StartPosition

from bascule.client import Client, Partition
from bascule.testing.jsonlines import JsonProcess, JsonProgram
from bascule.testing.processes import poll
from tests.harness.cluster_load import Brokers, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


async def partition_of(brokers: Brokers, stream: str) -> Partition:
    async with await Client.connect(brokers.addresses) as client:
        return (await client.fetch_metadata([stream])).streams[stream].partitions[0]


def kill_leader(brokers: Brokers, stream: str) -> None:
    victim = asyncio.run(partition_of(brokers, stream)).leader
    brokers[victim].kill9()
    brokers[victim].start().wait_ready()


def restart_all(brokers: Brokers, stream: str) -> None:
    for broker in brokers.brokers.values():
        assert broker.terminate() == 0
        broker.start().wait_ready()
        assert poll(lambda: len(asyncio.run(partition_of(brokers, stream)).isr) == 3)


def acked(riding: JsonProcess, number: int) -> None:
    while riding.next("acked")["number"] < number:
        pass


@pytest.mark.parametrize("fault", [kill_leader, restart_all])
def test_go_liftbridge_rides_on(tmp_path: Path, go_program: Path, fault: Callable[[Brokers, str], None]) -> None:
    with Brokers(tmp_path, peers=True) as brokers:
        go = JsonProgram([str(go_program)], address=brokers["a"].address, nats=brokers.nats.nats_url)
        assert go.one("create", stream="ride", replication_factor=3)["event"] == "created"
        with go.start("ride", stream="ride", count=600, timeout="120s") as riding:
            riding.next("riding")
            acked(riding, 50)
            fault(brokers, "ride")
            events = list(riding.rest())
        arrived = events[-1]
        assert arrived["event"] == "arrived", events
        assert (arrived["seen"], arrived["disordered"]) == (600, 0), arrived
        print(arrived)


@pytest.mark.parametrize("fault", [kill_leader, restart_all])
def test_gufo_liftbridge_rides_on(tmp_path: Path, fault: Callable[[Brokers, str], None]) -> None:
    """Its Publish has no ack, so what the reader must see is what came after the fault."""

    async def main(brokers: Brokers) -> None:
        seen: dict[bytes, None] = {}

        async def follow() -> None:
            async with LiftbridgeClient(brokers.addresses) as client:
                async for message in client.subscribe("ride", partition=0, start_position=StartPosition.EARLIEST):
                    seen[message.value] = None

        async def publish(value: bytes) -> None:
            async with LiftbridgeClient(brokers.addresses) as client:
                await client.publish(value, stream="ride", partition=0)

        async with LiftbridgeClient(brokers.addresses) as client:
            await client.create_stream("ride", replication_factor=3, wait_for_stream=True)
        following = asyncio.create_task(follow())
        try:
            await publish(b"before")
            await until(lambda: b"before" in seen, 20.0, "nothing is read")
            await asyncio.to_thread(fault, brokers, "ride")
            for number in range(200):
                await publish(b"after %d" % number)
                await asyncio.sleep(0.05)
                if len(seen) > 1:
                    break
            assert not following.done(), following
            assert len(seen) > 1, "nothing is read after the fault"
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    with Brokers(tmp_path, peers=True) as brokers:
        asyncio.run(main(brokers))
