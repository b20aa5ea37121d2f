"""The log ends of the replicas of a stream, requested from every live broker that holds one."""

import asyncio

from bascule.core.metadata.altering import SETTINGS
from bascule.core.metadata.streams import Partition, Stream, StreamConfig, camel
from bascule.limits import ADMIN_SLICE
from bascule.node.config.broker import StreamDefaults
from bascule.node.controller.brokeradmin import BrokerAdmin
from bascule.node.membership.cluster import Cluster
from bascule.ports import Clock
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import internal_pb2 as pb

Positions = dict[str, tuple[str, dict[int, pb.PartitionPosition]]]
"""By broker that answered: its sync mode, and the log ends of its replicas."""


class ReplicaStatus:
    def __init__(self, cluster: Cluster, brokers: BrokerAdmin, defaults: StreamDefaults, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._brokers = brokers
        self._defaults = defaults

    def live_members(self) -> tuple[str, ...]:
        """Members that sent a heartbeat within a session, and are not about to stop; this broker included."""
        alive = {self._cluster.broker_id, *(peer.id for peer in self._cluster.peers.alive() if not peer.stopping)}
        return tuple(each for each in self._cluster.servers if each in alive)

    async def positions(self, stream: Stream, partitions: tuple[Partition, ...]) -> Positions:
        alive = self.live_members()
        holders: dict[str, list[int]] = {}
        for item in partitions:
            for replica in item.replicas:
                if replica in alive:
                    holders.setdefault(replica, []).append(item.id)
        known = await asyncio.gather(*(self._ask(name, stream.name, numbers) for name, numbers in holders.items()))
        return {name: (sync, there) for name, (sync, there) in zip(holders, known, strict=True) if there}

    async def _ask(self, name: str, stream: str, numbers: list[int]) -> tuple[str, dict[int, pb.PartitionPosition]]:
        """Requests partitions in slices: ten thousand at once would block both event loops."""
        sync, there = "", {}
        for first in range(0, len(numbers), ADMIN_SLICE):
            answer = await self._brokers.positions(name, stream, numbers[first : first + ADMIN_SLICE])
            if answer is None:
                break
            sync = answer.sync
            there.update({each.partition: each for each in answer.positions})
            await asyncio.sleep(0)
        return sync, there

    async def committed_end(self, stream: str, item: Partition) -> int | None:
        """By the leader of the partition; None if it does not answer, or does not lead yet."""
        answer = await self._brokers.positions(item.leader, stream, [item.id]) if item.leader else None
        return next((each.hwEnd for each in answer.positions if each.leads), None) if answer is not None else None

    async def waiting(self) -> dict[tuple[str, int], tuple[str, ...]]:
        """For every partition without a leader yet: the brokers that have to answer its designated leader first."""
        asked = [self._brokers.waiting(name) for name in self.live_members()]
        return {key: missing for each in await asyncio.gather(*asked) for key, missing in each.items()}

    async def describe(self, stream: Stream) -> admin.DescribeStreamResponse:
        alive = self.live_members()
        known = await self.positions(stream, stream.partitions)
        least = self._defaults.min_isr_of(stream.config)
        response = admin.DescribeStreamResponse(
            name=stream.name,
            subject=stream.subject,
            group=stream.group,
            creationTimestamp=stream.creation_timestamp,
            minIsr=least,
            timestamp=self._clock.time_ns(),
            settings=settings_of(stream.config),
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
                    start=item.start,
                    holds=holds(item, known),
                )
            )
        return response


def settings_of(config: StreamConfig) -> admin.StreamSettings:
    given = {camel(name): value for name in SETTINGS if (value := getattr(config, name)) is not None}
    return admin.StreamSettings(**given)


def replicas(item: Partition, alive: tuple[str, ...], known: Positions) -> list[admin.Replica]:
    described = []
    for name in item.replicas:
        # A broker that is down is not in sync, also before the controller has fenced it.
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
            replica.start, replica.bytes, replica.segments = position.start, position.bytes, position.segments
            replica.firstTimestamp, replica.lastTimestamp = position.firstTimestamp, position.lastTimestamp
        described.append(replica)
    return described


def holds(item: Partition, known: Positions) -> list[admin.Hold]:
    """With what each keeps, if the leader answers."""
    _, there = known.get(item.leader, ("", {}))
    position = there.get(item.id)
    described = []
    for number, hold in enumerate(item.holds):
        shown = admin.Hold(name=hold.name, offset=hold.offset, setTimestamp=hold.at)
        if position is not None and number < len(position.heldBytes):
            shown.heldMessages = max(0, position.hwEnd - max(hold.offset, position.start))
            shown.heldBytes = position.heldBytes[number]
        described.append(shown)
    return described


def waits_for(item: Partition, known: Positions) -> tuple[str, ...]:
    """The brokers that have to answer its leader before it leads; () if it leads, or does not answer."""
    _, there = known.get(item.leader, ("", {}))
    return tuple(there[item.id].waitsFor) if item.id in there else ()
