"""Carries out the requests to the controller: each operation once, however often its request arrives.

Operations that change roles and leave no operation id in the metadata (a drain, a removal, a hand-over) are guarded
here: a late copy of the request would repeat them, perhaps days later. A controller knows which operations it carried
out itself, and refuses requests from before its term; a caller that still waits then sends a new request.

If a client gives up, the change goes on: a stream must never be created or deleted by half.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import NamedTuple, cast

from bascule.core.metadata.codec import asked
from bascule.core.metadata.commands import (
    AlterStream,
    Command,
    CreateStream,
    DeleteStream,
    ExpandIsr,
    GiveWay,
    PauseStream,
    ResumeStream,
    SetHold,
    SetStreamReadonly,
    ShrinkIsr,
)
from bascule.core.metadata.operations import Operation
from bascule.core.metadata.placement import place
from bascule.core.metadata.state import Metadata
from bascule.core.metadata.streams import Partition, Stream, StreamConfig
from bascule.errors import FailedPrecondition, Internal, InvalidArgument, Outdated, Unavailable
from bascule.limits import CHANGES_AT_ONCE, REMEMBERED_OPERATIONS
from bascule.node.controller.administration import Administration
from bascule.node.controller.coordinatorreports import CoordinatorReports
from bascule.node.controller.leases import Leases
from bascule.node.controller.livebrokers import LiveBrokers
from bascule.node.controller.proposals import Proposals
from bascule.node.controller.streamstatus import StreamStatus
from bascule.node.membership.controllerclient import NOTHING_CHANGED, UNDECIDED
from bascule.node.membership.newstream import NewStream
from bascule.node.runtime.jobs import Jobs
from bascule.ports import Clock
from bascule.wire.pb import internal_pb2 as pb


class Executor:
    def __init__(
        self,
        proposals: Proposals,
        live: LiveBrokers,
        administration: Administration,
        status: StreamStatus,
        leases: Leases,
        reports: CoordinatorReports,
        clock: Clock,
        new_id: Callable[[], str],
        min_replication_factor: int,
        min_isr: int,
        jobs: Jobs,
    ) -> None:
        self._proposals = proposals
        self._raft = proposals.raft
        self._live = live
        self._administration = administration
        self._status = status
        self._leases = leases
        self._reports = reports
        self._clock = clock
        self._new_id = new_id
        self._min_replication_factor = min_replication_factor
        self._min_isr = min_isr
        self._tasks = jobs.tasks("a change of the metadata", CHANGES_AT_ONCE, answered=True)
        self._under_way: dict[str, asyncio.Task[int]] = {}
        self._done: dict[str, int] = {}
        """By id, the operations that this broker has carried out in its present term."""
        self._term = self._oldest = 0

    @property
    def _metadata(self) -> Metadata:
        return self._proposals.metadata

    def begin(self) -> None:
        """This broker is the controller from now on."""
        self._leases.begin()
        self._reports.begin()

    # --- once ------------------------------------------------------------------------------------------------

    async def carry_out(self, request: pb.PropagatedRequest) -> int:
        """Returns the index of the command that made the change. Repeated requests of one operation share one run."""
        id = self._id_of(request)
        task = self._under_way.get(id)
        if self._raft.trouble and _handling(request.op).by is Asker.CLIENT:
            # The disk may fail for days: the client gets the reason now, not a timeout.
            raise Internal(f"{NOTHING_CHANGED if task is None else UNDECIDED}: {self._raft.trouble}")
        if task is None:
            if not _handling(request.op).repeatable and (made := self._made(id, request.operation.since)):
                return made
            if self._tasks.full:
                raise Unavailable("the controller carries out too many changes already; ask again")
            task = self._under_way[id] = self._tasks.start(self._execute(request))
            task.add_done_callback(lambda done: self._ended(id, request.op, done))
        return await asyncio.shield(task)

    def _id_of(self, request: pb.PropagatedRequest) -> str:
        """What is under way is not begun again. A leader asks for a change of its in-sync set once more when no answer
        comes in time, as another operation: while Raft is slow these would only make it slower."""
        if request.op in SHARED:
            same = pb.PropagatedRequest()
            same.CopyFrom(request)
            same.ClearField("operation")
            return same.SerializeToString(deterministic=True).hex()
        return request.operation.id or self._new_id()

    def _made(self, id: str, since: int) -> int:
        """The index at which the operation was made, or 0. Raises Outdated if this controller cannot know."""
        if self._term != self._raft.raft.term:
            self._term, self._oldest, self._done = self._raft.raft.term, self._metadata.index, {}
        if made := self._done.get(id, 0):
            return made
        if since < self._oldest:
            raise Outdated("this request is from before the present controller's term; ask again")
        return 0

    def _ended(self, id: str, op: pb.Op, task: "asyncio.Task[int]") -> None:
        del self._under_way[id]
        if task.cancelled() or task.exception() is not None or _handling(op).repeatable:
            return  # callers that still wait get the exception
        self._done[id] = task.result()
        if len(self._done) > REMEMBERED_OPERATIONS:
            del self._done[next(iter(self._done))]
            self._oldest = self._metadata.index

    # --- each operation --------------------------------------------------------------------------------------

    async def _execute(self, request: pb.PropagatedRequest) -> int:
        return await _handling(request.op).how(self, request)

    async def _as_requested(self, request: pb.PropagatedRequest) -> int:
        """The request is the command (`core.metadata.codec`)."""
        command = asked(request)
        if isinstance(command, ExpandIsr | GiveWay) and not self._live.stays(command.replica):
            raise FailedPrecondition(f"{command.replica} is not alive, or about to stop")
        if isinstance(command, ShrinkIsr | ExpandIsr):
            return await self._proposals.commit(command)
        return await self._proposals.propose(lambda: command)

    async def _administer(self, request: pb.PropagatedRequest) -> int:
        return await self._administration.execute(request)

    async def _report_coordinator(self, request: pb.PropagatedRequest) -> int:
        return await self._reports.take(request.reportConsumerGroupCoordinatorOp)

    async def _refuse(self, request: pb.PropagatedRequest) -> int:
        raise InvalidArgument(f"operation {request.op} is not known to this broker")

    async def _barrier(self, request: pb.PropagatedRequest) -> int:
        if asker := request.brokerOp.broker:
            if asker not in self._raft.membership.everyone:  # nobody would wait for its lease
                raise FailedPrecondition(f"{asker} is not a member of the cluster")
            self._leases.renewed(asker)
        return await self._raft.current()

    async def _create(self, request: pb.PropagatedRequest) -> int:
        new, operation = NewStream.from_wire(request.createStreamOp), Operation.from_wire(request.operation)
        new.check()
        index = await self._proposals.propose(lambda: CreateStream(self._place(new), operation))
        if (stream := self._metadata.stream(new.name)) and stream.creation_index == index:
            await self._status.started((item.leader for item in stream), index)
        return index

    def _place(self, new: NewStream) -> Stream:
        brokers = self._metadata.brokers
        servers = tuple(each for each in self._raft.membership.everyone if each not in brokers.removing)
        wanted = len(servers) if new.replication_factor == -1 else new.replication_factor
        factor = max(wanted, self._min_replication_factor)
        if factor > len(servers):
            raise InvalidArgument(f"Invalid replicationFactor {factor}, cluster size {len(servers)}")
        absent = [server for server in servers if not self._live.stays(server)]
        streams = self._metadata.streams.values()
        return Stream(
            name=new.name,
            subject=new.subject,
            group=new.group,
            partitions=place(new.partitions, factor, servers, streams, absent, brokers.draining),
            config=self._with_min_isr(new.config),
            creation_timestamp=self._clock.time_ns(),
        )

    def _with_min_isr(self, config: StreamConfig) -> StreamConfig:
        """Min ISR is stored with the stream: every broker must use the same value."""
        return replace(config, min_isr=self._min_isr) if config.min_isr is None else config

    async def _delete(self, request: pb.PropagatedRequest) -> int:
        name, operation = request.deleteStreamOp.stream, Operation.from_wire(request.operation)
        stream: Stream | None = None

        def command() -> Command:
            nonlocal stream
            stream = self._metadata.stream(name)  # as it is when the command is proposed
            return DeleteStream(name, operation)

        index = await self._proposals.propose(command)
        if stream is None or self._metadata.stream(name) is stream:
            await self._leases.until_all_over()  # it was deleted before, perhaps by another controller
        else:
            replicas = dict.fromkeys(each for item in stream for each in item.replicas)
            gone = partial(self._status.knows_that_it_is_gone, creation_index=stream.creation_index)
            await self._leases.until_known(replicas, gone)
        return index

    async def _restrict(self, request: pb.PropagatedRequest) -> int:
        """Returns when no replica stores anything any more that the command rules out: each has carried it out, or its
        lease is over. A partition that is set writable again takes messages on return."""
        command = cast(PauseStream | SetStreamReadonly, asked(request))
        index = await self._proposals.propose(lambda: replace(command, at=self._clock.time_ns()))
        if stream := self._metadata.stream(command.name):
            named = [stream.partitions[number] for number in command.partitions] if command.partitions else stream
            await self._until_carried_out(named, index)
        return index

    async def _until_carried_out(self, partitions: Iterable[Partition], index: int) -> None:
        replicas = dict.fromkeys(each for item in partitions for each in item.replicas)
        await self._leases.until_known(replicas, partial(self._status.has_carried_out, index=index))

    async def _alter(self, request: pb.PropagatedRequest) -> int:
        """Returns when the settings are in use: each replica has them, or its lease is over, and the leaders lead. Min
        ISR is never left to the brokers, as in `_with_min_isr`."""
        command = cast(AlterStream, asked(request))
        if "min_isr" in command.reset:
            config = replace(command.config, min_isr=self._min_isr)
            command = replace(command, config=config, reset=tuple(each for each in command.reset if each != "min_isr"))
        index = await self._proposals.propose(lambda: command)
        if stream := self._metadata.stream(command.name):
            await self._until_carried_out(stream, index)
            await self._status.started((item.leader for item in stream if not item.paused), stream.creation_index)
        return index

    async def _resume(self, request: pb.PropagatedRequest) -> int:
        """Returns when the leaders of the stream lead: a message that is published then is not lost."""
        command = cast(ResumeStream, asked(request))
        index = await self._proposals.propose(lambda: replace(command, at=self._clock.time_ns()))
        if stream := self._metadata.stream(command.name):
            await self._status.started((item.leader for item in stream if not item.paused), stream.creation_index)
        return index

    async def _set_hold(self, request: pb.PropagatedRequest) -> int:
        hold = cast(SetHold, asked(request))
        return await self._proposals.propose(lambda: replace(hold, at=self._clock.time_ns()))


SHARED = (pb.SHRINK_ISR, pb.EXPAND_ISR, pb.GIVE_WAY, pb.CHANGE_LEADER, pb.RAISE_STARTS)
"""Operations that name the only state in which they apply: two equal requests ask for the same change."""


class Asker(Enum):
    """Who requests an operation. While the controller's disk fails a client is told so at once; brokers and
    administrators of brokers ask again until it works, or their time is over."""

    CLIENT = "client"
    BROKER = "broker"
    ADMINISTRATOR = "administrator"
    NOBODY = "nobody"


class Handling(NamedTuple):
    """How the controller handles a requested operation."""

    how: Callable[[Executor, pb.PropagatedRequest], Awaitable[int]]
    by: Asker
    repeatable: bool = False
    """A late copy is harmless: it changes nothing, or names the only state in which it applies. Every other operation
    is carried out once, by its id."""


_NEVER = Handling(Executor._refuse, Asker.NOBODY)
"""The controller proposes such a command by itself, or nobody does yet."""

OPERATIONS: dict[pb.Op, Handling] = {
    pb.BARRIER: Handling(Executor._barrier, Asker.BROKER, repeatable=True),
    pb.CREATE_STREAM: Handling(Executor._create, Asker.CLIENT, repeatable=True),
    pb.DELETE_STREAM: Handling(Executor._delete, Asker.CLIENT, repeatable=True),
    pb.PAUSE_STREAM: Handling(Executor._restrict, Asker.CLIENT),
    pb.RESUME_STREAM: Handling(Executor._resume, Asker.CLIENT),
    pb.SET_STREAM_READONLY: Handling(Executor._restrict, Asker.CLIENT),
    pb.ALTER_STREAM: Handling(Executor._alter, Asker.CLIENT),
    pb.SET_HOLD: Handling(Executor._set_hold, Asker.CLIENT),
    pb.REMOVE_HOLD: Handling(Executor._as_requested, Asker.CLIENT),
    pb.JOIN_CONSUMER_GROUP: Handling(Executor._as_requested, Asker.CLIENT),
    pb.LEAVE_CONSUMER_GROUP: Handling(Executor._as_requested, Asker.CLIENT),
    pb.REPORT_CONSUMER_GROUP_COORDINATOR: Handling(Executor._report_coordinator, Asker.BROKER),
    pb.SHRINK_ISR: Handling(Executor._as_requested, Asker.BROKER, repeatable=True),
    pb.EXPAND_ISR: Handling(Executor._as_requested, Asker.BROKER, repeatable=True),
    pb.GIVE_WAY: Handling(Executor._as_requested, Asker.BROKER, repeatable=True),
    pb.CHANGE_LEADER: Handling(Executor._as_requested, Asker.BROKER, repeatable=True),
    pb.RAISE_STARTS: Handling(Executor._as_requested, Asker.BROKER, repeatable=True),
    pb.HAND_OVER: Handling(Executor._as_requested, Asker.BROKER),
    pb.BROKER_STARTED: Handling(Executor._as_requested, Asker.BROKER),
    pb.DRAIN_BROKER: Handling(Executor._administer, Asker.ADMINISTRATOR),
    pb.UNDRAIN_BROKER: Handling(Executor._administer, Asker.ADMINISTRATOR),
    pb.REMOVE_BROKER: Handling(Executor._administer, Asker.ADMINISTRATOR),
    pb.ELECT_LEADER: Handling(Executor._administer, Asker.ADMINISTRATOR),
    pb.BROKER_DIED: _NEVER,
    pb.DISK_LOST: _NEVER,
    pb.BEGIN_REMOVAL: _NEVER,
    pb.PUBLISH_ACTIVITY: _NEVER,
    pb.CHANGE_CONSUMER_GROUP_COORDINATOR: _NEVER,
}
"""Every command has a place here. An operation that has none is refused, too."""


def _handling(op: pb.Op) -> Handling:
    return OPERATIONS.get(op, _NEVER)
