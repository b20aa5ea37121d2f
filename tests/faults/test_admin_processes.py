"""Administration as people do it: `bascule cluster` against brokers that are processes, under load and after kills."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bascule.client import Client
from bascule.errors import BasculeError
from bascule.testing.processes import BrokerProcess, poll
from tests.harness.cluster_load import Brokers
from tests.harness.command import bascule

TIMEOUT_S = 60.0
PARTITIONS = 2


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with Brokers(tmp_path, config={"clustering.min.insync.replicas": 1}) as running:
        yield running


def run(brokers: Brokers, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    servers = ",".join(broker.address for broker in brokers.brokers.values() if broker.running)
    return bascule(*args, "--server", servers, code=code)


def answer(brokers: Brokers, *args: str) -> Any:
    return json.loads(run(brokers, *args, "--json").stdout)


def replicas_in_sync(brokers: Brokers) -> list[list[str]]:
    described = answer(brokers, "stream", "info", "orders")
    return [[each["broker"] for each in item["replicas"] if each["in_sync"]] for item in described["partitions"]]


@asynccontextmanager
async def load(addresses: list[str]) -> AsyncIterator[list[list[bytes]]]:
    """Publishes without end, one message at a time; gives what was acked, by partition."""
    acked: list[list[bytes]] = [[] for _ in range(PARTITIONS)]

    async def publish(client: Client) -> None:
        number = 0
        while True:
            partition, value = number % PARTITIONS, b"%d" % number
            number += 1
            try:
                await client.publish("orders", value, partition=partition, timeout=1.0)
                acked[partition].append(value)
            except BasculeError:
                await asyncio.sleep(0.05)  # unknown: it may be stored or not

    async with await Client.connect(addresses) as client:
        task = asyncio.create_task(publish(client))
        try:
            yield acked
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def read(address: str, partition: int) -> list[bytes]:
    async with await Client.connect(address) as client:
        stored = client.subscribe("orders", partition, start="earliest", stop="latest")
        return [message.value async for message in stored]


@pytest.mark.slow
def test_a_loaded_broker_is_drained_removed_and_replaced(brokers: Brokers) -> None:
    asyncio.run(drain_remove_replace(brokers))


async def drain_remove_replace(brokers: Brokers) -> None:
    run(brokers, "stream", "create", "orders", "--partitions", str(PARTITIONS), "--replication-factor", "3")
    async with load(brokers.addresses) as acked:
        await asyncio.sleep(0.5)
        refused = await asyncio.to_thread(run, brokers, "cluster", "remove", "b", code=1)
        assert "b is alive: hand over what it leads first with `bascule cluster drain b`" in refused.stderr
        done = await asyncio.to_thread(run, brokers, "cluster", "drain", "b", "--stop")
        assert done.stdout == "b leads nothing any more and stops\n"
        assert await asyncio.to_thread(poll, lambda: not brokers["b"].running)
        assert brokers["b"].exit_code == 0, brokers["b"].log_tail()
        count = sum(map(len, acked))
        newcomer = brokers.brokers["d"] = another(brokers, "d")
        await asyncio.to_thread(lambda: newcomer.start().wait_ready())
        removed = await asyncio.to_thread(run, brokers, "cluster", "remove", "b")
        assert removed.stdout == "b is removed\n"
        whole = [["a", "c", "d"]] * PARTITIONS
        assert await asyncio.to_thread(poll, lambda: [sorted(isr) for isr in replicas_in_sync(brokers)] == whole)
        brokers["b"].start()
        assert await asyncio.to_thread(poll, lambda: not brokers["b"].running)
        assert brokers["b"].exit_code == 1
        assert "broker b was removed from the cluster by an administrator" in brokers["b"].logs()
        brokers.wipe("b")
        await asyncio.to_thread(lambda: brokers["b"].start().wait_ready())
        assert sum(map(len, acked)) > count, "publishing went on meanwhile"
    status = answer(brokers, "cluster", "status")
    assert sorted(member["id"] for member in status["members"]) == ["a", "b", "c", "d"]
    assert (status["under_replicated_count"], status["offline_count"]) == (0, 0)
    for partition in range(PARTITIONS):
        got = await read(brokers["d"].address, partition)
        known = set(acked[partition])
        assert [value for value in got if value in known] == acked[partition]


def another(brokers: Brokers, name: str) -> BrokerProcess:
    config = {"clustering.server.id": name, "clustering.min.insync.replicas": 1}
    return BrokerProcess(brokers.folder / name, nats_url=brokers.nats.nats_url, seed=False, config=config)


@pytest.mark.slow
def test_a_leader_that_is_not_in_sync_is_elected_only_with_consent(brokers: Brokers) -> None:
    asyncio.run(elect(brokers))


async def publish(brokers: Brokers, values: list[bytes]) -> None:
    addresses = [broker.address for broker in brokers.brokers.values() if broker.running]
    async with await Client.connect(addresses) as client:
        for value in values:
            await client.publish("orders", value, timeout=10.0)


async def elect(brokers: Brokers) -> None:
    run(brokers, "stream", "create", "orders", "--replication-factor", "2")
    (item,) = answer(brokers, "stream", "info", "orders")["partitions"]
    leader = item["leader"]
    (behind,) = (each["broker"] for each in item["replicas"] if each["broker"] != leader)
    retained, lost = [b"kept %d" % number for number in range(10)], [b"lost %d" % number for number in range(7)]
    await publish(brokers, retained)
    brokers[behind].kill9()
    assert poll(lambda: replicas_in_sync(brokers) == [[leader]])
    await publish(brokers, lost)
    brokers[leader].kill9()
    brokers[behind].start().wait_ready()
    assert poll(lambda: answer(brokers, "cluster", "status")["offline_count"] == 1)
    assert poll(lambda: "would lead" in run_quietly(brokers, "cluster", "elect", "orders", "0"))
    shown = run(brokers, "cluster", "elect", "orders", "0")
    assert f"{behind} would lead orders/0 with the messages below offset 10" in shown.stdout
    (item,) = answer(brokers, "stream", "info", "orders")["partitions"]
    assert (item["leader"], replicas_in_sync(brokers)) == (leader, [[]]), "to ask is not to do"
    command = shown.stderr.partition("to accept this: bascule ")[2].split()
    assert f"elected {behind} for orders/0, epoch" in run(brokers, *command).stdout
    await publish(brokers, [b"after"])
    brokers[leader].start().wait_ready()
    assert poll(lambda: len(replicas_in_sync(brokers)[0]) == 2)
    assert await read(brokers[behind].address, 0) == [*retained, b"after"]
    (item,) = answer(brokers, "stream", "info", "orders")["partitions"]
    assert {each["end"] for each in item["replicas"]} == {11}
    assert item["unclean_epoch"] > 0
    assert "unclean election" in "".join(broker.logs() for broker in brokers.brokers.values())


def run_quietly(brokers: Brokers, *args: str) -> str:
    """Of a cluster that may not have made up its mind yet."""
    try:
        return run(brokers, *args).stdout
    except AssertionError:
        return ""
