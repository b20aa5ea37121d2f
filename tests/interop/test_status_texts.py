"""Every code and text of the protocol that one broker can give, seen by an independent gRPC client."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest

from bascule.testing.processes import BrokerProcess, start_broker
from bascule.wire.pb import api_pb2 as api
from tests.harness.stub import Stub

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder: Path = tmp_path_factory.mktemp("texts")
    with start_broker(folder) as process:
        yield process


@pytest.fixture(scope="module")
def stub(broker: BrokerProcess) -> Iterator[Stub]:
    with Stub(broker.address) as stub:
        yield stub


def fails(code: grpc.StatusCode, text: str, call: Callable[[], object], *, exactly: bool = True) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() is code, caught.value.details()
    assert caught.value.details() == text if exactly else text in caught.value.details()


def receive(stub: Stub, request: api.SubscribeRequest, into: list[api.Message]) -> None:
    """What came before the call failed stays in `into`."""
    for message in stub.Subscribe(request, timeout=5):
        into.append(message)


def create(stub: Stub, name: str, subject: str | None = None, **fields: object) -> None:
    request = api.CreateStreamRequest(name=name, subject=name if subject is None else subject, **fields)  # type: ignore[arg-type]
    stub.CreateStream(request, timeout=5)


def publish(stub: Stub, stream: str, value: bytes = b"v", **fields: object) -> api.Ack:
    request = api.PublishRequest(stream=stream, value=value, **fields)  # type: ignore[arg-type]
    response: api.PublishResponse = stub.Publish(request, timeout=5)
    return response.ack


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({}, INVALID, "Name cannot be empty"),
        ({"name": "x"}, INVALID, "Subject is invalid"),
        ({"name": "x", "subject": "a b"}, INVALID, "Subject is invalid"),
        ({"name": "x", "subject": "a..b"}, INVALID, "Subject is invalid"),
        ({"name": "x", "subject": "a\r\nPUB x 0\r\n"}, INVALID, "Subject is invalid"),
        ({"name": "x", "subject": "a.>", "partitions": 2}, INVALID, "Subject is invalid"),
        ({"name": "__activity", "subject": "x"}, INVALID, "Stream is reserved"),
        ({"name": "__cursors", "subject": "x"}, INVALID, "Stream is reserved"),
        ({"name": "x", "subject": "x", "replicationFactor": -2}, INVALID, "Invalid replicationFactor -2"),
        ({"name": "x", "subject": "x", "replicationFactor": 2}, INVALID, "Invalid replicationFactor 2, cluster size 1"),
    ],
)
def test_create_stream_refusals(stub: Stub, fields: dict[str, object], code: grpc.StatusCode, text: str) -> None:
    fails(code, text, lambda: stub.CreateStream(api.CreateStreamRequest(**fields), timeout=5))  # type: ignore[arg-type]


@pytest.mark.parametrize("partitions", [-1, -(2**31), 10_001, 2**31 - 1])
def test_absurd_partition_counts_are_refused(stub: Stub, partitions: int) -> None:
    request = api.CreateStreamRequest(name="absurd", subject="absurd", partitions=partitions)
    fails(INVALID, f"Invalid partitions {partitions}", lambda: stub.CreateStream(request, timeout=5), exactly=False)


@pytest.mark.parametrize("name", ["a/b", "../../etc/passwd", "..", "a\0b", "a\nb", "a*b", "a>b", " a", "x" * 201])
def test_names_that_would_become_harmful_paths_or_subjects_are_refused(stub: Stub, name: str) -> None:
    request = api.CreateStreamRequest(name=name, subject="names")
    fails(INVALID, "Name is invalid: ", lambda: stub.CreateStream(request, timeout=5), exactly=False)


@pytest.mark.parametrize("name", ["with.dots", "grüße", "日本", "UPPER", "upper", "a=b", "a@7", "x" * 200])
def test_harmless_names_are_accepted(stub: Stub, name: str) -> None:
    create(stub, name, subject="harmless")
    assert publish(stub, name).stream == name
    stub.DeleteStream(api.DeleteStreamRequest(name=name), timeout=5)


def test_a_second_stream_of_the_same_name_already_exists(stub: Stub) -> None:
    create(stub, "twice")
    request = api.CreateStreamRequest(name="twice", subject="other")
    fails(grpc.StatusCode.ALREADY_EXISTS, "stream already exists", lambda: stub.CreateStream(request, timeout=5))


def test_delete_refusals(stub: Stub) -> None:
    fails(
        INVALID, "Stream is reserved", lambda: stub.DeleteStream(api.DeleteStreamRequest(name="__cursors"), timeout=5)
    )
    fails(NOT_FOUND, "stream does not exist", lambda: stub.DeleteStream(api.DeleteStreamRequest(name="no"), timeout=5))


def test_publish_refusals(stub: Stub) -> None:
    create(stub, "occ", optimisticConcurrencyControl=api.NullableBool(value=True))
    cases = [
        (INVALID, "no stream provided", api.PublishRequest()),
        (NOT_FOUND, "no such stream: nope", api.PublishRequest(stream="nope")),
        (NOT_FOUND, "no such partition: 1", api.PublishRequest(stream="occ", partition=1)),
        (NOT_FOUND, "no such partition: -1", api.PublishRequest(stream="occ", partition=-1)),
        (
            INVALID,
            "stream with concurrency control must have AckPolicy set",
            api.PublishRequest(stream="occ", ackPolicy=api.NONE),
        ),
        (
            grpc.StatusCode.UNKNOWN,
            "incorrect expected offset",
            api.PublishRequest(stream="occ", expectedOffset=7),
        ),
        (
            grpc.StatusCode.UNKNOWN,
            "failed to publish to NATS: nats: maximum payload exceeded",
            api.PublishRequest(stream="occ", value=bytes(1024 * 1024)),
        ),
    ]
    for code, text, request in cases:
        fails(code, text, partial(stub.Publish, request, timeout=5))


def test_without_a_deadline_there_is_no_ack_and_with_one_there_is(stub: Stub) -> None:
    create(stub, "deadline")
    request = api.PublishRequest(stream="deadline", value=b"x")
    assert not stub.Publish(request).HasField("ack")
    assert stub.Publish(request, timeout=5).HasField("ack")
    request.ackPolicy = api.NONE
    assert not stub.Publish(request, timeout=5).HasField("ack")


def test_an_ack_carries_what_the_protocol_says(stub: Stub) -> None:
    create(stub, "acked", subject="acked.in", partitions=2)
    ack = publish(stub, "acked", partition=1, correlationId="c1", ackPolicy=api.ALL)
    assert (ack.stream, ack.partitionSubject, ack.msgSubject) == ("acked", "acked.in", "acked.in.1")
    assert (ack.offset, ack.correlationId, ack.ackPolicy, ack.ackError) == (0, "c1", api.ALL, 0)
    assert ack.ackInbox
    assert 0 < ack.receptionTimestamp <= ack.commitTimestamp
    assert publish(stub, "acked", partition=1).offset == 1


def test_publish_async_answers_each_failure_and_goes_on(stub: Stub) -> None:
    create(stub, "async")
    requests = [
        api.PublishRequest(stream="nope", correlationId="a"),
        api.PublishRequest(stream="", correlationId="b"),
        api.PublishRequest(stream="async", partition=5, correlationId="c"),
        api.PublishRequest(stream="async", value=b"fine", correlationId="d"),
        api.PublishRequest(stream="async", value=bytes(1024 * 1024), correlationId="e"),
        api.PublishRequest(stream="async", value=b"silent", correlationId="f", ackPolicy=api.NONE),
        api.PublishRequest(stream="async", value=b"last", correlationId="g", ackPolicy=api.ALL),
    ]
    answers = {response.correlationId: response for response in stub.PublishAsync(iter(requests), timeout=10)}
    assert sorted(answers) == ["a", "b", "c", "d", "e", "g"]
    errors = {
        key: (item.asyncError.code, item.asyncError.message)
        for key, item in answers.items()
        if item.HasField("asyncError")
    }
    code = api.PublishAsyncError.Code
    assert errors == {
        "a": (code.NOT_FOUND, "no such stream: nope"),
        "b": (code.NOT_FOUND, "no such stream: "),
        "c": (code.NOT_FOUND, "no such partition: 5"),
        "e": (code.INTERNAL, "failed to publish to NATS: nats: maximum payload exceeded"),
    }
    assert all(item.HasField("ack") for item in answers.values())
    assert answers["a"].ack == api.Ack()
    assert (answers["d"].ack.offset, answers["g"].ack.offset) == (0, 2)


def test_publish_to_subject_reaches_every_stream_and_refuses_unsafe_subjects(stub: Stub) -> None:
    create(stub, "wild", subject="wild.*")
    request = api.PublishToSubjectRequest(subject="wild.card", value=b"x", correlationId="c")
    ack = stub.PublishToSubject(request, timeout=5).ack
    assert (ack.stream, ack.partitionSubject, ack.msgSubject, ack.correlationId) == ("wild", "wild.*", "wild.card", "c")
    for subject in ["", "a b", "x\r\nPUB y 0\r\n\r\n", "a.*", "a..b", ".a", "x" * 1025]:
        bad = api.PublishToSubjectRequest(subject=subject, value=b"x")
        fails(INVALID, "Subject is invalid", partial(stub.PublishToSubject, bad, timeout=5), exactly=False)
    nobody = api.PublishToSubjectRequest(subject="nobody.listens", value=b"x")
    with pytest.raises(grpc.RpcError) as caught:
        stub.PublishToSubject(nobody, timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_an_ack_inbox_cannot_inject_nats_commands(stub: Stub) -> None:
    create(stub, "inject")
    for inbox in ["x\r\nPUB inject 1\r\nz\r\n", "a b", "a.*", ">", ".", "a..b"]:
        request = api.PublishRequest(stream="inject", value=b"v", ackInbox=inbox)
        fails(INVALID, "ackInbox is invalid", partial(stub.Publish, request, timeout=5), exactly=False)


def test_subscribe_refusals(stub: Stub) -> None:
    create(stub, "subs")
    empty = [
        (NOT_FOUND, "No such partition", api.SubscribeRequest(stream="nope")),
        (NOT_FOUND, "No such partition", api.SubscribeRequest(stream="subs", partition=1)),
        (NOT_FOUND, "No such partition", api.SubscribeRequest(stream="subs", partition=-1)),
        (INVALID, "Unknown StartPosition 9", api.SubscribeRequest(stream="subs", startPosition=9)),  # type: ignore[arg-type]
        (INVALID, "Unknown StopPosition 9", api.SubscribeRequest(stream="subs", stopPosition=9)),  # type: ignore[arg-type]
        (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "Stream is empty",
            api.SubscribeRequest(stream="subs", stopPosition=api.STOP_LATEST),
        ),
        (
            INVALID,
            "Consumer id cannot be empty when group id is provided",
            api.SubscribeRequest(stream="subs", consumer=api.Consumer(groupId="g")),
        ),
        (
            grpc.StatusCode.INTERNAL,
            "Failed to create stream reader: segment not found",
            api.SubscribeRequest(stream="subs", reverse=True),
        ),
        (
            INVALID,
            "Stop offset is before start offset: 3 < 5",
            api.SubscribeRequest(
                stream="subs", startPosition=api.OFFSET, startOffset=5, stopPosition=api.STOP_OFFSET, stopOffset=3
            ),
        ),
    ]
    for code, text, request in empty:
        fails(code, text, partial(receive, stub, request, []))
    publish(stub, "subs")
    request = api.SubscribeRequest(stream="subs", stopPosition=api.STOP_TIMESTAMP, stopTimestamp=1)
    text = "Failed to lookup offset for timestamp: timestamp is before the beginning of the log"
    fails(grpc.StatusCode.INTERNAL, text, lambda: list(stub.Subscribe(request, timeout=5)))


def test_a_stopped_subscription_ends_with_resource_exhausted(stub: Stub) -> None:
    create(stub, "stops")
    for number in range(5):
        publish(stub, "stops", str(number).encode())
    request = api.SubscribeRequest(
        stream="stops", startPosition=api.OFFSET, startOffset=1, stopPosition=api.STOP_OFFSET, stopOffset=3
    )
    received: list[api.Message] = []
    with pytest.raises(grpc.RpcError) as caught:
        receive(stub, request, received)
    assert received[0] == api.Message()
    assert [message.offset for message in received[1:]] == [1, 2, 3]
    assert (caught.value.code(), caught.value.details()) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "Stop offset reached",
    )


def test_reverse_goes_from_newest_to_oldest_and_ends_the_same_way(stub: Stub) -> None:
    create(stub, "reverse")
    for number in range(5):
        publish(stub, "reverse", str(number).encode())
    for fields, expected in [
        ({"startPosition": api.LATEST}, [4, 3, 2, 1, 0]),
        ({"startPosition": api.NEW_ONLY}, [4, 3, 2, 1, 0]),
        ({"startPosition": api.OFFSET, "startOffset": 2}, [2, 1, 0]),
        ({"startPosition": api.OFFSET, "startOffset": 100}, [4, 3, 2, 1, 0]),
        ({"startPosition": api.LATEST, "stopPosition": api.STOP_OFFSET, "stopOffset": 3}, [4, 3]),
    ]:
        request = api.SubscribeRequest(stream="reverse", reverse=True, **fields)  # type: ignore[arg-type]
        received: list[api.Message] = []
        with pytest.raises(grpc.RpcError) as caught:
            receive(stub, request, received)
        assert [message.offset for message in received[1:]] == expected
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "Stop offset reached",
        )


def test_a_deleted_stream_ends_its_subscribers_with_not_found(stub: Stub) -> None:
    create(stub, "doomed")
    publish(stub, "doomed")
    call = stub.Subscribe(api.SubscribeRequest(stream="doomed", startPosition=api.EARLIEST), timeout=10)
    assert next(call) == api.Message()
    assert next(call).offset == 0
    stub.DeleteStream(api.DeleteStreamRequest(name="doomed"), timeout=5)
    fails(NOT_FOUND, "commit log was deleted", lambda: list(call))
    create(stub, "doomed")
    assert publish(stub, "doomed").offset == 0


def test_a_newer_group_member_replaces_the_older_which_ends_ok(stub: Stub) -> None:
    create(stub, "grouped")

    def member(epoch: int, name: str) -> api.SubscribeRequest:
        consumer = api.Consumer(groupId="g", groupEpoch=epoch, consumerId=name)
        return api.SubscribeRequest(stream="grouped", consumer=consumer)

    older = stub.Subscribe(member(2, "a"), timeout=10)
    next(older)
    text = "Consumer is not currently assigned this partition"
    fails(grpc.StatusCode.FAILED_PRECONDITION, text, lambda: list(stub.Subscribe(member(1, "b"), timeout=5)))
    newer = stub.Subscribe(member(2, "c"), timeout=10)
    next(newer)
    assert list(older) == []
    assert older.code() is grpc.StatusCode.OK
    newer.cancel()


def test_partition_metadata_refusals_and_contents(stub: Stub) -> None:
    create(stub, "meta")
    ask = stub.FetchPartitionMetadata
    fails(NOT_FOUND, "partition not found", lambda: ask(api.FetchPartitionMetadataRequest(stream="no"), timeout=5))
    request = api.FetchPartitionMetadataRequest(stream="meta")
    before = ask(request, timeout=5).metadata
    assert (before.highWatermark, before.newestOffset) == (-1, -1)
    assert before.messagesReceivedTimestamps.firstTimestamp == 0
    publish(stub, "meta")
    after = ask(request, timeout=5).metadata
    assert (after.highWatermark, after.newestOffset) == (0, 0)
    received = after.messagesReceivedTimestamps
    assert 0 < received.firstTimestamp <= received.latestTimestamp
    assert list(after.replicas) == list(after.isr) == [after.leader]


def test_metadata_names_the_broker_and_unknown_streams(stub: Stub, broker: BrokerProcess) -> None:
    create(stub, "listed", partitions=3)
    response = stub.FetchMetadata(api.FetchMetadataRequest(streams=["listed", "nope"], groups=["g"]), timeout=5)
    (described,) = response.brokers
    assert (described.host, described.port) == ("127.0.0.1", broker.port)
    listed, nope = response.streamMetadata
    assert sorted(listed.partitions) == [0, 1, 2]
    assert listed.creationTimestamp > 0
    assert all(item.HasField("readonlyTimestamps") for item in listed.partitions.values())
    assert nope.error == api.StreamMetadata.UNKNOWN_STREAM
    assert response.groupMetadata[0].error == api.ConsumerGroupMetadata.UNKNOWN_GROUP


def test_methods_of_later_versions_are_unimplemented(stub: Stub) -> None:
    for name in ["SetCursor", "FetchCursor", "JoinConsumerGroup", "LeaveConsumerGroup"]:
        method = getattr(stub, name)
        request = getattr(api, f"{name}Request")()
        fails(
            grpc.StatusCode.UNIMPLEMENTED,
            name,
            partial(method, request, timeout=5),
            exactly=False,
        )
