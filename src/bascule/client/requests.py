"""PublishRequests out, PublishResponses in, a batch at a time.

Every request of a batch has the same stream, policy and expected offset, so those bytes are made once and only key,
value, headers and the correlation id are written per message. The correlation id is the message's number: an answer
names its message by it. gRPC framing (flag 0, length) is part of the bytes.
"""

from __future__ import annotations

import operator
import random
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from bascule import limits
from bascule.client.values import Ack, AckPolicy, Outgoing
from bascule.errors import InvalidArgument, NotFound
from bascule.wire import kernels
from bascule.wire.pb import api_pb2 as pb

_KEY, _VALUE, _HEADER, _CORRELATION, _PRODUCER = b"\x0a", b"\x12", b"\x2a", b"\x3a", b"\x8a\x7d"


_OWN_HEADERS = ("subject", "reply")
"""Servers write these themselves, with what they have of NATS, and drop those of publishers."""


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


_PREFIX = struct.Struct(">BI").pack
"""Of a gRPC message: not compressed, and its length."""
_SHORT = [_varint(n) for n in range(1 << 14)]


def _field(tag: bytes, data: bytes) -> bytes:
    if type(data) is not bytes:
        _check_bytes(data)
    length = len(data)
    return tag + (_SHORT[length] if length < len(_SHORT) else _varint(length)) + data


def _check_bytes(data: object) -> None:
    """Other objects with a buffer would be written, too, with a length that is not theirs. `unfit` says more."""
    if _no_bytes(data):
        raise TypeError("messages are bytes")


def _headers(headers: Mapping[str, bytes]) -> bytes:
    return b"".join(
        _field(_HEADER, _field(_KEY, _name(name)) + _field(_VALUE, value)) for name, value in headers.items()
    )


def _name(name: str) -> bytes:
    if name in _OWN_HEADERS:
        raise ValueError("it would be lost")  # `unfit` says more
    return name.encode()


class Prepared(NamedTuple):
    """A message of a producer: everything but its correlation id, and what is the same in all."""

    head: bytes
    partition: int
    producer: bytes = b""
    """What it says of its producer, with its number: the end of the head."""

    def numbered_by(self, producer: bytes) -> Prepared:
        """The same message, of another producer."""
        content = self.head[: len(self.head) - len(_field(_PRODUCER, self.producer))]
        return Prepared(content + _field(_PRODUCER, producer), self.partition, producer)


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

    def encode_value(self, value: bytes, partition: int, number: int) -> bytes:
        """The same for one bare value."""
        route = self._routes.get(partition) or self._route(partition)
        digits, length = b"%d" % number, len(value)
        size = _SHORT[length] if length < 16_384 else _varint(length)
        body = b"".join((_VALUE, size, value, route, _CORRELATION, _SHORT[len(digits)], digits, self._tail))
        if len(body) > limits.GRPC_MAX_MESSAGE_BYTES:
            raise TooLarge(0, len(body))
        return _PREFIX(0, len(body)) + body

    def prepare(self, message: Outgoing, partition: int, number: Callable[[int], bytes]) -> Prepared:
        """`number` gives what a message to a partition says of its producer. It is not asked for one that is unfit."""
        route = self._route(partition)
        content = (
            _field(_KEY, message.key) if message.key else b"",
            _field(_VALUE, message.value),
            route,
            _headers(message.headers) if message.headers else b"",
        )
        producer = number(partition)
        return Prepared(b"".join((*content, _field(_PRODUCER, producer))), partition, producer)

    def encode_prepared(self, messages: list[Prepared], first: int) -> bytes:
        """Framed requests, numbered from `first`."""
        tail, short = self._tail, _SHORT
        parts: list[bytes] = []
        number = first
        for head, *_ in messages:
            digits = b"%d" % number
            body = b"".join((head, _CORRELATION, short[len(digits)], digits, tail))
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
            if type(value) is not bytes:
                _check_bytes(value)
            digits, length = b"%d" % number, len(value)
            size = short[length] if length < 16_384 else _varint(length)
            body = b"".join((_VALUE, size, value, route, _CORRELATION, short[len(digits)], digits, tail))
            _check_size(body, number - first)
            parts += (b"\0", len(body).to_bytes(4, "big"), body)
            number += 1
        return b"".join(parts)


_MESSAGE_KEY, _MESSAGE_VALUE, _MESSAGE_HEADER = b"\x12", b"\x1a", b"\x4a"


def frame_messages(messages: Iterable[bytes | Outgoing]) -> bytes:
    """As they are written in bulk: framed `proto.Message`s, with key, value and headers."""
    parts: list[bytes] = []
    for message in messages:
        if isinstance(message, Outgoing):
            body = _field(_MESSAGE_KEY, message.key) if message.key else b""
            body += _field(_MESSAGE_VALUE, message.value)
            for name, content in (message.headers or {}).items():
                body += _field(_MESSAGE_HEADER, _field(_KEY, _name(name)) + _field(_VALUE, content))
        else:
            body = _field(_MESSAGE_VALUE, message)
        parts += (b"\0", len(body).to_bytes(4, "big"), body)
    return b"".join(parts)


def in_turn(partitions: Sequence[int], first: int, count: int) -> list[int]:
    """The partitions of `count` messages that are numbered from `first` and take these in turn."""
    begin = first % len(partitions)
    return list(islice(cycle(partitions), begin, begin + count))


def unfit(message: object) -> str | None:
    """What keeps it from being published: value, key and the values of headers are bytes, names of headers are text,
    and partitions are numbers."""
    value, key, headers, partition = _parts(message)
    if partition is not None and (reason := unfit_partition(partition)):
        return reason
    if headers is not None and not isinstance(headers, Mapping):
        return f"headers={headers!r}: they are a mapping of names to bytes, as in {{'source': b'web'}}"
    if not headers and isinstance(value, bytes) and (key is None or isinstance(key, bytes)):
        return None
    fields: list[tuple[str, object]] = [("the value", value), ("the key", b"" if key is None else key)]
    fields += [(f"header {name!r}", content) for name, content in (headers or {}).items()]
    for name, content in fields:
        if reason := _no_bytes(content):
            return f"{name} {reason}"
    return next((reason for name in headers or {} if (reason := _unfit_name(name))), None)


def _parts(message: object) -> tuple[Any, Any, Any, Any]:
    """Of whatever types they are."""
    return message if isinstance(message, Outgoing) else (message, None, None, None)


def _no_bytes(content: object) -> str | None:
    if isinstance(content, str):
        return f"is text ({content[:20]!r}), and messages are bytes: encode it, as in 'text'.encode()"
    if isinstance(content, memoryview) and not _is_plain(content):
        return "is a memoryview whose items are no bytes, or lie apart: give its tobytes()"
    if not isinstance(content, bytes | bytearray | memoryview):
        return f"is of type {type(content).__name__}, and messages are bytes"
    return None


def _unfit_name(name: object) -> str | None:
    if not isinstance(name, str):
        return f"the name of header {name!r} is not text, as names of headers are"
    if name in _OWN_HEADERS:
        return f"header {name!r} would be lost: servers set it themselves, to that of NATS. Use another name"
    try:
        name.encode()
    except UnicodeEncodeError as error:
        return f"the name of header {name!r} has no form in UTF-8 ({error.reason})"
    return None


def unfit_partition(partition: object) -> str | None:
    """What keeps it from being the number of a partition."""
    try:
        if not isinstance(partition, bool) and 0 <= operator.index(partition) <= _LAST_PARTITION:  # type: ignore[arg-type]
            return None
    except TypeError:
        pass
    return f"partition={partition!r}: partitions are numbered from 0 to {_LAST_PARTITION}"


_LAST_PARTITION = 2**31 - 1


def _is_plain(view: memoryview) -> bool:
    """Its length is the number of its bytes."""
    return view.ndim == 1 and view.itemsize == 1 and view.c_contiguous


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


PlainAck = tuple[int, str, int, str, int, int, int]
"""An ack as nearly all of them are, as `kernels.decode_responses` gives it: the number of its message, stream, offset,
subject, policy, and the times of reception and commit."""


class Responses:
    """Puts received bytes back together into answers: plain acks, and whatever else there is as it is. ValueError if
    they are none."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[PlainAck | pb.PublishResponse]:
        data = self._rest + data if self._rest else data
        most = limits.GRPC_MAX_MESSAGE_BYTES
        consumed, found, others, oversized = kernels.decode_responses(data, 0, len(data), most)
        if oversized:
            raise ValueError(f"a publish response of {oversized} bytes")
        self._rest = data[consumed:]
        if not others:
            answers: list[Any] = found
            return answers
        try:
            return [each if isinstance(each, tuple) else pb.PublishResponse.FromString(each) for each in found]
        except DecodeError as error:
            raise ValueError(str(error)) from error


_POLICIES = {int(policy): policy for policy in AckPolicy}


def ack_of(answer: PlainAck, partition: int) -> Ack:
    _, stream, offset, subject, policy, reception, commit = answer
    return _made(Ack, (stream, partition, offset, subject, _POLICIES[policy], reception, commit))


_made = tuple.__new__
"""Of a named tuple: its own `__new__` is Python."""


def plain(ack: pb.Ack) -> PlainAck:
    """The same of one that came in another form. ValueError if its policy is none."""
    if ack.ackPolicy not in _POLICIES:
        raise ValueError(f"an ack with policy {ack.ackPolicy}")
    stored = ack.offset, ack.msgSubject, int(ack.ackPolicy), ack.receptionTimestamp, ack.commitTimestamp
    return (int(ack.correlationId), ack.stream, *stored)


def check_partition(stream: str, partition: int | None, partitions: int) -> None:
    if partition is not None and (reason := unfit_partition(partition)):
        raise InvalidArgument(reason)
    if partition is not None and not 0 <= partition < partitions:
        raise NotFound(f"no such partition: {partition}. Stream {stream} has {partitions}")


def keyless_turns(partitions: int, spread: bool) -> list[int]:
    """The partitions that messages without a key take in turn."""
    if not spread:
        return [0]
    first = random.randrange(partitions)  # many calls with a message each spread them, too
    return [(first + number) % partitions for number in range(partitions)]
