"""Streams that share a subject, on real brokers and a real NATS: foreign clients get the acks of the stream they named.

An archive on `>` listens to everything the others are sent, and often acks first.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest

from bascule.testing.jsonlines import JsonProgram
from bascule.testing.processes import BrokerProcess, poll, start_broker
from bascule.wire.pb import api_pb2 as api
from tests.harness.cluster_load import Brokers
from tests.harness.stub import Stub

NAMES = ("orders", "orders.eu", "order", "bestellungen-für-köln")


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with an archive of everything."""
    with start_broker(tmp_path_factory.mktemp("archived")) as process:
        with Stub(process.address) as stub:
            stub.CreateStream(api.CreateStreamRequest(name="archive", subject=">"), timeout=10)
        yield process


def publish_async(stub: Stub, requests: list[api.PublishRequest]) -> list[api.PublishResponse]:
    return list(stub.PublishAsync(iter(requests), timeout=30))


def stored(stub: Stub, stream: str) -> int:
    """Offsets of a stream are counted from its metadata: the archive also holds acks that travelled over NATS."""
    request = api.FetchPartitionMetadataRequest(stream=stream, partition=0)
    newest: int = stub.FetchPartitionMetadata(request, timeout=10).metadata.newestOffset
    return newest + 1


def test_grpcio_gets_one_ack_a_message_whatever_its_correlation_id(archived: BrokerProcess) -> None:
    with Stub(archived.address) as stub:
        for name in NAMES:
            stub.CreateStream(api.CreateStreamRequest(name=name, subject=f"g.{NAMES.index(name)}"), timeout=10)
        for correlation in ("", "the same"):
            asked = [name for _ in range(50) for name in NAMES]
            requests = [api.PublishRequest(stream=name, value=b"v", correlationId=correlation) for name in asked]
            answers = publish_async(stub, requests)
            assert sorted(answer.ack.stream for answer in answers) == sorted(asked)
            assert {answer.correlationId for answer in answers} == {correlation}
        for name in NAMES:
            request = api.PublishRequest(stream=name, value=b"v", ackPolicy=api.ALL)
            assert stub.Publish(request, timeout=10).ack.stream == name
            assert stored(stub, name) == 101
        assert stored(stub, "archive") >= 101 * len(NAMES)


def test_go_liftbridge_gets_the_offsets_of_its_stream(
    archived: BrokerProcess, go_against: Callable[[BrokerProcess], JsonProgram], stream: str
) -> None:
    go = go_against(archived)
    assert go.one("create", stream=stream)["event"] == "created"
    for flags in ({}, {"async": True}):
        acks = go("publish", stream=stream, count=100, policy="all", **flags)
        assert len(acks) == 100
        assert {ack["stream"] for ack in acks} == {stream}, acks[:3]
    with Stub(archived.address) as stub:
        assert stored(stub, stream) == 200


def test_members_of_a_group_answer_for_each_other_and_nobody_else_does(archived: BrokerProcess) -> None:
    """NATS makes one queue group of equal names whose subjects overlap: so one of the two stores each message."""
    with Stub(archived.address) as stub:
        for name, subject in (("left", "queue.a"), ("right", "queue.*")):
            stub.CreateStream(api.CreateStreamRequest(name=name, subject=subject, group="workers"), timeout=10)
        stub.CreateStream(api.CreateStreamRequest(name="loner", subject="queue.a"), timeout=10)
        answers = publish_async(stub, [api.PublishRequest(stream="left", value=b"v")] * 200)
        named = [answer.ack.stream for answer in answers]
        assert len(named) == 200
        assert set(named) == {"left", "right"}
        assert (stored(stub, "left"), stored(stub, "right")) == (named.count("left"), named.count("right"))
        assert publish_async(stub, [api.PublishRequest(stream="loner", value=b"v")])[0].ack.stream == "loner"


def test_a_correlation_id_over_its_bound_is_refused_with_the_reason(archived: BrokerProcess, stream: str) -> None:
    with Stub(archived.address) as stub:
        stub.CreateStream(api.CreateStreamRequest(name=stream, subject=stream), timeout=10)
        fine, long = "é" * 512, "é" * 512 + "x"
        text = "correlationId is too long: it takes at most 1024 bytes as UTF-8"
        requests = [api.PublishRequest(stream=stream, value=b"v", correlationId=item) for item in (fine, long)]
        good, bad = sorted(publish_async(stub, requests), key=lambda answer: answer.HasField("asyncError"))
        assert (good.ack.stream, good.ack.correlationId) == (stream, fine)
        assert (bad.asyncError.code, bad.asyncError.message) == (api.PublishAsyncError.Code.BAD_REQUEST, text)
        assert bad.correlationId == long
        to_subject = api.PublishToSubjectRequest(subject=stream, value=b"v", correlationId=long)
        for method, request in ((stub.Publish, requests[1]), (stub.PublishToSubject, to_subject)):
            with pytest.raises(grpc.RpcError) as caught:
                method(request, timeout=5)
            assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, text)
        assert stored(stub, stream) == 1


def knows(stub: Stub, wanted: api.FetchMetadataRequest) -> bool:
    return not any(each.error for each in stub.FetchMetadata(wanted, timeout=10).streamMetadata)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_with_three_brokers_each_one_passes_on_the_acks_of_the_stream_that_was_asked(tmp_path: Path) -> None:
    with Brokers(tmp_path, peers=True) as brokers:
        stubs = [Stub(broker.address) for broker in brokers.brokers.values()]
        create = [("archive", ">", 1), *((f"orders.{n}", f"sub.{n}", 3 if n % 2 else 1) for n in range(6))]
        for name, subject, factor in create:
            made = api.CreateStreamRequest(name=name, subject=subject, replicationFactor=factor)
            made.minIsr.value = min(factor, 2)
            stubs[0].CreateStream(made, timeout=20)
        asked = [name for name, _, _ in create[1:] for _ in range(50)]
        for stub in stubs:
            # A broker that did not create them learns of them a moment later.
            wanted = api.FetchMetadataRequest(streams=[name for name, _, _ in create])
            assert poll(partial(knows, stub, wanted), 20.0)
            for policy in (api.LEADER, api.ALL):
                requests = [api.PublishRequest(stream=name, value=b"v", ackPolicy=policy) for name in asked]
                answers = publish_async(stub, requests)
                assert sorted(answer.ack.stream for answer in answers) == sorted(asked)
            for name, _, _ in create[1:]:
                request = api.PublishRequest(stream=name, value=b"v", ackPolicy=api.ALL)
                assert stub.Publish(request, timeout=10).ack.stream == name
            stub.__exit__()
