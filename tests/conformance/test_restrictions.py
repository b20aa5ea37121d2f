"""Partitions that are paused, resumed, and set read-only."""

import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from bascule.testing.processes import poll
from bascule.wire.pb import api_pb2 as api
from tests.harness.conformance import TIMEOUT_S, Outcome, Server, status, unique

NOT_FOUND = grpc.StatusCode.NOT_FOUND
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
CLOSED = (PRECONDITION, "commit log was closed")

Call = Callable[..., Outcome]


def pause(server: Server, **fields: Any) -> Outcome:
    return status(server.any.PauseStream, api.PauseStreamRequest(**fields))


def readonly(server: Server, **fields: Any) -> Outcome:
    request = api.SetStreamReadonlyRequest(readonly=True, **fields)
    return status(server.any.SetStreamReadonly, request)


def paused(server: Server, name: str) -> list[int]:
    return sorted(number for number, item in server.described(name).partitions.items() if item.paused)


BOTH = pytest.mark.parametrize("call", [pause, readonly], ids=["PauseStream", "SetStreamReadonly"])


@BOTH
def test_all_partitions_of_an_unknown_stream(server: Server, call: Call) -> None:
    """1.5 PauseStream: unknown stream without partitions; 1.5 SetStreamReadonly: unknown stream without partitions."""
    assert call(server, name=unique("unknown")) == (NOT_FOUND, "stream not found")


@BOTH
def test_some_partitions_of_an_unknown_stream(server: Server, call: Call) -> None:
    """1.5 PauseStream: unknown stream with partitions; 1.5 SetStreamReadonly: unknown stream with partitions."""
    assert call(server, name=unique("unknown"), partitions=[0]) == (NOT_FOUND, "stream does not exist")


@BOTH
@pytest.mark.parametrize("partition", [1, -1])
def test_an_unknown_partition(server: Server, call: Call, partition: int) -> None:
    """1.5 PauseStream: partition missing; 1.5 SetStreamReadonly: partition missing."""
    name = server.create()
    assert call(server, name=name, partitions=[0, partition]) == (NOT_FOUND, "partition does not exist")
    item = server.described(name).partitions[0]
    assert (item.paused, item.readonly) == (False, False), "all or nothing"


@BOTH
def test_it_may_be_done_twice(server: Server, call: Call) -> None:
    """1.5 PauseStream: idempotent; 1.5 SetStreamReadonly: idempotent."""
    name = server.create()
    for _ in range(2):
        assert call(server, name=name) == (grpc.StatusCode.OK, "")


# --- pausing -------------------------------------------------------------------------------------------------


def test_all_partitions_are_paused(server: Server) -> None:
    """3.11: pause; 7.5 TestPauseStreamAllPartitions."""
    name = server.create(partitions=3)
    server.pause(name)
    assert paused(server, name) == [0, 1, 2]
    server.publish(name, partition=1)
    server.shows(name, (1,), lambda item: not item.paused)
    assert paused(server, name) == [0, 2], "a publish resumes its partition alone"


def test_some_partitions_are_paused(server: Server) -> None:
    """7.5 TestPauseStreamSomePartitions."""
    name = server.create(partitions=3)
    server.pause(name, 0, 2)
    assert paused(server, name) == [0, 2]
    assert server.publish(name, partition=1).offset == 0
    assert paused(server, name) == [0, 2]


@pytest.mark.parametrize("partitions", [(), (0, 2)], ids=["all", "some"])
def test_resume_all(server: Server, partitions: tuple[int, ...]) -> None:
    """3.11: resumeAll; 7.5 TestPauseStreamAllPartitions: resumeAll."""
    name = server.create(partitions=3)
    server.pause(name, *partitions, resume_all=True)
    server.publish(name, partition=2)
    server.shows(name, (), lambda item: not item.paused)


def test_publish_async_resumes(server: Server) -> None:
    """3.11: PublishAsync resumes."""
    name = server.create(partitions=2)
    server.pause(name)
    requests = [api.PublishRequest(stream=name, partition=1, correlationId=str(number)) for number in range(3)]
    answers = list(server.any.PublishAsync(iter(requests), timeout=TIMEOUT_S))
    assert sorted((each.correlationId, each.ack.offset) for each in answers) == [("0", 0), ("1", 1), ("2", 2)]
    server.shows(name, (1,), lambda item: not item.paused)
    assert paused(server, name) == [0]


def test_a_subscription_with_resume_resumes(server: Server) -> None:
    """3.11: Subscribe with resume resumes."""
    name = server.create(partitions=2)
    server.fill(name, 2, partition=1)
    server.pause(name)
    with server.reading(name, 1, resume=True) as reading:
        assert reading.offsets(2) == [0, 1]
    assert paused(server, name) == [0]


def test_a_subscription_with_resume_resumes_all(server: Server) -> None:
    """3.11: Subscribe with resume and resumeAll."""
    name = server.create(partitions=3)
    server.pause(name, resume_all=True)
    with server.reading(name, 1, resume=True):
        server.shows(name, (), lambda item: not item.paused)


def test_publish_to_subject_does_not_resume(server: Server) -> None:
    """3.11: PublishToSubject and raw NATS do not resume; 3.11: messages by NATS meanwhile are lost;
    1.5 PublishToSubject: never resumes."""
    name = server.create()
    server.fill(name, 1)
    server.pause(name)
    request = api.PublishToSubjectRequest(subject=name, value=b"lost")
    ended = status(server.any.PublishToSubject, request, 0.3)
    assert ended[0] is grpc.StatusCode.DEADLINE_EXCEEDED
    with server.nats() as nats:
        nats.publish(name.encode(), b"lost, too")
        nats.flush()
    assert paused(server, name) == [0]
    assert server.publish(name, b"resumes").offset == 1
    assert server.values(name) == [b"0", b"resumes"]


def test_subscribers_of_a_paused_partition_are_told(server: Server) -> None:
    """1.5 Subscribe: partition paused; 3.11: subscribers end; 7.3 TestSubscribePartitionPaused."""
    name = server.create()
    server.fill(name, 1)
    with server.reading(name) as reading:
        assert reading.offsets(1) == [0]
        server.pause(name)
        assert reading.rest() == ([], CLOSED)


@pytest.mark.parametrize("filled", [0, 2])
def test_subscribing_to_a_paused_partition_for_what_comes(server: Server, filled: int) -> None:
    """3.11: subscribing to a paused partition, NEW_ONLY."""
    name = server.create()
    server.fill(name, filled)
    server.pause(name)
    with server.reading(name, startPosition=api.NEW_ONLY) as reading:
        assert reading.rest() == ([], CLOSED)


def test_subscribing_to_an_empty_paused_partition(server: Server) -> None:
    """3.11: subscribing to a paused partition, empty log."""
    name = server.create()
    server.pause(name)
    with server.reading(name, startPosition=api.EARLIEST) as reading:
        assert reading.rest() == ([], CLOSED)


def test_subscribing_to_what_a_paused_partition_has(server: Server) -> None:
    """3.11: subscribing to a paused partition that has messages; 1.5 Subscribe: reader creation failed."""
    name = server.create()
    server.fill(name, 2)
    server.pause(name)
    text = "Failed to create stream reader: segment has been closed"
    ended = server.refusal(name, stub=server.leader(name), startPosition=api.EARLIEST)
    assert ended == (grpc.StatusCode.INTERNAL, text)


def test_subscribing_beyond_the_end_of_a_paused_partition(server: Server) -> None:
    """3.11: subscribing to a paused partition, start above the high watermark."""
    name = server.create()
    server.fill(name, 2)
    server.pause(name)
    with server.reading(name, startPosition=api.OFFSET, startOffset=2) as reading:
        assert reading.rest() == ([], CLOSED)


def test_what_was_stored_before_a_pause_is_there_after_it(server: Server) -> None:
    """3.11: a resumed partition goes on where it was."""
    name = server.create()
    for number in range(3):
        assert server.publish(name, b"%d" % number, ackPolicy=api.ALL).offset == number
        server.pause(name)
    server.publish(name, b"3", ackPolicy=api.ALL)
    assert server.values(name) == [b"0", b"1", b"2", b"3"]


@pytest.mark.differs("`paused` in the metadata after a resumption")
def test_a_resumed_partition_is_not_paused(server: Server) -> None:
    """3.11: after a resume paused is false; 11.5."""
    name = server.create()
    server.pause(name)
    server.publish(name)
    assert not server.partition(name).paused
    server.shows(name, (), lambda item: not item.paused)


@pytest.mark.differs("`readonly` after a snapshot, a pause or a restart")
def test_a_readonly_partition_is_readonly_after_a_pause(server: Server) -> None:
    """3.12: the flag holds after a pause and a resume; 11.5."""
    name = server.create()
    server.fill(name, 1)
    server.set_readonly(name)
    server.pause(name)
    request = api.PublishRequest(stream=name)
    refused = status(server.any.Publish, request)
    assert refused == (PRECONDITION, "readonly partition: 0")
    assert paused(server, name) == [0], "a publish that is refused resumes nothing"
    with server.reading(name, resume=True) as reading:
        received, ended = reading.rest()
    assert (len(received), ended[0]) == (1, EXHAUSTED)
    assert server.partition(name).readonly


def test_paused_partitions_are_not_counted(server: Server) -> None:
    """3.11: paused partitions do not count in partitionCount and leaderCount."""

    def counts() -> tuple[int, int]:
        """As each broker counts itself."""
        request = api.FetchMetadataRequest(streams=["-"])
        own = [stub.FetchMetadata(request, timeout=TIMEOUT_S).brokers[0] for stub in server.every.values()]
        return sum(each.partitionCount for each in own), sum(each.leaderCount for each in own)

    before = counts()
    name = server.create(partitions=2)
    more = (before[0] + 2 * len(server), before[1] + 2)
    assert poll(lambda: counts() == more, TIMEOUT_S)
    server.pause(name)
    assert poll(lambda: counts() == before, TIMEOUT_S), (counts(), before)


# --- auto-pause ----------------------------------------------------------------------------------------------

SOON = api.NullableInt64(value=300)


def test_an_idle_partition_is_paused(server: Server) -> None:
    """3.11: auto-pause; 7.5 TestPartitionAutoPause."""
    name = server.create(autoPauseTime=SOON)
    server.shows(name, (), lambda item: item.paused)
    assert server.publish(name, b"resumes").offset == 0
    server.shows(name, (), lambda item: item.paused)
    with server.reading(name, resume=True) as reading:
        assert reading.values(1) == [b"resumes"]


def test_a_busy_partition_is_not_paused(server: Server) -> None:
    """3.11: auto-pause counts from the last message."""
    name = server.create(autoPauseTime=api.NullableInt64(value=1500))
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        server.publish(name)
        assert paused(server, name) == []


def test_a_partition_with_subscribers_is_not_paused(server: Server) -> None:
    """3.11: autoPauseDisableIfSubscribers; 7.5 TestPartitionAutoPauseDisableIfSubscribers."""
    name = server.create(autoPauseTime=SOON, autoPauseDisableIfSubscribers=api.NullableBool(value=True))
    server.shows(name, (), lambda item: item.paused)
    with server.reading(name, resume=True):
        assert not poll(lambda: paused(server, name) == [0], 1.0)
    server.shows(name, (), lambda item: item.paused)


def test_subscribers_do_not_count_unless_asked_for(server: Server) -> None:
    """3.11: auto-pause with subscribers."""
    name = server.create(autoPauseTime=SOON)
    with server.reading(name, resume=True) as reading:
        assert reading.rest() == ([], CLOSED)


# --- read-only -----------------------------------------------------------------------------------------------


def test_all_partitions_are_readonly(server: Server) -> None:
    """3.12: gRPC publishes are refused; 7.5 TestSetStreamReadonlyAllPartitions."""
    name = server.create(partitions=2)
    server.set_readonly(name)
    for number in range(2):
        request = api.PublishRequest(stream=name, partition=number)
        refused = status(server.any.Publish, request)
        assert refused == (PRECONDITION, f"readonly partition: {number}")


def test_some_partitions_are_readonly(server: Server) -> None:
    """7.5 TestSetStreamReadonlySomePartitions; 3.12: turning it off restores writes."""
    name = server.create(partitions=2)
    server.set_readonly(name, 1)
    assert server.publish(name).offset == 0
    request = api.PublishRequest(stream=name, partition=1)
    assert status(server.any.Publish, request)[0] is PRECONDITION
    server.set_readonly(name, 1, readonly=False)
    assert server.publish(name, partition=1).offset == 0


def test_a_subscriber_at_the_end_is_told(server: Server) -> None:
    """1.5 Subscribe: readonly partition drained; 3.12: subscribers at the end;
    7.5 TestSetStreamReadonlySubscription."""
    name = server.create()
    server.fill(name, 2)
    with server.reading(name) as reading:
        assert reading.offsets(2) == [0, 1]
        server.set_readonly(name)
        assert reading.rest() == ([], (EXHAUSTED, "End of readonly partition"))


def test_a_subscriber_behind_gets_all_first(server: Server) -> None:
    """3.12: subscribers behind the end."""
    name = server.create()
    value = bytes(100_000)
    for _ in range(40):
        server.publish(name, value, ackPolicy=api.ALL)
    with server.reading(name) as reading:
        assert reading.offsets(1) == [0]
        server.set_readonly(name)
        received, ended = reading.rest()
    assert [each.offset for each in received] == list(range(1, 40))
    assert ended == (EXHAUSTED, "End of readonly partition")


def test_a_new_subscriber_gets_all_and_is_told(server: Server) -> None:
    """3.12: a new STOP_ON_CANCEL subscription stops at the end."""
    name = server.create()
    server.fill(name, 3)
    server.set_readonly(name)
    with server.reading(name) as reading:
        received, ended = reading.rest()
    assert [message.offset for message in received] == [0, 1, 2]
    assert ended == (EXHAUSTED, "Stop offset reached")


@pytest.mark.parametrize("position", [api.NEW_ONLY, api.OFFSET, api.EARLIEST, api.LATEST, api.TIMESTAMP])
def test_a_new_subscriber_of_an_empty_partition_is_told(server: Server, position: Any) -> None:
    """3.12: a new subscription of an empty readonly partition."""
    name = server.create()
    server.set_readonly(name)
    with server.reading(name, startPosition=position) as reading:
        assert reading.rest() == ([], (EXHAUSTED, "End of readonly partition"))


def test_nothing_new_comes_to_a_readonly_partition(server: Server) -> None:
    """3.12: NEW_ONLY on a non-empty readonly partition."""
    name = server.create()
    server.fill(name, 2)
    server.set_readonly(name)
    text = "Stop offset is before start offset: 1 < 2"
    ended = server.refusal(name, stub=server.leader(name), startPosition=api.NEW_ONLY)
    assert ended == (grpc.StatusCode.INVALID_ARGUMENT, text)
