"""Where the replicas of a stream stand, asked of every broker that holds one and lives."""

import asyncio

from bascule.core.metadata.streams import Partition, Stream
from bascule.limits import ADMIN_SLICE
from bascule.node.membership.cluster import Cluster
from bascule.node.process.broker import Broker
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import internal_pb2 as pb

Positions = dict[str, tuple[str, dict[int, pb.PartitionPosition]]]
"""By broker: its sync mode, and where its replicas stand. Only of those that answered."""


def living(cluster: Cluster) -> tuple[str, ...]:
    """Members this broker has heard of within a session, and that are not about to stop; itself among them."""
    heard = {cluster.broker_id, *(peer.id for peer in cluster.peers.alive() if not peer.leaving)}
    return tuple(each for each in cluster.servers if each in heard)


async def positions(broker: Broker, stream: Stream, partitions: tuple[Partition, ...]) -> Positions:
    alive = living(broker.cluster)
    holders: dict[str, list[int]] = {}
    for item in partitions:
        for replica in item.replicas:
            if replica in alive:
                holders.setdefault(replica, []).append(item.id)
    known = await asyncio.gather(*(_ask(broker, name, stream.name, numbers) for name, numbers in holders.items()))
    return {name: (sync, there) for name, (sync, there) in zip(holders, known, strict=True) if there}


async def _ask(
    broker: Broker, name: str, stream: str, numbers: list[int]
) -> tuple[str, dict[int, pb.PartitionPosition]]:
    """Some partitions at a time: neither that broker nor this one is to be held up by ten thousand."""
    sync, there = "", {}
    for first in range(0, len(numbers), ADMIN_SLICE):
        answer = await broker.broker_admin.positions(name, stream, numbers[first : first + ADMIN_SLICE])
        if answer is None:
            break
        sync = answer.sync
        there.update({each.partition: each for each in answer.positions})
        await asyncio.sleep(0)
    return sync, there


def replicas(item: Partition, alive: tuple[str, ...], known: Positions) -> list[admin.Replica]:
    described = []
    for name in item.replicas:
        # Who is away is not in sync, whatever the metadata says until it has noticed.
        replica = admin.Replica(
            broker=name,
            alive=name in alive,
            inSync=name in item.isr and name in alive,
            eligible=name in item.eligible,
        )
        sync, positions_there = known.get(name, ("", {}))
        position = positions_there.get(item.id)
        if position is not None:
            replica.answered = True
            replica.end, replica.highWatermarkEnd = position.end, position.hwEnd
            replica.lastEpoch, replica.sync = position.lastEpoch, sync
        described.append(replica)
    return described


def waits_for(item: Partition, known: Positions) -> tuple[str, ...]:
    """Whom its leader has to hear before it leads; () if it leads, or does not say."""
    _, there = known.get(item.leader, ("", {}))
    return tuple(there[item.id].waitsFor) if item.id in there else ()


async def waiting(broker: Broker) -> dict[tuple[str, int], tuple[str, ...]]:
    """The same for every partition that is led by nobody for that reason."""
    asked = [broker.broker_admin.waiting(name) for name in living(broker.cluster)]
    return {key: missing for each in await asyncio.gather(*asked) for key, missing in each.items()}


async def describe(broker: Broker, stream: Stream) -> admin.DescribeStreamResponse:
    alive = living(broker.cluster)
    known = await positions(broker, stream, stream.partitions)
    least = broker.environment.defaults.min_isr_of(stream.config)
    response = admin.DescribeStreamResponse(
        name=stream.name,
        subject=stream.subject,
        group=stream.group,
        creationTimestamp=stream.creation_timestamp,
        minIsr=least,
    )
    for item in stream:
        if item.id % ADMIN_SLICE == ADMIN_SLICE - 1:
            await asyncio.sleep(0)
        response.partitions.append(
            admin.PartitionDescription(
                partition=item.id,
                leader=item.leader,
                online=item.leader in alive and not waits_for(item, known),
                waitsFor=waits_for(item, known),
                leaderEpoch=item.leader_epoch,
                replicas=replicas(item, alive, known),
                underReplicated=any(each not in item.isr or each not in alive for each in item.replicas),
                belowMinIsr=sum(each in alive for each in item.isr) < least,
                readonly=item.readonly,
                paused=item.paused,
                uncleanEpoch=item.unclean_epoch,
                epoch=item.epoch,
            )
        )
    return response
