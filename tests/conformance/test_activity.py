"""The activity stream: what happens to streams and groups, as events."""

from itertools import pairwise
from typing import Any

import grpc
import pytest

from bascule.testing.processes import poll
from bascule.wire.pb import api_pb2 as api
from tests.harness.conformance import TIMEOUT_S, Server, status, unique

SETTINGS = {"activity.stream.enabled": "true", "cursors.stream.partitions": 1}

CREATED = (grpc.StatusCode.OK, grpc.StatusCode.ALREADY_EXISTS)


def events(server: Server) -> list[api.ActivityStreamEvent]:
    """All so far. Events come at least once: what comes again has the same id, and counts once."""
    by_id: dict[int, api.ActivityStreamEvent] = {}
    for message in server.stored("__activity"):
        event = api.ActivityStreamEvent.FromString(message.value)
        assert by_id.setdefault(event.id, event) == event
    return list(by_id.values())


def about(server: Server, name: str, count: int) -> list[Any]:
    """The first so many events about a stream or a group, each as the message of its operation."""
    kinds = {
        api.CREATE_STREAM: "createStreamOp",
        api.DELETE_STREAM: "deleteStreamOp",
        api.PAUSE_STREAM: "pauseStreamOp",
        api.RESUME_STREAM: "resumeStreamOp",
        api.SET_STREAM_READONLY: "setStreamReadonlyOp",
        api.JOIN_CONSUMER_GROUP: "joinConsumerGroupOp",
        api.LEAVE_CONSUMER_GROUP: "leaveConsumerGroupOp",
    }

    def found() -> list[Any]:
        operations = []
        for event in events(server):
            (field, operation) = next((each, value) for each, value in event.ListFields() if each.name.endswith("Op"))
            assert field.name == kinds[event.op], "exactly the one that matches op is set"
            assert sum(each.name.endswith("Op") for each, _ in event.ListFields()) == 1
            if name in (getattr(operation, "stream", ""), getattr(operation, "groupId", "")):
                operations.append(operation)
        return operations

    assert poll(lambda: len(found()) >= count, TIMEOUT_S), found()
    return found()


def test_the_first_event_is_its_own_creation(server: Server) -> None:
    """3.21: the first event is the creation of __activity; 7.9 TestActivityStreamCreateStream."""
    assert poll(lambda: bool(events(server)), TIMEOUT_S)
    first = events(server)[0]
    assert (first.op, first.createStreamOp.stream) == (api.CREATE_STREAM, "__activity")


def test_the_creation_of_the_stream_of_cursors(server: Server) -> None:
    """3.21: the creation of __cursors appears, too."""
    assert about(server, "__cursors", 1)[0] == api.CreateStreamOp(stream="__cursors", partitions=[0])


def test_the_activity_stream(server: Server) -> None:
    """3.21: one partition on every server, subject <ns>.activity."""
    described = server.described("__activity")
    assert described.subject.endswith(".activity")
    (item,) = described.partitions.values()
    assert sorted(item.replicas) == sorted(server.every)


def test_streams_are_created_and_deleted(server: Server) -> None:
    """3.21: CREATE_STREAM and DELETE_STREAM; 7.9 TestActivityStreamDeleteStream."""
    name = server.create(partitions=2)
    server.delete(name)
    assert about(server, name, 2) == [
        api.CreateStreamOp(stream=name, partitions=[0, 1]),
        api.DeleteStreamOp(stream=name),
    ]


def test_partitions_are_paused_and_resumed(server: Server) -> None:
    """3.21: PAUSE_STREAM and RESUME_STREAM; 7.9 TestActivityStreamPauseStream; 7.9 TestActivityStreamResumeStream."""
    name = server.create(partitions=2)
    server.pause(name, 1, resume_all=True)
    server.publish(name, partition=1)
    assert about(server, name, 3)[1:] == [
        api.PauseStreamOp(stream=name, partitions=[1], resumeAll=True),
        api.ResumeStreamOp(stream=name, partitions=[1]),
    ]


def test_an_idle_partition_is_paused(server: Server) -> None:
    """3.21: auto-pause yields PAUSE_STREAM."""
    name = server.create(autoPauseTime=api.NullableInt64(value=200))
    assert about(server, name, 2)[1] == api.PauseStreamOp(stream=name, partitions=[0])


def test_partitions_are_set_readonly_and_writable(server: Server) -> None:
    """3.21: SET_STREAM_READONLY; 7.9 TestActivityStreamSetStreamReadonly; 7.9 TestActivityStreamSetStreamReadwrite."""
    name = server.create(partitions=2)
    server.set_readonly(name, 0)
    server.set_readonly(name, 0, readonly=False)
    assert about(server, name, 3)[1:] == [
        api.SetStreamReadonlyOp(stream=name, partitions=[0], readonly=True),
        api.SetStreamReadonlyOp(stream=name, partitions=[0]),
    ]


def test_an_event_for_each_request(server: Server) -> None:
    """1.5 PauseStream: pausing again produces an event again."""
    name = server.create()
    for _ in range(2):
        server.pause(name, 0)
    operations = about(server, name, 3)[1:]
    assert operations == [api.PauseStreamOp(stream=name, partitions=[0])] * 2


def test_members_join_and_leave(server: Server) -> None:
    """3.21: JOIN_CONSUMER_GROUP and LEAVE_CONSUMER_GROUP; 7.9 TestActivityStreamJoinLeaveConsumerGroup."""
    name, group = server.create(), unique("group")
    for consumer in "ab":
        joining = api.JoinConsumerGroupRequest(groupId=group, consumerId=consumer, streams=[name])
        server.any.JoinConsumerGroup(joining, timeout=TIMEOUT_S)
    leaving = api.LeaveConsumerGroupRequest(groupId=group, consumerId="a")
    server.any.LeaveConsumerGroup(leaving, timeout=TIMEOUT_S)
    assert about(server, group, 3) == [
        api.JoinConsumerGroupOp(groupId=group, consumerId="a", streams=[name]),
        api.JoinConsumerGroupOp(groupId=group, consumerId="b", streams=[name]),
        api.LeaveConsumerGroupOp(groupId=group, consumerId="a"),
    ]


def test_ids_only_rise(server: Server) -> None:
    """3.21: ordered, with ids that strictly increase."""
    name = server.create()
    about(server, name, 1)
    assert all(one.id < other.id for one, other in pairwise(events(server)))
    assert all(message.key == b"" for message in server.stored("__activity"))


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_events_go_on_after_a_restart(fresh: Server, kill: bool) -> None:
    """3.21: at least once, also over a restart; 11.17: ids survive."""
    before, paused = fresh.create("before"), fresh.create("paused")
    fresh.pause(paused, 0)
    for process in fresh.processes.values():
        process.kill9() if kill else process.terminate()
    for process in fresh.processes.values():
        process.start()
    for process in fresh.processes.values():
        process.wait_ready()
    creation = api.CreateStreamRequest(name="after", subject="after")
    assert poll(lambda: status(fresh.any.CreateStream, creation)[0] in CREATED, TIMEOUT_S)
    assert [type(each) for each in about(fresh, paused, 2)] == [api.CreateStreamOp, api.PauseStreamOp]
    assert len(about(fresh, before, 1)) == 1
    assert len(about(fresh, creation.name, 1)) == 1
    assert all(one.id < other.id for one, other in pairwise(events(fresh)))
