"""Clients that know nothing of us store where they have got to, and resume there."""

import asyncio
import zlib
from collections.abc import Callable
from pathlib import Path

from gufo.liftbridge.client import LiftbridgeClient
from gufo.liftbridge.types import StartPosition

from bascule.testing.jsonlines import JsonProgram
from bascule.testing.processes import BrokerProcess, poll, start_broker
from bascule.wire.pb import api_pb2 as api
from tests.harness.cluster_load import Brokers
from tests.harness.stub import Stub

TIMEOUT_S = 60.0


def test_gufo_resumes_at_its_cursor_also_after_a_kill(tmp_path: Path) -> None:
    async def work(broker: BrokerProcess) -> None:
        async with LiftbridgeClient([broker.address]) as client:
            await client.wait_for_cursors()
            await client.create_stream("s", wait_for_stream=True)
            assert await client.get_cursor("s", 0, "mine") == -1
            for number in range(10):
                await client.publish(b"%d" % number, stream="s")
            await client.set_cursor("s", 0, "mine", 3)
            assert await client.get_cursor("s", 0, "mine") == 4, "this client stores the next offset"
            assert await client.get_cursor("s", 1, "mine") == -1
            assert await client.get_cursor("no such stream", 0, "mine") == -1
        broker.kill9()
        broker.start().wait_ready()
        async with LiftbridgeClient([broker.address]) as client:
            resumed = client.subscribe("s", start_position=StartPosition.RESUME, cursor_id="mine")
            assert [(await anext(aiter(resumed))).offset] == [4]

    with start_broker(tmp_path, config={"cursors.stream.partitions": 1}) as broker:
        asyncio.run(asyncio.wait_for(work(broker), TIMEOUT_S))


def test_go_liftbridge_finds_the_leader_of_each_cursor(
    tmp_path: Path, go_against: Callable[[BrokerProcess], JsonProgram]
) -> None:
    """It computes the partition itself: with three brokers and seven partitions, a wrong one is another leader's."""
    config = {"cursors.stream.partitions": 7, "cursors.stream.replication.factor": 3}
    with Brokers(tmp_path, config=config) as brokers:
        with Stub(brokers["a"].address) as stub:
            assert poll(lambda: len(leaders_of_cursors(stub)) == 7)
            leaders = leaders_of_cursors(stub)
        go = go_against(brokers["a"])
        used = set()
        for number in range(10):
            cursor = f"cursor {number}"
            used.add(leaders[zlib.crc32(f"{cursor},s,3".encode()) % 7])
            flags = {"cursor": cursor, "stream": "s", "partition": 3}
            assert go.one("cursor", **flags)["offset"] == -1
            assert go.one("set-cursor", offset=100 + number, **flags)["event"] == "set"
            assert go.one("cursor", **flags)["offset"] == 100 + number
        assert len(used) > 1


def leaders_of_cursors(stub: Stub) -> dict[int, str]:
    answer = stub.FetchMetadata(api.FetchMetadataRequest(streams=["__cursors"]), timeout=5)
    (stream,) = answer.streamMetadata
    return {number: item.leader for number, item in stream.partitions.items() if item.leader}
