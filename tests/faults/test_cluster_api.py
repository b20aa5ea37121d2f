"""The API of a cluster of three, through any of its brokers: every answer is the one a client of one broker gets."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import nats
import pytest

from bascule.client import Client
from bascule.testing.processes import poll
from bascule.wire.envelope import MsgType, decode, encode
from bascule.wire.pb import api_pb2 as api
from tests.harness.cluster_load import Brokers
from tests.harness.stub import Stub

MAX_PAYLOAD = 1024 * 1024


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    with Brokers(tmp_path_factory.mktemp("cluster"), peers=True) as running:
        yield running


def create(stub: Stub, name: str, **fields: Any) -> None:
    stub.CreateStream(api.CreateStreamRequest(name=name, subject=name, **fields), timeout=10)


def partitions_of(stub: Stub, name: str) -> dict[int, Any]:
    response = stub.FetchMetadata(api.FetchMetadataRequest(streams=[name]), timeout=10)
    return dict(response.streamMetadata[0].partitions)


def refused(call: Any, request: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        list(call(request, timeout=10)) if isinstance(request, api.SubscribeRequest) else call(request, timeout=10)
    return error.value.code(), error.value.details()


def values(stub: Stub, stream: str, count: int, **fields: Any) -> list[bytes]:
    request = api.SubscribeRequest(stream=stream, startPosition=api.EARLIEST, **fields)
    call = stub.Subscribe(request, timeout=10)
    assert next(call) == api.Message(), "the handshake comes first"
    read = [next(call).value for _ in range(count)]
    call.cancel()
    return read


def test_leaders_of_one_stream_are_spread(brokers: Brokers) -> None:
    with Stub(brokers["c"].address) as stub:
        create(stub, "spread", partitions=6, replicationFactor=3)
        found = partitions_of(stub, "spread")
        assert Counter(item.leader for item in found.values()) == {"a": 2, "b": 2, "c": 2}
        assert all(sorted(item.replicas) == sorted(item.isr) == ["a", "b", "c"] for item in found.values())


def test_every_broker_takes_every_request(brokers: Brokers) -> None:
    for name in "abc":
        with Stub(brokers[name].address) as stub:
            stream = f"through-{name}"
            create(stub, stream, replicationFactor=-1)
            assert refused(stub.CreateStream, api.CreateStreamRequest(name=stream, subject="x")) == (
                grpc.StatusCode.ALREADY_EXISTS,
                "stream already exists",
            )
            request = api.CreateStreamRequest(name="four", subject="x", replicationFactor=4)
            assert refused(stub.CreateStream, request) == (
                grpc.StatusCode.INVALID_ARGUMENT,
                "Invalid replicationFactor 4, cluster size 3",
            )
            for number in range(3):
                publish = api.PublishRequest(stream=stream, value=b"%d" % number, ackPolicy=api.ALL)
                assert stub.Publish(publish, timeout=10).ack.offset == number
            stub.DeleteStream(api.DeleteStreamRequest(name=stream), timeout=10)
            assert refused(stub.DeleteStream, api.DeleteStreamRequest(name=stream)) == (
                grpc.StatusCode.NOT_FOUND,
                "stream does not exist",
            )


def test_only_the_leader_serves_unless_a_replica_is_asked_for(brokers: Brokers) -> None:
    with Stub(brokers["a"].address) as any_broker:
        create(any_broker, "led", replicationFactor=2)
        (item,) = partitions_of(any_broker, "led").values()
    follower = next(name for name in item.replicas if name != item.leader)
    (unknown_broker,) = {"a", "b", "c"} - {*item.replicas}
    with Stub(brokers[follower].address) as stub, Stub(brokers[unknown_broker].address) as outside:
        not_leader = (grpc.StatusCode.FAILED_PRECONDITION, "Server not partition leader")
        assert refused(stub.Subscribe, api.SubscribeRequest(stream="led")) == not_leader
        assert refused(outside.Subscribe, api.SubscribeRequest(stream="led", readISRReplica=True)) == not_leader
        request = api.FetchPartitionMetadataRequest(stream="led")
        assert refused(stub.FetchPartitionMetadata, request) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "The request should be sent to partition leader",
        )
        reading = stub.Subscribe(
            api.SubscribeRequest(stream="led", startPosition=api.EARLIEST, readISRReplica=True), timeout=20
        )
        assert next(reading) == api.Message()
        for number in range(5):
            outside.Publish(api.PublishRequest(stream="led", value=b"%d" % number, ackPolicy=api.ALL), timeout=10)
            began = time.monotonic()
            assert next(reading).value == b"%d" % number
            assert time.monotonic() - began < 1.0, "a replica learns of the high watermark promptly"
        reading.cancel()


def test_a_message_of_the_maximal_size_with_a_long_subject_replicates(brokers: Brokers) -> None:
    subject = "s" * 200
    with Stub(brokers["b"].address) as stub:
        stub.CreateStream(api.CreateStreamRequest(name="large", subject=subject, replicationFactor=3), timeout=10)

        async def publish() -> int:
            connection = await nats.connect(brokers.nats.nats_url)
            inbox = connection.new_inbox()
            acks = await connection.subscribe(inbox)

            def envelope(size: int) -> bytes:
                message = api.Message(value=b"v" * size, ackInbox=inbox, ackPolicy=api.ALL)
                return encode(MsgType.PUBLISH, message.SerializeToString())

            size = MAX_PAYLOAD - len(envelope(MAX_PAYLOAD)) + MAX_PAYLOAD
            assert len(envelope(size)) == MAX_PAYLOAD
            await connection.publish(subject, envelope(size))
            payload = decode((await acks.next_msg(timeout=10)).data, MsgType.ACK)
            assert payload is not None
            assert api.Ack.FromString(payload).ackError == api.Ack.OK
            await connection.close()
            return size

        size = asyncio.run(publish())
    for name in "abc":
        with Stub(brokers[name].address, **{"grpc.max_receive_message_length": -1}) as stub:
            assert values(stub, "large", 1, readISRReplica=True) == [b"v" * size]


@pytest.mark.slow
@pytest.mark.timeout(90)
def test_without_a_majority_requests_say_so_in_their_time(tmp_path: Path) -> None:
    with Brokers(tmp_path, peers=True) as brokers:
        for name in "bc":
            brokers[name].kill9()
        request = api.CreateStreamRequest(name="s", subject="s")
        with Stub(brokers["a"].address) as stub:

            def answer(timeout_s: float | None) -> tuple[grpc.StatusCode, str, float]:
                began = time.monotonic()
                with pytest.raises(grpc.RpcError) as error:
                    stub.CreateStream(request, timeout=timeout_s)
                return error.value.code(), error.value.details(), time.monotonic() - began

            expected = (grpc.StatusCode.INTERNAL, "no known metadata leader")
            assert poll(lambda: answer(None)[:2] == expected, 30.0), "a has lost its majority and knows it"
            assert answer(None)[2] < 1.0, "without a deadline at once"
            code, text, taken_s = answer(3.0)
            # Whose clock says first that the time is over, this client's or the server's, is chance.
            assert (code, text) == expected or code is grpc.StatusCode.DEADLINE_EXCEEDED
            assert 1.0 < taken_s < 4.0
            brokers["b"].start().wait_ready()
            assert poll(lambda: _created(stub), 20.0)


def _created(stub: Stub) -> bool:
    try:
        create(stub, "s")
    except grpc.RpcError as error:
        return error.code() is grpc.StatusCode.ALREADY_EXISTS
    return True


def test_our_client_follows_the_leaders(brokers: Brokers) -> None:
    async def main() -> None:
        async with await Client.connect(brokers["b"].address) as client:
            await client.create_stream("followed", partitions=3, replication_factor=3)
            for partition in range(3):
                assert (await client.publish("followed", b"x", partition=partition)).offset == 0
                found = await client.fetch_partition_metadata("followed", partition)
                assert found.high_watermark == 0

    asyncio.run(main())
