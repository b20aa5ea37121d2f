"""Of each key only the newest message stays, whole segments at a time, on every replica."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import grpc
import pytest

from bascule.testing.processes import poll
from bascule.wire.pb import api_pb2 as api
from tests.harness.conformance import TIMEOUT_S, Server

SETTINGS = {"streams.compact.enabled": True}
SMALL: dict[str, Any] = {
    "segmentMaxBytes": api.NullableInt64(value=1),
    "cleanerInterval": api.NullableInt64(value=200),
}
"""One message a segment, looked at as often as can be."""

COMPACTED_S = 20.0
ENDED = grpc.StatusCode.RESOURCE_EXHAUSTED

Keyed = Sequence[tuple[bytes, bytes]]
WRITTEN: Keyed = ((b"a", b"0"), (b"b", b"1"), (b"", b"2"), (b"a", b"3"), (b"", b"4"), (b"b", b"5"), (b"c", b"6"))
LEFT = [2, 3, 4, 5, 6, 7]
"""Of WRITTEN, and of one more after it in the active segment."""


def write(server: Server, name: str, messages: Keyed) -> None:
    for key, value in messages:
        server.publish(name, value, key=key, ackPolicy=api.ALL)


def on_each(server: Server, name: str) -> list[list[api.Message]]:
    """What every replica has."""
    found = []
    for stub in server.every.values():
        request = api.SubscribeRequest(
            stream=name, startPosition=api.EARLIEST, stopPosition=api.STOP_LATEST, readISRReplica=True
        )
        received: list[api.Message] = []
        with suppress(grpc.RpcError):  # a subscription ends with a status; after a restart none may begin yet
            received.extend(stub.Subscribe(request, timeout=TIMEOUT_S))
        found.append(received[1:])
    return found


def settles(server: Server, name: str, offsets: list[int]) -> bool:
    """Whether these are left at last, on every replica."""

    def so() -> bool:
        return all([message.offset for message in messages] == offsets for messages in on_each(server, name))

    return poll(so, COMPACTED_S)


def compacted(server: Server, **fields: Any) -> str:
    name = server.create(**SMALL, **fields)
    write(server, name, [*WRITTEN, (b"", b"7")])
    assert settles(server, name, LEFT), on_each(server, name)
    return name


def test_the_newest_message_of_each_key_stays_at_its_offset(server: Server) -> None:
    """3.18: compaction keeps the newest message of each key; 3.18: compaction keeps offsets;
    3.18: compaction keeps messages without a key; 3.14.4: gaps after compaction."""
    name = compacted(server)
    left = [(message.offset, message.key, message.value) for message in server.stored(name)]
    assert left == [(number, (*WRITTEN, (b"", b"7"))[number][0], b"%d" % number) for number in LEFT]
    assert server.publish(name, b"8", key=b"a", ackPolicy=api.ALL).offset == 8
    assert settles(server, name, [2, 4, 5, 6, 7, 8])


def test_the_active_segment_is_not_compacted(server: Server) -> None:
    """3.18: compaction leaves the active segment."""
    name = server.create(cleanerInterval=api.NullableInt64(value=200))
    write(server, name, [(b"a", b"%d" % number) for number in range(5)])
    compacted(server)  # so it had its turn meanwhile
    assert settles(server, name, [0, 1, 2, 3, 4])


def test_a_message_without_a_value_deletes_nothing(server: Server) -> None:
    """3.18: an empty value is no tombstone."""
    name = server.create(**SMALL)
    write(server, name, [(b"a", b"0"), (b"a", b""), (b"b", b"2"), (b"b", b""), (b"", b"4")])
    assert settles(server, name, [1, 3, 4])
    assert [message.value for message in server.stored(name)] == [b"", b"", b"4"]


def test_a_stream_may_ask_not_to_be_compacted(server: Server) -> None:
    """3.18: a stream's compactEnabled wins."""
    name = server.create(compactEnabled=api.NullableBool(value=False), **SMALL)
    write(server, name, [*WRITTEN, (b"", b"7")])
    compacted(server)
    assert settles(server, name, list(range(8)))


def test_goroutines_make_no_difference(server: Server) -> None:
    """3.18: compactMaxGoroutines changes no outcome."""
    compacted(server, compactMaxGoroutines=api.NullableInt32(value=4))


def test_a_reader_that_begins_in_a_gap_goes_on_after_it(server: Server) -> None:
    """3.14.3: start in a compacted gap; 3.18: EARLIEST is the oldest message that compaction has left."""
    name = compacted(server)
    with server.reading(name, startPosition=api.EARLIEST) as reading:
        assert reading.offsets(6) == LEFT
    for offset in (0, 1, 2):
        with server.reading(name, startPosition=api.OFFSET, startOffset=offset) as reading:
            assert reading.offsets(6) == LEFT
    write(server, name, [(b"b", b"8"), (b"", b"9")])
    assert settles(server, name, [2, 3, 4, 6, 7, 8, 9])
    with server.reading(name, startPosition=api.OFFSET, startOffset=5) as reading:
        assert reading.offsets(4) == [6, 7, 8, 9]


@pytest.mark.differs("STOP_OFFSET of a message that is missing")
def test_a_stop_offset_in_a_gap_stops(server: Server) -> None:
    """3.14.5: STOP_OFFSET of a message that was compacted; 11.12."""
    name = compacted(server)
    write(server, name, [(b"b", b"8"), (b"", b"9")])
    assert settles(server, name, [2, 3, 4, 6, 7, 8, 9])
    with server.reading(name, stopPosition=api.STOP_OFFSET, stopOffset=5) as reading:
        received, ended = reading.rest()
    assert [message.offset for message in received] == [2, 3, 4]
    assert ended == (ENDED, "Stop offset reached")


def test_a_time_of_a_message_that_is_gone_finds_the_next(server: Server) -> None:
    """3.18: times of compacted messages."""
    name = server.create(**SMALL)
    write(server, name, WRITTEN[:1])
    (first,) = server.holds(name, 1)
    write(server, name, [*WRITTEN[1:], (b"", b"7")])
    assert settles(server, name, LEFT)
    with server.reading(name, startPosition=api.TIMESTAMP, startTimestamp=first.timestamp) as reading:
        assert reading.offsets(6) == LEFT


def test_retention_and_compaction_go_together(server: Server) -> None:
    """3.18: compaction beside retention."""
    name = server.create(retentionMaxMessages=api.NullableInt64(value=4), **SMALL)
    write(server, name, [*WRITTEN, (b"", b"7")])

    def so() -> bool:
        return all(1 <= len(messages) <= 4 and messages[-1].offset == 7 for messages in on_each(server, name))

    assert poll(so, COMPACTED_S), on_each(server, name)
    newest = {message.key: message.offset for message in server.stored(name) if message.key}
    assert set(newest.items()) <= {(b"a", 3), (b"b", 5), (b"c", 6)}


@pytest.mark.processes
def test_what_is_left_is_left_after_a_kill(fresh: Server) -> None:
    """3.18: compaction over a restart."""
    name = compacted(fresh)
    values = fresh.values(name)
    for broker in fresh.processes.values():
        broker.kill9()
    for broker in fresh.processes.values():
        broker.start()
    for broker in fresh.processes.values():
        broker.wait_ready()
    fresh.known(name)
    assert poll(lambda: settles(fresh, name, LEFT), COMPACTED_S)
    assert fresh.values(name) == values
    assert fresh.publish(name, b"8", key=b"c", ackPolicy=api.ALL).offset == 8
