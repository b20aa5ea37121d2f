"""Old messages are removed, whole segments at a time."""

from typing import Any

import grpc
import pytest

from bascule.testing.processes import poll
from bascule.wire.pb import api_pb2 as api
from tests.harness.conformance import Server

ALWAYS: dict[str, Any] = {"cleanerInterval": api.NullableInt64(value=200)}
SMALL: dict[str, Any] = {"segmentMaxBytes": api.NullableInt64(value=1)}
"""One message a segment, or a few where they are written together."""

CLEANED_S = 6.0


def oldest(server: Server, name: str) -> int:
    with server.reading(name) as reading:
        return reading.offsets(1)[0]


def limit(value: int) -> api.NullableInt64:
    return api.NullableInt64(value=value)


def test_retention_by_messages(server: Server) -> None:
    """3.18: retention by messages; 3.18: segments roll by bytes; 7.6 TestStreamRetentionMessages."""
    name = server.create(retentionMaxMessages=limit(5), **SMALL, **ALWAYS)
    server.fill(name, 20)
    assert poll(lambda: oldest(server, name) == 15, CLEANED_S)
    assert server.values(name) == [b"%d" % number for number in range(15, 20)]


def test_retention_by_bytes(server: Server) -> None:
    """3.18: retention by bytes; 7.6 TestStreamRetentionBytes."""
    name = server.create(retentionMaxBytes=limit(1), **SMALL, **ALWAYS)
    server.fill(name, 20)
    assert poll(lambda: oldest(server, name) == 19, CLEANED_S)


def test_retention_by_age(server: Server) -> None:
    """3.18: retention by age; 7.6 TestStreamRetentionAge."""
    name = server.create(retentionMaxAge=limit(1000), segmentMaxAge=limit(0), **SMALL, **ALWAYS)
    server.fill(name, 5)
    server.publish(name, b"last", ackPolicy=api.ALL)
    assert poll(lambda: oldest(server, name) >= 5, CLEANED_S)


@pytest.mark.differs("STOP_OFFSET of a message that is missing")
def test_readers_below_the_start_go_on_at_it(server: Server) -> None:
    """3.14.3: start below the oldest; 3.14.2: EARLIEST is the oldest retained offset;
    3.14.5: STOP_OFFSET of a message that is gone; 11.12."""
    name = server.create(retentionMaxMessages=limit(3), **SMALL, **ALWAYS)
    server.fill(name, 10)
    assert poll(lambda: oldest(server, name) == 7, CLEANED_S)
    for offset in (0, 6, 7):
        with server.reading(name, startPosition=api.OFFSET, startOffset=offset) as reading:
            assert reading.offsets(3) == [7, 8, 9]
    fields: dict[str, Any] = {"startPosition": api.OFFSET, "stopPosition": api.STOP_OFFSET, "stopOffset": 5}
    with server.reading(name, **fields) as reading:
        received, ended = reading.rest()
    assert (received, ended) == ([], (grpc.StatusCode.RESOURCE_EXHAUSTED, "Stop offset reached"))
    refused = server.refusal(name, stub=server.leader(name), **fields | {"startPosition": api.EARLIEST})
    assert refused == (grpc.StatusCode.INVALID_ARGUMENT, "Stop offset is before start offset: 5 < 7")
    assert server.publish(name).offset == 10


def test_an_aged_active_segment_is_rolled_and_then_removed(server: Server) -> None:
    """3.18: segments roll by age."""
    name = server.create(retentionMaxAge=limit(1000), segmentMaxAge=limit(1000), **ALWAYS)
    server.fill(name, 5)
    assert poll(lambda: server.stored(name) == [], CLEANED_S)
    assert server.publish(name, b"next").offset == 5
    assert server.values(name) == [b"next"]


def test_the_active_segment_is_never_removed(server: Server) -> None:
    """3.18: never the active segment."""
    name = server.create(retentionMaxMessages=limit(1), retentionMaxBytes=limit(1), **ALWAYS)
    server.fill(name, 10)
    assert not poll(lambda: oldest(server, name) > 0, 1.0)


@pytest.mark.parametrize(("messages", "nbytes", "expected"), [(10, 1, 19), (3, 1 << 30, 17)])
def test_the_limit_that_allows_least_counts(server: Server, messages: int, nbytes: int, expected: int) -> None:
    """3.18: age, then messages, then bytes."""
    limits: dict[str, Any] = {"retentionMaxMessages": limit(messages), "retentionMaxBytes": limit(nbytes)}
    name = server.create(**limits, retentionMaxAge=limit(3_600_000), **SMALL, **ALWAYS)
    server.fill(name, 20)
    assert poll(lambda: oldest(server, name) == expected, CLEANED_S)
    assert not poll(lambda: oldest(server, name) != expected, 1.0)


def test_the_cleaner_comes_at_its_interval(server: Server) -> None:
    """3.18: the cleaner's interval."""
    name = server.create(retentionMaxMessages=limit(5), cleanerInterval=limit(3_600_000), **SMALL)
    server.fill(name, 20)
    assert not poll(lambda: oldest(server, name) > 0, 2.0)


def test_without_limits_nothing_is_removed(server: Server) -> None:
    """3.18: 0 is no limit."""
    fields: dict[str, Any] = {
        "retentionMaxMessages": limit(0),
        "retentionMaxBytes": limit(0),
        "retentionMaxAge": limit(0),
    }
    name = server.create(**fields, **SMALL, **ALWAYS)
    server.fill(name, 10)
    assert not poll(lambda: oldest(server, name) > 0, 1.0)


def test_without_being_asked_nothing_is_compacted(server: Server) -> None:
    """3.18: compaction is off by default."""
    name = server.create(**SMALL, **ALWAYS)
    for number in range(5):
        server.publish(name, b"%d" % number, key=b"k", ackPolicy=api.ALL)
    other = server.create(compactEnabled=api.NullableBool(value=True), **SMALL, **ALWAYS)
    for number in range(5):
        server.publish(other, b"%d" % number, key=b"k", ackPolicy=api.ALL)
    assert poll(lambda: len(server.stored(other)) <= 2, CLEANED_S)
    assert server.values(name) == [b"0", b"1", b"2", b"3", b"4"]
