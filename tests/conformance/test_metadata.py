"""FetchMetadata, FetchPartitionMetadata, and the health of the service."""

import time

import grpc
import pytest

from bascule.testing.processes import poll
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import health_pb2
from tests.harness.conformance import TIMEOUT_S, Outcome, Server, status, unique
from tests.harness.stub import Stub

NOT_FOUND = grpc.StatusCode.NOT_FOUND
NOT_LEADING = (grpc.StatusCode.FAILED_PRECONDITION, "The request should be sent to partition leader")


def metadata(server: Server, *streams: str, groups: tuple[str, ...] = ()) -> api.FetchMetadataResponse:
    request = api.FetchMetadataRequest(streams=streams, groups=groups)
    response: api.FetchMetadataResponse = server.any.FetchMetadata(request, timeout=TIMEOUT_S)
    return response


def refused(stub: Stub, stream: str, partition: int = 0) -> Outcome:
    request = api.FetchPartitionMetadataRequest(stream=stream, partition=partition)
    return status(stub.FetchPartitionMetadata, request)


# --- FetchMetadata -------------------------------------------------------------------------------------------


def test_unknown_streams_are_described_as_such(server: Server) -> None:
    """1.5 FetchMetadata: unknown streams."""
    name, unknown = server.create(), unique("unknown")
    found, missing = metadata(server, name, unknown).streamMetadata
    assert (found.name, found.error) == (name, api.StreamMetadata.OK)
    assert (missing.name, missing.error) == (unknown, api.StreamMetadata.UNKNOWN_STREAM)
    assert not missing.partitions


def test_unknown_groups_are_described_as_such(server: Server) -> None:
    """1.5 FetchMetadata: unknown groups."""
    group = unique("group")
    (found,) = metadata(server, "-", groups=(group,)).groupMetadata
    assert (found.groupId, found.error) == (group, api.ConsumerGroupMetadata.UNKNOWN_GROUP)


def test_no_names_mean_all_streams_and_no_groups(server: Server) -> None:
    """1.4 FetchMetadataRequest: empty streams are all, empty groups none."""
    names = {server.create(), server.create()}
    response = metadata(server)
    assert names <= {each.name for each in response.streamMetadata}
    assert not response.groupMetadata


@pytest.mark.differs("FetchMetadata with a name given several times")
def test_a_name_given_twice_is_described_once(server: Server) -> None:
    """1.5 FetchMetadata: a name given several times."""
    one, other = server.create(), server.create()
    described = metadata(server, one, other, one, one).streamMetadata
    assert [each.name for each in described] == [one, other]


def test_the_brokers_are_named(server: Server) -> None:
    """3.15: brokers, the answering one first; 7.4 TestFetchMetadata."""
    for name, stub in server.every.items():
        brokers = stub.FetchMetadata(api.FetchMetadataRequest(streams=["-"]), timeout=TIMEOUT_S).brokers
        assert brokers[0].id == name
        assert sorted(broker.id for broker in brokers) == sorted(server.every)
    for broker in server.brokers():
        with Stub(f"{broker.host}:{broker.port}") as stub:
            answer = stub.FetchMetadata(api.FetchMetadataRequest(streams=["-"]), timeout=TIMEOUT_S)
            assert answer.brokers[0].id == broker.id, "the advertised address is reachable"


def test_brokers_count_partitions_and_leaderships(server: Server) -> None:
    """1.4 Broker: partitionCount and leaderCount."""
    server.create(partitions=2)
    streams, counted = metadata(server).streamMetadata, server.brokers()[0]
    items = [item for stream in streams for item in stream.partitions.values() if not item.paused]
    held = sum(counted.id in item.replicas for item in items)
    led = sum(counted.id == item.leader for item in items)
    assert (counted.partitionCount, counted.leaderCount) == (held, led)


def test_a_stream_is_described(server: Server) -> None:
    """3.15: streamMetadata; 3.15: creationTimestamp; 1.4 StreamMetadata."""
    before = time.time_ns()
    name = server.create(subject=(subject := unique("described")), partitions=3)
    described = server.described(name)
    assert (described.name, described.subject) == (name, subject)
    assert before <= described.creationTimestamp <= time.time_ns()
    for number, item in described.partitions.items():
        assert item.id == number
        assert item.leader in item.replicas
        assert {*item.isr} <= {*item.replicas} <= {*server.every}
        assert (item.paused, item.readonly) == (False, False)
        assert item.HasField("messagesReceivedTimestamps")
        assert item.HasField("pauseTimestamps")
        assert item.HasField("readonlyTimestamps"), "the three are always present"


def test_the_leader_describes_its_own_positions(server: Server) -> None:
    """3.15: highWatermark and newestOffset are the answering server's."""
    name = server.create()
    item = server.described(name, server.leader(name)).partitions[0]
    assert (item.highWatermark, item.newestOffset) == (-1, -1)
    server.fill(name, 3)
    item = server.described(name, server.leader(name)).partitions[0]
    assert (item.highWatermark, item.newestOffset) == (2, 2)


@pytest.mark.three
def test_a_server_without_a_replica_has_no_positions(server: Server) -> None:
    """3.15: -1 on servers that hold no replica."""
    name = server.create(replicationFactor=1)
    server.fill(name, 2)
    for stub in server.others(name):
        item = server.described(name, stub).partitions[0]
        assert (item.highWatermark, item.newestOffset) == (-1, -1)


# --- FetchPartitionMetadata ----------------------------------------------------------------------------------


def test_an_unknown_partition(server: Server) -> None:
    """1.5 FetchPartitionMetadata: unknown stream or partition; 7.4 TestFetchPartitionMetadataPartitionNotFound."""
    assert refused(server.any, unique("unknown")) == (NOT_FOUND, "partition not found")
    for partition in (1, -1):
        assert refused(server.any, server.create(), partition) == (NOT_FOUND, "partition not found")


@pytest.mark.three
def test_only_the_leader_answers(server: Server) -> None:
    """1.5 FetchPartitionMetadata: not leading; 7.4 TestFetchPartitionMetadataNotLeader."""
    name = server.create(replicationFactor=2)
    assert [refused(stub, name) for stub in server.others(name)] == [NOT_LEADING] * 2


def test_a_paused_partition_has_no_leader(server: Server) -> None:
    """1.5 FetchPartitionMetadata: paused; 7.4 TestFetchPartitionMetadataPauseTimestamps: fails while paused."""
    name = server.create()
    server.pause(name)
    assert [refused(stub, name) for stub in server.every.values()] == [NOT_LEADING] * len(server)


def test_the_leader_knows_the_truth(server: Server) -> None:
    """7.4 TestFetchPartitionMetadata."""
    name = server.create(partitions=2)
    server.fill(name, 3, partition=1)
    item = server.partition(name, 1)
    assert (item.id, item.highWatermark, item.newestOffset) == (1, 2, 2)
    assert item.leader in item.replicas
    assert sorted(item.isr) == sorted(item.replicas)


def test_times_of_messages(server: Server) -> None:
    """7.4 TestFetchPartitionMetadataMessagesReceivedTimestamps."""
    name = server.create()
    assert server.partition(name).messagesReceivedTimestamps == api.PartitionEventTimestamps()
    server.fill(name, 1)
    first = server.partition(name).messagesReceivedTimestamps
    assert 0 < first.firstTimestamp == first.latestTimestamp
    server.fill(name, 1)
    second = server.partition(name).messagesReceivedTimestamps
    assert second.firstTimestamp == first.firstTimestamp < second.latestTimestamp


def test_times_of_pauses(server: Server) -> None:
    """7.4 TestFetchPartitionMetadataPauseTimestamps; 3.11: pauseTimestamps."""
    name = server.create()
    assert server.partition(name).pauseTimestamps == api.PartitionEventTimestamps()
    before = time.time_ns()
    server.pause(name)
    paused = server.described(name).partitions[0].pauseTimestamps
    assert before <= paused.firstTimestamp == paused.latestTimestamp
    server.publish(name)
    resumed = server.partition(name).pauseTimestamps
    assert resumed.firstTimestamp == paused.firstTimestamp < resumed.latestTimestamp


def test_times_of_readonly_changes(server: Server) -> None:
    """7.4 TestFetchPartitionMetadataReadonlyTimestamps; 3.12: readonlyTimestamps."""
    name = server.create()
    assert server.partition(name).readonlyTimestamps == api.PartitionEventTimestamps()
    server.set_readonly(name)
    first = server.partition(name).readonlyTimestamps
    assert 0 < first.firstTimestamp == first.latestTimestamp
    server.set_readonly(name, readonly=False)
    second = server.partition(name).readonlyTimestamps
    assert second.firstTimestamp == first.firstTimestamp < second.latestTimestamp


# --- the service ---------------------------------------------------------------------------------------------


def health(server: Server, service: str) -> int:
    check = server.any.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    return int(check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_S).status)


@pytest.mark.parametrize("service", ["proto.API", ""])
def test_the_service_is_healthy(server: Server, service: str) -> None:
    """1: the health service; 7.8 TestHealthServerStartedCorrectly."""
    assert poll(lambda: health(server, service) == health_pb2.HealthCheckResponse.SERVING, TIMEOUT_S)


def test_methods_that_do_not_exist(server: Server) -> None:
    """1.1: there are no other methods."""
    call = server.any.channel.unary_unary("/proto.API/ResumeStream")
    assert status(call, b"")[0] is grpc.StatusCode.UNIMPLEMENTED
