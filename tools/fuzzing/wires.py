"""Targets: the kernels that split what comes from sockets. Both twins, upb, and one invariant: how the bytes were split
into reads does not change the result.
"""

from __future__ import annotations

import struct
from typing import Any

from bascule.errors import NatsProtocolError
from bascule.limits import MAX_CORRELATION_ID_BYTES
from bascule.wire.pb import api_pb2
from bascule.wire.pure.producers import is_about
from tools.fuzzing import inputs, judge
from tools.fuzzing.chance import Chance
from tools.fuzzing.inputs import MAGIC
from tools.fuzzing.target import Target, require
from tools.fuzzing.twins import ask, ask_within

ROUTES: dict[bytes, list[tuple[bytes, int, bytes, int] | None]] = {
    b"s": [(b"subject", 0, b"-1", 1), None, (b"subject.\xff", 0, b"-1", 1), (b"subject.3", 2, b"-1", 1)],
    b"occ": [(b"occ", 1, b"-22", 22)],
    "é".encode(): [("é".encode(), 0, b"", 3)],
}
LIMIT = 1 << 20
NATS_WORDS = (
    b"\r\n",
    b"\n",
    b"MSG a 1 3\r\n",
    b"HMSG a 1 b 2 5\r\n",
    b"PING\r\n",
    b" ",
    b"\t",
    b"99999999999999999999",
)


# --- NATS -------------------------------------------------------------------------------------------------


def check_nats(data: bytes, chance: Chance) -> None:
    max_payload = chance.choice((5, 100, LIMIT))
    ask_within("split_nats", data, chance, chance.choice((20, 60, 4_096)), max_payload)
    # A line may be longer than the bound only if it arrives at once, so the invariant holds without that bound.
    whole = ask("split_nats", data, 0, len(data), len(data) + 1, max_payload)
    parts = _nats_in_pieces(data, chance, max_payload)
    require((whole is NatsProtocolError) == (parts is None), "split_nats: split into pieces it is judged otherwise")
    if parts is not None:
        consumed, _, deliveries, controls = whole
        messages = {sid: (count, batch) for sid, count, batch in deliveries}
        require(parts == (consumed, messages, controls), "split_nats: split into pieces it means something else")


def _nats_in_pieces(data: bytes, chance: Chance, max_payload: int) -> Any:
    position, messages, controls = 0, dict[int, tuple[int, bytes]](), list[tuple[bytes, bytes]]()
    for end in chance.cuts(len(data)):
        answer = ask("split_nats", data[:end], position, end, len(data) + 1, max_payload)
        if answer is NatsProtocolError:
            return None
        position, needed, deliveries, lines = answer
        require(needed == 0 or needed > end - position, "split_nats: it needs what it has")
        controls += lines
        for sid, count, batch in deliveries:
            before = messages.get(sid, (0, b""))
            messages[sid] = (before[0] + count, before[1] + batch)
    return position, messages, controls


# --- publishes --------------------------------------------------------------------------------------------


def check_requests(data: bytes, chance: Chance) -> None:
    limits = (b"own.s1", chance.choice((60, 1_000, LIMIT)), chance.choice((30, 1_000, LIMIT)))
    ask_within("route_publishes", data, chance, ROUTES, *limits)
    whole = ask("route_publishes", data, 0, len(data), ROUTES, *limits)
    position, commands, published, awaiting, exceptions, problem = 0, b"", 0, 0, list[bytes](), 0
    for end in chance.cuts(len(data)):
        part = ask("route_publishes", data[:end], position, end, ROUTES, *limits)
        position, problem = part[0], part[5]
        commands, published, awaiting = commands + part[1], published + part[2], awaiting + part[3]
        exceptions += part[4]
        if problem:
            break
    together = (position, commands, published, awaiting, exceptions, problem)
    require(together == whole, "route_publishes: split into pieces it means something else")


def check_request(data: bytes, chance: Chance) -> None:
    """One request becomes the command that upb's reading of it asks for."""
    frame = struct.pack(">BI", 0, len(data)) + data
    answer = ask("route_publishes", frame, 0, len(frame), ROUTES, b"own.s1", LIMIT, LIMIT)
    consumed, commands, published, awaiting, exceptions, problem = answer
    request = judge.parsed(api_pb2.PublishRequest, data)
    require((consumed, problem) == ((0, 1) if request is None else (len(frame), 0)), "acceptance is not upb's")
    if request is None:
        return
    partitions = ROUTES.get(request.stream.encode(), [])
    route = partitions[request.partition] if 0 <= request.partition < len(partitions) else None
    too_long = len(request.correlationId.encode()) > MAX_CORRELATION_ID_BYTES
    bent = bool(request.producer) and (route is None or not is_about(request.producer, route[3], request.partition))
    if route is None or too_long or bent or route[1] == 2 or (route[1] == 1 and request.ackPolicy not in (0, 1)):
        require((exceptions, commands) == ([data], b""), "a request without a route is no exception")
        return
    require((published, awaiting) == (1, int(request.ackPolicy in (0, 1))), "wrong counts")
    line, _, rest = commands.partition(b"\r\n")
    require(line == b"PUB %b %d" % (route[0], len(rest) - 2) and rest[-2:] == b"\r\n", "not a PUB of its length")
    require(rest[:8] == MAGIC + b"\x00\x08\x00\x00", "not an envelope of ours")
    message = api_pb2.Message.FromString(rest[8:-2])
    expected = api_pb2.Message(
        offset=request.expectedOffset,
        key=request.key,
        value=request.value,
        stream=request.stream,
        subject=route[0].decode(errors="replace"),
        headers=message.headers if judge.forgot_entries(request, 5) else request.headers,
        ackInbox="own.s1" + route[2].decode(),
        correlationId=request.correlationId,
        ackPolicy=request.ackPolicy,
        producer=request.producer,
    )
    require(message == expected, "the message is not what upb read in the request")


def check_messages(data: bytes, chance: Chance) -> None:
    max_message = chance.choice((10, 1_000, LIMIT))
    ask_within("split_messages", data, chance, max_message)
    whole = ask("split_messages", data, 0, len(data), max_message)
    position, messages, oversized = 0, list[tuple[int, bytes]](), 0
    for end in chance.cuts(len(data)):
        position, more, oversized = ask("split_messages", data[:end], position, end, max_message)
        messages += more
        if oversized:
            break
    require((position, messages, oversized) == whole, "split_messages: split into pieces it means something else")


# --- HTTP/2 frames ----------------------------------------------------------------------------------------

Run = dict[int, list[tuple[bytes, int, int]]]


def check_frames(data: bytes, chance: Chance) -> None:
    max_frame = chance.choice((4, 11, 16_384))
    ask_within("scan_frames", data, chance, max_frame)
    consumed, events, oversized = ask("scan_frames", data, 0, len(data), max_frame)
    position, parts, stopped = 0, list[Any](), 0
    for end in chance.cuts(len(data)):
        position, more, stopped = ask("scan_frames", data[:end], position, end, max_frame)
        parts += more
        if stopped or _bad_padding(more):
            break
    require((position, stopped) == (consumed, oversized), "scan_frames: split into pieces it ends elsewhere")
    require(_merged(parts) == _merged(events), "scan_frames: split into pieces it means something else")


def _bad_padding(events: list[Any]) -> bool:
    return any(kind == 0 and flags == 0xFF for kind, flags, *_ in events)


def _merged(events: list[Any]) -> list[Any]:
    """Runs of DATA as stream -> what it got, so that it does not matter how often a run was interrupted."""
    out: list[Any] = []
    run: Run = {}
    for event in events:
        kind, flags, stream_id, payload, flow = event
        if kind != 0 or flags == 0xFF:
            out += [run, event]
            run = {}
            continue
        got = run.setdefault(stream_id, [])
        if got and not got[-1][1]:
            before = got.pop()
            got.append((before[0] + payload, flags, before[2] + flow))
        else:
            got.append((payload, flags, flow))
    return [*out, run]


def check_frame_data(data: bytes, chance: Chance) -> None:
    stream_id, ends = chance.choice((0, 1, 3, (1 << 31) - 1)), chance.one_in(2)
    max_frame = chance.choice((1, 7, 100, 16_384, (1 << 24) - 1))
    written = ask("frame_data", stream_id, data, max_frame, ends)
    consumed, events, oversized = ask("scan_frames", written, 0, len(written), max_frame)
    require((consumed, oversized) == (len(written), 0), "frame_data wrote what scan_frames does not take")
    expected = [(0, int(ends), stream_id, data, len(data))] if data or ends else []
    require(events == expected, "frame_data: not read back as it was written")


def _messages(chance: Chance) -> bytes:
    return inputs.grpc_frames(chance, inputs.raw)


TARGETS = (
    Target("split_nats", inputs.nats_stream, check_nats, NATS_WORDS, True),
    Target(
        "route_publishes",
        lambda c: inputs.grpc_frames(c, lambda d: inputs.protobuf(d, inputs.publish_request)),
        check_requests,
        inputs.BAD_TEXTS,
        True,
    ),
    Target(
        "publish_request", lambda c: inputs.protobuf(c, inputs.publish_request), check_request, inputs.BAD_TEXTS, True
    ),
    Target("split_messages", _messages, check_messages, (b"\x00" * 5, b"\x01\x00\x00\x00\x00"), True),
    Target("scan_frames", inputs.data_frames, check_frames, (b"\x00\x00\x00\x00\x01\x00\x00\x00\x01",), True),
    Target("frame_data", inputs.raw, check_frame_data, (), True),
)
