"""PublishRequests out, PublishResponses in, a batch at a time.

Every request of a batch has the same stream, policy and expected offset, so those bytes are made once and only key,
value, headers and the correlation id are written per message. The correlation id is the message's number: an answer
names its message by it. gRPC framing (flag 0, length) is part of the bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice

from google.protobuf.message import DecodeError

from bascule import limits
from bascule.client.values import Ack, AckPolicy, Outgoing
from bascule.errors import InvalidArgument
from bascule.wire import kernels
from bascule.wire.pb import api_pb2 as pb

_KEY, _VALUE, _HEADER, _CORRELATION = b"\x0a", b"\x12", b"\x2a", b"\x3a"


def partition_for(key: bytes, partitions: int) -> int:
    """CRC-32 (IEEE) of the key, modulo the number of partitions: the same choice as the Go client's."""
    return zlib.crc32(key) % partitions


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT = [_varint(n) for n in range(1 << 14)]


def _field(tag: bytes, data: bytes) -> bytes:
    length = len(data)
    return tag + (_SHORT[length] if length < len(_SHORT) else _varint(length)) + data


def _headers(headers: Mapping[str, bytes]) -> bytes:
    return b"".join(
        _field(_HEADER, _field(_KEY, name.encode()) + _field(_VALUE, value)) for name, value in headers.items()
    )


class Encoder:
    """Writes requests for one stream and one policy."""

    def __init__(self, stream: str, policy: AckPolicy, expected_offset: int = -1) -> None:
        self._stream = pb.PublishRequest(stream=stream).SerializeToString()
        tail = pb.PublishRequest(ackPolicy=policy.name, expectedOffset=expected_offset)
        self._tail = tail.SerializeToString()
        self._routes: dict[int, bytes] = {}

    def _route(self, partition: int) -> bytes:
        route = self._routes.get(partition)
        if route is None:
            number = pb.PublishRequest(partition=partition).SerializeToString()
            route = self._routes[partition] = self._stream + number
        return route

    def encode(self, messages: Iterable[Outgoing], partitions: Iterable[int], first: int) -> bytes:
        """Framed requests, numbered from `first`."""
        parts: list[bytes] = []
        number = first
        for message, partition in zip(messages, partitions, strict=True):
            body = b"".join(
                (
                    _field(_KEY, message.key) if message.key else b"",
                    _field(_VALUE, message.value),
                    self._route(partition),
                    _headers(message.headers) if message.headers else b"",
                    _field(_CORRELATION, b"%d" % number),
                    self._tail,
                )
            )
            _check_size(body, number - first)
            parts += (b"\0", len(body).to_bytes(4, "big"), body)
            number += 1
        return b"".join(parts)

    def encode_values(self, values: list[bytes], partitions: Sequence[int], first: int) -> bytes:
        """The same for bare values: the fast way. They take the partitions in turn, by their number."""
        tail, short = self._tail, _SHORT
        routes = cycle([self._route(partition) for partition in in_turn(partitions, first, len(partitions))])
        parts: list[bytes] = []
        number = first
        for value, route in zip(values, routes, strict=False):
            digits, length = b"%d" % number, len(value)
            size = short[length] if length < 16_384 else _varint(length)
            body = b"".join((_VALUE, size, value, route, _CORRELATION, short[len(digits)], digits, tail))
            _check_size(body, number - first)
            parts += (b"\0", len(body).to_bytes(4, "big"), body)
            number += 1
        return b"".join(parts)


def in_turn(partitions: Sequence[int], first: int, count: int) -> list[int]:
    """The partitions of `count` messages that are numbered from `first` and take these in turn."""
    begin = first % len(partitions)
    return list(islice(cycle(partitions), begin, begin + count))


def unfit(message: object) -> str | None:
    """What keeps it from being published: value, key and the values of headers are bytes."""
    value, key, headers, _ = message if isinstance(message, Outgoing) else (message, None, None, None)
    fields: list[tuple[str, object]] = [("the value", value), ("the key", b"" if key is None else key)]
    fields += [(f"header {name!r}", content) for name, content in (headers or {}).items()]
    for name, content in fields:
        if isinstance(content, str):
            return f"{name} is text ({content[:20]!r}), and messages are bytes: encode it, as in 'text'.encode()"
        if not isinstance(content, bytes | bytearray | memoryview):
            return f"{name} is of type {type(content).__name__}, and messages are bytes"
    names = [name for name in headers or {} if not isinstance(name, str)]
    return f"the name of header {names[0]!r} is not text, as names of headers are" if names else None


class TooLarge(InvalidArgument):
    """The message at `position` of the batch does not fit a request."""

    def __init__(self, position: int, size: int) -> None:
        super().__init__(
            f"the message takes {size} bytes and a request may have {limits.GRPC_MAX_MESSAGE_BYTES}: send it in parts"
        )
        self.position = position


def _check_size(body: bytes, position: int) -> None:
    if len(body) > limits.GRPC_MAX_MESSAGE_BYTES:
        raise TooLarge(position, len(body))


class Responses:
    """Puts received bytes back together into answers. ValueError if they are none."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[pb.PublishResponse]:
        data = self._rest + data if self._rest else data
        consumed, messages, oversized = kernels.split_messages(data, 0, len(data), limits.GRPC_MAX_MESSAGE_BYTES)
        if oversized:
            raise ValueError(f"a publish response of {oversized} bytes")
        self._rest = data[consumed:]
        try:
            return [pb.PublishResponse.FromString(message) for _, message in messages]
        except DecodeError as error:
            raise ValueError(str(error)) from error


def ack_of(ack: pb.Ack, partition: int) -> Ack:
    return Ack(
        stream=ack.stream,
        partition=partition,
        offset=ack.offset,
        subject=ack.msgSubject,
        policy=AckPolicy(ack.ackPolicy),
        reception_timestamp=ack.receptionTimestamp,
        commit_timestamp=ack.commitTimestamp,
    )
