"""Administering brokers in memory: drain, undrain, remove, and what happens when somebody dies meanwhile."""

import asyncio
from functools import partial

import pytest

from bascule.core.metadata.commands import Command, DrainBroker, RemoveBroker
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from tests.harness.administration import (
    another,
    answer,
    ask,
    controller_of,
    create,
    partitions_of,
    publish,
    refused,
    watch,
)
from tests.harness.members import Member, five, leader_of, three, until


def test_status_shows_who_is_who_and_what_is_not_in_sync() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members)
        status = await answer(members["b"], "ClusterStatus", admin.ClusterStatusRequest())
        assert [(m.id, m.voter, m.alive, m.partitions, m.leaderships) for m in status.members] == [
            (name, True, True, 3, 1) for name in "abc"
        ]
        assert status.current
        assert status.controller == controller_of(members).name
        assert [m.id for m in status.members if m.controller] == [status.controller]
        assert (status.partitions, status.underReplicatedCount, status.offlineCount) == (3, 0, 0)
        assert len({m.boot for m in status.members}) == 3
        members["c"].kill()
        await until(lambda: all(len(item.isr) == 2 for item in partitions_of(members["b"])))
        status = await answer(members["b"], "ClusterStatus", admin.ClusterStatusRequest())
        assert [m.id for m in status.members if not m.alive] == ["c"]
        assert [ref.reason for ref in status.underReplicated] == ["not in sync: c"] * 3
        assert status.offlineCount == 0

    run(main())


def test_without_a_majority_status_says_that_it_may_be_old() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members)
        members["a"].kill()
        members["b"].kill()
        await asyncio.sleep(5)
        status = await answer(members["c"], "ClusterStatus", admin.ClusterStatusRequest())
        assert not status.current
        assert status.controller == ""
        assert status.offlineCount > 0

    run(main())


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_a_drained_broker_leads_nothing_is_no_controller_and_keeps_its_copies(name: str) -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, 6)
        response = await answer(members["b"], "DrainBroker", admin.DrainBrokerRequest(broker=name))
        assert response.done
        assert not response.kept
        assert response.controller not in ("", name)
        assert all(item.leader != name for item in partitions_of(members["b"]))
        for number in range(10):
            await publish(members["b"], b"%d" % number)
        await asyncio.sleep(1)
        assert all(len(item.isr) == 3 for item in partitions_of(members["b"]))
        assert members[name].broker.replicas.find("s", 0).log.promised_end == 10  # type: ignore[union-attr]
        again = await answer(another(members, name), "DrainBroker", admin.DrainBrokerRequest(broker=name))
        assert again.done
        await create(members, 4, 2, "later")
        assert all(name not in item.replicas for item in partitions_of(members["b"], "later"))
        await answer(members["b"], "UndrainBroker", admin.UndrainBrokerRequest(broker=name))
        await create(members, 4, 2, "last")
        assert any(name == item.leader for item in partitions_of(members["b"], "last"))

    run(main())


def test_what_nobody_else_has_in_sync_stays_and_is_handed_over_later() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, 3, 1, "single")
        await create(members, 1, 2)
        leader = leader_of(members, "s")
        follower = members[next(name for name in partitions_of(leader)[0].replicas if name != leader.name)]
        follower.kill()
        await until(lambda: len(partitions_of(leader)[0].isr) == 1)
        response = await answer(leader, "DrainBroker", admin.DrainBrokerRequest(broker=leader.name))
        assert response.done
        assert sorted((ref.stream, ref.reason) for ref in response.kept) == [
            ("s", f"nobody else is in sync; replicas: {', '.join(partitions_of(leader)[0].replicas)}"),
            ("single", "it has no other replica"),
        ]
        await publish(leader, b"still taken")
        await follower.start()
        await until(lambda: partitions_of(leader)[0].leader == follower.name)
        assert await follower.read("s") == [b"still taken"]

    run(main())


def test_a_drain_may_stop_the_broker_too() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, 3)
        reasons = watch(members["c"])
        request = admin.DrainBrokerRequest(broker="c", stop=True)
        response = await answer(members["a"], "DrainBroker", request)
        assert response.done
        assert response.stopping
        await until(lambda: reasons == ["stopped"])

    run(main())


def test_nothing_is_stopped_that_does_not_drain() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        reasons = watch(members["c"])
        with pytest.raises(Exception, match="is not draining"):
            await members["a"].broker.broker_admin.stop("c")
        await asyncio.sleep(1)
        assert reasons == []

    run(main())


def test_a_broker_that_dies_while_it_drains_is_drained() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, 3)
        members["c"].kill()
        response = await answer(members["a"], "DrainBroker", admin.DrainBrokerRequest(broker="c", stop=True))
        assert response.done
        await until(lambda: all(item.leader != "c" for item in partitions_of(members["a"])))
        await members["c"].start()
        await until(lambda: all(len(item.isr) == 3 for item in partitions_of(members["a"])))
        assert all(item.leader != "c" for item in partitions_of(members["a"]))

    run(main())


@pytest.mark.parametrize("turns", [1, 4, 8, 12, 16, 32])
def test_a_drain_whose_controller_dies_is_finished_by_asking_again(turns: int) -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, 6)
        controller = controller_of(members)
        name = next(each for each in members if each != controller.name)
        entry = another(members, controller.name, name)
        assert entry.process is not None
        request = admin.DrainBrokerRequest(broker=name)
        asking = asyncio.ensure_future(entry.process.start(ask(entry, "DrainBroker", request)))
        for _ in range(turns):
            await asyncio.sleep(0)
        controller.kill()
        await asking
        response = await answer(entry, "DrainBroker", request)
        assert response.done
        await until(lambda: all(item.leader == entry.name for item in partitions_of(entry)))

    run(main())


def test_two_may_drain_but_not_the_last_one() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, 3)
        for name in "ab":
            assert (await answer(members["c"], "DrainBroker", admin.DrainBrokerRequest(broker=name))).done
        assert all(item.leader == "c" for item in partitions_of(members["c"]))
        assert controller_of(members).name == "c"
        text = await refused(members["a"], "DrainBroker", admin.DrainBrokerRequest(broker="c"))
        assert "nobody would be left to lead" in text
        assert "no broker 'x'" in await refused(members["a"], "DrainBroker", admin.DrainBrokerRequest(broker="x"))
        assert "no broker is named" in await refused(members["a"], "DrainBroker", admin.DrainBrokerRequest())
        assert "no broker 'x'" in await refused(members["a"], "UndrainBroker", admin.UndrainBrokerRequest(broker="x"))

    run(main())


# --- removing ---------------------------------------------------------------------------------------------------


def test_a_removed_broker_is_replaced_everywhere_told_so_and_may_come_back_empty() -> None:
    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats)
        members["d"] = await Member("d", nats).start()
        assert members["a"].broker.cluster.raft.membership.learners == ("d",)
        await create(members, 4, 2)
        for number in range(20):
            await publish(members["a"], b"%d" % number, number % 4)
        assert "is alive" in await refused(members["a"], "RemoveBroker", admin.RemoveBrokerRequest(broker="c"))
        assert "itself" in await refused(members["c"], "RemoveBroker", admin.RemoveBrokerRequest(broker="c"))
        reasons = watch(members["c"])
        assert (await answer(members["a"], "DrainBroker", admin.DrainBrokerRequest(broker="c"))).done
        response = await answer(members["a"], "RemoveBroker", admin.RemoveBrokerRequest(broker="c"))
        assert response.done
        assert not response.lost
        for item in partitions_of(members["a"]):
            assert "c" not in item.replicas
            assert len(item.replicas) == len(item.isr) == 2
        assert "c" not in members["a"].broker.cluster.servers
        await until(lambda: bool(reasons))
        assert "was removed from the cluster" in reasons[0]
        assert (await answer(members["b"], "RemoveBroker", admin.RemoveBrokerRequest(broker="c"))).done
        members["c"].kill()
        await members["c"].start()
        reasons = watch(members["c"])
        await until(lambda: bool(reasons))
        assert "empty its data folder" in reasons[0]
        members["c"].kill()
        members["c"].disk = MemoryDisk()
        await members["c"].start()
        reasons = watch(members["c"])
        await until(lambda: members["a"].broker.cluster.raft.membership.voters == ("a", "b", "d"))
        assert members["a"].broker.cluster.raft.membership.learners == ("c",)
        await asyncio.sleep(3)
        assert reasons == []
        for partition in range(4):
            values = await leader_of(members, "s", partition).read("s", partition)
            assert values == [b"%d" % number for number in range(partition, 20, 4)]

    run(main())


def test_a_learner_that_is_removed_while_it_is_alive_is_told() -> None:
    """It never campaigns, so that it notices the loss of its leader only by missing heartbeats."""

    async def main() -> None:
        nats = MemoryNats()
        members = await three(nats)
        members["d"] = await Member("d", nats).start()
        assert members["a"].broker.cluster.raft.membership.learners == ("d",)
        reasons = watch(members["d"])
        assert (await answer(members["a"], "DrainBroker", admin.DrainBrokerRequest(broker="d"))).done
        assert (await answer(members["a"], "RemoveBroker", admin.RemoveBrokerRequest(broker="d"))).done
        await until(lambda: bool(reasons))
        assert "was removed from the cluster" in reasons[0]
        assert members["d"].broker.cluster.raft.raft.leader == ""

    run(main())


def test_a_member_does_not_believe_that_it_was_removed() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        reasons = {name: watch(member) for name, member in members.items()}
        for name in members:
            members["b"].broker.broker_admin.tell_removed(name, incarnation_of(members["a"], name))
        await asyncio.sleep(2)
        assert not any(reasons.values())

    run(main())


def test_a_single_copy_is_moved_before_its_broker_goes() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, 3, 1)
        for number in range(30):
            await publish(members["a"], b"%d" % number, number % 3)
        victim = next(name for name in members if name != controller_of(members).name)
        entry = another(members, victim)
        response = await answer(entry, "DrainBroker", admin.DrainBrokerRequest(broker=victim))
        assert response.done
        assert len(response.kept) == 1
        response = await answer(entry, "RemoveBroker", admin.RemoveBrokerRequest(broker=victim), 30.0)
        assert response.done
        assert not response.lost
        for partition in range(3):
            item = partitions_of(entry)[partition]
            assert len(item.replicas) == 1
            assert item.unclean_epoch == 0
            values = await members[item.leader].read("s", partition)
            assert values == [b"%d" % number for number in range(partition, 30, 3)]

    run(main())


def test_the_controller_itself_can_be_removed() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, 3)
        victim = controller_of(members)
        entry = another(members, victim.name)
        assert (await answer(entry, "DrainBroker", admin.DrainBrokerRequest(broker=victim.name))).done
        response = await answer(entry, "RemoveBroker", admin.RemoveBrokerRequest(broker=victim.name))
        assert response.done
        assert len(entry.broker.cluster.raft.membership.voters) == 2

    run(main())


def test_the_only_in_sync_copy_of_a_dead_broker_is_given_up_by_force_alone() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, 3, 1)
        victim = next(name for name in members if name != controller_of(members).name)
        entry = another(members, victim)
        (lost,) = (item.id for item in partitions_of(entry) if item.leader == victim)
        await publish(entry, b"precious", lost)
        members[victim].kill()
        await asyncio.sleep(3)
        text = await refused(entry, "RemoveBroker", admin.RemoveBrokerRequest(broker=victim))
        assert f"{victim} has the last good copy of s/{lost}" in text
        assert "--force" in text
        assert victim in entry.broker.cluster.servers
        assert entry.broker.cluster.metadata.brokers.removing == (), "a refusal leaves nothing behind"
        response = await answer(entry, "RemoveBroker", admin.RemoveBrokerRequest(broker=victim, force=True))
        assert response.done
        assert [(ref.partition, "lost" in ref.reason) for ref in response.lost] == [(lost, True)]
        item = partitions_of(entry)[lost]
        assert item.leader != victim
        await publish(entry, b"anew", lost)
        assert await members[item.leader].read("s", lost) == [b"anew"]

    run(main())


def test_a_majority_stays() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        controller = controller_of(members)
        first, second = (name for name in members if name != controller.name)
        members[first].kill()
        await asyncio.sleep(3)
        await answer(controller, "DrainBroker", admin.DrainBrokerRequest(broker=second))
        text = await refused(controller, "RemoveBroker", admin.RemoveBrokerRequest(broker=second))
        assert "could decide nothing" in text
        assert f"start {first} first" in text
        assert "no broker 'x'" in await refused(controller, "RemoveBroker", admin.RemoveBrokerRequest(broker="x"))
        assert (await answer(controller, "RemoveBroker", admin.RemoveBrokerRequest(broker=first))).done

    run(main())


def test_the_last_broker_is_neither_drained_nor_removed() -> None:
    async def main() -> None:
        member = await Member("a", MemoryNats(), seed=True).start()
        text = await refused(member, "DrainBroker", admin.DrainBrokerRequest(broker="a"))
        assert "nobody would be left to lead" in text
        await refused(member, "RemoveBroker", admin.RemoveBrokerRequest(broker="a"))

    run(main())


@pytest.mark.parametrize("turns", [1, 8, 16, 24, 32, 48, 64, 128])
def test_a_removal_whose_controller_dies_is_finished_by_asking_again(turns: int) -> None:
    async def main() -> None:
        members = await five(MemoryNats())
        await create(members, 5)
        for number in range(10):
            await publish(members["a"], b"%d" % number)
        controller = controller_of(members)
        victim = next(name for name in members if name != controller.name)
        entry = another(members, controller.name, victim)
        members[victim].kill()
        await asyncio.sleep(3)
        request = admin.RemoveBrokerRequest(broker=victim)
        assert entry.process is not None
        asking = asyncio.ensure_future(entry.process.start(ask(entry, "RemoveBroker", request, 1.0)))
        for _ in range(turns):
            await asyncio.sleep(0)
        controller.kill()
        await asking
        await asyncio.sleep(3)
        response = await answer(entry, "RemoveBroker", request, 20.0)
        assert response.done
        await until(lambda: all(victim not in item.replicas for item in partitions_of(entry)))
        await until(lambda: leader_of(members, "s").process is not None)
        assert await leader_of(members, "s").read("s") == [b"%d" % number for number in range(10)]

    run(main())


def test_a_removal_that_lacks_only_its_last_step_is_finished_by_whoever_is_controller() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, 3)
        controller = controller_of(members)
        victim = next(name for name in members if name != controller.name)
        reasons = watch(members[victim])
        assert controller.process is not None
        for command in (DrainBroker(victim), RemoveBroker(victim, incarnation_of(controller, victim))):
            await controller.process.start(controller.broker.controller.proposals.propose(partial(same, command)))
        await until(lambda: victim not in controller.broker.cluster.servers)
        await until(lambda: bool(reasons))
        entry = another(members, controller.name, victim)
        assert (await answer(entry, "RemoveBroker", admin.RemoveBrokerRequest(broker=victim))).done

    run(main())


def incarnation_of(member: Member, name: str) -> str:
    return member.broker.cluster.raft.membership.incarnation_of(name)


def same(command: Command) -> Command:
    return command


def test_a_stream_is_described_with_where_every_replica_stands() -> None:
    async def main() -> None:
        members = await three(MemoryNats())
        await create(members, 2)
        for number in range(10):
            await publish(members["a"], b"%d" % number)
        await asyncio.sleep(1)
        members["c"].kill()
        await until(lambda: all(len(item.isr) == 2 for item in partitions_of(members["a"])))
        described = await answer(members["b"], "DescribeStream", admin.DescribeStreamRequest(stream="s"))
        first = described.partitions[0]
        assert first.underReplicated
        assert first.online
        for replica in first.replicas:
            assert replica.alive == replica.inSync == replica.answered == (replica.broker != "c")
            assert replica.end == replica.highWatermarkEnd == (10 if replica.alive else 0)
            assert replica.sync == ("group" if replica.alive else "")
        text = await refused(members["b"], "DescribeStream", admin.DescribeStreamRequest(stream="x"))
        assert text == "no such stream: x"

    run(main())
