"""Every call passes the gate: it is counted, refused while the broker cannot answer, and admitted with what it is
about."""

import asyncio
from typing import Any

import pytest

from bascule.errors import FailedPrecondition, Status
from bascule.node.api.gate import CLUSTER, About, Gate, about_broker, about_group, about_stream, about_subject
from bascule.ports import Call
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import log_pb2 as bulk
from tests.harness.broker import Node

REQUESTS: dict[str, tuple[Any, About]] = {
    "/proto.API/CreateStream": (api.CreateStreamRequest(name="s", subject="t"), about_stream("s")),
    "/proto.API/DeleteStream": (api.DeleteStreamRequest(name="s"), about_stream("s")),
    "/proto.API/PauseStream": (api.PauseStreamRequest(name="s"), about_stream("s")),
    "/proto.API/SetStreamReadonly": (api.SetStreamReadonlyRequest(name="s"), about_stream("s")),
    "/proto.API/FetchMetadata": (api.FetchMetadataRequest(streams=["s", "r"]), about_stream("s", "r")),
    "/proto.API/FetchPartitionMetadata": (api.FetchPartitionMetadataRequest(stream="s"), about_stream("s")),
    "/proto.API/Publish": (api.PublishRequest(stream="s"), about_stream("s")),
    "/proto.API/PublishToSubject": (api.PublishToSubjectRequest(subject="t"), about_subject("t")),
    "/proto.API/Subscribe": (api.SubscribeRequest(stream="s"), about_stream("s")),
    "/proto.API/SetCursor": (api.SetCursorRequest(stream="s"), about_stream("s")),
    "/proto.API/FetchCursor": (api.FetchCursorRequest(stream="s"), about_stream("s")),
    "/proto.API/JoinConsumerGroup": (api.JoinConsumerGroupRequest(groupId="g"), about_group("g")),
    "/proto.API/LeaveConsumerGroup": (api.LeaveConsumerGroupRequest(groupId="g"), about_group("g")),
    "/proto.API/FetchConsumerGroupAssignments": (
        api.FetchConsumerGroupAssignmentsRequest(groupId="g"),
        about_group("g"),
    ),
    "/proto.API/ReportConsumerGroupCoordinator": (
        api.ReportConsumerGroupCoordinatorRequest(groupId="g"),
        about_group("g"),
    ),
    "/bascule.v1.Admin/ClusterStatus": (admin.ClusterStatusRequest(), CLUSTER),
    "/bascule.v1.Admin/DescribeStream": (admin.DescribeStreamRequest(stream="s"), about_stream("s")),
    "/bascule.v1.Admin/DrainBroker": (admin.DrainBrokerRequest(broker="b"), about_broker("b")),
    "/bascule.v1.Admin/UndrainBroker": (admin.UndrainBrokerRequest(broker="b"), about_broker("b")),
    "/bascule.v1.Admin/RemoveBroker": (admin.RemoveBrokerRequest(broker="b"), about_broker("b")),
    "/bascule.v1.Admin/ElectLeader": (admin.ElectLeaderRequest(stream="s"), about_stream("s")),
    "/bascule.v1.Admin/ResumeStream": (admin.ResumeStreamRequest(stream="s"), about_stream("s")),
    "/bascule.v1.Admin/SetHold": (admin.SetHoldRequest(stream="s"), about_stream("s")),
    "/bascule.v1.Admin/AlterStream": (admin.AlterStreamRequest(stream="s"), about_stream("s")),
    "/bascule.v1.Admin/RemoveHold": (admin.RemoveHoldRequest(stream="s"), about_stream("s")),
    "/bascule.v1.Log/Read": (bulk.ReadRequest(stream="s"), about_stream("s")),
}
ANSWERED_BY_THE_METADATA = {
    "PauseStream",
    "SetStreamReadonly",
    "FetchMetadata",
    "FetchPartitionMetadata",
    "Publish",
    "PublishAsync",
    "Subscribe",
    "SetCursor",
    "FetchCursor",
    "JoinConsumerGroup",
    "LeaveConsumerGroup",
    "FetchConsumerGroupAssignments",
    "ReportConsumerGroupCoordinator",
    "ResumeStream",
    "SetHold",
    "RemoveHold",
    "Read",
    "AlterStream",
}


async def called(node: Node, path: str) -> tuple[Status, str]:
    call = MemoryCall(1.0, peer_common_name="alice")
    if path in REQUESTS:
        call.request(REQUESTS[path][0].SerializeToString())
    call.half_close()
    handler: Any = node.methods[path]
    return await call.run(handler)


def test_every_method_passes_with_what_it_is_about_and_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: dict[str, tuple[About, Any, str | None]] = {}

    def admit(gate: Gate, method: str, about: About, request: Any, call: Call) -> None:
        passed[method] = (about, request, call.peer_common_name)
        raise FailedPrecondition("not this client")

    monkeypatch.setattr(Gate, "admit", admit)

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        for path in node.methods:
            assert await called(node, path) == (Status.FAILED_PRECONDITION, "not this client"), path
        names = {path: path.rpartition("/")[2] for path in node.methods}
        assert passed.keys() == set(names.values())
        for path, name in names.items():
            request, about = REQUESTS.get(path, (None, passed[name][0]))
            assert passed[name] == (about, request, "alice")
        counted = next(each for each in node.broker.environment.metrics.read() if each.name == "bascule_calls_total")
        assert counted.values == dict.fromkeys(passed, 1)

    run(main())


def test_no_method_is_answered_while_the_broker_stops() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.broker.stop()
        for path in node.methods:
            assert await called(node, path) == (Status.UNAVAILABLE, "the broker is stopping"), path

    run(main())


def test_what_the_metadata_answers_waits_until_the_broker_has_caught_up() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        node.broker.manager.caught_up = False
        for path in node.methods:
            async with asyncio.timeout(10):
                _, text = await called(node, path)
            name = path.rpartition("/")[2]
            assert ("caught up" in text) == (name in ANSWERED_BY_THE_METADATA or name == "DescribeStream"), path

    run(main())
