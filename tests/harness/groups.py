"""Members of consumer groups, as a test plays them on brokers in memory."""

from typing import Any

from bascule.errors import Status
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import Node
from tests.harness.members import Member

Assigned = dict[str, tuple[int, ...]]


async def join(
    at: Node | Member, consumer: str, *streams: str, group: str = "g", timeout_s: float | None = 5.0
) -> api.JoinConsumerGroupResponse:
    request = api.JoinConsumerGroupRequest(groupId=group, consumerId=consumer, streams=streams)
    status, text, responses = await at.call("JoinConsumerGroup", request, timeout_s)
    assert status is Status.OK, (status, text)
    return api.JoinConsumerGroupResponse.FromString(responses[0])


async def leave(at: Node | Member, consumer: str, group: str = "g") -> tuple[Status, str]:
    request = api.LeaveConsumerGroupRequest(groupId=group, consumerId=consumer)
    return (await at.call("LeaveConsumerGroup", request))[:2]


async def fetch(at: Node | Member, consumer: str, epoch: int, group: str = "g") -> tuple[Status, str, int, Assigned]:
    request = api.FetchConsumerGroupAssignmentsRequest(groupId=group, consumerId=consumer, epoch=epoch)
    status, text, responses = await at.call("FetchConsumerGroupAssignments", request)
    answer = api.FetchConsumerGroupAssignmentsResponse.FromString(b"".join(responses))
    return status, text, answer.epoch, {each.stream: tuple(each.partitions) for each in answer.assignments}


async def assigned(at: Node | Member, consumer: str, epoch: int, group: str = "g") -> Assigned:
    status, text, _, held = await fetch(at, consumer, epoch, group)
    assert status is Status.OK, (status, text)
    return held


async def report(
    at: Node | Member, consumer: str, coordinator: str, epoch: int, group: str = "g"
) -> tuple[Status, str]:
    request = api.ReportConsumerGroupCoordinatorRequest(
        groupId=group, consumerId=consumer, coordinator=coordinator, epoch=epoch
    )
    return (await at.call("ReportConsumerGroupCoordinator", request))[:2]


async def described(at: Node | Member, group: str = "g") -> api.ConsumerGroupMetadata:
    _, _, responses = await at.call("FetchMetadata", api.FetchMetadataRequest(groups=[group]))
    (found,) = api.FetchMetadataResponse.FromString(b"".join(responses)).groupMetadata
    return found


async def create(at: Any, name: str, partitions: int = 1, replication: int = 1) -> None:
    request = api.CreateStreamRequest(name=name, subject=name, partitions=partitions, replicationFactor=replication)
    status, text, _ = await at.call("CreateStream", request)
    assert status is Status.OK, text
