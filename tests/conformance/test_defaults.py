"""Settings of the server that a stream may replace (CreateStreamRequest fields 6 to 18)."""

import grpc

from bascule.testing.processes import poll
from bascule.wire.pb import api_pb2 as api
from tests.harness.conformance import Server

SETTINGS = {
    "streams.auto.pause.time": "400ms",
    "streams.auto.pause.disable.if.subscribers": "true",
    "clustering.min.insync.replicas": 2,
    "streams.retention.max.messages": 3,
    "streams.segment.max.bytes": 1,
    "streams.cleaner.interval": "200ms",
}
NEVER = api.NullableInt64(value=0)


def paused(server: Server, name: str) -> bool:
    return bool(server.described(name).partitions[0].paused)


def test_an_idle_partition_is_paused(server: Server) -> None:
    """4: streams.auto.pause.time; 3.11: the stream's value replaces streams.auto.pause.time."""
    name, never = server.create(), server.create(autoPauseTime=NEVER)
    assert poll(lambda: paused(server, name), 10.0)
    assert not poll(lambda: paused(server, never), 1.0)


def test_a_partition_with_subscribers_is_not_paused(server: Server) -> None:
    """4: streams.auto.pause.disable.if.subscribers."""
    name = server.create(minIsr=api.NullableInt32(value=1))
    with server.reading(name, resume=True):
        assert not poll(lambda: paused(server, name), 1.5)
    other = server.create(autoPauseDisableIfSubscribers=api.NullableBool(value=False))
    with server.reading(other, resume=True) as reading:
        assert reading.end() == (grpc.StatusCode.FAILED_PRECONDITION, "commit log was closed")


def test_min_isr(server: Server) -> None:
    """4: clustering.min.insync.replicas, and minIsr of the stream."""
    name = server.create(replicationFactor=1, autoPauseTime=NEVER)
    assert server.publish(name).offset == 0
    assert server.partition(name).highWatermark == -1, "two replicas are needed, and there is one"
    name = server.create(replicationFactor=1, autoPauseTime=NEVER, minIsr=api.NullableInt32(value=1))
    server.fill(name, 1)
    assert server.partition(name).highWatermark == 0


def test_retention(server: Server) -> None:
    """4: streams.retention.max.messages, and retentionMaxMessages of the stream."""
    fields = {"autoPauseTime": NEVER, "minIsr": api.NullableInt32(value=1)}
    limited, all_retained = server.create(**fields), server.create(retentionMaxMessages=NEVER, **fields)  # type: ignore[arg-type]
    for name in (limited, all_retained):
        server.fill(name, 10)
    assert poll(lambda: [message.offset for message in server.stored(limited)] == [7, 8, 9], 6.0)
    assert len(server.stored(all_retained)) == 10
