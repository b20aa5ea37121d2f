"""The calls of `bascule.v1.Admin` about consumer groups: which there are, and who reads what. How far they are is not
known here: their members keep that in cursors."""

import asyncio

from bascule.core.groups.changes import NO_SUCH_GROUP
from bascule.errors import InvalidArgument, NotFound
from bascule.limits import GROUPS_SLICE
from bascule.node.api.gate import CLUSTER, Service, about_group
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.peers import SESSION_S
from bascule.ports import Call
from bascule.wire.pb import admin_pb2 as admin


class GroupAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def register(self, service: Service) -> None:
        service.unary(
            "ListGroups", admin.ListGroupsRequest, self.list_groups, lambda request: CLUSTER, needs_metadata=True
        )
        service.unary(
            "DescribeGroup",
            admin.DescribeGroupRequest,
            self.describe_group,
            lambda request: about_group(request.group),
            needs_metadata=True,
        )

    async def list_groups(self, request: admin.ListGroupsRequest, call: Call) -> admin.ListGroupsResponse:
        await self._cluster.current(SESSION_S)
        response = admin.ListGroupsResponse()
        groups = self._cluster.metadata.groups
        for number, name in enumerate(sorted(groups)):
            if number % GROUPS_SLICE == GROUPS_SLICE - 1:
                await asyncio.sleep(0)
            if (group := groups.get(name)) is not None:
                response.groups.add(
                    group=name,
                    coordinator=group.coordinator,
                    epoch=group.epoch,
                    members=len(group.members),
                    partitions=group.partitions,
                )
        return response

    async def describe_group(self, request: admin.DescribeGroupRequest, call: Call) -> admin.DescribeGroupResponse:
        if not request.group:
            raise InvalidArgument("no group is named")
        await self._cluster.current(SESSION_S)
        group = self._cluster.metadata.groups.get(request.group)
        if group is None:
            raise NotFound(NO_SUCH_GROUP)
        response = admin.DescribeGroupResponse(group=group.id, coordinator=group.coordinator, epoch=group.epoch)
        for number, (name, member) in enumerate(sorted(group.members.items())):
            if number % GROUPS_SLICE == GROUPS_SLICE - 1:
                await asyncio.sleep(0)
            response.members.add(
                consumer=name,
                streams=member.streams,
                assignments=[
                    admin.GroupAssignment(stream=stream, partitions=numbers)
                    for stream, numbers in sorted(member.assigned.items())
                ],
            )
        return response
