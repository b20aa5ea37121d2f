"""Cursors: positions of consumers, kept by the server in the stream `__cursors`."""

import zlib
from functools import partial
from typing import Any

import grpc
import pytest

from bascule.testing.processes import poll
from bascule.wire.pb import api_pb2 as api
from tests.harness.conformance import TIMEOUT_S, Outcome, Server, status, unique
from tests.harness.stub import Stub

PARTITIONS = 3
SETTINGS = {"cursors.stream.partitions": PARTITIONS}
SETTLE_S = 60.0
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def partition_of(cursor: str, stream: str, partition: int) -> int:
    """As clients compute it."""
    return zlib.crc32(f"{cursor},{stream},{partition}".encode()) % PARTITIONS


def stub_of(server: Server, cursor: str, stream: str, partition: int = 0) -> Stub:
    return server.leader("__cursors", partition_of(cursor, stream, partition))


def set_cursor(server: Server, cursor: str, stream: str, offset: int, partition: int = 0) -> None:
    request = api.SetCursorRequest(stream=stream, partition=partition, cursorId=cursor, offset=offset)
    stub_of(server, cursor, stream, partition).SetCursor(request, timeout=TIMEOUT_S)


def fetch(server: Server, cursor: str, stream: str, partition: int = 0) -> int:
    request = api.FetchCursorRequest(stream=stream, partition=partition, cursorId=cursor)
    response = stub_of(server, cursor, stream, partition).FetchCursor(request, timeout=TIMEOUT_S)
    return int(response.offset)


def refused(stub: Stub, method: str, **fields: Any) -> Outcome:
    request = getattr(api, f"{method}Request")(**fields)
    return status(getattr(stub, method), request)


BOTH = pytest.mark.parametrize("method", ["SetCursor", "FetchCursor"])


@BOTH
def test_a_cursor_needs_a_stream(server: Server, method: str) -> None:
    """1.5 SetCursor: stream empty; 1.5 FetchCursor: stream empty."""
    assert refused(server.any, method, cursorId="c") == (INVALID, "No stream provided")


@BOTH
def test_a_cursor_needs_an_id(server: Server, method: str) -> None:
    """1.5 SetCursor: cursorId empty; 1.5 FetchCursor: cursorId empty."""
    assert refused(server.any, method, stream="s") == (INVALID, "No cursorId provided")


@BOTH
@pytest.mark.three
def test_only_the_leader_of_its_partition_answers(server: Server, method: str) -> None:
    """1.5 SetCursor: not leader; 1.5 FetchCursor: not leader; 1.1: leader of the cursor's partition."""
    number = partition_of("c", "s", 0)
    expected = (grpc.StatusCode.FAILED_PRECONDITION, f"Server not leader for cursors partition {number}")
    for stub in server.others("__cursors", number):
        assert refused(stub, method, stream="s", cursorId="c") == expected


def test_a_cursor_that_was_never_set(server: Server) -> None:
    """1.5 FetchCursor: never set; 7.9 TestFetchCursorEmpty."""
    assert fetch(server, unique("c"), "s") == -1


def test_a_cursor_is_what_was_set_last(server: Server) -> None:
    """3.20: SetCursor and FetchCursor; 7.9 TestSetFetchCursor; 3.20: offsets are opaque, and may go back."""
    cursor, stream = unique("c"), server.create()
    for offset in (0, 5, 3, 2**62, 7):
        set_cursor(server, cursor, stream, offset)
        assert fetch(server, cursor, stream) == offset


def test_the_stream_need_not_exist(server: Server) -> None:
    """1.5 SetCursor: the named stream need not exist."""
    cursor = unique("c")
    set_cursor(server, cursor, "no such stream", 4, partition=77)
    assert fetch(server, cursor, "no such stream", partition=77) == 4


def test_cursors_are_apart(server: Server) -> None:
    """3.20: the key is cursor id, stream and partition."""
    names = [(f"c{number}", stream, partition) for number in range(3) for stream in "st" for partition in range(3)]
    prefix = unique("apart")
    for offset, (cursor, stream, partition) in enumerate(names):
        set_cursor(server, prefix + cursor, stream, offset, partition)
    for offset, (cursor, stream, partition) in enumerate(names):
        assert fetch(server, prefix + cursor, stream, partition) == offset


def test_more_cursors_than_fit_into_a_cache(server: Server) -> None:
    """3.20: the cache holds 512, the log all; 7.9 TestSetFetchCursorNoCache."""
    prefix = unique("many")
    for number in range(600):
        set_cursor(server, f"{prefix}-{number}", "s", number)
    for number in (0, 1, 299, 599):
        assert fetch(server, f"{prefix}-{number}", "s") == number


def test_the_stream_of_cursors(server: Server) -> None:
    """3.20: the stream __cursors; 3.15: streamMetadata includes reserved streams."""
    described = server.described("__cursors")
    assert sorted(described.partitions) == list(range(PARTITIONS))
    assert described.subject.endswith(".cursors")
    assert all(sorted(item.replicas) == sorted(server.every) for item in described.partitions.values())
    listed = server.any.FetchMetadata(api.FetchMetadataRequest(), timeout=TIMEOUT_S).streamMetadata
    assert "__cursors" in {stream.name for stream in listed}


def test_a_cursor_is_stored_under_its_key(server: Server) -> None:
    """3.20: key and value in __cursors."""
    cursor = unique("key")
    set_cursor(server, cursor, "s", 42, partition=1)
    stored = server.stored("__cursors", partition_of(cursor, "s", 1))
    (found,) = [message for message in stored if message.key == f"{cursor},s,1".encode()]
    # The message Cursor of the server: stream=1, partition=2, cursorId=3, offset=4, as of SetCursorRequest.
    value = api.SetCursorRequest.FromString(found.value)
    assert (value.stream, value.partition, value.cursorId, value.offset) == ("s", 1, cursor, 42)


def test_the_stream_of_cursors_may_be_paused(server: Server) -> None:
    """1.5 PauseStream: reserved streams are not refused; 3.20: a cursor is answered while __cursors is paused."""
    cursor = unique("paused")
    set_cursor(server, cursor, "s", 1)
    server.pause("__cursors")
    assert fetch(server, cursor, "s") == 1
    server.pause("__cursors")
    set_cursor(server, cursor, "s", 2)
    assert poll(lambda: fetch(server, cursor, "s") == 2, TIMEOUT_S)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_cursors_survive_a_restart(fresh: Server, kill: bool) -> None:
    """3.20: never older than the last value that was acked or fetched, over a restart."""
    for number in range(10):
        set_cursor(fresh, f"c{number}", "s", number)
    for process in fresh.processes.values():
        process.kill9() if kill else process.terminate()
    for process in fresh.processes.values():
        process.start()
    for process in fresh.processes.values():
        process.wait_ready()
    for number in range(10):
        assert poll(partial(answers, fresh, f"c{number}"), SETTLE_S)
        assert fetch(fresh, f"c{number}", "s") == number


@pytest.mark.three
@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_cursors_survive_their_leader(fresh: Server) -> None:
    """3.20: never older than the last value that was acked or fetched, over a fail-over."""
    number = partition_of("c", "s", 0)
    dead = fresh.described("__cursors").partitions[number].leader
    for offset in range(5):
        set_cursor(fresh, "c", "s", offset)
    fresh.processes[dead].kill9()
    other = next(process for name, process in fresh.processes.items() if name != dead)
    with Server(other.address, fresh.nats_url, fresh.settings, fresh.processes) as rest:
        assert poll(lambda: rest.described("__cursors").partitions[number].leader not in (dead, ""), SETTLE_S)
        assert poll(partial(answers, rest, "c"), SETTLE_S)
        assert fetch(rest, "c", "s") == 4


def answers(server: Server, cursor: str) -> bool:
    try:
        fetch(server, cursor, "s")
    except grpc.RpcError:
        return False
    return True
