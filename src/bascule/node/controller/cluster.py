"""This broker as a member of its cluster: the metadata under Raft, the controller wherever it is, the other brokers.

Changes go to the controller, wherever it is (`changes`). A stream counts as created when the brokers that lead its
partitions say that they do.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError

from bascule.core.metadata.commands import (
    BeginLife,
    ChangeLeader,
    Command,
    CreateStream,
    DeleteStream,
    ExpandIsr,
    GiveWay,
    HandOver,
    PartitionName,
    ShrinkIsr,
    encoding,
    life_from_wire,
    life_to_wire,
    operation_of,
)
from bascule.core.metadata.operations import Operation
from bascule.core.metadata.placement import place
from bascule.core.metadata.state import Change, Metadata, Repeated
from bascule.core.metadata.streams import Partition, Stream, StreamConfig
from bascule.core.partition.leader import ExpandFailed, ShrinkFailed
from bascule.errors import (
    BasculeError,
    BusUnavailable,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    StartError,
    Unavailable,
)
from bascule.limits import MAX_PARTITIONS
from bascule.node.controller.controller import Administrator, Controller
from bascule.node.controller.deletion import WAIT_S, Deletion
from bascule.node.membership.bootstrap import Bootstrap
from bascule.node.membership.changes import POLL_S, Changes
from bascule.node.membership.metadata import MetadataStore, in_slices
from bascule.node.membership.peers import Peer, Peers
from bascule.node.membership.raft import RaftDriver
from bascule.node.membership.requests import Requests
from bascule.node.membership.status import StreamStatus
from bascule.node.membership.subjects import Subjects, succeeds
from bascule.node.membership.waiting import Waiting
from bascule.node.partition.environment import Process
from bascule.node.partition.ports import PartitionReplica
from bascule.node.runtime.jobs import Jobs
from bascule.ports import Bus, Clock
from bascule.wire.envelope import MsgType
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.raft_messages import Membership
from bascule.wire.subjects import valid_stream_name, valid_stream_subject

logger = logging.getLogger(__name__)

ISR_TIMEOUT_S = 1.0
"""Of what is asked again anyway: while a change of the in-sync set is pending the larger set must commit."""
JOIN_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class NewStream:
    """A stream as a client asked for it, names and numbers checked already."""

    name: str
    subject: str
    group: str
    partitions: int
    replication_factor: int
    config: StreamConfig

    def check(self) -> None:
        """Once more by the controller: what it is asked came over NATS, and every broker will open what it makes."""
        reason = valid_stream_name(self.name)
        if reason or not valid_stream_subject(self.subject):
            raise InvalidArgument(f"Name is invalid: {reason}" if reason else "Subject is invalid")
        if not 1 <= self.partitions <= MAX_PARTITIONS or self.replication_factor < -1 or not self.replication_factor:
            raise InvalidArgument(
                f"Invalid partitions {self.partitions} or replicationFactor {self.replication_factor}"
            )


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    broker_id: str
    incarnation: str
    peers: tuple[str, ...]
    """Who is to be a voter from the start."""
    max_quorum: int
    min_replication_factor: int
    min_isr: int


class Cluster:
    def __init__(
        self,
        config: ClusterConfig,
        subjects: Subjects,
        bootstrap: Bootstrap,
        raft: RaftDriver,
        store: MetadataStore,
        peers: Peers,
        requests: Requests,
        bus: Bus,
        clock: Clock,
        attention: Clock,
        process: Process,
        jobs: Jobs,
    ) -> None:
        self.config = config
        self.subjects = subjects
        self._bootstrap = bootstrap
        self._waiting: Waiting | None = None
        self._successor = ""
        """A cluster heard of that was recovered from this one."""
        self._stranger = ""
        """Another cluster heard of."""
        self.joined = False
        """In this life: it came without a state."""
        self.raft = raft
        self.store = store
        self.peers = peers
        self.requests = requests
        self.bus = bus
        self._clock = clock
        self._attention = attention
        self._process = process
        self._changes = Changes(config.broker_id, subjects, raft, store, requests, self._execute, jobs)
        self.controller = Controller(
            raft,
            bus,
            attention,
            subjects,
            config.max_quorum,
            config.peers,
            self._submit_here,
            self._changes.carry_out,
            self._orphaned_by,
            self._holds,
            lambda: store.counts(config.broker_id)[0],
            peers.last_heard,
            process.on_fatal,
            jobs,
        )
        self.status = StreamStatus(config.broker_id, subjects, bus, requests, lambda: store.metadata)
        self._deletion = Deletion(
            config.broker_id, clock, lambda: self._controller_since, self.status.knows_that_it_is_gone
        )
        self._controller_since = 0
        """By the plain clock: leases of others are waited for, and they run while our event loop stands still."""
        self._proposing = asyncio.Lock()

    def _role_changed(self) -> None:
        self._process.on_role(self.raft.raft.term, self.raft.raft.is_leader)
        was_controller = self.controller.active
        self.controller.role_changed()
        if self.controller.active and not was_controller:
            self._controller_since = self._clock.monotonic_ns()

    @property
    def metadata(self) -> Metadata:
        return self.store.metadata

    @property
    def alone(self) -> bool:
        """No other broker is needed to decide anything."""
        return self.raft.alone

    @property
    def servers(self) -> tuple[str, ...]:
        return self.raft.membership.everyone

    # --- life ----------------------------------------------------------------------------------------------

    async def enter(self) -> None:
        """Returns when this broker is in a cluster: the one it remembers, one that it founded or one that it joined.
        However long that takes. StartError if it cannot be."""
        self.requests.listen()
        if not self.subjects.cluster:
            if self._bootstrap.may_found and await self._bootstrap.found():
                await self._found()
            else:
                await self._join()
        self._bootstrap.answer()

    async def _found(self) -> None:
        """This broker alone, under a new id; stored before anybody hears of it."""
        own, cluster = self.config.broker_id, self.requests.new_id()
        await self.raft.found(Membership((own,), (), ((own, self.config.incarnation),), cluster))
        self.subjects.enter(cluster)
        logger.info("this broker has founded a new cluster, %s", cluster)

    def start(
        self,
        administrator: Administrator,
        leads_here: Callable[[int], bool],
        on_changes: Callable[[list[Change]], None],
    ) -> None:
        """Take part in the cluster that was entered. `leads_here` says whether everything of a stream that this broker
        should lead is being led; `on_changes` is told what changes in the metadata from now on."""
        self.store.listen(on_changes)
        self.controller.start(administrator)
        self.status.listen(leads_here)
        self.raft.start(self._role_changed)
        self.peers.start(self.controller.heard, self._heard_stranger)

    async def stop(self) -> None:
        self.controller.stop()
        self.peers.stop()
        await self.raft.stop()

    async def resign(self, timeout_s: float) -> None:
        """Let another voter be controller, and see that it is."""
        alive = {peer.id: None for peer in self.peers.alive() if not peer.leaving}
        others = [server for server in self.raft.membership.voters if server in alive]
        others.sort(key=lambda server: server in self.metadata.brokers.draining)
        if not self.raft.raft.is_leader or not others:
            return
        self.raft.transfer(others[0])
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self.raft.raft.leader in ("", self.config.broker_id) and loop.time() < deadline:
            await asyncio.sleep(POLL_S)

    async def _join(self) -> None:
        """However long it takes: who is to be a member of a cluster that does not answer waits for it. It must not end,
        nor found another cluster. StartError if asking again cannot help."""
        subject = self.subjects.shared("raft.metadata.join")
        request = pb.RaftJoinRequest(nodeID=self.config.broker_id, incarnation=self.config.incarnation)
        waiting = self._waiting = Waiting(self._clock, "waiting to join the cluster")
        while True:
            try:
                data = await self.requests.ask(
                    subject,
                    MsgType.RAFT_JOIN_REQUEST,
                    request.SerializeToString(),
                    MsgType.RAFT_JOIN_RESPONSE,
                    JOIN_EVERY_S,
                )
                response = pb.RaftJoinResponse.FromString(data)
                request.cluster = response.cluster  # of two that answer, the first
                if not response.error and response.cluster:
                    self.subjects.enter(response.cluster)
                    self.joined = True
                    self._waiting = None
                    return
                if response.final:
                    raise StartError(f"the cluster does not let this broker in: {response.error}")
                waiting.say(response.error)
            except (DeadlineExceeded, DecodeError):
                request.cluster = ""  # the one that answered may be gone for good
                waiting.say(
                    f"no controller answers in namespace {self.subjects.namespace}; start more of its brokers, a "
                    "majority of its voters is needed, or check nats.servers and clustering.namespace. How a new "
                    "cluster is founded: docs/operations.md"
                )
            except BusUnavailable as error:
                waiting.say(f"NATS is away: {error}")
            await asyncio.sleep(JOIN_EVERY_S / 4)

    async def caught_up(self) -> None:
        """Returns when this broker knows everything the cluster had decided when it asked, however long that takes."""
        request = pb.PropagatedRequest(op=pb.BARRIER)
        waiting = self._waiting = Waiting(self._clock, "waiting for the cluster")
        while True:
            try:
                index = await self._changes.make(request, ISR_TIMEOUT_S)
                await self.raft.applied(index)
                self._waiting = None
                return
            except BasculeError as error:
                waiting.say(self._missing(error))
                await asyncio.sleep(POLL_S)

    @property
    def waits(self) -> str:
        """For whom this broker waits, since when, and what to do; empty if it does not."""
        waiting = self._waiting or self._bootstrap.waiting
        return waiting.text if waiting is not None and waiting.reason else ""

    def _heard_stranger(self, peer: Peer) -> None:
        if succeeds(peer.cluster, self.subjects.cluster):
            self._successor = peer.cluster
        else:
            self._stranger = peer.cluster
        self.controller.heard_stranger(peer)

    def _missing(self, error: BasculeError) -> str:
        if self._successor and not self.raft.raft.leader:
            return (
                f"{error}; an administrator began this cluster anew as {self._successor}, from what another broker "
                "had, and this one is no member of it: empty its data folder and start it again, and it joins"
            )
        if self._stranger and not self.raft.raft.leader:
            return (
                f"{error}; this broker is in cluster {self.subjects.cluster}, and another one, {self._stranger}, is in "
                "the same namespace: if it was to be in that one, empty its data folder and start it again"
            )
        own, membership = self.config.broker_id, self.raft.membership
        alive = {own: None, **{peer.id: None for peer in self.peers.alive()}}
        absent = [voter for voter in membership.voters if voter not in alive]
        if not absent or self.raft.raft.leader:
            return str(error)
        return (
            f"{error}; {membership.quorum} of the voters {', '.join(membership.voters)} are needed, and these "
            f"are not heard of: {', '.join(absent)}; start more of them. If they are lost for good, "
            "`bascule cluster recover` begins anew from what one broker has"
        )

    async def current(self, timeout_s: float) -> None:
        """Returns when this broker knows everything that was decided before the call. Unavailable if that takes longer:
        it may be cut off from the others, and what it knows out of date."""
        if self.alone:
            return
        request = pb.PropagatedRequest(op=pb.BARRIER)
        request.brokerOp.broker = self.config.broker_id
        try:
            async with asyncio.timeout(timeout_s):
                await self.raft.applied(await self._changes.make(request, timeout_s))
        except (BasculeError, TimeoutError) as error:
            raise Unavailable(
                f"this broker may be cut off from the cluster, and cannot tell what is newest: {error}; try again"
            ) from error

    async def begin_life(self, doubtful: tuple[PartitionName, ...], doubts_all: bool = False) -> None:
        """What this broker led in an earlier life it leads under new epochs: what it had written and not synced may be
        on other replicas, so that it must never write under those epochs again. It leaves the in-sync sets of what it
        doubts, if others are in them. Returns when that is so, however long it takes."""
        own = self.config.broker_id
        waiting = Waiting(self._clock, "waiting for the cluster")
        life = BeginLife(own, doubts_all or self.joined, doubtful)
        while any(own in item.replicas for stream in self.metadata.streams.values() for item in stream):
            request = pb.PropagatedRequest(op=pb.BEGIN_LIFE, beginLifeOp=life_to_wire(life))
            try:
                await self.raft.applied(await self._changes.make(request, ISR_TIMEOUT_S))
                return
            except BasculeError as error:
                waiting.say(self._missing(error))
                await asyncio.sleep(POLL_S)

    # --- changes ---------------------------------------------------------------------------------------------

    async def create_stream(self, new: NewStream, timeout_s: float | None) -> None:
        request = pb.PropagatedRequest(op=pb.CREATE_STREAM)
        request.createStreamOp.CopyFrom(
            pb.NewStream(
                name=new.name,
                subject=new.subject,
                group=new.group,
                partitions=new.partitions,
                replicationFactor=new.replication_factor,
                config=new.config.to_wire(),
            )
        )
        await self._changes.make(request, timeout_s)

    async def delete_stream(self, name: str, timeout_s: float | None) -> None:
        """Returns when nothing is taken for it any more. That may take as long as a leader may be cut off unawares."""
        request = pb.PropagatedRequest(op=pb.DELETE_STREAM)
        request.deleteStreamOp.stream = name
        await self._changes.make(request, timeout_s, patience_s=WAIT_S)

    async def hand_over(self, timeout_s: float) -> None:
        """Give away what we lead, before we stop."""
        request = pb.PropagatedRequest(op=pb.HAND_OVER)
        request.brokerOp.broker = self.config.broker_id
        index = await self._changes.make(request, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await self.raft.applied(index)
        except TimeoutError:
            raise Unavailable("it is decided who leads next, but this broker has not heard of it") from None

    async def shrink_isr(self, replica: PartitionReplica, other: str, lacks: bool) -> None:
        leading = replica.leading
        if not await self._ask_isr(pb.SHRINK_ISR, replica, replica.partition, other, lacks) and leading is not None:
            leading.step(ShrinkFailed(other, self._attention.monotonic_ns()))

    async def expand_isr(self, replica: PartitionReplica, other: str) -> None:
        """The leader counts with one that may be in sync for the cluster: if it cannot be had in it is asked out, until
        one of the two is sure. There is no use asking for one that is not alive: the controller would refuse."""
        asked, leading = replica.partition, replica.leading
        if leading is None:
            return
        if all(peer.id != other or peer.leaving for peer in self.peers.alive()):
            leading.step(ExpandFailed(other, False, self._attention.monotonic_ns()))
            return
        while replica.leading is leading and replica.partition.epoch == asked.epoch:
            if await self._ask_isr(pb.EXPAND_ISR, replica, asked, other):
                return
            if await self._ask_isr(pb.SHRINK_ISR, replica, asked, other):
                leading.step(ExpandFailed(other, True, self._attention.monotonic_ns()))
                return
            await asyncio.sleep(POLL_S)

    async def _ask_isr(
        self, op: pb.Op, replica: PartitionReplica, partition: Partition, other: str, lacks: bool = False
    ) -> bool:
        request = pb.PropagatedRequest(op=op)
        operation = request.expandISROp if op == pb.EXPAND_ISR else request.shrinkISROp
        operation.stream, operation.partition, operation.replica = replica.stream.name, partition.id, other
        operation.leader, operation.leaderEpoch = partition.leader, partition.leader_epoch
        operation.epoch, operation.lacks = partition.epoch, lacks
        try:
            await self._changes.make(request, ISR_TIMEOUT_S)
        except FailedPrecondition as error:  # something was quicker, and the leader looks again: no news
            logger.debug("%s: the in-sync set stays as it is: %s", replica.name, error)
            return False
        except BasculeError as error:
            logger.info("%s: the in-sync set stays as it is: %s", replica.name, error)
            return False
        except Exception:  # without an answer the leader would wait for one for good, and count with the larger set
            logger.exception("%s: the in-sync set stays as it is", replica.name)
            return False
        return True

    async def change(self, request: pb.PropagatedRequest, timeout_s: float | None) -> int:
        """What the controller is asked for, wherever it is. The index of the command that did it."""
        return await self._changes.make(request, timeout_s)

    async def step_down(self, replica: PartitionReplica) -> None:
        """Another leader, or at least another epoch, for a partition whose log lost what followers may have."""
        partition = replica.partition
        request = pb.PropagatedRequest(op=pb.CHANGE_LEADER)
        operation = request.changeLeaderOp
        operation.stream, operation.partition = replica.stream.name, partition.id
        operation.leader, operation.leaderEpoch = partition.leader, partition.leader_epoch
        await self._changes.make(request, ISR_TIMEOUT_S)

    async def give_way(self, replica: PartitionReplica, other: str) -> bool:
        partition = replica.partition
        request = pb.PropagatedRequest(op=pb.GIVE_WAY)
        way = request.giveWayOp
        way.stream, way.partition, way.replica = replica.stream.name, partition.id, other
        way.leader, way.leaderEpoch, way.epoch = partition.leader, partition.leader_epoch, partition.epoch
        try:
            await self._changes.make(request, ISR_TIMEOUT_S)
            return True
        except BasculeError as error:
            logger.warning("%s: %s does not lead yet: %s", replica.name, other, error)
            return False

    # --- the controller's part -----------------------------------------------------------------------------------

    async def _execute(self, request: pb.PropagatedRequest) -> int:
        operation = Operation.from_wire(request.operation)
        match request.op:
            case pb.BARRIER:
                if asker := request.brokerOp.broker:
                    if asker not in self.servers:  # nobody would wait for its lease
                        raise FailedPrecondition(f"{asker} is no member of the cluster")
                    self._deletion.heard(asker)
                return await self.raft.current()
            case pb.CREATE_STREAM:
                op = request.createStreamOp
                config = StreamConfig.from_wire(op.config)
                new = NewStream(op.name, op.subject, op.group, op.partitions, op.replicationFactor, config)
                new.check()
                index = await self.propose(lambda: CreateStream(self._place(new), operation))
                if (stream := self.metadata.stream(op.name)) and stream.creation_index == index:
                    await self.status.started((item.leader for item in stream), index)
                return index
            case pb.DELETE_STREAM:
                return await self._delete(request.deleteStreamOp.stream, operation)
            case pb.SHRINK_ISR:
                out = request.shrinkISROp
                asked = (out.stream, out.partition, out.replica, out.leader, out.leaderEpoch, out.epoch)
                return await self._commit(ShrinkIsr(*asked, out.lacks))
            case pb.EXPAND_ISR:
                back = request.expandISROp
                if not self.controller.stays(back.replica):
                    raise FailedPrecondition(f"{back.replica} is not alive, or about to stop")
                expand = ExpandIsr(back.stream, back.partition, back.replica, back.leader, back.leaderEpoch, back.epoch)
                return await self._commit(expand)
            case pb.HAND_OVER:
                broker = request.brokerOp.broker
                return await self.propose(lambda: HandOver(broker, self.controller.living()))
            case pb.CHANGE_LEADER:
                down = request.changeLeaderOp
                where = (down.stream, down.partition, down.leader, down.leaderEpoch)
                return await self.propose(lambda: ChangeLeader(*where, self.controller.living()))
            case pb.BEGIN_LIFE:
                life = life_from_wire(request.beginLifeOp)
                return await self.propose(lambda: replace(life, alive=self.controller.living()))
            case pb.GIVE_WAY:
                way = request.giveWayOp
                if not self.controller.stays(way.replica):
                    raise FailedPrecondition(f"{way.replica} is not alive, or about to stop")
                give_way = GiveWay(way.stream, way.partition, way.replica, way.leader, way.leaderEpoch, way.epoch)
                return await self.propose(lambda: give_way)
            case _:
                return await self.controller.administrator.execute(request)

    async def _delete(self, name: str, operation: Operation) -> int:
        stream: Stream | None = None

        def command() -> Command:
            nonlocal stream
            stream = self.metadata.stream(name)  # as it is when its turn has come
            return DeleteStream(name, operation)

        index = await self.propose(command)
        if stream is None or self.metadata.stream(name) is stream:
            await self._deletion.forgotten_by_all()  # this was decided before, perhaps by another controller
        else:
            await self._deletion.forgotten(dict.fromkeys(item.leader for item in stream), stream.creation_index)
        return index

    async def _submit_here(self, command: Command) -> None:
        await self.propose(lambda: command)

    async def propose(self, command: Callable[[], Command]) -> int:
        """Check, commit, apply; one at a time, so that each sees what the one before it did. The index of the command
        that did it: an earlier one if this was asked before."""
        async with self._proposing:
            try:
                proposed = command()
            except BasculeError:
                await self.raft.current()  # refused by what the cluster knows, as in `_check`
                proposed = command()
            return await self._commit(proposed)

    async def _commit(self, command: Command) -> int:
        """What depends on nothing but the command itself needs no turn: a thousand of them share a few syncs."""
        if made := self.metadata.operations.made(operation_of(command)):
            return made
        data = await in_slices(encoding(command))
        await self._check(command)
        index = await self.raft.propose(data)
        for change in self.store.outcome(index):
            if isinstance(change, Repeated):
                return change.index
        return index

    async def _check(self, command: Command) -> None:
        """What is refused is refused by what the cluster knows, not by what this broker knew while it still led."""
        try:
            self.metadata.check(command)
        except BasculeError:
            await self.raft.current()
            self.metadata.check(command)

    def _orphaned_by(self, alive: tuple[str, ...]) -> list[str]:
        """Leaders that are gone though somebody in sync with them, or eligible, is there."""
        gone = {
            item.leader: None
            for stream in self.metadata.streams.values()
            for item in stream
            if item.leader not in alive and any(replica in alive for replica in item.complete)
        }
        return [leader for leader in gone if leader]

    def _holds(self, broker: str) -> bool:
        return any(broker in item.replicas for stream in self.metadata.streams.values() for item in stream)

    def _place(self, new: NewStream) -> Stream:
        brokers = self.metadata.brokers
        servers = tuple(each for each in self.servers if each not in brokers.removing)
        asked = len(servers) if new.replication_factor == -1 else new.replication_factor
        factor = max(asked, self.config.min_replication_factor)
        if factor > len(servers):
            raise InvalidArgument(f"Invalid replicationFactor {factor}, cluster size {len(servers)}")
        absent = [server for server in servers if not self.controller.stays(server)]
        return Stream(
            name=new.name,
            subject=new.subject,
            group=new.group,
            partitions=place(new.partitions, factor, servers, self.metadata.streams.values(), absent, brokers.draining),
            config=self._settled_config(new.config),
            creation_timestamp=self._clock.time_ns(),
        )

    def _settled_config(self, config: StreamConfig) -> StreamConfig:
        """The minimum of in-sync replicas is part of the stream: every broker must decide by the same one."""
        return replace(config, min_isr=self.config.min_isr) if config.min_isr is None else config
