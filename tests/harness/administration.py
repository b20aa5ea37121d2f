"""Requests of an administrator to brokers in memory."""

import asyncio
from collections.abc import Mapping
from typing import Any

from bascule.errors import Status
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from tests.harness.broker import split
from tests.harness.members import Member, three

RESPONSES: dict[str, Any] = {
    "ClusterStatus": admin.ClusterStatusResponse,
    "DescribeStream": admin.DescribeStreamResponse,
    "DrainBroker": admin.DrainBrokerResponse,
    "UndrainBroker": admin.UndrainBrokerResponse,
    "RemoveBroker": admin.RemoveBrokerResponse,
    "ElectLeader": admin.ElectLeaderResponse,
    "ResumeStream": admin.ResumeStreamResponse,
    "SetHold": admin.SetHoldResponse,
    "RemoveHold": admin.RemoveHoldResponse,
    "AlterStream": admin.AlterStreamResponse,
    "DeleteRecords": admin.DeleteRecordsResponse,
    "ListGroups": admin.ListGroupsResponse,
    "DescribeGroup": admin.DescribeGroupResponse,
}


async def ask(member: Member, method: str, request: Any, timeout_s: float = 10.0) -> tuple[Status, str, Any]:
    call = MemoryCall(timeout_s)
    call.request(request.SerializeToString())
    assert member.process is not None
    methods: Mapping[str, Any] = member.broker.methods
    status, text = await member.process.start(call.run(methods[f"/bascule.v1.Admin/{method}"]))
    responses = split(bytes(call.responses))
    return status, text, RESPONSES[method].FromString(responses[0]) if responses else None


async def answer(member: Member, method: str, request: Any, timeout_s: float = 10.0) -> Any:
    status, text, response = await ask(member, method, request, timeout_s)
    assert status is Status.OK, (status, text)
    return response


async def refused(member: Member, method: str, request: Any) -> str:
    status, text, _ = await ask(member, method, request)
    assert status in (Status.FAILED_PRECONDITION, Status.NOT_FOUND, Status.INVALID_ARGUMENT), (status, text)
    return text


async def with_stream() -> tuple[MemoryNats, dict[str, Member]]:
    """Three brokers, with a stream `s` of three partitions on all of them."""
    nats = MemoryNats()
    members = await three(nats)
    await create(members)
    return nats, members


async def create(members: dict[str, Member], partitions: int = 3, factor: int = 3, name: str = "s") -> None:
    request = api.CreateStreamRequest(name=name, subject=name, partitions=partitions, replicationFactor=factor)
    assert (await members["a"].call("CreateStream", request))[0] is Status.OK


def controller_of(members: dict[str, Member]) -> Member:
    return next(m for m in members.values() if m.process is not None and m.broker.cluster.raft.is_leader)


def another(members: dict[str, Member], *names: str) -> Member:
    return next(m for m in members.values() if m.process is not None and m.name not in names)


def partitions_of(member: Member, name: str = "s") -> Any:
    stream = member.broker.cluster.metadata.stream(name)
    assert stream is not None
    return stream.partitions


async def publish(member: Member, value: bytes, partition: int = 0) -> None:
    """Until it is acked: leaders move meanwhile."""
    deadline = asyncio.get_running_loop().time() + 10
    while True:
        try:
            await member.publish("s", value, partition, timeout_s=0.5)
            return
        except AssertionError:
            assert asyncio.get_running_loop().time() < deadline


async def two_replicas(members: dict[str, Member], count: int) -> tuple[Member, Member, Member]:
    """A stream with so many messages: who leads it, who follows, and one that does not have it."""
    await create(members, 1, 2)
    item = partitions_of(members["a"])[0]
    leader = members[item.leader]
    follower = members[next(name for name in item.replicas if name != item.leader)]
    third = another(members, leader.name, follower.name)
    for number in range(count):
        await publish(third, b"%d" % number)
    return leader, follower, third


def watch(member: Member) -> list[str]:
    """What ends this broker."""
    member.ends.clear()
    return member.ends
