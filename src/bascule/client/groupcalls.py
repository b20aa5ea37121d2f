"""The calls of a member of a consumer group, as outcomes of the actions of `membership`.

The protocol tells three refusals of a heartbeat apart by their texts alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline
from bascule.client.membership import (
    Action,
    AlreadyMember,
    Assigned,
    Described,
    Done,
    Heartbeat,
    Join,
    Joined,
    Leave,
    NoGroup,
    NoMember,
    Outcome,
    Refused,
    Report,
    Unreachable,
)
from bascule.errors import (
    BasculeError,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    HungUp,
    Internal,
    NotFound,
    ResourceExhausted,
    Unavailable,
    UnknownOutcome,
)
from bascule.wire.pb import api_pb2 as pb

ALREADY_A_MEMBER = "consumer is already a member of the consumer group"
NO_SUCH_STREAM = "stream does not exist"
NOT_A_MEMBER = "consumer is not a member of the consumer group"
PASSING = (Unavailable, HungUp, DeadlineExceeded, Internal, UnknownOutcome, Cancelled, ResourceExhausted)
"""What the cluster may have recovered from a moment later."""


class GroupCalls:
    def __init__(self, cluster: Cluster, group: str, consumer: str, streams: Sequence[str]) -> None:
        self._cluster = cluster
        self._group = group
        self._consumer = consumer
        self._streams = streams
        self.last_error: BasculeError | None = None
        """Why nobody answered."""

    async def make(self, action: Action, timeout: float) -> Outcome:
        """Raises what does not pass by itself."""
        try:
            return await self._make(action, timeout)
        except PASSING as error:
            self._cluster.connections.check_open()
            self.last_error = error
            return Unreachable()

    async def _make(self, action: Action, timeout: float) -> Outcome:
        deadline = Deadline(timeout)
        match action:
            case Join():
                return await self._join(deadline)
            case Leave():
                return await self._leave(deadline)
            case Heartbeat(coordinator, epoch):
                return await self._heartbeat(coordinator, epoch, timeout)
            case Report(coordinator, epoch):
                return await self._report(coordinator, epoch, deadline)
            case _:
                found = (await self._cluster.refresh(self._streams, deadline, [self._group])).groups.get(self._group)
                return NoGroup() if found is None else Described(found.coordinator, found.epoch)

    async def _join(self, deadline: Deadline) -> Outcome:
        await self._cluster.refresh(self._streams, deadline)  # the coordinator's address is among those of all brokers
        request = pb.JoinConsumerGroupRequest(groupId=self._group, consumerId=self._consumer, streams=self._streams)
        try:
            answer = await self._any("JoinConsumerGroup", request.SerializeToString(), deadline)
        except FailedPrecondition as error:
            if str(error) == ALREADY_A_MEMBER:
                return AlreadyMember()
            if str(error) == NO_SUCH_STREAM:
                missing = ", ".join(self._streams)
                raise FailedPrecondition(
                    f"the stream does not exist, or one of them: group {self._group} asks for {missing}. "
                    "`create_stream` creates it"
                ) from None
            raise
        joined = pb.JoinConsumerGroupResponse.FromString(answer)
        return Joined(
            joined.coordinator, joined.epoch, joined.consumerTimeout / 1e9, max(joined.coordinatorTimeout / 1e9, 0.1)
        )

    async def _leave(self, deadline: Deadline) -> Outcome:
        request = pb.LeaveConsumerGroupRequest(groupId=self._group, consumerId=self._consumer)
        try:
            await self._any("LeaveConsumerGroup", request.SerializeToString(), deadline)
        except NotFound:
            return NoGroup()
        except FailedPrecondition as error:
            if str(error) == NOT_A_MEMBER:
                return NoMember()
            raise
        return Done()

    async def _heartbeat(self, coordinator: str, epoch: int, timeout: float) -> Outcome:
        request = pb.FetchConsumerGroupAssignmentsRequest(
            groupId=self._group, consumerId=self._consumer, epoch=epoch
        ).SerializeToString()
        method = "/proto.API/FetchConsumerGroupAssignments"
        try:
            answer = await self._cluster.ask_broker(coordinator, method, request, timeout)
        except NotFound:
            return NoGroup()
        except FailedPrecondition as error:
            return NoMember() if str(error) == NOT_A_MEMBER else Refused()
        given = pb.FetchConsumerGroupAssignmentsResponse.FromString(answer)
        names = [(each.stream, number) for each in given.assignments for number in each.partitions]
        return Assigned(given.epoch, frozenset(names))

    async def _report(self, coordinator: str, epoch: int, deadline: Deadline) -> Outcome:
        request = pb.ReportConsumerGroupCoordinatorRequest(
            groupId=self._group, consumerId=self._consumer, coordinator=coordinator, epoch=epoch
        )
        try:
            await self._any("ReportConsumerGroupCoordinator", request.SerializeToString(), deadline)
        except FailedPrecondition:
            pass  # another coordinator, or nobody who could be
        except NotFound:
            return NoGroup()
        return Done()

    async def _any(self, method: str, request: bytes, deadline: Deadline) -> bytes:
        return await self._cluster.ask_any(f"/proto.API/{method}", request, deadline)
