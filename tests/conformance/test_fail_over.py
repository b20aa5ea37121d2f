"""Brokers die, stop and come back. Each test has a server of its own."""

import os
import signal
import time
from functools import partial

import grpc
import pytest

from bascule.testing.processes import poll
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import health_pb2
from tests.harness.conformance import TIMEOUT_S, Outcome, Server, outcome, status
from tests.harness.stub import Stub

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(120)]
SETTLE_S = 60.0


def restart(server: Server, *, kill: bool) -> None:
    """All brokers, at once."""
    for process in server.processes.values():
        if kill:
            process.kill9()
        else:
            process.terminate()
    for process in server.processes.values():
        process.start()
    for process in server.processes.values():
        process.wait_ready()


def answers(server: Server, name: str) -> bool:
    """Whether every partition of a stream has a leader that answers."""
    try:
        numbers = server.described(name).partitions
        return bool(numbers) and all(server.partition(name, number) for number in numbers)
    except grpc.RpcError:
        return False


def led(server: Server, name: str) -> str:
    return server.described(name).partitions[0].leader


def survivor(server: Server, *dead: str) -> Server:
    """The same server, through a broker that is alive."""
    name = next(each for each in server.processes if each not in dead)
    return Server(server.processes[name].address, server.nats_url, server.settings, server.processes)


# --- restarts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_everything_is_there_after_a_restart(fresh: Server, kill: bool) -> None:
    """7.1 TestTombstoneStreamsOnRestart; 3.11: pausing survives restarts; 7.8 TestAssignedDurableServerID;
    7.8 TestFSMSnapshotRestore; 11.5."""
    retained, deleted, again = fresh.create("kept"), fresh.create("deleted"), fresh.create("again")
    paused, readonly = fresh.create("paused"), fresh.create("readonly")
    for name in (retained, deleted, again, paused, readonly):
        fresh.fill(name, 3)
    fresh.delete(deleted)
    fresh.delete(again)
    request = api.CreateStreamRequest(name=again, subject=again, replicationFactor=-1)
    fresh.any.CreateStream(request, timeout=TIMEOUT_S)
    fresh.publish(again, b"new", ackPolicy=api.ALL)
    fresh.pause(paused)
    fresh.set_readonly(readonly)
    before = {name: fresh.described(name) for name in (paused, readonly)}
    ids = sorted(fresh.every)
    restart(fresh, kill=kill)
    assert poll(lambda: all(answers(fresh, name) for name in (retained, again, readonly)), SETTLE_S)
    assert poll(lambda: sorted(broker.id for broker in fresh.brokers()) == ids, SETTLE_S)
    assert fresh.values(retained) == [b"0", b"1", b"2"]
    assert fresh.values(again) == [b"new"]
    assert fresh.described(deleted).error == api.StreamMetadata.UNKNOWN_STREAM
    item = fresh.described(paused).partitions[0]
    assert (item.paused, item.pauseTimestamps) == (True, before[paused].partitions[0].pauseTimestamps)
    assert fresh.publish(paused, b"3").offset == 3
    item = fresh.described(readonly).partitions[0]
    assert (item.readonly, item.readonlyTimestamps) == (True, before[readonly].partitions[0].readonlyTimestamps)
    assert item.messagesReceivedTimestamps == before[readonly].partitions[0].messagesReceivedTimestamps
    refused = status(fresh.any.Publish, api.PublishRequest(stream=readonly))
    assert refused == (grpc.StatusCode.FAILED_PRECONDITION, "readonly partition: 0")


@pytest.mark.three
def test_a_readonly_partition_is_replicated(fresh: Server) -> None:
    """3.12: replication continues."""
    name = fresh.create(minIsr=api.NullableInt32(value=1))
    fresh.fill(name, 3)
    away = next(broker for broker in fresh.every if broker not in (led(fresh, name), "a"))
    fresh.processes[away].kill9()
    fresh.fill(name, 3)
    request = api.SetStreamReadonlyRequest(name=name, readonly=True)
    fresh.any.SetStreamReadonly(request, timeout=TIMEOUT_S)
    assert away not in fresh.described(name).partitions[0].isr
    fresh.processes[away].start().wait_ready()
    assert poll(lambda: away in fresh.described(name).partitions[0].isr, SETTLE_S)
    with (
        Stub(fresh.processes[away].address) as stub,
        fresh.reading(name, stub=stub, readISRReplica=True) as reading,
    ):
        assert reading.offsets(6) == list(range(6))


@pytest.mark.differs("after kill -9, one replica")
def test_what_was_acked_is_visible_after_a_kill(fresh: Server) -> None:
    """3.6: the high watermark after an unclean restart; 7.7 TestCommitOnRestart; 11.11."""
    name = fresh.create(replicationFactor=1)
    fresh.fill(name, 3)
    restart(fresh, kill=True)
    assert poll(lambda: answers(fresh, name), SETTLE_S)
    item = fresh.partition(name)
    assert (item.highWatermark, item.newestOffset) == (2, 2)
    assert fresh.values(name) == [b"0", b"1", b"2"]


@pytest.mark.differs("open Subscribe calls at a stop")
def test_subscribers_of_a_broker_that_stops_are_told_to_go_elsewhere(fresh: Server) -> None:
    """1.5 Subscribe: partition closed otherwise; 7.3 TestSubscribePartitionClosed; 10: a stop is Unavailable."""
    name = fresh.create(replicationFactor=1)
    fresh.fill(name, 1)
    with fresh.reading(name) as reading:
        assert reading.offsets(1) == [0]
        fresh.processes[led(fresh, name)].terminate()
        assert reading.end()[0] is grpc.StatusCode.UNAVAILABLE


@pytest.mark.differs("SIGTERM")
def test_a_broker_that_stops_is_not_healthy(fresh: Server) -> None:
    """1: health goes NOT_SERVING on shutdown; 3.22: SIGTERM."""
    (process, *_) = fresh.processes.values()
    with Stub(process.address) as stub:
        watch = stub.channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )(health_pb2.HealthCheckRequest(service="proto.API"), timeout=TIMEOUT_S)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        assert process.terminate() == 0
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.differs("SIGHUP without authorization")
def test_a_hangup_ends_nothing(fresh: Server) -> None:
    """11.9: SIGHUP."""
    name = fresh.create()
    for process in fresh.processes.values():
        os.kill(process.pid, signal.SIGHUP)
    fresh.fill(name, 3)
    assert all(process.running for process in fresh.processes.values())


# --- three brokers -------------------------------------------------------------------------------------------


@pytest.mark.three
def test_a_leader_that_dies_is_replaced(fresh: Server) -> None:
    """3.9: fail-over; 7.7 TestPartitionLeaderFailover; 3.15: a dead server is absent; 7.7 TestShrinkExpandISR;
    7.7 TestPropagatedShrinkExpandISR; 3.8: a replica that is away leaves the ISR, and joins it again."""
    name = fresh.create()
    fresh.fill(name, 5)
    dead = led(fresh, name)
    fresh.processes[dead].kill9()
    with survivor(fresh, dead) as rest:
        assert poll(lambda: led(rest, name) not in (dead, "") and answers(rest, name), SETTLE_S)
        assert rest.values(name) == [b"%d" % number for number in range(5)]
        assert poll(lambda: dead not in {broker.id for broker in rest.brokers()}, SETTLE_S)
        assert rest.publish(name, b"5", ackPolicy=api.ALL).offset == 5
        fresh.processes[dead].start().wait_ready()
        assert poll(lambda: sorted(rest.described(name).partitions[0].isr) == sorted(fresh.processes), SETTLE_S)
        with rest.reading(name, stub=rest.every[dead], readISRReplica=True) as reading:
            assert reading.values(6) == [b"%d" % number for number in range(6)]


@pytest.mark.three
def test_a_leader_acks_although_a_follower_is_dead(fresh: Server) -> None:
    """7.2 TestAckPolicyLeader; 7.7 TestCommitOnISRShrink."""
    name = fresh.create()
    dead = next(each for each in fresh.processes if each != led(fresh, name))
    fresh.processes[dead].kill9()
    with survivor(fresh, dead) as rest:
        assert rest.publish(name, ackPolicy=api.LEADER).offset == 0
        assert rest.publish(name, ackPolicy=api.ALL, timeout=SETTLE_S).offset == 1
        assert rest.partition(name).highWatermark == 1


@pytest.mark.three
@pytest.mark.differs("start between the high watermark and the end of the log")
def test_below_min_isr_messages_wait(fresh: Server) -> None:
    """2.5: below minISR, with replicas that die and come back; 3.8: minISR;
    3.14.3: start between the high watermark and the end."""
    name = fresh.create(minIsr=api.NullableInt32(value=3))
    fresh.fill(name, 1)
    dead = next(each for each in fresh.processes if each != led(fresh, name))
    fresh.processes[dead].kill9()
    with survivor(fresh, dead) as rest:
        assert poll(lambda: dead not in rest.described(name).partitions[0].isr, SETTLE_S)
        assert rest.publish(name, ackPolicy=api.LEADER).offset == 1
        late = rest.any.Publish.future(api.PublishRequest(stream=name, ackPolicy=api.ALL), timeout=SETTLE_S)
        assert poll(lambda: rest.partition(name).newestOffset == 2, TIMEOUT_S)
        assert (rest.partition(name).highWatermark, late.done()) == (0, False)
        with rest.reading(name, startPosition=api.OFFSET, startOffset=2, timeout=SETTLE_S) as reading:
            fresh.processes[dead].start().wait_ready()
            assert reading.offsets(1) == [2]
        assert late.result().ack.offset == 2
        assert rest.partition(name).highWatermark == 2


@pytest.mark.three
def test_the_controller_is_replaced(fresh: Server) -> None:
    """7.8 TestMetadataLeaderFailover: each broker in turn dies and comes back, and streams can be created."""
    for dead, process in fresh.processes.items():
        process.kill9()
        with survivor(fresh, dead) as rest:
            assert poll(partial(is_created, rest), SETTLE_S)
            process.start().wait_ready()
            assert poll(partial(is_complete, rest), SETTLE_S)


def is_created(server: Server) -> bool:
    return created(server)[0] is grpc.StatusCode.OK


def is_complete(server: Server) -> bool:
    return sorted(each.id for each in server.brokers()) == sorted(server.processes)


def created(server: Server, timeout: float | None = TIMEOUT_S) -> Outcome:
    request = api.CreateStreamRequest(name=f"n{time.monotonic_ns()}", subject="n", replicationFactor=1)
    return status(server.any.CreateStream, request, timeout)


@pytest.mark.three
def test_without_a_majority_there_is_no_metadata_leader(fresh: Server) -> None:
    """1.5 CreateStream: no metadata leader known; 3.2: without a deadline at once;
    7.1 TestCreateStreamNoMetadataLeader."""
    alone, *dead = fresh.processes
    for name in dead:
        fresh.processes[name].kill9()
    expected = (grpc.StatusCode.INTERNAL, "no known metadata leader")
    with survivor(fresh, *dead) as rest:
        assert rest.address == fresh.processes[alone].address
        assert poll(lambda: created(rest, None) == expected, SETTLE_S)
        began = time.monotonic()
        assert created(rest, None) == expected
        assert time.monotonic() - began < 1.0
        began = time.monotonic()
        assert created(rest, 3.0) in (expected, (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))
        assert time.monotonic() - began > 2.0


@pytest.mark.three
def test_without_a_majority_nothing_is_resumed(fresh: Server) -> None:
    """1.5 Publish: resume failed; 1.5 PublishAsync: INTERNAL failed to resume stream; 1.5 Subscribe: resume failed."""
    alone, *dead = fresh.processes
    name = fresh.create(partitions=3, replicationFactor=1)
    number = next(number for number, item in fresh.described(name).partitions.items() if item.leader == alone)
    fresh.fill(name, 1, number)
    fresh.pause(name)
    for other in dead:
        fresh.processes[other].kill9()
    with survivor(fresh, *dead) as rest:
        assert poll(lambda: created(rest, None) == (grpc.StatusCode.INTERNAL, "no known metadata leader"), SETTLE_S)
        request = api.PublishRequest(stream=name, partition=number, value=b"x")
        failed = (grpc.StatusCode.INTERNAL, "failed to resume stream: no known metadata leader")
        assert status(rest.any.Publish, request, None) == failed
        (answer,) = rest.any.PublishAsync(iter([request]), timeout=TIMEOUT_S)
        assert answer.asyncError.code == api.PublishAsyncError.INTERNAL
        assert answer.asyncError.message.startswith("failed to resume stream: ")
        subscription = api.SubscribeRequest(stream=name, partition=number, resume=True)
        failed = (grpc.StatusCode.INTERNAL, "Failed to resume stream: no known metadata leader")
        assert outcome(lambda: list(rest.any.Subscribe(subscription, timeout=None))) == failed
