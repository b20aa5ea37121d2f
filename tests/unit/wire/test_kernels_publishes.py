"""The kernel that routes publishes, on both twins."""

from __future__ import annotations

from types import ModuleType

import pytest

from bascule.wire.pb import api_pb2
from tests.harness.kernel_inputs import envelope, frame, pub_payloads

# --- publishes --------------------------------------------------------------------------------------------

ROUTES: dict[bytes, list[tuple[bytes, int, bytes, int] | None]] = {
    b"s": [(b"subject", 0, b"-7", 7), None, (b"subject.2", 0, b"-7", 7)],
    b"occ": [(b"occ", 1, b"-12", 12)],
    b"ask": [(b"ask", 2, b"-13", 13)],
}


def route(kernels: ModuleType, data: bytes, max_payload: int = 1000) -> tuple[int, bytes, int, int, list[bytes], int]:
    result: tuple[int, bytes, int, int, list[bytes], int] = kernels.route_publishes(
        data, 0, len(data), ROUTES, b"own.s1", max_payload, 5000
    )
    return result


def test_requests_become_pub_commands(kernels: ModuleType) -> None:
    full = api_pb2.PublishRequest(
        key=b"k",
        value=b"v",
        stream="s",
        partition=2,
        headers={"h": b"1"},
        ackInbox="ignored",
        correlationId="c",
        ackPolicy=api_pb2.ALL,
        expectedOffset=-1,
    )
    small = api_pb2.PublishRequest(stream="s", ackPolicy=api_pb2.NONE)
    data = frame(full.SerializeToString()) + frame(small.SerializeToString())
    consumed, commands, published, awaiting, exceptions, problem = route(kernels, data + data[:9])
    assert (consumed, published, awaiting, exceptions, problem) == (len(data), 2, 1, [], 0)
    (first_subject, first), (second_subject, second) = pub_payloads(commands)
    assert (first_subject, second_subject) == (b"subject.2", b"subject")
    expected = api_pb2.Message(
        offset=-1,
        key=b"k",
        value=b"v",
        stream="s",
        subject="subject.2",
        headers={"h": b"1"},
        ackInbox="own.s1-7",
        correlationId="c",
        ackPolicy=api_pb2.ALL,
    )
    assert first == envelope(expected.SerializeToString())
    expected = api_pb2.Message(stream="s", subject="subject", ackInbox="own.s1-7", ackPolicy=api_pb2.NONE)
    assert second == envelope(expected.SerializeToString())


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": "unknown"},
        {},
        {"stream": "s", "partition": 1},
        {"stream": "s", "partition": 3},
        {"stream": "s", "partition": -1},
        {"stream": "ask"},
        {"stream": "occ", "ackPolicy": 2},
        {"stream": "occ", "ackPolicy": 5},
        {"stream": "s", "value": b"x" * 200},
        {"stream": "s", "correlationId": "é" * 512 + "x"},
    ],
)
def test_what_needs_a_decision_is_handed_to_python(kernels: ModuleType, fields: dict[str, object]) -> None:
    request = api_pb2.PublishRequest(**fields).SerializeToString()  # type: ignore[arg-type]
    plain = api_pb2.PublishRequest(stream="occ", ackPolicy=api_pb2.ALL).SerializeToString()
    data = frame(plain) + frame(request) + frame(plain)
    room = 100 if "value" in fields else 5000
    consumed, commands, published, awaiting, exceptions, problem = route(kernels, data, max_payload=room)
    assert (consumed, published, awaiting, exceptions, problem) == (len(data), 2, 2, [request], 0)
    assert len(pub_payloads(commands)) == 2


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (frame(b"\x1a\x05s"), 1),
        (frame(b"\x1a\x01\xff"), 1),
        (frame(b"\x2a\x03\x0a\x01\xff"), 1),
        (b"\x00\x00\x00\x13\x89", 2),
        (b"\x01\x00\x00\x13\x89", 2),
        (b"\x01\x00\x00\x00\x01", 3),
    ],
)
def test_a_bad_request_stops_before_it(kernels: ModuleType, bad: bytes, problem: int) -> None:
    good = frame(b"\x1a\x01s")
    result = route(kernels, good + bad + good)
    assert (result[0], result[2], result[5]) == (len(good), 1, problem)


def test_a_correlation_id_at_its_bound_is_published(kernels: ModuleType) -> None:
    request = api_pb2.PublishRequest(stream="s", correlationId="é" * 512).SerializeToString()
    assert route(kernels, frame(request), max_payload=5000)[2:5] == (1, 1, [])
