"""Every call passes the gate: it is counted, refused while the broker cannot answer, and admitted with what it is
about."""

import asyncio
from typing import Any

import pytest

from bascule.errors import FailedPrecondition, PermissionDenied, Status
from bascule.node.api.gate import (
    ALL_STREAMS,
    CLUSTER,
    ITS_MESSAGES,
    About,
    Gate,
    about_broker,
    about_group,
    about_stream,
    about_subject,
)
from bascule.node.config.broker import ActivitySettings
from bascule.ports import Call
from bascule.testing.bus import MemoryNats
from bascule.testing.call import MemoryCall
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire.pb import admin_pb2 as admin
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import log_pb2 as bulk
from bascule.wire.pb import producer_pb2 as producer
from tests.harness.broker import Node, split

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
    "/bascule.v1.Admin/ListGroups": (admin.ListGroupsRequest(), CLUSTER),
    "/bascule.v1.Admin/DescribeGroup": (admin.DescribeGroupRequest(group="g"), about_group("g")),
    "/bascule.v1.Admin/AlterStream": (admin.AlterStreamRequest(stream="s"), about_stream("s")),
    "/bascule.v1.Admin/RemoveHold": (admin.RemoveHoldRequest(stream="s"), about_stream("s")),
    "/bascule.v1.Admin/DeleteRecords": (admin.DeleteRecordsRequest(stream="s"), about_stream("s")),
    "/bascule.v1.Producers/InitProducer": (producer.InitProducerRequest(stream="s"), about_stream("s")),
    "/bascule.v1.Producers/PublishBatch": (
        producer.PublishBatchRequest(stream="s", messages=b"\0\0\0\0\0"),
        about_stream("s"),
    ),
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
    "DeleteRecords",
    "RemoveHold",
    "Read",
    "Write",
    "InitProducer",
    "PublishBatch",
    "AlterStream",
    "ListGroups",
    "DescribeGroup",
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
            request, about = REQUESTS.get(path, (None, ITS_MESSAGES))
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


def test_what_names_no_stream_is_about_all_of_them_or_about_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three values: an authorization that takes one for another lets too much pass, or nothing."""
    passed: dict[str, About] = {}

    def admit(gate: Gate, method: str, about: About, request: Any, call: Call) -> None:
        passed[method] = about

    monkeypatch.setattr(Gate, "admit", admit)

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.call("FetchMetadata", api.FetchMetadataRequest(groups=["g"]))
        await called(node, "/proto.API/PublishAsync")
        await called(node, "/bascule.v1.Admin/ClusterStatus")
        assert passed == {"FetchMetadata": ALL_STREAMS, "PublishAsync": ITS_MESSAGES, "ClusterStatus": CLUSTER}
        assert len({ALL_STREAMS, ITS_MESSAGES, CLUSTER}) == 3
        with pytest.raises(AssertionError):
            about_stream()

    run(main())


# --- the messages of a PublishAsync --------------------------------------------------------------------------------


async def publish_all(node: Node, *streams: str) -> list[api.PublishResponse]:
    call = MemoryCall(5.0, peer_common_name="alice")
    for number, stream in enumerate(streams):
        request = api.PublishRequest(stream=stream, value=b"v", correlationId=str(number), ackPolicy=api.ALL)
        call.request(request.SerializeToString())
    call.half_close()
    assert (await call.run(node.handler("PublishAsync")))[0] is Status.OK
    answers = [api.PublishResponse.FromString(data) for data in split(bytes(call.responses))]
    return sorted(answers, key=lambda answer: answer.correlationId)


def refuse(monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    """Messages of PublishAsync to this stream, of alice."""

    def admit_message(gate: Gate, message: api.PublishRequest, call: Call) -> None:
        if (message.stream, call.peer_common_name) == (stream, "alice"):
            raise PermissionDenied("not this client")

    monkeypatch.setattr(Gate, "admit_message", admit_message)


def test_a_message_of_a_client_that_is_refused_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        for name in ("open", "secret"):
            await node.create(name)
        refuse(monkeypatch, "secret")
        monkeypatch.setattr(Gate, "checks_each_message", lambda gate, call: call.peer_common_name == "alice")
        answers = await publish_all(node, "secret", "open", "nope", "secret")
        code = api.PublishAsyncError
        assert [answer.asyncError.code for answer in answers] == [
            code.PERMISSION_DENIED,
            code.UNKNOWN,  # none
            code.NOT_FOUND,
            code.PERMISSION_DENIED,
        ]
        assert [answer.HasField("asyncError") for answer in answers] == [True, False, True, True]
        assert answers[0].asyncError.message == "not this client"
        assert await node.read("secret") == []
        assert await node.read("open") == [(0, b"v")]
        counted = {each.name: each.values for each in node.broker.environment.metrics.read()}
        assert counted["bascule_refused_messages_total"] == {"permission_denied": 2, "not_found": 1}

    run(main())


def test_a_message_is_counted_whatever_the_gate_refuses_it_with(monkeypatch: pytest.MonkeyPatch) -> None:
    def admit_message(gate: Gate, message: api.PublishRequest, call: Call) -> None:
        raise FailedPrecondition("not now")

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        monkeypatch.setattr(Gate, "admit_message", admit_message)
        (answer,) = await publish_all(node, "nope")
        assert (answer.asyncError.code, answer.asyncError.message) == (api.PublishAsyncError.INTERNAL, "not now")
        counted = {each.name: each.values for each in node.broker.environment.metrics.read()}
        assert counted["bascule_refused_messages_total"] == {"failed_precondition": 1}

    run(main())


def test_a_paused_partition_is_not_resumed_for_a_client_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused partition is singled out, whoever publishes."""

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("secret")
        assert (await node.call("PauseStream", api.PauseStreamRequest(name="secret")))[0] is Status.OK
        refuse(monkeypatch, "secret")
        (answer,) = await publish_all(node, "secret")
        assert answer.asyncError.code == api.PublishAsyncError.PERMISSION_DENIED
        item = node.broker.cluster.metadata.partition("secret", 0)
        assert item is not None
        assert item.paused

    run(main())


def test_the_kernel_publishes_what_is_not_checked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a check of messages, only those that need an answer of their own pass."""
    passed = []
    monkeypatch.setattr(Gate, "admit_message", lambda gate, message, call: passed.append(message.stream))

    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats()).start()
        await node.create("s")
        await publish_all(node, "s", "nope", "s")
        assert passed == ["nope"]
        assert len(await node.read("s")) == 2

    run(main())


def test_what_the_broker_itself_publishes_passes_no_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        node = await Node(MemoryDisk(), MemoryNats(), activity=ActivitySettings(enabled=True)).start()
        await asyncio.sleep(5)

        def refuse_all(*arguments: Any) -> None:
            raise PermissionDenied("nobody")

        monkeypatch.setattr(Gate, "admit_message", refuse_all)
        monkeypatch.setattr(Gate, "admit", refuse_all)
        await node.broker.client.pause_stream("__activity", (0,), False, 5.0)
        await asyncio.sleep(5)
        monkeypatch.undo()
        replica = node.broker.replicas.find("__activity", 0)
        assert replica is not None
        assert replica.log.end > 1

    run(main())
