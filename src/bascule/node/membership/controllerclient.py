"""The client of the controller: sends changes of the metadata to the controller, whichever broker that is.

If this broker is the controller it carries the change out itself. Otherwise it sends a request over NATS, again and
again until it has an answer or the deadline passes: a request or its answer may be lost with the controller. The next
controller receives the same operation id, and makes the change if the last one did not (`core.metadata.operations`). A
controller that receives the same operation twice answers the second request with the outcome of the first.
"""

import asyncio
from contextlib import suppress
from typing import Protocol

from bascule.core.metadata.codec import asking
from bascule.core.metadata.commands import (
    AlterStream,
    BrokerStarted,
    ChangeLeader,
    ClearedEnd,
    DeleteStream,
    ExpandIsr,
    GiveWay,
    HandOver,
    InitProducer,
    JoinGroup,
    LeaveGroup,
    NewStart,
    PauseStream,
    RaiseStarts,
    RemoveHold,
    ResumeStream,
    SetHold,
    SetStreamReadonly,
    ShrinkIsr,
    TellCleared,
)
from bascule.core.metadata.streams import Partition
from bascule.errors import DeadlineExceeded, Internal, Outdated, Status, Unavailable, by_status
from bascule.node.calls.calls import Calls
from bascule.node.calls.messages import CHANGE
from bascule.node.membership.lease import LEASE_WAIT_S
from bascule.node.membership.metadata import MetadataStore
from bascule.node.membership.newstream import NewStream
from bascule.node.membership.raft import RaftDriver
from bascule.wire.pb import internal_pb2 as pb

NO_LEADER = "no known metadata leader"
UNDECIDED = "the cluster did not decide in time; whether the change was made is not known"
DEFAULT_TIMEOUT_S = 5.0
NOTHING_CHANGED = "nothing was changed"
ASK_EVERY_S = 0.5
POLL_S = 0.02
APPLIED_S = 2.0
ISR_TIMEOUT_S = 1.0
"""For requests that are repeated anyway: while a change of the ISR is pending, the larger set must commit."""


class LocalController(Protocol):
    """What the controller is asked for, carried out on this broker."""

    async def carry_out(self, request: pb.PropagatedRequest) -> int:
        """The index of the command that did it."""


class ControllerClient:
    def __init__(
        self,
        own: str,
        calls: Calls,
        raft: RaftDriver,
        store: MetadataStore,
        executor: LocalController,
    ) -> None:
        """`executor` makes the change if this broker is the controller."""
        self._own = own
        self._calls = calls
        self._raft = raft
        self._store = store
        self._executor = executor

    # --- operations ------------------------------------------------------------------------------------------

    async def create_stream(self, new: NewStream, timeout_s: float | None) -> None:
        """Returns when its leaders lead, and this broker knows: a client uses the stream here when it is answered."""
        request = pb.PropagatedRequest(op=pb.CREATE_STREAM, createStreamOp=new.to_wire())
        await self._until_applied_perhaps(await self.change(request, timeout_s), timeout_s)

    async def delete_stream(self, name: str, timeout_s: float | None) -> None:
        """Returns when no broker takes messages for it any more, and this broker knows. That may take as long as the
        lease of a leader."""
        index = await self.change(asking(DeleteStream(name)), timeout_s, patience_s=LEASE_WAIT_S)
        await self._until_applied_perhaps(index, timeout_s)

    async def pause_stream(
        self, name: str, partitions: tuple[int, ...], resume_all: bool, timeout_s: float | None
    ) -> None:
        """Returns when nothing is taken for these partitions any more, and this broker knows: a publish here resumes
        them."""
        await self._applied(asking(PauseStream(name, partitions, resume_all)), timeout_s, LEASE_WAIT_S)

    async def pause_idle(self, stream: str, partition: Partition) -> None:
        """This broker leads it, and nobody has used it for long."""
        command = PauseStream(stream, (partition.id,), leader=partition.leader, leader_epoch=partition.leader_epoch)
        await self.change(asking(command), DEFAULT_TIMEOUT_S, patience_s=LEASE_WAIT_S)

    async def resume_stream(self, name: str, partitions: tuple[int, ...], timeout_s: float | None) -> None:
        """Returns when their leaders lead, and this broker knows."""
        await self._applied(asking(ResumeStream(name, partitions)), timeout_s)

    async def set_readonly(
        self, name: str, partitions: tuple[int, ...], readonly: bool, timeout_s: float | None
    ) -> None:
        """Returns when nothing is taken for these partitions any more, or when it is taken again, and this broker
        knows: it answers publishes accordingly."""
        await self._applied(asking(SetStreamReadonly(name, partitions, readonly)), timeout_s, LEASE_WAIT_S)

    async def set_hold(self, hold: SetHold, timeout_s: float | None) -> None:
        """Returns when it holds: nothing at or above it is removed any more, on any broker, and this broker knows."""
        await self._applied(asking(hold), timeout_s, LEASE_WAIT_S)

    async def remove_hold(self, stream: str, partition: int, name: str, timeout_s: float | None) -> None:
        await self._applied(asking(RemoveHold(stream, partition, name)), timeout_s)

    async def init_producer(self, name: str, timeout_s: float | None) -> int:
        """The index of the command by which it began, which is its epoch; returns when this broker knows."""
        return await self._applied(asking(InitProducer(name)), timeout_s)

    async def join_group(self, group: str, consumer: str, streams: tuple[str, ...], timeout_s: float | None) -> int:
        """The index of the command by which it joined; returns when this broker knows."""
        return await self._applied(asking(JoinGroup(group, consumer, streams)), timeout_s)

    async def leave_group(self, group: str, consumer: str, timeout_s: float | None) -> None:
        await self._applied(asking(LeaveGroup(group, consumer)), timeout_s)

    async def expire_member(self, group: str, consumer: str, epoch: int) -> None:
        """This broker, the coordinator at that epoch, has not heard of it for too long."""
        await self.apply(asking(LeaveGroup(group, consumer, expired=True, epoch=epoch)), DEFAULT_TIMEOUT_S)

    async def report_coordinator(
        self, group: str, consumer: str, coordinator: str, epoch: int, timeout_s: float | None
    ) -> None:
        """The controller counts who does not reach it."""
        request = pb.PropagatedRequest(op=pb.REPORT_CONSUMER_GROUP_COORDINATOR)
        report = request.reportConsumerGroupCoordinatorOp
        report.groupId, report.consumerId, report.coordinator, report.epoch = group, consumer, coordinator, epoch
        await self.change(request, timeout_s)

    async def raise_starts(
        self, leader: str, starts: tuple[NewStart, ...], timeout_s: float | None = DEFAULT_TIMEOUT_S
    ) -> None:
        """Records have expired in these partitions, which that broker leads. Returns when this broker knows; those of
        which it is not the leader any more stay as they are."""
        await self._applied(asking(RaiseStarts(leader, starts)), timeout_s)

    async def tell_cleared(self, ends: tuple[ClearedEnd, ...], timeout_s: float) -> None:
        """How far logs of this broker are cleared. Returns when this broker knows; those that did not fit stay as they
        are, and what was told shows in the metadata."""
        await self._applied(asking(TellCleared(self._own, ends)), timeout_s)

    async def alter_stream(self, command: AlterStream, timeout_s: float | None) -> None:
        """Returns when its settings are in use, and this broker knows."""
        await self._applied(asking(command), timeout_s, LEASE_WAIT_S)

    async def barrier(self, timeout_s: float) -> None:
        """Returns when this broker has applied everything that was committed before the call. The controller then
        assumes that this broker has a lease (`lease`)."""
        request = pb.PropagatedRequest(op=pb.BARRIER)
        request.brokerOp.broker = self._own
        await self.apply(request, timeout_s)

    async def broker_started(self, started: BrokerStarted) -> None:
        await self.apply(asking(started), ISR_TIMEOUT_S)

    async def hand_over(self, timeout_s: float) -> None:
        """Hand over all leaderships of this broker before it stops."""
        index = await self.change(asking(HandOver(self._own)), timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                await self._raft.applied(index)
        except TimeoutError:
            raise Unavailable("the next leaders are decided, but this broker has not received the decision") from None

    async def shrink_isr(self, stream: str, partition: Partition, replica: str, lacks: bool) -> None:
        await self.change(asking(ShrinkIsr(*_change(stream, partition, replica), lacks)), ISR_TIMEOUT_S)

    async def expand_isr(self, stream: str, partition: Partition, replica: str) -> None:
        await self.change(asking(ExpandIsr(*_change(stream, partition, replica))), ISR_TIMEOUT_S)

    async def give_way(self, stream: str, partition: Partition, replica: str, whole: bool = False) -> None:
        """Hand leadership over to that replica. `whole`: this one has everything that it promised."""
        request = asking(GiveWay(*_change(stream, partition, replica)))
        request.giveWayOp.whole = whole
        await self.change(request, ISR_TIMEOUT_S)

    async def change_leader(self, stream: str, partition: Partition) -> None:
        """Ask for another leader, or at least a new epoch."""
        command = ChangeLeader(stream, partition.id, partition.leader, partition.leader_epoch)
        await self.change(asking(command), ISR_TIMEOUT_S)

    # --- asking ----------------------------------------------------------------------------------------------

    async def apply(self, request: pb.PropagatedRequest, timeout_s: float) -> None:
        """Like `change`, but returns when the outcome is applied here. That wait has no limit."""
        await self._raft.applied(await self.change(request, timeout_s))

    async def _applied(self, request: pb.PropagatedRequest, timeout_s: float | None, patience_s: float = 0.0) -> int:
        """Like `apply`, with a limit. Returns the index, as `change` does."""
        index = await self.change(request, timeout_s, patience_s)
        await self._until_applied(index, DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s)
        return index

    async def change(self, request: pb.PropagatedRequest, timeout_s: float | None, patience_s: float = 0.0) -> int:
        """Returns the index of the command that made the change. Without a controller it raises at once, or at the
        deadline. The same request, sent again after that, is the same operation. `patience_s` is added to the default
        timeout."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (DEFAULT_TIMEOUT_S + patience_s if timeout_s is None else timeout_s)
        if not request.operation.id:
            request.operation.id = self._calls.new_id()
            request.operation.since = self._store.metadata.index
        asked = False
        while True:
            leader = self._raft.raft.leader
            if not leader and not asked and timeout_s is None:
                raise Internal(NO_LEADER)
            if leader:
                asked = True
                try:
                    return await self._try(request, min(deadline - loop.time(), ASK_EVERY_S))
                except Outdated:
                    request.operation.since = self._store.metadata.index
                except (Unavailable, DeadlineExceeded):
                    pass
            if loop.time() >= deadline - POLL_S:
                raise Internal(UNDECIDED if self._raft.raft.leader else NO_LEADER)
            await asyncio.sleep(POLL_S)

    async def _try(self, request: pb.PropagatedRequest, timeout_s: float) -> int:
        if not self._raft.is_leader:
            return await self._ask(request, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._executor.carry_out(request)
        except TimeoutError:
            raise DeadlineExceeded(UNDECIDED) from None

    async def _ask(self, request: pb.PropagatedRequest, timeout_s: float) -> int:
        if self._raft.raft.leader == self._own:
            raise Unavailable("this broker is about to be the controller")
        response = await self._calls.ask(self._calls.subjects.changes, CHANGE, request, max(timeout_s, POLL_S))
        if not response.HasField("error"):
            return response.index
        # Apply what was committed before the refusal, perhaps by an earlier try of this: the caller sees why.
        await self._until_applied(response.index, timeout_s)
        raise by_status(Status(response.error.code), response.error.msg)

    async def _until_applied_perhaps(self, index: int, timeout_s: float | None) -> None:
        """Waits for this broker to know of a change that is made; not for long, because its disk may be held up."""
        with suppress(DeadlineExceeded):
            await self._until_applied(index, APPLIED_S if timeout_s is None else min(timeout_s, APPLIED_S))

    async def _until_applied(self, index: int, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._raft.applied(index)
        except TimeoutError:
            raise DeadlineExceeded(UNDECIDED) from None


def _change(stream: str, partition: Partition, replica: str) -> tuple[str, int, str, str, int, int]:
    """The fields of an `IsrChange`: a request of a partition's leader about one of its replicas."""
    return stream, partition.id, replica, partition.leader, partition.leader_epoch, partition.epoch
