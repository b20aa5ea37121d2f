"""What the simulator found in clusters, each in the fewest steps that show it."""

import asyncio
import errno
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from bascule.core.metadata.commands import Command
from bascule.errors import Status
from bascule.limits import RAFT_MAX_SERVERS
from bascule.node.controller.joining import CHANGING, Joining
from bascule.node.controller.livebrokers import LiveBrokers
from bascule.node.runtime.jobs import Jobs
from bascule.node.runtime.metrics import Metrics
from bascule.sim.cluster import Cluster
from bascule.sim.host import Host
from bascule.sim.scenario import scenario
from bascule.sim.trace import Part, Trace
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.raft_messages import Membership

PART = Part("s", 1, 0)


async def started(brokers: int) -> Cluster:
    plan = replace(scenario(1, brokers), peers=(), max_quorum=0)
    cluster = Cluster(plan, MemoryNats(), Trace(asyncio.get_running_loop()))
    cluster.start()
    await until(lambda: cluster.complete)
    return cluster


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline_s, "that never happened"
        await asyncio.sleep(0.02)


async def create(host: Host, replication: int, min_isr: int) -> None:
    request = api.CreateStreamRequest(name="s", subject="s", replicationFactor=replication)
    request.minIsr.value = min_isr
    assert (await host.call("CreateStream", request, 5))[:2] == (Status.OK, "")


async def publish(host: Host, value: bytes) -> None:
    request = api.PublishRequest(stream="s", value=value, ackPolicy=api.ALL)
    status, text, _ = await host.call("Publish", request, 10)
    assert status is Status.OK, text


async def watermark(host: Host) -> tuple[Status, int]:
    status, _, answers = await host.call("FetchPartitionMetadata", api.FetchPartitionMetadataRequest(stream="s"), 5)
    known = api.FetchPartitionMetadataResponse.FromString(answers[0]).metadata.highWatermark if answers else -1
    return status, known


def leader(cluster: Cluster) -> Host:
    found = cluster.leader(PART)
    assert found is not None
    return found


def cut_off_leader(cluster: Cluster) -> tuple[Host, list[Host]]:
    """With the others."""
    old = leader(cluster)
    others = [host for host in cluster.hosts.values() if host is not old]
    for other in others:
        cluster.nats.sever(old.name, other.name)
        cluster.nats.sever(other.name, old.name)
    return old, others


def test_a_leader_that_was_replaced_unawares_does_not_answer_for_the_newest() -> None:
    async def main() -> None:
        cluster = await started(3)
        await create(cluster.hosts["broker1"], 3, 2)
        await publish(cluster.hosts["broker1"], b"one")
        old, others = cut_off_leader(cluster)
        await until(lambda: leader(cluster) is not old)
        await publish(others[0], b"two")
        assert await watermark(leader(cluster)) == (Status.OK, 1)
        assert old.broker is not None
        replica = old.replica(PART)
        assert replica is not None
        assert replica.leading is not None, "it has no way to know"
        assert (await watermark(old))[0] is Status.UNAVAILABLE
        request = api.SubscribeRequest(stream="s", startPosition=api.EARLIEST, stopPosition=api.STOP_LATEST)
        assert (await old.call("Subscribe", request, 5))[0] is Status.UNAVAILABLE

    run(main())


def test_a_leader_that_lost_its_disk_comes_back_as_a_follower_and_is_filled() -> None:
    async def main() -> None:
        cluster = await started(3)
        await create(cluster.hosts["broker1"], 3, 2)
        for number in range(10):
            await publish(cluster.hosts["broker1"], b"%d" % number)
        wiped = leader(cluster)
        wiped.wipe()
        wiped.boot()
        await until(lambda: cluster.complete and (found := cluster.leader(PART)) is not None and found is not wiped)
        assert await watermark(leader(cluster)) == (Status.OK, 9)
        await until(lambda: (replica := wiped.replica(PART)) is not None and replica.log.end == 10)

    run(main())


def test_the_first_of_a_dead_in_sync_set_that_comes_back_leads() -> None:
    async def main() -> None:
        cluster = await started(5)
        await create(cluster.hosts["broker1"], 2, 2)
        await publish(cluster.hosts["broker1"], b"one")
        first = leader(cluster)
        replica = first.replica(PART)
        assert replica is not None
        second = next(cluster.hosts[name] for name in replica.partition.replicas if name != first.name)
        chance = random.Random(1)
        first.kill(chance)
        second.kill(chance)
        await asyncio.sleep(5)
        second.boot()
        await until(lambda: cluster.leader(PART) is second)
        assert (await watermark(second))[0] in (Status.OK, Status.UNAVAILABLE)
        first.boot()
        await until(lambda: len(in_sync(second)) == 2)
        await publish(second, b"two")
        assert await watermark(leader(cluster)) == (Status.OK, 1)

    run(main())


def test_a_disk_that_was_full_when_a_log_had_to_be_truncated_holds_its_replica_up_no_longer_than_that() -> None:
    async def main() -> None:
        cluster = await started(3)
        await create(cluster.hosts["broker1"], 3, 2)
        await publish(cluster.hosts["broker1"], b"one")
        old, others = cut_off_leader(cluster)
        cluster.nats.publish(b"s", b"only the old leader keeps it, and not for long")
        await until(lambda: leader(cluster) is not old)
        await publish(others[0], b"two")
        old.disk.injected_error = lambda path: errno.ENOSPC if path.startswith("quarantine/") else None
        for other in others:
            cluster.nats.rejoin(old.name, other.name)
            cluster.nats.rejoin(other.name, old.name)
        await asyncio.sleep(10)
        assert len(in_sync(leader(cluster))) == 2
        old.disk.injected_error = None
        await until(lambda: len(in_sync(leader(cluster))) == 3)

    run(main())


def in_sync(host: Host) -> tuple[str, ...]:
    replica = host.replica(PART)
    return replica.partition.isr if replica is not None else ()


def test_nobody_is_let_in_by_a_membership_that_may_be_forgotten() -> None:
    log = SimpleNamespace(membership_index=7, commit=6)
    membership = Membership(("a", "b")).with_learner("c", "first incarnation")
    raft: Any = SimpleNamespace(membership=membership, raft=SimpleNamespace(id="a", log=log))
    nothing: Any = None
    administration: Any = SimpleNamespace(refusal=lambda broker, incarnation: "")
    proposals: Any = SimpleNamespace(raft=raft)
    joining = Joining(proposals, nothing, administration, nothing, nothing, Jobs(print, Metrics()))
    request = pb.RaftJoinRequest(nodeID="c", incarnation="first incarnation")
    assert joining._join(request) == CHANGING
    log.commit = 7
    assert joining._join(request) == ""


def test_those_who_ask_to_join_again_and_again_fill_no_memory() -> None:
    raft: Any = SimpleNamespace(membership=Membership(("a",)), raft=SimpleNamespace(id="a"))
    nothing: Any = None

    async def submit(command: Command) -> None:
        pass

    async def main() -> None:
        proposals: Any = SimpleNamespace(raft=raft, submit=submit)
        live = LiveBrokers(raft, nothing, nothing, nothing)
        joining = Joining(proposals, live, nothing, nothing, nothing, Jobs(print, Metrics()))
        for number in range(3 * RAFT_MAX_SERVERS):
            await joining._record_loss("c", f"incarnation {number}")
        assert len(joining._disks_lost) == RAFT_MAX_SERVERS

    run(main())
