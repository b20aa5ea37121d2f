"""`bascule cluster recover` as people need it: three brokers as processes, two of them lost for good."""

import asyncio
import json
import subprocess
from pathlib import Path

from bascule.client import Client
from bascule.testing.processes import BrokerProcess, poll
from tests.harness.cluster_load import Brokers, read_all
from tests.harness.command import bascule

SETTLE_S = 60.0
COUNT = 40


def recover(broker: BrokerProcess, *more: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    return bascule("cluster", "recover", "--data-dir", str(broker.data_dir), *more, code=code)


async def fill(brokers: Brokers) -> list[bytes]:
    """What was acked by all replicas."""
    async with await Client.connect(brokers.addresses, timeout=20.0) as client:
        await client.create_stream("orders", replication_factor=3, timeout=20.0)
        await client.create_stream("lost", replication_factor=1, timeout=20.0)
        values = [b"%d" % number for number in range(COUNT)]
        for value in values:
            await client.publish("orders", value)
        return values


async def contents(broker: BrokerProcess) -> list[bytes]:
    async with await Client.connect([broker.address], timeout=20.0) as client:
        return [value for _, value in await read_all(client)]


async def publish(broker: BrokerProcess, value: bytes) -> None:
    async with await Client.connect([broker.address], timeout=20.0) as client:
        await client.publish("orders", value)


def test_a_cluster_goes_on_from_one_folder_and_its_old_members_are_refused(tmp_path: Path) -> None:
    with Brokers(tmp_path, config={"clustering.min.insync.replicas": 1}) as brokers:
        acked = asyncio.run(fill(brokers))
        left, old, wiped = brokers["c"], brokers["b"], brokers["a"]
        assert "uses it; stop that one" in recover(left, "--accept-loss", code=1).stderr, "it runs"
        for broker in (left, old, wiped):
            broker.kill9()
        brokers.wipe("a")
        aside = old.data_dir.rename(old.data_dir.with_name("aside"))
        told = json.loads(recover(left, "--json").stdout)
        assert (told["done"], told["broker_id"], told["others"]) == (False, "c", ["a", "b"])
        assert any(name.startswith("orders") for name in told["whole"]), told
        assert {"doubtful", "gone"} <= told.keys(), "scripts read them"
        left.start()
        assert poll(lambda: "waiting for the cluster" in left.logs(), SETTLE_S), "only told: nothing was changed"
        left.kill9()
        assert "from its next start on" in recover(left, "--accept-loss").stdout

        left.start().wait_ready()
        assert poll(lambda: asyncio.run(contents(left)) == acked, SETTLE_S), "acked messages are missing"
        asyncio.run(publish(left, b"after"))

        aside.rename(old.data_dir)  # it was not lost after all
        old.start()
        assert poll(lambda: "recovered this cluster as" in old.logs(), SETTLE_S), old.log_tail()
        assert "empty its data folder" in old.logs()
        assert brokers.voters() == ["c"], "an old member counts"
        old.kill9()
        brokers.wipe("b")
        for broker in (old, wiped):
            broker.start().wait_ready()
        assert poll(lambda: brokers.voters() == ["a", "b", "c"], SETTLE_S), "emptied, they join"
        assert asyncio.run(contents(left)) == [*acked, b"after"]
