"""Carries out the requests to the controller: each operation once, however often its request arrives.

Operations that change roles and leave no operation id in the metadata (a drain, a removal, a hand-over) are guarded
here: a late copy of the request would repeat them, perhaps days later. A controller knows which operations it carried
out itself, and refuses requests from before its term; a caller that still waits then sends a new request.

If a client gives up, the change goes on: a stream must never be created or deleted by half.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import NamedTuple, cast

from bascule.core.metadata import altering
from bascule.core.metadata.codec import asked
from bascule.core.metadata.commands import (
    AlterStream,
    Command,
    CreateStream,
    DeleteStream,
    ExpandIsr,
    GiveWay,
    InitProducer,
    PauseStream,
    ResumeStream,
    SetHold,
    SetStreamReadonly,
    ShrinkIsr,
)
from bascule.core.metadata.isr import giving_way
from bascule.core.metadata.operations import Operation
from bascule.core.metadata.pausing import is_resumed
from bascule.core.metadata.placement import place
from bascule.core.metadata.state import Metadata
from bascule.core.metadata.streams import Partition, Stream, StreamConfig
from bascule.errors import (
    AlreadyExists,
    BasculeError,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    Outdated,
    ResourceExhausted,
    Status,
    Unavailable,
    by_status,
)
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
from bascule.types import Epoch
from bascule.wire.pb import internal_pb2 as pb

logger = logging.getLogger(__name__)


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
        self._refused: dict[str, tuple[Status, str]] = {}
        """By id, the newest operations that cannot be carried out as asked. Whoever asked may have waited for too long,
        and asks again: to find that out anew, for many, could take as long each time."""
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
        if self._raft.trouble and _rule(request.op).by is Requester.CLIENT:
            # The disk may fail for days: the client gets the reason now, not a timeout.
            raise Internal(f"{NOTHING_CHANGED if task is None else UNDECIDED}: {self._raft.trouble}")
        if task is None:
            if refused := self._refused.get(id):
                raise by_status(*refused)
            if not _rule(request.op).repeatable and (made := self._made(id, request.operation.since)):
                return made
            if self._tasks.full:
                raise Unavailable("the controller carries out too many changes already; ask again")
            task = self._under_way[id] = self._tasks.start(self._execute(request))
            task.add_done_callback(lambda done: self._ended(id, request.op, done))
        try:
            return await asyncio.shield(task)
        finally:
            del task  # its exception has this frame: they would refer to each other

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
        error = None if task.cancelled() else task.exception()
        if isinstance(error, REFUSALS) and op not in SHARED:
            self._refused[id] = (error.status, str(error))
            if len(self._refused) > REMEMBERED_OPERATIONS:
                del self._refused[next(iter(self._refused))]
        if task.cancelled() or error is not None or _rule(op).repeatable:
            return  # callers that still wait get the exception
        self._done[id] = task.result()
        if len(self._done) > REMEMBERED_OPERATIONS:
            del self._done[next(iter(self._done))]
            self._oldest = self._metadata.index

    # --- each operation --------------------------------------------------------------------------------------

    async def _execute(self, request: pb.PropagatedRequest) -> int:
        if _rule(request.op).by is Requester.NOBODY:
            raise InvalidArgument(f"operation {request.op} is not known to this broker")
        match request.op:
            case pb.BARRIER:
                return await self._barrier(request)
            case pb.CREATE_STREAM:
                return await self._create(request)
            case pb.DELETE_STREAM:
                return await self._delete(request)
            case pb.PAUSE_STREAM | pb.SET_STREAM_READONLY:
                return await self._restrict(request)
            case pb.RESUME_STREAM:
                return await self._resume(request)
            case pb.ALTER_STREAM:
                return await self._alter(request)
            case pb.SET_HOLD:
                return await self._set_hold(request)
            case pb.INIT_PRODUCER:
                return await self._init_producer(request)
            case pb.REPORT_CONSUMER_GROUP_COORDINATOR:
                return await self._reports.take(request.reportConsumerGroupCoordinatorOp)
            case pb.GIVE_WAY:
                return await self._give_way(request)
            case pb.DRAIN_BROKER | pb.UNDRAIN_BROKER | pb.REMOVE_BROKER | pb.ELECT_LEADER:
                return await self._administration.execute(request)
            case _:
                return await self._as_requested(request)

    async def _as_requested(self, request: pb.PropagatedRequest) -> int:
        """The request is the command (`core.metadata.codec`)."""
        command = asked(request)
        if isinstance(command, ExpandIsr):
            self._check_stays(command.replica)
        if isinstance(command, ShrinkIsr | ExpandIsr):
            return await self._proposals.commit(command)
        return await self._proposals.propose(lambda: command)

    def _check_stays(self, broker: str) -> None:
        if not self._live.stays(broker):
            raise FailedPrecondition(f"{broker} is not alive, or about to stop")

    async def _give_way(self, request: pb.PropagatedRequest) -> int:
        wanted, whole = cast(GiveWay, asked(request)), request.giveWayOp.whole

        def command() -> Command:
            self._check_stays(wanted.replica)
            self._metadata.check(wanted)
            item = self._metadata.partition(wanted.stream, wanted.partition)
            assert item is not None, f"{wanted.stream} was checked"
            return giving_way(item, wanted, whole)

        return await self._proposals.propose(command, only=wanted.replica)

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
            _warn_if_it_never_commits(stream)
            await self._status.started(stream, index)
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
        await self._keep_eligible(command)
        index = await self._proposals.propose(lambda: command)
        if stream := self._metadata.stream(command.name):
            await self._until_carried_out(stream, index)
            await self._status.started((item for item in stream if not item.paused), stream.creation_index)
        return index

    async def _keep_eligible(self, command: AlterStream) -> None:
        """Where nobody leads, those that are eligible may lead under a lower min ISR, too."""
        while stream := self._metadata.stream(command.name):
            try:
                self._metadata.check(command)
            except BasculeError:
                return  # it is refused, or was made before: `propose` finds out by the newest state
            wanted = altering.expansions(stream, command, self._live.alive)[:CHANGES_AT_ONCE]
            outcomes = await asyncio.gather(*map(self._proposals.commit, wanted), return_exceptions=True)
            refused = [error for error in outcomes if isinstance(error, BaseException)]
            for error in refused:
                if not isinstance(error, FailedPrecondition):
                    raise error
                logger.warning("stream %s: a replica is eligible no longer: %s", command.name, error)
            if not wanted or refused:
                return

    async def _resume(self, request: pb.PropagatedRequest) -> int:
        """Returns when the leaders of what is resumed lead: a message that is published then is not lost. Those of
        partitions that were named and not paused, too: somebody else may just have resumed them."""
        command = cast(ResumeStream, asked(request))
        index = await self._proposals.propose(lambda: replace(command, at=self._clock.time_ns()))
        if stream := self._metadata.stream(command.name):
            resumed = [item for item in stream if is_resumed(item, command, Epoch(index))]
            await self._status.started(resumed, stream.creation_index, all_of_stream=False)
        return index

    async def _set_hold(self, request: pb.PropagatedRequest) -> int:
        """Returns when no replica compacts what is held, by what its broker knows: each knows of the hold, or its lease
        is over. A hold that is raised holds less than before: nobody is waited for."""
        hold = cast(SetHold, asked(request))
        before = self._held_from(hold)
        index = await self._proposals.propose(lambda: replace(hold, at=self._clock.time_ns()))
        item = self._metadata.partition(hold.stream, hold.partition)
        if item is not None and (before is None or before >= hold.offset):
            await self._until_carried_out([item], index)
        return index

    def _held_from(self, hold: SetHold) -> int | None:
        item = self._metadata.partition(hold.stream, hold.partition)
        holds = () if item is None else item.holds
        return next((each.offset for each in holds if each.name == hold.name), None)

    async def _init_producer(self, request: pb.PropagatedRequest) -> int:
        command = cast(InitProducer, asked(request))
        return await self._proposals.commit(replace(command, at=self._clock.time_ns()))


REFUSALS = (InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, ResourceExhausted)
"""An operation cannot be carried out as asked; whoever wants it all the same asks anew."""

SHARED = (pb.SHRINK_ISR, pb.EXPAND_ISR, pb.GIVE_WAY, pb.CHANGE_LEADER, pb.RAISE_STARTS, pb.TELL_CLEARED)
"""Operations that name the only state in which they apply: two equal requests ask for the same change."""


class Requester(Enum):
    """Who requests an operation. While the controller's disk fails a client is told so at once, also one that
    administers streams; brokers and administrators of brokers ask again until it works, or their time is over."""

    CLIENT = "client"
    BROKER = "broker"
    BROKER_ADMINISTRATOR = "administrator of brokers"
    NOBODY = "nobody"


class Rule(NamedTuple):
    by: Requester
    repeatable: bool = False
    """A late copy is harmless: it changes nothing, or names the only state in which it applies. Every other operation
    is carried out once, by its id."""


_NEVER = Rule(Requester.NOBODY)
"""The controller proposes such a command by itself, or nobody does yet."""

OPERATIONS: dict[pb.Op, Rule] = {
    pb.BARRIER: Rule(Requester.BROKER, repeatable=True),
    pb.CREATE_STREAM: Rule(Requester.CLIENT, repeatable=True),
    pb.DELETE_STREAM: Rule(Requester.CLIENT, repeatable=True),
    pb.PAUSE_STREAM: Rule(Requester.CLIENT),
    pb.RESUME_STREAM: Rule(Requester.CLIENT),
    pb.SET_STREAM_READONLY: Rule(Requester.CLIENT),
    pb.ALTER_STREAM: Rule(Requester.CLIENT),
    pb.SET_HOLD: Rule(Requester.CLIENT),
    pb.REMOVE_HOLD: Rule(Requester.CLIENT),
    pb.INIT_PRODUCER: Rule(Requester.CLIENT),
    pb.JOIN_CONSUMER_GROUP: Rule(Requester.CLIENT),
    pb.LEAVE_CONSUMER_GROUP: Rule(Requester.CLIENT),
    pb.REPORT_CONSUMER_GROUP_COORDINATOR: Rule(Requester.BROKER),
    pb.SHRINK_ISR: Rule(Requester.BROKER, repeatable=True),
    pb.EXPAND_ISR: Rule(Requester.BROKER, repeatable=True),
    pb.GIVE_WAY: Rule(Requester.BROKER, repeatable=True),
    pb.CHANGE_LEADER: Rule(Requester.BROKER, repeatable=True),
    pb.RAISE_STARTS: Rule(Requester.BROKER, repeatable=True),
    pb.TELL_CLEARED: Rule(Requester.BROKER, repeatable=True),
    pb.HAND_OVER: Rule(Requester.BROKER),
    pb.BROKER_STARTED: Rule(Requester.BROKER),
    pb.DRAIN_BROKER: Rule(Requester.BROKER_ADMINISTRATOR),
    pb.UNDRAIN_BROKER: Rule(Requester.BROKER_ADMINISTRATOR),
    pb.REMOVE_BROKER: Rule(Requester.BROKER_ADMINISTRATOR),
    pb.ELECT_LEADER: Rule(Requester.BROKER_ADMINISTRATOR),
    pb.BROKER_DIED: _NEVER,
    pb.DISK_LOST: _NEVER,
    pb.BEGIN_REMOVAL: _NEVER,
    pb.PUBLISH_ACTIVITY: _NEVER,
    pb.CHANGE_CONSUMER_GROUP_COORDINATOR: _NEVER,
}
"""Every command has a place here; `Executor._execute` carries it out. An operation that has none is refused, too."""


def _rule(op: pb.Op) -> Rule:
    return OPERATIONS.get(op, _NEVER)


def _warn_if_it_never_commits(stream: Stream) -> None:
    """Not refused: the Go server creates such a stream, too, and a smaller min ISR can be set later."""
    least, fewest = stream.config.min_isr or 1, min(len(item.replicas) for item in stream)
    if fewest < least:
        logger.warning(
            "stream %s has %d replicas, and min ISR %d can never be met: nothing in it is committed; set a smaller one "
            "with `bascule stream alter %s min.isr=%d`",
            stream.name,
            fewest,
            least,
            stream.name,
            fewest,
        )
