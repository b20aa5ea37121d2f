"""Records expire on every replica, by the limits of their stream; nothing that expired returns, whoever leads."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from bascule.core.metadata.commands import SetHold
from bascule.core.metadata.streams import CURSORS, Stream, StreamConfig
from bascule.core.retention import RetentionLimits
from bascule.errors import Status
from bascule.node.config.broker import StreamDefaults
from bascule.node.partition.cleaner import expired_end
from bascule.node.partition.replica import Replica
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node
from tests.harness.members import Member, leader_of, three, until

SMALL: dict[str, Any] = {
    "segmentMaxBytes": api.NullableInt64(value=200),
    "cleanerInterval": api.NullableInt64(value=2_000),
}
"""A few records a segment, cleaned every two seconds."""


async def one(**fields: Any) -> Node:
    node = await Node(MemoryDisk(), MemoryNats()).start()
    await node.create("s", **SMALL, **fields)
    return node


def replica_of(node: Any) -> Replica:
    replica: Replica | None = node.broker.replicas.find("s", 0)
    assert replica is not None
    return replica


async def fill(node: Any, first: int, count: int) -> None:
    for number in range(first, first + count):
        await node.publish("s", b"%03d" % number)


async def offsets(node: Node) -> list[int]:
    return [offset for offset, _ in await node.read("s")]


@pytest.mark.parametrize(
    "limit",
    [
        {"retentionMaxMessages": api.NullableInt64(value=10)},
        {"retentionMaxBytes": api.NullableInt64(value=1_000)},
        {"retentionMaxAge": api.NullableInt64(value=1_000), "segmentMaxAge": api.NullableInt64(value=0)},
    ],
    ids=["messages", "bytes", "age"],
)
def test_old_segments_go_the_active_one_stays_and_offsets_go_on(limit: dict[str, Any]) -> None:
    async def main() -> None:
        node = await one(**limit)
        await fill(node, 0, 40)
        await asyncio.sleep(5.0)
        left = await offsets(node)
        assert left == list(range(left[0], 40))
        assert 0 < left[0] < 40
        assert len(left) <= 20
        log = replica_of(node).log
        files = [path for path in node.disk.paths() if path.startswith("streams/") and path.endswith(".log")]
        assert len(files) == len(log.segments) < 10
        assert (await node.publish("s", b"next")).offset == 40
        for seed in range(4):
            node.power_off(random.Random(seed))
            node = await Node(node.disk, MemoryNats(), seed=seed + 2).start()
            assert (await offsets(node))[-1] == 40
            assert (await offsets(node))[0] >= left[0]
        assert (await node.publish("s", b"last")).offset == 41

    run(main())


def test_a_log_whose_records_have_all_expired_goes_on_where_it_ended() -> None:
    async def main() -> None:
        age = {"retentionMaxAge": api.NullableInt64(value=1_000), "segmentMaxAge": api.NullableInt64(value=1_000)}
        node = await one(**age)
        await fill(node, 0, 12)
        await asyncio.sleep(9.0)
        log = replica_of(node).log
        assert (log.start, log.end) == (12, 12)
        for seed in range(6):
            node.power_off(random.Random(seed))
            node = await Node(node.disk, MemoryNats(), seed=seed + 2).start()
            assert (replica_of(node).log.start, replica_of(node).log.end) == (12, 12)
        assert (await node.publish("s", b"new")).offset == 12
        assert await offsets(node) == [12]

    run(main())


def test_a_subscriber_below_the_start_goes_on_at_it() -> None:
    async def main() -> None:
        node = await one(retentionMaxMessages=api.NullableInt64(value=10))
        await fill(node, 0, 40)
        reader = replica_of(node).log.reader(0)
        assert await reader.read(100) is not None
        await asyncio.sleep(5.0)
        given = 0
        while await reader.read(1 << 20) is not None:
            given += reader.count
        assert reader.next_offset == 40
        assert given == 40 - replica_of(node).log.start < 25

    run(main())


def test_a_hold_keeps_what_is_at_or_above_it() -> None:
    async def main() -> None:
        node = await one(retentionMaxMessages=api.NullableInt64(value=5))
        await node.broker.controller.executor._proposals.propose(lambda: SetHold("s", 0, "archive", 7))
        await fill(node, 0, 40)
        await asyncio.sleep(5.0)
        assert (await offsets(node))[0] <= 7
        await node.broker.controller.executor._proposals.propose(lambda: SetHold("s", 0, "archive", 30))
        await asyncio.sleep(3.0)
        assert 7 < (await offsets(node))[0] <= 30

    run(main())


def test_the_age_of_holds_that_are_more_than_a_metric_shows_is_that_of_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bascule.node.runtime.metrics.METRIC_LABEL_VALUES", 1)

    async def main() -> None:
        node = await one()
        now = node.broker.environment.ports.clock.time_ns()
        for name, age_s in (("a", 10), ("b", 200), ("c", 100)):
            await node.broker.controller.executor._proposals.commit(SetHold("s", 0, name, 0, now - age_s * 10**9))
        readings = {reading.name: reading for reading in node.broker.environment.metrics.read()}
        ages = readings["bascule_hold_age_seconds"].values
        assert list(ages) == ["s/0/a", "other"]
        assert 200 <= ages["other"] < 210

    run(main())


def test_metrics_show_the_age_of_a_hold_and_what_it_keeps() -> None:
    async def main() -> None:
        node = await one()
        await fill(node, 0, 10)
        await node.broker.controller.executor._proposals.propose(
            lambda: SetHold("s", 0, "archive", 0, node.broker.environment.ports.clock.time_ns())
        )
        await asyncio.sleep(30.0)
        readings = {reading.name: reading for reading in node.broker.environment.metrics.read()}
        assert 30 <= readings["bascule_hold_age_seconds"].values["s/0/archive"] < 40
        held = readings["bascule_hold_bytes"].values["s/0/archive"]
        assert held == replica_of(node).log.segments.bytes_from(0) > 0

    run(main())


@pytest.mark.parametrize(
    "limit", [{"retentionMaxMessages": api.NullableInt64(value=100)}, {}], ids=["expires", "merged"]
)
def test_a_partition_that_is_paused_more_often_than_it_is_cleaned_has_its_turn(limit: dict[str, Any]) -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create(
            "s",
            segmentMaxBytes=api.NullableInt64(value=1),
            cleanerInterval=api.NullableInt64(value=10_000),
            autoPauseTime=api.NullableInt64(value=1_000),
            **limit,
        )
        pauses = 0
        for first in range(0, 480, 40):
            await fill(node, first, 40)
            await asyncio.sleep(4.0)
            pauses += node.broker.cluster.metadata.streams["s"].partitions[0].paused
        assert pauses == 12
        await node.publish("s", b"resumed")
        assert (await offsets(node))[-1] == 480
        assert len(replica_of(node).log.segments) <= 100 + 3 * 40 + 1

    run(main())


def test_a_partition_that_changes_its_leader_more_often_than_it_is_cleaned_expires() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        client = members["a"]
        limits = {**SMALL, "cleanerInterval": api.NullableInt64(value=20_000)}
        request = api.CreateStreamRequest(
            name="s", subject="s", replicationFactor=3, retentionMaxMessages=api.NullableInt64(value=10), **limits
        )
        assert (await client.call("CreateStream", request))[0] is Status.OK
        for number in range(60):
            await client.publish("s", b"%03d" % number)
        epochs = set()
        for _ in range(14):
            item = client.broker.cluster.metadata.streams["s"].partitions[0]
            epochs.add(item.leader_epoch)
            replica = replica_of(members[item.leader])
            await replica.roles._broker.step_down(replica)
            await asyncio.sleep(6.0)
        assert len(epochs) == 14
        assert client.broker.cluster.metadata.streams["s"].partitions[0].start >= 40

    run(main())


def test_a_partition_that_cannot_be_cleaned_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails_for_one(replica: Replica, *rest: Any) -> int:
        if replica.partition.id == 1:
            raise ZeroDivisionError
        return expired_end(replica, *rest)

    async def main() -> None:
        node = await one(retentionMaxMessages=api.NullableInt64(value=10), partitions=3)
        for number in range(120):
            await node.publish("s", b"%03d" % number, partition=number % 3)
        partitions = node.broker.cluster.metadata.streams["s"].partitions
        assert [item.start for item in partitions] == [0, 0, 0]
        monkeypatch.setattr("bascule.node.partition.cleaner.expired_end", fails_for_one)
        await asyncio.sleep(9.0)
        starts = [item.start for item in node.broker.cluster.metadata.streams["s"].partitions]
        assert starts[1] == 0
        assert min(starts[0], starts[2]) > 0
        said = [each for each in caplog.messages if each.startswith("s/1: what has expired could not be worked out")]
        assert 2 <= len(said) <= 5, "once in each interval"
        monkeypatch.undo()
        await asyncio.sleep(3.0)
        assert node.broker.cluster.metadata.streams["s"].partitions[1].start > 0

    run(main())


def test_what_is_known_of_a_partition_goes_with_its_stream() -> None:
    async def main() -> None:
        node = await one(compactEnabled=api.NullableBool(value=True))
        await fill(node, 0, 3)
        await asyncio.sleep(3.0)
        cleaner, compactor = node.broker.cleaner, node.broker.compactor
        known = (cleaner._rounds, cleaner._led_rounds, compactor._rounds)
        assert [len(each) for each in known] == [1, 1, 1]
        status, _, _ = await node.call("PauseStream", api.PauseStreamRequest(name="s"))
        assert status is Status.OK
        await asyncio.sleep(3.0)
        assert [len(each) for each in known] == [1, 1, 1]
        assert (await node.call("DeleteStream", api.DeleteStreamRequest(name="s")))[0] is Status.OK
        await asyncio.sleep(3.0)
        assert [len(each) for each in known] == [0, 0, 0]

    run(main())


def test_cursors_never_expire() -> None:
    limits = StreamConfig(retention_max_bytes=1, retention_max_messages=1, retention_max_age=1)
    defaults = StreamDefaults(1 << 20, 0, 1, False, 1 << 20, retention=RetentionLimits(1, 1, 1))
    streams = {name: Stream(name, name, "", (), limits) for name in (CURSORS, "other")}
    assert not defaults.retention_of(streams[CURSORS])
    assert defaults.retention_of(streams["other"]) == RetentionLimits(1, 1, 1_000_000)


@pytest.mark.parametrize("seed", range(12))
def test_a_removal_that_is_interrupted_leaves_the_rest_to_the_next_start(seed: int) -> None:
    async def main() -> None:
        node = await one(retentionMaxMessages=api.NullableInt64(value=5))
        await fill(node, 0, 40)
        chance = random.Random(seed)
        node.disk.fail_at(node.disk.steps + 1 + chance.randrange(30))
        await asyncio.sleep(3.0)
        node.power_off(chance)
        node = await Node(node.disk, MemoryNats(), seed=seed + 2).start()
        await asyncio.sleep(3.0)
        left = await offsets(node)
        assert left == list(range(left[0], 40))
        replica = replica_of(node)
        assert replica.log.start >= replica.partition.start
        assert not replica.log.damaged
        assert (await node.publish("s", b"next")).offset == 40

    run(main())


# --- three brokers ---------------------------------------------------------------------------------------------------


async def cluster(**fields: Any) -> dict[str, Member]:
    members = await three(MemoryNats())
    request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3, **SMALL, **fields)
    assert (await members["a"].call("CreateStream", request))[0] is Status.OK
    return members


def test_every_replica_begins_where_the_metadata_says_and_nothing_returns_after_a_fail_over() -> None:
    async def main() -> None:
        members = await cluster(retentionMaxMessages=api.NullableInt64(value=10))
        await fill(members["a"], 0, 40)
        await asyncio.sleep(5.0)
        starts = {replica_of(member).log.start for member in members.values()}
        assert len(starts) == 1
        (start,) = starts
        assert start > 0
        leader = leader_of(members, "s")
        leader.kill()
        left = [member for member in members.values() if member is not leader]
        await until(lambda: left[0].broker.cluster.metadata.streams["s"].partitions[0].leader != leader.name)
        await until(lambda: any(replica_of(member).leading is not None for member in left))
        del members[leader.name]
        values = await leader_of(members, "s").read("s")
        assert values[0] == b"%03d" % start

    run(main())


def test_a_follower_that_was_away_begins_where_the_partition_begins_now() -> None:
    async def main() -> None:
        members = await cluster(retentionMaxMessages=api.NullableInt64(value=10))
        await fill(members["a"], 0, 5)
        leader = leader_of(members, "s")
        away = next(member for member in members.values() if member is not leader)
        away.kill()
        others = {name: member for name, member in members.items() if member is not away}
        await asyncio.sleep(5.0)
        await fill(leader_of(others, "s"), 5, 60)
        await asyncio.sleep(6.0)
        await away.start()
        await until(lambda: len(leader.broker.cluster.metadata.streams["s"].partitions[0].isr) == 3)
        log = replica_of(away).log
        assert log.end == 65
        assert log.start == replica_of(leader_of(members, "s")).log.start > 5
        assert not [path for path in away.disk.paths() if path.startswith("quarantine/")]
        await fill(leader_of(members, "s"), 65, 3)
        for member in others.values():
            member.kill()
        await asyncio.sleep(1.0)
        for member in others.values():
            await member.start()
        await until(lambda: len(leader.broker.cluster.metadata.streams["s"].partitions[0].isr) == 3)
        assert (await leader_of(members, "s").read("s"))[-1] == b"067"

    run(main())


def test_what_is_not_committed_never_expires_however_old_it_is() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        for number in range(100):
            await node.publish("s", b"%d" % number)
        (replica,) = node.broker.replicas.values()
        defaults = replace(node.broker.environment.settings.defaults, retention=RetentionLimits(max_messages=1))
        segments = replica.log.segments
        assert len(segments) > 3
        assert expired_end(replica, defaults, 0) == segments[-1].base
        segments.visible_end = segments[1].base + 1  # followers are behind: the rest may still be truncated
        assert expired_end(replica, defaults, 0) == segments[1].base
        segments.visible_end = segments[1].base - 1
        assert expired_end(replica, defaults, 0) == 0

    run(main())
