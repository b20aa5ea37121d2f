"""Messages over `clustering.replication.max.bytes`, and concurrency control for all streams, on a server with both."""

from typing import Any

import grpc
import pytest

from bascule.wire.pb import api_pb2 as api
from tests.harness.conformance import TIMEOUT_S, Server, status, unique
from tests.harness.envelopes import ack_of, message

MOST = 65536
SETTINGS = {"clustering.replication.max.bytes": MOST, "streams.concurrency.control": "true"}
OFF = api.NullableBool(value=False)


@pytest.fixture
def stream(server: Server) -> str:
    return server.create(optimisticConcurrencyControl=OFF)


def test_publish_too_much(server: Server, stream: str) -> None:
    """1.5 Publish: ack TOO_LARGE; 7.2 TestLegacyPublish: too large."""
    request = api.PublishRequest(stream=stream, value=bytes(MOST))
    ended = status(server.any.Publish, request)
    assert ended == (grpc.StatusCode.INVALID_ARGUMENT, "message exceeds max replication size")
    assert server.partition(stream).newestOffset == -1


def test_publish_async_too_much(server: Server, stream: str) -> None:
    """1.5 PublishAsync: BAD_REQUEST message exceeds max replication size."""
    requests = [
        api.PublishRequest(stream=stream, value=bytes(MOST), correlationId="large"),
        api.PublishRequest(stream=stream, value=b"small", correlationId="small"),
    ]
    answers = {each.correlationId: each for each in server.any.PublishAsync(iter(requests), timeout=TIMEOUT_S)}
    error = answers["large"].asyncError
    assert (error.code, error.message) == (api.PublishAsyncError.BAD_REQUEST, "message exceeds max replication size")
    assert answers["small"].ack.offset == 0


@pytest.mark.parametrize("policy", [api.LEADER, api.ALL, api.NONE])
def test_too_much_over_nats(server: Server, stream: str, policy: "api.AckPolicy") -> None:
    """2.5: TOO_LARGE error ack, also with NONE; 1.4 Ack: commitTimestamp is 0 in TOO_LARGE acks."""
    inbox = unique("inbox")
    with server.nats() as nats:
        nats.subscribe(inbox.encode())
        large = message(bytes(MOST), ackInbox=inbox, ackPolicy=policy, correlationId="c")
        nats.publish(stream.encode(), large)
        ack = ack_of(nats.messages(1)[0].payload)
    assert (ack.ackError, ack.offset, ack.commitTimestamp) == (api.Ack.TOO_LARGE, 0, 0)
    assert (ack.stream, ack.correlationId, ack.ackPolicy) == (stream, "c", policy)
    assert server.partition(stream).newestOffset == -1


def test_the_limit_is_of_the_whole_payload(server: Server, stream: str) -> None:
    """4: clustering.replication.max.bytes counts the envelope, too; 11.15: near-limit records replicate."""
    inbox = unique("inbox")
    with server.nats() as nats:
        nats.subscribe(inbox.encode())
        fields: dict[str, Any] = {"ackInbox": inbox, "ackPolicy": api.ALL}
        room = MOST - len(message(bytes(MOST // 2), **fields)) + MOST // 2
        exact = message(bytes(room), **fields)
        assert len(exact) == MOST
        nats.publish(stream.encode(), exact)
        assert ack_of(nats.messages(1)[0].payload).ackError == api.Ack.OK
        nats.publish(stream.encode(), message(bytes(room + 1), **fields))
        assert ack_of(nats.messages(1)[0].payload).ackError == api.Ack.TOO_LARGE


@pytest.mark.differs("`streams.concurrency.control`")
def test_concurrency_control_of_all_streams(server: Server) -> None:
    """2.6: streams.concurrency.control; 11.6."""
    name = server.create()
    request = api.PublishRequest(stream=name, expectedOffset=3)
    ended = status(server.any.Publish, request)
    assert ended == (grpc.StatusCode.UNKNOWN, "incorrect expected offset")


def test_a_stream_may_do_without(server: Server, stream: str) -> None:
    """4: a setting of the stream replaces the server's."""
    assert server.publish(stream, expectedOffset=3).offset == 0
