"""PublishRequests of a gRPC stream, turned into PUB commands for NATS."""

from __future__ import annotations

import struct

from bascule.limits import MAX_CORRELATION_ID_BYTES
from bascule.wire.pure import envelope
from bascule.wire.pure.producers import PRODUCER_TAG, is_about, producer_field
from bascule.wire.pure.protobuf import (
    Buffer,
    MalformedError,
    bytes_field,
    map_entry,
    number_field,
    read_message,
    repair,
    signed32,
    signed64,
    window,
)

Routes = dict[bytes, list[tuple[bytes, int, bytes, int] | None]]
"""Stream name -> per partition: NATS subject, flags (0 plain, 1 optimistic concurrency, more: ask Python), what is
appended to the inbox, so that an ack names the stream that was published to, and the stream's creation index."""

_PUBLISH = 0
_LEADER, _ALL = 0, 1
_OPTIMISTIC = 1
_MALFORMED, _TOO_LARGE, _COMPRESSED = 1, 2, 3
_STRINGS = frozenset((0x1A, 0x32, 0x3A))  # stream, ackInbox, correlationId


def route_publishes(
    data: Buffer, start: int, end: int, routes: Routes, inbox: bytes, max_payload: int, max_message: int
) -> tuple[int, bytes, int, int, list[bytes], int]:
    """(consumed, commands, published, awaiting, exceptions, problem)."""
    source = window(data, start, end)
    position = published = awaiting = problem = 0
    commands: list[bytes] = []
    exceptions: list[bytes] = []
    while len(source) - position >= 5:
        flag, length = struct.unpack_from(">BI", source, position)
        if length > max_message or flag:
            problem = _TOO_LARGE if length > max_message else _COMPRESSED
            break
        after = position + 5 + length
        if after > len(source):
            break
        request = source[position + 5 : after]
        try:
            command, policy = _command(request, routes, inbox, max_payload)
        except MalformedError:
            problem = _MALFORMED
            break
        position = after
        if command is None:
            exceptions.append(request)
            continue
        commands.append(command)
        published += 1
        awaiting += policy in (_LEADER, _ALL)
    return start + position, b"".join(commands), published, awaiting, exceptions, problem


def _command(request: bytes, routes: Routes, inbox: bytes, max_payload: int) -> tuple[bytes | None, int]:
    """The PUB command (None: Python must look at this one) and the ack policy."""
    numbers, contents, entries = read_message(request, _STRINGS, 0x2A)
    policy = signed32(numbers.get(0x40, 0))
    stream = contents.get(0x1A, b"")
    partition = signed32(numbers.get(0x20, 0))
    route = _route(routes, stream, partition)
    if route is None:
        return None, policy
    subject, flags, suffix, creation = route
    if flags > _OPTIMISTIC or (flags == _OPTIMISTIC and policy not in (_LEADER, _ALL)):
        return None, policy
    if len(contents.get(0x3A, b"")) > MAX_CORRELATION_ID_BYTES:
        return None, policy
    producer = contents.get(PRODUCER_TAG, b"")
    if producer and not is_about(producer, creation, partition):
        return None, policy
    parts = [envelope.header(_PUBLISH)]
    expected_offset = signed64(numbers.get(0x48, 0))
    if expected_offset:
        parts.append(number_field(0x08, expected_offset))
    if contents.get(0x0A):
        parts.append(bytes_field(0x12, contents[0x0A]))
    if contents.get(0x12):
        parts.append(bytes_field(0x1A, contents[0x12]))
    parts += (bytes_field(0x2A, stream), bytes_field(0x3A, repair(subject)))
    parts += [bytes_field(0x4A, map_entry(*entry)) for entry in entries]
    parts.append(bytes_field(0x52, inbox + suffix))
    if contents.get(0x3A):
        parts.append(bytes_field(0x5A, contents[0x3A]))
    if policy:
        parts.append(number_field(0x60, policy))
    if producer:
        parts.append(producer_field(producer))
    payload = b"".join(parts)
    if len(payload) > max_payload:
        return None, policy
    return b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload), policy


def _route(routes: Routes, stream: bytes, partition: int) -> tuple[bytes, int, bytes, int] | None:
    partitions = routes.get(stream, [])
    return partitions[partition] if 0 <= partition < len(partitions) else None
