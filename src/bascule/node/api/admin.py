"""The gRPC service `bascule.v1.Admin`, beside `proto.API`: any broker takes the request, the controller carries it out.

An answer describes the state at that moment. An operation that takes longer than the call allows is answered with its
progress, and a repeated request continues it.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from bascule.core.metadata import plans
from bascule.core.metadata.plans import Named
from bascule.core.metadata.streams import Partition, Stream
from bascule.errors import (
    BasculeError,
    BusUnavailable,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from bascule.limits import ADMIN_NAMED_PARTITIONS
from bascule.net.grpc import Handler
from bascule.node.api.deletion import RecordDeletion
from bascule.node.api.election import propose_election, was_elected
from bascule.node.api.gate import CLUSTER, Gate, Service, about_broker, about_stream
from bascule.node.api.groupadmin import GroupAdmin
from bascule.node.api.replicastatus import ReplicaStatus
from bascule.node.api.streamadmin import StreamAdmin
from bascule.node.config.broker import StreamDefaults
from bascule.node.controller.brokeradmin import BrokerAdmin
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.controllerclient import ControllerClient
from bascule.node.runtime.ports import Ports
from bascule.ports import Call
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import internal_pb2 as pb

DEFAULT_S = 5.0
MARGIN_S = 0.3
"""The part of a call's time that is reserved for the answer with the progress."""
POLL_S = 0.05
BARRIER_S = 1.0


class AdminApi:
    def __init__(
        self,
        gate: Gate,
        cluster: Cluster,
        client: ControllerClient,
        brokers: BrokerAdmin,
        defaults: StreamDefaults,
        ports: Ports,
    ) -> None:
        self._gate = gate
        self._cluster = cluster
        self._client = client
        self._brokers = brokers
        self._defaults = defaults
        self._status = ReplicaStatus(cluster, brokers, defaults, ports.clock)
        self._streams = StreamAdmin(cluster, client, self._status)
        self._deletion = RecordDeletion(cluster, client, brokers)
        self._groups = GroupAdmin(cluster)
        self._address = ports.address

    def methods(self) -> Mapping[str, Handler]:
        service = Service("bascule.v1.Admin", self._gate)
        service.unary("ClusterStatus", admin.ClusterStatusRequest, self.cluster_status, lambda request: CLUSTER)
        service.unary(
            "DescribeStream",
            admin.DescribeStreamRequest,
            self.describe_stream,
            lambda request: about_stream(request.stream),
        )
        service.unary(
            "DrainBroker", admin.DrainBrokerRequest, self.drain_broker, lambda request: about_broker(request.broker)
        )
        service.unary(
            "UndrainBroker",
            admin.UndrainBrokerRequest,
            self.undrain_broker,
            lambda request: about_broker(request.broker),
        )
        service.unary(
            "RemoveBroker", admin.RemoveBrokerRequest, self.remove_broker, lambda request: about_broker(request.broker)
        )
        service.unary(
            "ElectLeader", admin.ElectLeaderRequest, self.elect_leader, lambda request: about_stream(request.stream)
        )
        self._streams.register(service)
        self._deletion.register(service)
        self._groups.register(service)
        return service.methods

    # --- status ----------------------------------------------------------------------------------------------

    async def cluster_status(self, request: admin.ClusterStatusRequest, call: Call) -> admin.ClusterStatusResponse:
        current = await self._catch_up(call)
        cluster, metadata = self._cluster, self._cluster.metadata
        waits = await self._status.waiting()
        found = plans.health(metadata, self._alive, self._defaults.min_isr_of, waits)
        return admin.ClusterStatusResponse(
            controller=cluster.raft.raft.leader,
            current=current,
            members=[self._member(each) for each in cluster.servers],
            partitions=sum(len(stream.partitions) for stream in metadata.streams.values()),
            underReplicated=_refs(found.under_replicated),
            offline=_refs(found.offline),
            belowMinIsr=_refs(found.below_min_isr),
            underReplicatedCount=len(found.under_replicated),
            offlineCount=len(found.offline),
            belowMinIsrCount=len(found.below_min_isr),
            broker=cluster.broker_id,
        )

    async def _catch_up(self, call: Call) -> bool:
        """Whether a majority has confirmed that this broker's metadata is current."""
        barrier = pb.PropagatedRequest(op=pb.BARRIER)
        try:
            index = await self._client.change(barrier, min(BARRIER_S, _time_of(call) / 2))
            async with asyncio.timeout(BARRIER_S):
                await self._cluster.raft.applied(index)
        except (BasculeError, TimeoutError):
            return False
        return True

    @property
    def _alive(self) -> tuple[str, ...]:
        return self._status.live_members()

    def _member(self, name: str) -> admin.Member:
        cluster, own = self._cluster, self._cluster.broker_id
        membership, brokers = cluster.raft.membership, cluster.metadata.brokers
        peer = next((each for each in cluster.peers.alive() if each.id == name), None)
        partitions = [item for stream in cluster.metadata.streams.values() for item in stream]
        member = admin.Member(
            id=name,
            voter=name in membership.voters,
            alive=name == own or peer is not None,
            controller=cluster.raft.raft.leader == name,
            draining=name in brokers.draining,
            removing=name in brokers.removing,
            incarnation=membership.incarnation_of(name),
            partitions=sum(name in item.replicas for item in partitions),
            leaderships=sum(name == item.leader for item in partitions),
        )
        if name == own:
            member.host, member.port = self._address.host, self._address.port
            member.boot, member.leaving = cluster.peers.boot, cluster.peers.stopping
        elif peer is not None:
            member.host, member.port, member.boot, member.leaving = peer.host, peer.port, peer.boot, peer.stopping
        return member

    async def describe_stream(self, request: admin.DescribeStreamRequest, call: Call) -> admin.DescribeStreamResponse:
        current = await self._catch_up(call)
        self._gate.check_caught_up()
        response = await self._status.describe(self._stream(request.stream))
        response.current = current
        return response

    def _stream(self, name: str) -> Stream:
        stream = self._cluster.metadata.stream(name)
        if stream is None:
            raise NotFound(f"no such stream: {name}")
        return stream

    # --- draining --------------------------------------------------------------------------------------------

    async def drain_broker(self, request: admin.DrainBrokerRequest, call: Call) -> admin.DrainBrokerResponse:
        broker = _named(request.broker)
        deadline = _deadline(call)
        await self._ask(pb.DRAIN_BROKER, pb.AdminOp(broker=broker), call)
        while not self._is_drained(broker) and _now() < deadline:
            await asyncio.sleep(POLL_S)
        metadata, away = self._cluster.metadata, self._away
        response = admin.DrainBrokerResponse(
            done=self._is_drained(broker),
            kept=_refs(plans.not_movable(metadata, broker, away)),
            controller=self._cluster.raft.raft.leader,
        )
        if request.stop and response.done and not response.kept:
            response.stopping = await self._stop(broker, deadline)
        return response

    async def _stop(self, broker: str, deadline: float) -> bool:
        """True if the broker answers that it stops, or is down already. Retries, for the broker may not have applied
        its drain yet."""
        while broker in self._alive:
            try:
                await self._brokers.stop(broker)
                return True
            except (DeadlineExceeded, BusUnavailable, FailedPrecondition):
                if _now() >= deadline:
                    return False
                await asyncio.sleep(POLL_S)
        return True

    @property
    def _away(self) -> list[str]:
        alive = self._alive
        return [each for each in self._cluster.servers if each not in alive]

    def _is_drained(self, broker: str) -> bool:
        """It leads no partition that another replica could lead, and is not the controller if another voter could
        be."""
        metadata, away = self._cluster.metadata, self._away
        if broker not in metadata.brokers.draining or broker in plans.due(metadata, away):
            return False
        fit = [
            each
            for each in self._cluster.raft.membership.voters
            if each != broker and each not in away and each not in metadata.brokers.draining
        ]
        return not fit or self._cluster.raft.raft.leader not in ("", broker)

    async def undrain_broker(self, request: admin.UndrainBrokerRequest, call: Call) -> admin.UndrainBrokerResponse:
        await self._ask(pb.UNDRAIN_BROKER, pb.AdminOp(broker=_named(request.broker)), call)
        return admin.UndrainBrokerResponse()

    # --- removing --------------------------------------------------------------------------------------------

    async def remove_broker(self, request: admin.RemoveBrokerRequest, call: Call) -> admin.RemoveBrokerResponse:
        broker = _named(request.broker)
        if broker == self._cluster.broker_id:
            others = [f"{peer.host}:{peer.port}" for peer in self._cluster.peers.alive()]
            raise FailedPrecondition(
                f"this is broker {broker} itself, which would end before it could answer: ask another broker"
                + (f", as with --server {others[0]}" if others else "")
            )
        lost = await self._removal_losses(broker) if request.force else []
        deadline = _deadline(call)
        while True:
            await self._ask(pb.REMOVE_BROKER, pb.AdminOp(broker=broker, force=request.force), call)
            if self._is_gone(broker):
                return admin.RemoveBrokerResponse(done=True, lost=_refs(lost))
            if _now() >= deadline:
                break
            await asyncio.sleep(POLL_S)
        members = plans.Members(self._cluster.servers, alive=self._alive)
        waiting = plans.removal_waits(self._cluster.metadata, members, broker)
        return admin.RemoveBrokerResponse(done=False, waiting=_refs(waiting))

    async def _removal_losses(self, broker: str) -> list[plans.Named]:
        metadata, waiting = self._cluster.metadata, await self._status.waiting()
        return [*plans.removal_losses(metadata, broker), *plans.awaited(metadata, broker, waiting)]

    def _is_gone(self, broker: str) -> bool:
        log = self._cluster.raft.raft.log
        return broker not in self._cluster.servers and log.membership_index <= log.commit

    # --- electing --------------------------------------------------------------------------------------------

    async def elect_leader(self, request: admin.ElectLeaderRequest, call: Call) -> admin.ElectLeaderResponse:
        await self._catch_up(call)
        stream = self._stream(request.stream)
        item = self._partition(stream, request.partition)
        if request.acceptLoss and (done := was_elected(item, request.replica, self._alive)):
            return done
        op = pb.AdminOp()
        op.replicas.add(stream=stream.name, partition=item.id, replica=request.replica)
        await self._ask(pb.ELECT_LEADER, op, call)
        item = self._partition(self._stream(stream.name), item.id)
        election = await propose_election(self._status, stream, item, request.replica)
        if not request.acceptLoss:
            return election
        seen = bool(request.inSync or request.eligible)
        op = pb.AdminOp(
            inSync=request.inSync if seen else item.isr,
            eligible=request.eligible if seen else item.eligible,
            force=True,
        )
        op.replicas.add(stream=stream.name, partition=item.id, replica=election.leader)
        deadline = _deadline(call)
        try:
            await self._ask(pb.ELECT_LEADER, op, call)
        except FailedPrecondition:
            # The controller that made it may have died before it answered, and the next one finds it made.
            now = self._partition(self._stream(stream.name), item.id)
            if now.unclean_epoch == item.unclean_epoch or was_elected(now, election.leader, self._alive) is None:
                raise
        await self._led(stream.name, item.id, deadline)
        election.done = True
        election.statement = election.statement.replace(" would lead ", " leads ", 1)
        election.epoch = self._partition(self._stream(stream.name), item.id).epoch
        return election

    async def _led(self, stream: str, partition: int, deadline: float) -> None:
        """Returns when the new leader leads, so that clients can use it at once, or at the deadline."""
        while _now() < deadline:
            leader = self._partition(self._stream(stream), partition).leader
            there = await self._brokers.positions(leader, stream, [partition])
            if there is not None and any(each.leads for each in there.positions):
                return
            await asyncio.sleep(POLL_S)

    def _partition(self, stream: Stream, number: int) -> Partition:
        item = stream.partition(number)
        if item is None:
            raise NotFound(f"no such partition: stream {stream.name} has {len(stream.partitions)}, counted from 0")
        return item

    # --- asking the controller -------------------------------------------------------------------------------

    async def _ask(self, kind: "pb.Op", op: pb.AdminOp, call: Call) -> None:
        """Returns when this broker has applied the outcome."""
        request = pb.PropagatedRequest(op=kind, adminOp=op)
        index = await self._client.change(request, max(_time_of(call) - MARGIN_S, POLL_S))
        try:
            async with asyncio.timeout(_time_of(call)):
                await self._cluster.raft.applied(index)
        except TimeoutError:
            raise Unavailable("it is committed, but not applied on this broker yet: ask again") from None


def _named(broker: str) -> str:
    if not broker:
        raise InvalidArgument("no broker is named")
    return broker


def _time_of(call: Call) -> float:
    remaining = call.time_remaining()
    return DEFAULT_S if remaining is None else max(remaining, 0.0)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _deadline(call: Call) -> float:
    return _now() + _time_of(call) - MARGIN_S


def _refs(named: Sequence[Named]) -> Iterable[admin.PartitionRef]:
    return [
        admin.PartitionRef(stream=each.stream, partition=each.partition, reason=each.reason)
        for each in named[:ADMIN_NAMED_PARTITIONS]
    ]
