"""A paused partition is replicated while a live replica of it is not in sync, and is closed otherwise: whatever happens
to its brokers during a pause loses no more than at other times."""

import asyncio
from typing import Any

import pytest

from bascule.core.metadata.streams import CURSORS, Partition
from bascule.errors import Status
from bascule.node.config.broker import CursorSettings
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.administration import ask
from tests.harness.members import REPLICATION, Member, five, isr, item_of, leader_of, three, until
from tests.harness.pausing import partitions_of, pause, subscribe

MESSAGES = [b"0", b"1", b"2"]


async def filled(members: dict[str, Member], min_isr: int = 1, **fields: Any) -> None:
    """A stream with three replicas, and three messages that all of them have."""
    request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3, **fields)
    request.minIsr.value = min_isr
    assert (await members["a"].call("CreateStream", request))[0] is Status.OK
    await until(lambda: len(isr(members)) == 3)
    for value in MESSAGES:
        await members["a"].publish("s", value)


async def paused(min_isr: int = 1) -> tuple[MemoryNats, dict[str, Member]]:
    nats = MemoryNats()
    members = await three(nats)
    await filled(members, min_isr)
    await pause(members["a"])
    return nats, members


async def stop(member: Member) -> None:
    """As a rolling restart does."""
    assert member.process is not None
    await member.process.start(member.broker.stop())
    member.kill(power=False)


async def until_closed(members: dict[str, Member]) -> None:
    await until(lambda: not any(len(each.broker.replicas) for each in members.values() if each.process is not None))


def newest(members: dict[str, Member], stream: str) -> Partition:
    known = [each.broker.cluster.metadata for each in members.values() if each.process is not None]
    item = max(known, key=lambda metadata: metadata.index).partition(stream, 0)
    assert item is not None
    return item


# --- what is lost during a pause -------------------------------------------------------------------------------------


@pytest.mark.parametrize("min_isr", [1, 2])
def test_the_disks_of_a_paused_partition_may_be_lost_one_after_the_other(min_isr: int) -> None:
    async def main() -> None:
        _, members = await paused(min_isr)
        for name in "abc":
            members[name].kill()
            members[name].wipe()
            await asyncio.sleep(5.0)
            await members[name].start()
            await asyncio.sleep(60.0)  # it is a voter again, too
            assert len(item_of(members).isr) == 3
        assert item_of(members).paused
        await members["a"].publish("s", b"3")
        assert await leader_of(members, "s").read("s") == [*MESSAGES, b"3"]

    run(main())


@pytest.mark.parametrize("min_isr", [1, 2])
def test_after_a_rolling_restart_during_a_pause_all_are_in_sync_and_nothing_is_open(min_isr: int) -> None:
    async def main() -> None:
        _, members = await paused(min_isr)
        for name in "abc":
            await stop(members[name])
            await asyncio.sleep(3.0)
            assert item_of(members).paused
            await members[name].start()
            await asyncio.sleep(15.0)
            assert len(item_of(members).isr) == 3
        await until_closed(members)
        item = item_of(members)
        members[item.leader].kill()
        other = next(member for member in members.values() if member.process is not None)
        await asyncio.sleep(5.0)
        await until_closed(members)
        await other.publish("s", b"3")
        assert await members[item_of(members).leader].read("s") == [*MESSAGES, b"3"]

    run(main())


def test_cursors_outlive_a_rolling_restart_and_a_lost_disk_though_their_partition_is_paused() -> None:
    async def main() -> None:
        members = await three(MemoryNats(), cursors=CursorSettings(partitions=1, replication_factor=3))
        await until(lambda: members["a"].broker.cluster.metadata.stream(CURSORS) is not None)
        await asyncio.sleep(2.0)
        set_cursor = api.SetCursorRequest(stream="s", partition=0, cursorId="c", offset=7)
        assert (await leader_of(members, CURSORS).call("SetCursor", set_cursor))[0] is Status.OK
        await asyncio.sleep(90.0)
        assert newest(members, CURSORS).paused
        for name in "abc":
            await stop(members[name])
            await asyncio.sleep(3.0)
            await members[name].start()
            await asyncio.sleep(15.0)
        last = members[newest(members, CURSORS).leader]
        last.kill()
        last.wipe()
        await asyncio.sleep(5.0)
        await last.start()
        await asyncio.sleep(30.0)
        fetch = api.FetchCursorRequest(stream="s", partition=0, cursorId="c")
        status, text, answers = await leader_of(members, CURSORS).call("FetchCursor", fetch)
        assert status is Status.OK, text
        assert api.FetchCursorResponse.FromString(answers[0]).offset == 7

    run(main())


def test_a_broker_is_removed_although_a_partition_on_it_is_paused() -> None:
    async def main() -> None:
        members = await five(MemoryNats())
        await filled(members)
        await pause(members["a"])
        controller = next(each for each in members.values() if each.broker.controller.active)
        victim = next(each for each in item_of(members).replicas if each != controller.name)
        status, _, _ = await ask(controller, "DrainBroker", admin.DrainBrokerRequest(broker=victim))
        assert status is Status.OK
        for _ in range(20):
            _, text, done = await ask(controller, "RemoveBroker", admin.RemoveBrokerRequest(broker=victim))
            if done is not None and done.done:
                break
            await asyncio.sleep(1.0)
        else:
            raise AssertionError(text)
        item = item_of(members)
        assert victim not in item.replicas
        assert len(item.isr) == 3
        await controller.publish("s", b"3")
        assert await leader_of(members, "s").read("s") == [*MESSAGES, b"3"]

    run(main())


# --- what a paused partition does not do -----------------------------------------------------------------------------


async def one_that_cannot_replicate() -> tuple[MemoryNats, dict[str, Member], Member]:
    """One replica of the paused partition is alive, and cannot replicate it: the others are open."""
    nats, members = await paused()
    away = next(member for member in members.values() if member is not leader_of(members, "s"))
    away.kill()
    away.wipe()
    await asyncio.sleep(5.0)
    await until_closed(members)
    await away.start()
    away.buses[REPLICATION].disconnect()
    leader = leader_of(members, "s")
    await until(lambda: len(leader.broker.replicas) == 1)
    await asyncio.sleep(20.0)
    assert len(leader.broker.replicas) == 1
    assert len(item_of(members).isr) == 2, "who cannot replicate does not keep the others out"
    return nats, members, away


def test_while_it_is_replicated_it_takes_no_message_and_nobody_reads_it() -> None:
    async def main() -> None:
        nats, members, _ = await one_that_cannot_replicate()
        leader = leader_of(members, "s")
        (replica,) = leader.broker.replicas.values()
        assert replica.leading is not None
        nats.publish(b"s", b"lost")
        await asyncio.sleep(1.0)
        assert replica.log.end == len(MESSAGES)
        assert (await partitions_of(leader))[0].paused
        refused = (Status.INTERNAL, "Failed to create stream reader: segment has been closed", 0)
        assert await subscribe(leader, startPosition=api.EARLIEST) == refused
        status, _, _ = await leader.call("FetchPartitionMetadata", api.FetchPartitionMetadataRequest(stream="s"))
        assert status is not Status.OK
        await leader.publish("s", b"3")
        assert await leader.read("s") == [*MESSAGES, b"3"]
        nats.publish(b"s", b"4")
        await asyncio.sleep(1.0)
        assert await leader.read("s") == [*MESSAGES, b"3", b"4"]

    run(main())


def test_it_is_closed_again_when_the_replica_that_is_not_in_sync_is_gone() -> None:
    async def main() -> None:
        _, members, away = await one_that_cannot_replicate()
        away.kill()
        await until_closed(members)
        assert len(item_of(members).isr) == 2

    run(main())


def test_a_follower_stays_in_sync_though_its_leader_alone_has_closed_the_partition_and_opened_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For a moment the leader took the replica that is not in sync for dead, and the follower did not."""

    async def main() -> None:
        _, members, away = await one_that_cannot_replicate()
        leader = leader_of(members, "s")
        alive = leader.broker.manager.alive
        with monkeypatch.context() as dead:
            dead.setattr(leader.broker.manager, "alive", lambda: {name: None for name in alive() if name != away.name})
            await until(lambda: not len(leader.broker.replicas))
        await until(lambda: len(leader.broker.replicas) == 1)
        before = item_of(members)
        (replica,) = leader.broker.replicas.values()
        assert replica.partition.leader_epoch == before.leader_epoch
        await until(lambda: replica.log.visible_end == len(MESSAGES), 1.0)
        await asyncio.sleep(30.0)
        assert item_of(members) == before
        assert len(before.isr) == 2

    run(main())


def test_a_pause_closes_a_partition_also_where_a_replica_is_not_in_sync() -> None:
    """It takes messages until then: it is closed, and opened again only for replication."""

    async def main() -> None:
        nats, members, _ = await one_that_cannot_replicate()
        leader = leader_of(members, "s")
        await leader.publish("s", b"3")
        reading = asyncio.create_task(subscribe(leader, startPosition=api.EARLIEST))
        await asyncio.sleep(0.5)
        await pause(leader)
        assert (await reading)[:2] == (Status.FAILED_PRECONDITION, "commit log was closed")
        await until(lambda: len(leader.broker.replicas) == 1)
        nats.publish(b"s", b"lost")
        await asyncio.sleep(1.0)
        (replica,) = leader.broker.replicas.values()
        assert replica.log.end == len(MESSAGES) + 1

    run(main())


def test_an_idle_partition_is_not_paused_while_a_live_replica_is_out_of_sync() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await filled(members, autoPauseTime=api.NullableInt64(value=20_000))
        away = next(member for member in members.values() if member is not leader_of(members, "s"))
        away.buses[REPLICATION].disconnect()
        await asyncio.sleep(60.0)
        assert len(item_of(members).isr) == 2
        assert not item_of(members).paused
        away.buses[REPLICATION].reconnect()
        await until(lambda: item_of(members).paused)
        assert len(item_of(members).isr) == 3

    run(main())


def test_an_idle_partition_is_not_paused_before_what_it_has_is_committed() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await filled(members, min_isr=2, autoPauseTime=api.NullableInt64(value=2_000))
        leader = leader_of(members, "s")
        others = [member for member in members.values() if member is not leader]
        for member in others:
            member.buses[REPLICATION].disconnect()
        request = api.PublishRequest(stream="s", value=b"3", ackPolicy=api.LEADER)
        assert (await leader.call("Publish", request))[0] is Status.OK
        await asyncio.sleep(10.0)
        assert not item_of(members).paused
        for member in others:
            member.buses[REPLICATION].reconnect()
        await until(lambda: item_of(members).paused)

    run(main())
