"""Consumer groups: the four calls of their members, checked in the protocol's order, with its exact codes and texts."""

from bascule.core.groups.changes import NO_SUCH_GROUP, NOT_A_MEMBER, check_ids, check_streams
from bascule.core.groups.group import Group
from bascule.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from bascule.node.api.gate import Service, about_group
from bascule.node.config.broker import GroupSettings
from bascule.node.groups.expiry import MemberExpiry
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.controllerclient import ControllerClient
from bascule.node.membership.lease import Lease
from bascule.node.membership.peers import SESSION_S
from bascule.ports import Call
from bascule.wire.pb import api_pb2 as api


class GroupsApi:
    def __init__(
        self,
        own: str,
        settings: GroupSettings,
        cluster: Cluster,
        client: ControllerClient,
        lease: Lease,
        expiry: MemberExpiry,
    ) -> None:
        self._own = own
        self._settings = settings
        self._cluster = cluster
        self._client = client
        self._lease = lease
        self._expiry = expiry

    def register(self, service: Service) -> None:
        service.changing(
            "JoinConsumerGroup",
            api.JoinConsumerGroupRequest,
            self.join,
            lambda request: about_group(request.groupId),
            needs_metadata=True,
        )
        service.changing(
            "LeaveConsumerGroup",
            api.LeaveConsumerGroupRequest,
            self.leave,
            lambda request: about_group(request.groupId),
            needs_metadata=True,
        )
        service.unary(
            "FetchConsumerGroupAssignments",
            api.FetchConsumerGroupAssignmentsRequest,
            self.fetch_assignments,
            lambda request: about_group(request.groupId),
            needs_metadata=True,
        )
        service.changing(
            "ReportConsumerGroupCoordinator",
            api.ReportConsumerGroupCoordinatorRequest,
            self.report_coordinator,
            lambda request: about_group(request.groupId),
            needs_metadata=True,
        )

    async def join(self, request: api.JoinConsumerGroupRequest, call: Call) -> api.JoinConsumerGroupResponse:
        check_ids(request.groupId, request.consumerId)
        check_streams(request.streams)
        streams = tuple(dict.fromkeys(request.streams))
        index = await self._client.join_group(request.groupId, request.consumerId, streams, call.time_remaining())
        group = self._group(request.groupId)
        if group is None or request.consumerId not in group.members:
            raise Unavailable("the consumer group has changed meanwhile; join again")
        return api.JoinConsumerGroupResponse(
            coordinator=group.coordinator,
            epoch=0 if index == group.created else index,
            consumerTimeout=self._settings.consumer_timeout_ns,
            coordinatorTimeout=self._settings.coordinator_timeout_ns,
        )

    async def leave(self, request: api.LeaveConsumerGroupRequest, call: Call) -> api.LeaveConsumerGroupResponse:
        check_ids(request.groupId, request.consumerId)
        await self._client.leave_group(request.groupId, request.consumerId, call.time_remaining())
        return api.LeaveConsumerGroupResponse()

    async def fetch_assignments(
        self, request: api.FetchConsumerGroupAssignmentsRequest, call: Call
    ) -> api.FetchConsumerGroupAssignmentsResponse:
        """The heartbeat of a member: only one that is answered counts. A broker that may be partitioned from the
        cluster does not answer: its members look for another coordinator, which there may be by now."""
        check_ids(request.groupId, request.consumerId)
        group = self._group(request.groupId)
        behind = group is None or request.epoch > group.epoch
        if behind or self._lease.overdue:
            await self._cluster.current(SESSION_S)
            group = self._group(request.groupId)
        if group is None:
            raise NotFound(NO_SUCH_GROUP)
        if group.coordinator != self._own:
            raise FailedPrecondition("broker is not the consumer group coordinator")
        if not group.is_at(request.epoch):
            raise FailedPrecondition("client-provided group epoch differs from broker group epoch")
        member = group.members.get(request.consumerId)
        if member is None:
            raise FailedPrecondition(NOT_A_MEMBER)
        self._expiry.heard(group, request.consumerId)
        return api.FetchConsumerGroupAssignmentsResponse(
            epoch=group.epoch,
            assignments=[
                api.PartitionAssignment(stream=stream, partitions=numbers)
                for stream, numbers in sorted(member.assigned.items())
            ],
        )

    async def report_coordinator(
        self, request: api.ReportConsumerGroupCoordinatorRequest, call: Call
    ) -> api.ReportConsumerGroupCoordinatorResponse:
        check_ids(request.groupId, request.consumerId)
        if not request.coordinator:
            raise InvalidArgument("No coordinator provided")
        await self._client.report_coordinator(
            request.groupId, request.consumerId, request.coordinator, request.epoch, call.time_remaining()
        )
        return api.ReportConsumerGroupCoordinatorResponse()

    def describe(self, name: str) -> api.ConsumerGroupMetadata:
        group = self._group(name)
        if group is None:
            return api.ConsumerGroupMetadata(groupId=name, error=api.ConsumerGroupMetadata.UNKNOWN_GROUP)
        return api.ConsumerGroupMetadata(groupId=name, coordinator=group.coordinator, epoch=group.epoch)

    def _group(self, name: str) -> Group | None:
        return self._cluster.metadata.groups.get(name)
