"""Any broker of a cluster takes any request."""

from collections import Counter

import grpc
import pytest

from bascule.wire.pb import api_pb2 as api
from tests.harness.conformance import TIMEOUT_S, Server, status, unique

pytestmark = pytest.mark.three


def test_streams_are_created_through_any_broker(server: Server) -> None:
    """3.2: forwarded to the metadata leader; 7.1 TestCreateStreamPropagate."""
    for stub in server.every.values():
        name = unique("any")
        request = api.CreateStreamRequest(name=name, subject=name, replicationFactor=-1)
        stub.CreateStream(request, timeout=TIMEOUT_S)
        again = status(stub.CreateStream, request)
        assert again == (grpc.StatusCode.ALREADY_EXISTS, "stream already exists")
        for number in range(2):
            published = api.PublishRequest(stream=name, ackPolicy=api.ALL)
            assert stub.Publish(published, timeout=TIMEOUT_S).ack.offset == number


def test_streams_are_deleted_through_any_broker(server: Server) -> None:
    """3.2: errors come through; 7.1 TestDeleteStreamPropagate."""
    for stub in server.every.values():
        request = api.DeleteStreamRequest(name=server.create())
        stub.DeleteStream(request, timeout=TIMEOUT_S)
        again = status(stub.DeleteStream, request)
        assert again == (grpc.StatusCode.NOT_FOUND, "stream does not exist")


def test_partitions_are_paused_through_any_broker(server: Server) -> None:
    """3.11: any server pauses, and a publish through any resumes; 7.5 TestPauseStreamPropagate."""
    name = server.create(partitions=3)
    offset = 0
    for pauses in server.every.values():
        for resumes in server.every.values():
            pauses.PauseStream(api.PauseStreamRequest(name=name), timeout=TIMEOUT_S)
            server.shows(name, (), lambda item: item.paused)
            request = api.PublishRequest(stream=name, ackPolicy=api.ALL)
            assert resumes.Publish(request, timeout=TIMEOUT_S).ack.offset == offset
            offset += 1


def test_partitions_are_set_readonly_through_any_broker(server: Server) -> None:
    """3.12: any server; 7.5 TestSetStreamReadonlyPropagate."""
    name = server.create()
    for stub in server.every.values():
        for readonly in (True, False):
            request = api.SetStreamReadonlyRequest(name=name, readonly=readonly)
            stub.SetStreamReadonly(request, timeout=TIMEOUT_S)
            published = api.PublishRequest(stream=name)
            ended = status(stub.Publish, published)
            assert ended[0] is (grpc.StatusCode.FAILED_PRECONDITION if readonly else grpc.StatusCode.OK)


def test_messages_are_published_through_any_broker(server: Server) -> None:
    """1.1: Publish, PublishAsync and PublishToSubject work on any server."""
    name = server.create(replicationFactor=1)
    for stub in server.every.values():
        stub.Publish(api.PublishRequest(stream=name, value=b"p"), timeout=TIMEOUT_S)
        (answer,) = stub.PublishAsync(iter([api.PublishRequest(stream=name, value=b"a")]), timeout=TIMEOUT_S)
        assert not answer.HasField("asyncError")
        request = api.PublishToSubjectRequest(subject=name, value=b"s")
        assert stub.PublishToSubject(request, timeout=TIMEOUT_S).ack.stream == name
    assert server.values(name) == [b"p", b"a", b"s"] * 3


def test_every_replica_stores_everything(server: Server) -> None:
    """2.5: ALL is on every replica in sync."""
    name = server.create()
    server.fill(name, 5)
    for stub in server.every.values():
        with server.reading(name, stub=stub, readISRReplica=True) as reading:
            assert reading.values(5) == [b"%d" % number for number in range(5)]


@pytest.mark.differs("partitions of one stream on several brokers")
def test_partitions_of_a_stream_are_spread(server: Server) -> None:
    """3.3: replicas and leaders are spread within one stream; 11.23."""
    name = server.create(partitions=6, replicationFactor=1)
    leaders = Counter(item.leader for item in server.described(name).partitions.values())
    assert leaders == dict.fromkeys(server.every, 2)


def test_the_least_loaded_brokers_hold_new_partitions(server: Server) -> None:
    """3.3: placement by load."""
    names = [server.create(replicationFactor=1) for _ in range(6)]
    leaders = {server.described(name).partitions[0].leader for name in names}
    assert leaders == set(server.every)


def test_groups_of_load_balance_on_different_brokers(server: Server) -> None:
    """3.4: members of a group may be led by different brokers."""
    subject = unique("balanced")
    names = [server.create("member", subject, group="g", replicationFactor=1) for _ in range(3)]
    for number in range(30):
        request = api.PublishToSubjectRequest(subject=subject, value=b"%d" % number)
        server.any.PublishToSubject(request, timeout=TIMEOUT_S)
    stored = [value for name in names for value in server.values(name)]
    assert sorted(map(int, stored)) == list(range(30))
