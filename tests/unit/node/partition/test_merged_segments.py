"""A partition with one message a segment keeps few files, on every replica; its messages, their limits and their ends
stay as they are."""

import asyncio
import random
from typing import Any

import pytest

from bascule import limits
from bascule.errors import Status
from bascule.node.partition.cleaner import run_to_merge
from bascule.node.partition.replica import Replica
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node
from tests.harness.members import followers, leader_of, three, until

ONE_A_SEGMENT: dict[str, Any] = {
    "segmentMaxBytes": api.NullableInt64(value=1),
    "cleanerInterval": api.NullableInt64(value=2_000),
}
COUNT = 300


async def one(**fields: Any) -> Node:
    node = await Node(MemoryDisk(), MemoryNats()).start()
    await node.create("s", **ONE_A_SEGMENT, **fields)
    for number in range(COUNT):
        await node.publish("s", b"%03d" % number)
    return node


def replica_of(node: Any) -> Replica:
    replica: Replica | None = node.broker.replicas.find("s", 0)
    assert replica is not None
    return replica


def files_of(disk: MemoryDisk, suffix: str = ".log") -> list[str]:
    return [path for path in disk.paths() if path.startswith("streams/s@") and path.endswith(suffix)]


def test_many_small_segments_become_few_and_all_messages_are_there_after_a_power_loss() -> None:
    async def main() -> None:
        node = await one()
        assert len(files_of(node.disk)) == COUNT
        await asyncio.sleep(10.0)
        assert len(files_of(node.disk)) < limits.MERGED_FROM_SEGMENTS
        assert len(files_of(node.disk, ".index")) == len(files_of(node.disk)) - 1
        merged = next(each for each in node.broker.environment.metrics.read() if "merged_segments" in each.name)
        assert merged.values[""] >= COUNT - limits.MERGED_FROM_SEGMENTS
        for seed in range(3):
            assert [offset for offset, _ in await node.read("s")] == list(range(COUNT))
            node.power_off(random.Random(seed))
            node = await Node(node.disk, MemoryNats(), seed=seed + 2).start()
        assert (await node.publish("s", b"next")).offset == COUNT

    run(main())


def test_a_stream_that_keeps_few_messages_is_left_alone() -> None:
    async def main() -> None:
        node = await one(retentionMaxMessages=api.NullableInt64(value=150))
        await asyncio.sleep(10.0)
        left = [offset for offset, _ in await node.read("s")]
        assert left == list(range(COUNT - 150, COUNT)), "exactly as many as its limit says"

    run(main())


@pytest.mark.parametrize("state", ["failed", "ended"])
def test_a_log_that_takes_no_writes_or_is_closed_merges_nothing(state: str) -> None:
    async def main() -> None:
        node = await one()
        replica = replica_of(node)
        if state == "failed":
            replica.log.lose(replica.log.folder)
            assert run_to_merge(replica, node.broker.environment.settings.defaults) is None
        else:
            replica.roles.end()
        assert await replica.merge(0, 100) == 0
        assert len(replica.log.segments) >= COUNT

    run(main())


def test_each_replica_merges_by_itself_and_then_another_one_leads() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", partitions=1, replicationFactor=3, **ONE_A_SEGMENT)
        status, text, _ = await members["a"].call("CreateStream", request)
        assert status is Status.OK, text
        leader = leader_of(members, "s")
        values = [b"%03d" % number for number in range(150)]
        for value in values:
            await leader.publish("s", value)
        few = limits.MERGED_FROM_SEGMENTS
        await until(lambda: all(len(files_of(member.disk)) < few for member in members.values()))
        leader.kill(random.Random(1))
        others = {name: member for name, member in members.items() if member is not leader}
        await until(lambda: any(replica_of(member).leading is not None for member in others.values()))
        new = next(member for member in others.values() if replica_of(member).leading is not None)
        assert (await new.publish("s", b"next")).offset == 150
        assert await new.read("s") == [*values, b"next"]

    run(main())


def test_damage_that_is_met_is_repaired_without_a_reader() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        request = api.CreateStreamRequest(name="s", subject="s", partitions=1, replicationFactor=3, **ONE_A_SEGMENT)
        status, text, _ = await members["a"].call("CreateStream", request)
        assert status is Status.OK, text
        for number in range(150):
            await leader_of(members, "s").publish("s", b"%03d" % number)
        follower = followers(members)[0]
        log = replica_of(follower).log
        follower.disk.flip(log.segments[50].path, 20, 3)
        await until(lambda: any(path.startswith("quarantine/") for path in follower.disk.paths()))
        await until(lambda: len(files_of(follower.disk)) < limits.MERGED_FROM_SEGMENTS)
        assert not log.damaged

    run(main())
