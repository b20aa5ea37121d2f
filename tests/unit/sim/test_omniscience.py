"""The check that compares what is exposed with the disks, shown real brokers without a simulation around them."""

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bascule.core.partition.insync import Follower, InSync
from bascule.node.partition.metadatachanges import MetadataChanges
from bascule.sim.checkers import Checker
from bascule.sim.cluster import Cluster
from bascule.sim.history import History
from bascule.sim.omniscience import Omniscience, watching
from bascule.sim.trace import Trace
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from tests.harness.members import CONTROL, REPLICATION, Member, followers, item_of, leader_of, three, until


async def of_three() -> dict[str, Member]:
    """With a stream of three replicas, of which two must be in sync, and a message."""
    members = await three(MemoryNats())
    request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=3)
    request.minIsr.value = 2
    await members["a"].call("CreateStream", request)
    await members["a"].publish("s", b"first")
    return members


@contextmanager
def found(members: dict[str, Member]) -> Iterator[list[str]]:
    """What the check finds meanwhile."""
    loop = asyncio.get_running_loop()
    checker = Checker(History(random.Random(1), (1,)), Trace(loop))
    hosts = {name: SimpleNamespace(name=name, disk=each.disk, node=each.broker) for name, each in members.items()}
    texts: list[str] = []
    with watching(Omniscience(cast(Cluster, SimpleNamespace(hosts=hosts)), checker, relaxed=False), loop):
        yield texts
    texts += [f"{each.invariant} {each.text}" for each in checker.violations]


def test_a_leader_commits_with_what_it_has_carried_out_though_all_metadata_is_an_epoch_ahead_or_too_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replica leaves the in-sync set, and then the leader gets another leader epoch. It commits under the earlier one
    until it carries that out, without the replica, whose broker is the only one that still has the earlier epoch in its
    metadata, with the set before."""

    async def main() -> None:
        members = await of_three()
        leader, away = leader_of(members, "s"), followers(members)[0]
        for purpose in (CONTROL, REPLICATION):
            away.buses[purpose].disconnect()
        await until(lambda: away.name not in item_of(members).isr)
        replica = leader.broker.replicas.find("s", 0)
        assert replica is not None
        assert replica.leading is not None
        await until(lambda: away.name not in replica.partition.isr)
        carried_out, carry_out = asyncio.Event(), MetadataChanges._carry_out

        async def late(changes: MetadataChanges, change: Any) -> None:
            await carried_out.wait()
            await carry_out(changes, change)

        monkeypatch.setattr(MetadataChanges, "_carry_out", late)
        epoch = replica.leading.epoch
        assert leader.process is not None
        await leader.process.start(leader.broker.cluster.broker_started(()))
        views = {name: each.broker.cluster.metadata.partition("s", 0) for name, each in members.items()}
        assert [name for name, view in views.items() if view and view.leader_epoch == epoch] == [away.name]
        with found(members) as texts:
            await leader.publish("s", b"second")
            assert replica.leading.epoch == epoch
            assert replica.log.visible_end == 2
            carried_out.set()
            await leader.publish("s", b"third")
        assert texts == []

    run(main())


def test_a_leader_that_does_not_wait_for_a_member_in_sync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        members = await of_three()
        leader, away = leader_of(members, "s"), followers(members)[0]
        away.buses[REPLICATION].disconnect()

        def but_one(in_sync: InSync) -> list[Follower]:
            return [each for name, each in in_sync.followers.items() if name != away.name]

        monkeypatch.setattr(InSync, "_who_counts", but_one)
        (replica,) = leader.broker.replicas.values()
        assert replica.leading is not None
        in_sync = replica.leading._machine.in_sync
        in_sync._counted = in_sync._who_counts()
        with found(members) as texts:
            await leader.publish("s", b"second")
        assert texts == [f"I15 exposed up to 2 although {away.name}, in sync, does not have it on its disk"]

    run(main())
