"""Subscribe: where it starts and stops, what it delivers, how it is refused and how it ends."""

import threading
import time
from typing import Any

import grpc
import pytest

from bascule.testing.processes import poll
from bascule.wire.pb import api_pb2 as api
from tests.harness.conformance import TIMEOUT_S, Outcome, Server, outcome, unique
from tests.harness.stub import Stub

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
INTERNAL = grpc.StatusCode.INTERNAL
STOPPED = (EXHAUSTED, "Stop offset reached")


def refused(server: Server, stream: str, **fields: Any) -> Outcome:
    return server.refusal(stream, stub=server.leader(stream), **fields)


def read(server: Server, stream: str, **fields: Any) -> tuple[list[int], Outcome]:
    """The offsets that come until the server ends it, and how."""
    with server.reading(stream, **fields) as reading:
        received, ended = reading.rest()
    return [message.offset for message in received], ended


# --- refusals ------------------------------------------------------------------------------------------------


def test_a_group_needs_a_consumer(server: Server) -> None:
    """1.5 Subscribe: groupId without consumerId."""
    consumer = api.Consumer(groupId="g")
    text = "Consumer id cannot be empty when group id is provided"
    assert server.refusal(unique("unknown"), consumer=consumer) == (INVALID, text), "before the stream is looked up"


def test_an_unknown_stream(server: Server) -> None:
    """1.5 Subscribe: stream unknown; 7.3 TestSubscribeStreamNoSuchStream."""
    assert server.refusal(unique("unknown")) == (NOT_FOUND, "No such partition")


@pytest.mark.parametrize("partition", [1, -1])
def test_an_unknown_partition(server: Server, partition: int) -> None:
    """1.5 Subscribe: partition unknown."""
    assert server.refusal(server.create(), partition) == (NOT_FOUND, "No such partition")


def test_an_unknown_start_position(server: Server) -> None:
    """1.5 Subscribe: bad startPosition."""
    assert refused(server, server.create(), startPosition=9) == (INVALID, "Unknown StartPosition 9")


def test_an_unknown_stop_position(server: Server) -> None:
    """1.5 Subscribe: bad stopPosition."""
    assert refused(server, server.create(), stopPosition=9) == (INVALID, "Unknown StopPosition 9")


def test_the_latest_of_nothing(server: Server) -> None:
    """1.5 Subscribe: STOP_LATEST on empty partition; 7.3 TestSubscribeStopPosition."""
    assert refused(server, server.create(), stopPosition=api.STOP_LATEST) == (EXHAUSTED, "Stream is empty")


def test_a_stop_before_the_start(server: Server) -> None:
    """1.5 Subscribe: stop < start."""
    name = server.create()
    fields: dict[str, Any] = {
        "startPosition": api.OFFSET,
        "startOffset": 5,
        "stopPosition": api.STOP_OFFSET,
        "stopOffset": 3,
    }
    assert refused(server, name, **fields) == (INVALID, "Stop offset is before start offset: 3 < 5")
    server.fill(name, 2)
    fields = {"startPosition": api.NEW_ONLY, "stopPosition": api.STOP_LATEST}
    assert refused(server, name, **fields) == (INVALID, "Stop offset is before start offset: 1 < 2")


def test_a_stop_before_the_first_message(server: Server) -> None:
    """1.5 Subscribe: stop timestamp before the first message."""
    name = server.create()
    server.fill(name, 1)
    text = "Failed to lookup offset for timestamp: timestamp is before the beginning of the log"
    fields: dict[str, Any] = {"startPosition": api.EARLIEST, "stopPosition": api.STOP_TIMESTAMP, "stopTimestamp": 1}
    assert refused(server, name, **fields) == (INTERNAL, text)


def test_reverse_of_nothing(server: Server) -> None:
    """1.5 Subscribe: reverse on an empty partition."""
    text = "Failed to create stream reader: segment not found"
    assert refused(server, server.create(), reverse=True) == (INTERNAL, text)


# --- where it starts -----------------------------------------------------------------------------------------


def test_the_first_message_is_empty(server: Server) -> None:
    """3.14.1: the handshake comes first, on an empty partition and on one that has messages."""
    name = server.create()
    for _ in range(2):
        request = api.SubscribeRequest(stream=name, startPosition=api.EARLIEST)
        call = server.leader(name).Subscribe(request, timeout=TIMEOUT_S)
        assert next(call) == api.Message()
        call.cancel()
        server.fill(name, 1)


def test_new_only(server: Server) -> None:
    """3.14.2: NEW_ONLY; 7.3 TestSubscribeNewOnly."""
    name = server.create()
    server.fill(name, 3)
    with server.reading(name, startPosition=api.NEW_ONLY) as reading:
        server.publish(name, b"new")
        (message,) = reading.take(1)
    assert (message.offset, message.value) == (3, b"new")


def test_latest(server: Server) -> None:
    """3.14.2: LATEST; 7.3 TestSubscribeLatest."""
    name = server.create()
    with server.reading(name, startPosition=api.LATEST) as empty:
        server.fill(name, 3)
        assert empty.offsets(3) == [0, 1, 2], "0 if empty"
    with server.reading(name, startPosition=api.LATEST) as reading:
        server.publish(name)
        assert reading.offsets(2) == [2, 3]


def test_earliest(server: Server) -> None:
    """3.14.2: EARLIEST; 7.3 TestSubscribeEarliest."""
    name = server.create()
    with server.reading(name, startPosition=api.EARLIEST) as empty:
        server.fill(name, 3)
        assert empty.offsets(3) == [0, 1, 2]
    with server.reading(name, startPosition=api.EARLIEST) as reading:
        assert reading.offsets(3) == [0, 1, 2]


@pytest.mark.parametrize(("offset", "first"), [(0, 0), (2, 2), (-1, 0), (-(2**63), 0)])
def test_offset(server: Server, offset: int, first: int) -> None:
    """3.14.2: OFFSET; 3.14.2: a negative offset is 0; 7.3 TestSubscribeOffsetUnderflow."""
    name = server.create()
    server.fill(name, 4)
    with server.reading(name, startPosition=api.OFFSET, startOffset=offset) as reading:
        assert reading.offsets(4 - first) == list(range(first, 4))


def test_timestamp(server: Server) -> None:
    """3.14.2: TIMESTAMP; 7.3 TestSubscribeStartTime."""
    name = server.create()
    with server.reading(name, startPosition=api.TIMESTAMP, startTimestamp=time.time_ns()) as empty:
        times = [ack.receptionTimestamp for ack in server.fill(name, 4)]
        assert empty.offsets(4) == [0, 1, 2, 3], "0 if empty"
    for when, first in ((0, 0), (times[2], 2), (times[2] + 1, 3)):
        with server.reading(name, startPosition=api.TIMESTAMP, startTimestamp=when) as reading:
            assert reading.offsets(1) == [first]
    with server.reading(name, startPosition=api.TIMESTAMP, startTimestamp=times[3] + 10**15) as later:
        server.publish(name)
        assert later.offsets(1) == [4], "beyond the end: what comes next"


def test_the_timestamp_counts_only_if_it_is_asked_for(server: Server) -> None:
    """10: startTimestamp and stopTimestamp are ignored unless the position asks."""
    name = server.create()
    server.fill(name, 2)
    fields: dict[str, Any] = {
        "startTimestamp": -62135596800000000000 % 2**63,
        "stopTimestamp": 5,
        "startOffset": 7,
        "stopOffset": 9,
    }
    with server.reading(name, startPosition=api.EARLIEST, **fields) as reading:
        assert reading.offsets(2) == [0, 1]
        server.publish(name)
        assert reading.offsets(1) == [2]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_start_beyond_the_end_is_the_next_message(server: Server, count: int) -> None:
    """3.14.3: start beyond the end; 7.3 TestSubscribeOffsetOverflow; 7.3 TestSubscribeOffsetOverflowEmptyStream."""
    name = server.create()
    server.fill(name, count)
    with server.reading(name, startPosition=api.OFFSET, startOffset=100) as reading:
        server.publish(name)
        assert reading.offsets(1) == [count]


# --- what is delivered ---------------------------------------------------------------------------------------


def test_messages_come_in_order_as_they_are_committed(server: Server) -> None:
    """3.14.4: only committed messages, in the order of offsets."""
    name = server.create()
    with server.reading(name) as reading:
        for number in range(20):
            server.publish(name, b"%d" % number)
            (message,) = reading.take(1)
            assert (message.offset, message.value) == (number, b"%d" % number)


def test_what_is_not_committed_is_not_delivered(server: Server) -> None:
    """3.14.4: above the high watermark nothing is delivered."""
    name = server.create(minIsr=api.NullableInt32(value=7))
    assert server.publish(name).offset == 0
    received: list[api.Message] = []
    with server.reading(name) as reading:
        reader = threading.Thread(target=lambda: received.extend(reading.rest()[0]))
        reader.start()
        assert not poll(lambda: bool(received), 0.5)
        reading.cancel()
        reader.join(TIMEOUT_S)
    assert received == []


def test_many_subscribers_read_the_same(server: Server) -> None:
    """3.14.9: subscriptions are ephemeral and keep no position."""
    name = server.create()
    server.fill(name, 5)
    for _ in range(3):
        with server.reading(name) as one, server.reading(name) as other:
            assert one.offsets(5) == other.offsets(5) == [0, 1, 2, 3, 4]


def test_a_cancelled_subscription_is_cancelled(server: Server) -> None:
    """1.5 Subscribe: client cancelled."""
    with server.reading(server.create()) as reading:
        reading.cancel()
        assert reading.end()[0] is grpc.StatusCode.CANCELLED


# --- where it stops ------------------------------------------------------------------------------------------


def test_stop_offset(server: Server) -> None:
    """3.14.5: STOP_OFFSET is inclusive; 1.5 Subscribe: stop offset delivered."""
    name = server.create()
    server.fill(name, 5)
    fields: dict[str, Any] = {
        "startPosition": api.OFFSET,
        "startOffset": 1,
        "stopPosition": api.STOP_OFFSET,
        "stopOffset": 3,
    }
    assert read(server, name, **fields) == ([1, 2, 3], STOPPED)
    fields |= {"startOffset": 3}
    assert read(server, name, **fields) == ([3], STOPPED)


def test_a_stop_offset_in_the_future_is_waited_for(server: Server) -> None:
    """3.14.5: STOP_OFFSET beyond the end."""
    name = server.create()
    server.fill(name, 2)
    with server.reading(name, stopPosition=api.STOP_OFFSET, stopOffset=3) as reading:
        assert reading.offsets(2) == [0, 1]
        server.fill(name, 3)
        received, ended = reading.rest()
    assert ([message.offset for message in received], ended) == ([2, 3], STOPPED)


def test_a_stop_offset_of_minus_one_is_none(server: Server) -> None:
    """3.14.5: STOP_OFFSET -1 means never."""
    name = server.create()
    server.fill(name, 2)
    with server.reading(name, stopPosition=api.STOP_OFFSET, stopOffset=-1) as reading:
        assert reading.offsets(2) == [0, 1]
        server.publish(name)
        assert reading.offsets(1) == [2]


def test_stop_latest(server: Server) -> None:
    """3.14.5: STOP_LATEST; 7.3 TestSubscribeStopPosition: stop latest."""
    name = server.create()
    server.fill(name, 3)
    assert read(server, name, stopPosition=api.STOP_LATEST) == ([0, 1, 2], STOPPED)
    assert read(server, name, startPosition=api.LATEST, stopPosition=api.STOP_LATEST) == ([2], STOPPED)


def test_stop_timestamp(server: Server) -> None:
    """3.14.5: STOP_TIMESTAMP is inclusive; 7.3 TestSubscribeStopPosition: a window of time."""
    name = server.create()
    times = [ack.receptionTimestamp for ack in server.fill(name, 5)]
    window = {"startPosition": api.TIMESTAMP, "startTimestamp": times[1], "stopPosition": api.STOP_TIMESTAMP}
    assert read(server, name, stopTimestamp=times[3], **window) == ([1, 2, 3], STOPPED)
    assert read(server, name, stopTimestamp=times[3] - 1, **window) == ([1, 2], STOPPED)
    assert read(server, name, stopTimestamp=times[4] + 10**15, **window) == ([1, 2, 3, 4], STOPPED)


# --- reverse -------------------------------------------------------------------------------------------------


@pytest.mark.differs("reverse subscription at its end")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"startPosition": api.LATEST}, [4, 3, 2, 1, 0], id="3.14.7: reverse from LATEST"),
        pytest.param({"startPosition": api.NEW_ONLY}, [4, 3, 2, 1, 0], id="3.14.7: reverse from NEW_ONLY"),
        pytest.param({"startPosition": api.OFFSET, "startOffset": 2}, [2, 1, 0], id="3.14.7: reverse from OFFSET"),
        pytest.param(
            {"startPosition": api.OFFSET, "startOffset": 100}, [4, 3, 2, 1, 0], id="3.14.7: reverse from beyond the end"
        ),
        pytest.param({"startPosition": api.EARLIEST}, [0], id="3.14.7: reverse from EARLIEST"),
    ],
)
def test_reverse(server: Server, fields: dict[str, Any], expected: list[int]) -> None:
    """1.5 Subscribe: reverse reading ran out; 11.13."""
    name = server.create()
    server.fill(name, 5)
    assert read(server, name, reverse=True, **fields) == (expected, STOPPED)


@pytest.mark.differs("reverse with a stop position")
def test_reverse_stops_at_the_oldest_message_wanted(server: Server) -> None:
    """3.14.7: the stop of a reverse subscription; 11.13."""
    name = server.create()
    server.fill(name, 5)
    fields: dict[str, Any] = {"startPosition": api.LATEST, "stopPosition": api.STOP_OFFSET, "stopOffset": 3}
    assert read(server, name, reverse=True, **fields) == ([4, 3], STOPPED)


# --- consumer groups -----------------------------------------------------------------------------------------


def member(name: str, epoch: int) -> api.Consumer:
    return api.Consumer(groupId="g", groupEpoch=epoch, consumerId=name)


def test_a_newer_member_replaces_the_older(server: Server) -> None:
    """3.14.6: an epoch at least as high replaces; 1.5 Subscribe: replaced by a newer group member."""
    name = server.create()
    with (
        server.reading(name, consumer=member("a", 2)) as first,
        server.reading(name, consumer=member("b", 2)) as second,
        server.reading(name, consumer=member("c", 3)),
    ):
        for replaced in (first, second):
            assert replaced.rest() == ([], (grpc.StatusCode.OK, ""))


def test_an_older_member_is_refused(server: Server) -> None:
    """3.14.6: a lower epoch is refused; 1.5 Subscribe: group already has a subscriber with higher epoch."""
    name = server.create()
    text = "Consumer is not currently assigned this partition"
    with server.reading(name, consumer=member("a", 2)) as first:
        assert refused(server, name, consumer=member("b", 1)) == (PRECONDITION, text)
        server.publish(name)
        assert first.offsets(1) == [0]


def test_groups_do_not_fence_each_other(server: Server) -> None:
    """3.14.6: one subscriber per group and partition."""
    name = server.create(partitions=2)
    other = api.Consumer(groupId="other", groupEpoch=1, consumerId="a")
    with (
        server.reading(name, consumer=member("a", 2)) as one,
        server.reading(name, consumer=other) as two,
        server.reading(name, 1, consumer=member("b", 1)) as three,
        server.reading(name) as outside,
    ):
        for partition in range(2):
            server.publish(name, partition=partition)
        assert [each.offsets(1) for each in (one, two, three, outside)] == [[0]] * 4


def test_the_entry_goes_with_its_subscription(server: Server) -> None:
    """3.14.6: the entry is removed when the subscription ends."""
    name = server.create()
    with server.reading(name, consumer=member("a", 5)) as first:
        first.cancel()
        assert first.end()[0] is grpc.StatusCode.CANCELLED

    def taken() -> Outcome:
        request = api.SubscribeRequest(stream=name, consumer=member("b", 1))
        call = server.leader(name).Subscribe(request, timeout=TIMEOUT_S)
        ended = outcome(lambda: next(call))
        call.cancel()
        return ended

    assert poll(lambda: taken()[0] is grpc.StatusCode.OK, TIMEOUT_S)


# --- any broker of several -----------------------------------------------------------------------------------


@pytest.fixture
def follower(server: Server) -> tuple[str, Stub, Stub]:
    """A stream on two brokers, the one that follows, and one that has no replica."""
    name = server.create(replicationFactor=2)
    (item,) = server.described(name).partitions.values()
    (following,) = set(item.replicas) - {item.leader}
    outside = next(stub for broker, stub in server.every.items() if broker not in item.replicas)
    return name, server.every[following], outside


@pytest.mark.three
def test_only_the_leader_serves(server: Server, follower: tuple[str, Stub, Stub]) -> None:
    """1.5 Subscribe: not leader, readISRReplica false; 7.3 TestSubscribeStreamNotLeaderDefaultBehavior."""
    name, following, outside = follower
    for stub in (following, outside):
        assert server.refusal(name, stub=stub) == (PRECONDITION, "Server not partition leader")


@pytest.mark.three
def test_a_replica_serves_if_it_is_asked_to(server: Server, follower: tuple[str, Stub, Stub]) -> None:
    """3.14.8: readISRReplica; 7.3 TestSubscribeStreamNotLeader; 7.3 TestStreamReceiveMsgFromReplica;
    7.7 TestReplicatorNotifyNewData."""
    name, following, _ = follower
    with server.reading(name, stub=following, readISRReplica=True) as reading:
        for number in range(5):
            server.publish(name, b"%d" % number, ackPolicy=api.ALL)
            assert reading.values(1) == [b"%d" % number]


@pytest.mark.three
def test_a_replica_serves_no_groups(server: Server, follower: tuple[str, Stub, Stub]) -> None:
    """1.5 Subscribe: not leader, readISRReplica true, group set."""
    name, following, _ = follower
    text = "Consumer groups not compatible with ReadISRReplica"
    fields: dict[str, Any] = {"readISRReplica": True, "consumer": member("a", 1)}
    assert server.refusal(name, stub=following, **fields) == (INVALID, text)


@pytest.mark.three
@pytest.mark.differs("readISRReplica on a broker without the partition")
def test_a_broker_without_the_partition_refuses(server: Server, follower: tuple[str, Stub, Stub]) -> None:
    """3.14.8: readISRReplica on a broker without a replica; 11.18."""
    name, _, outside = follower
    expected = (PRECONDITION, "Server not partition leader")
    assert server.refusal(name, stub=outside, readISRReplica=True) == expected
