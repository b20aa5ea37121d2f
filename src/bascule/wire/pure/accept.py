"""From a batch of NATS messages to records for the log, and to their pending acks."""

from __future__ import annotations

import struct
from typing import NamedTuple

from bascule.limits import MAX_CORRELATION_ID_BYTES, MAX_RECORD_BYTES
from bascule.wire.pure import envelope
from bascule.wire.pure.nats import messages
from bascule.wire.pure.protobuf import (
    Buffer,
    MalformedError,
    bytes_field,
    frame,
    map_entry,
    number_field,
    read_message,
    repair,
    signed32,
    signed64,
)
from bascule.wire.subjects import usable_subject

_PENDING = struct.Struct("<qqBBHHI")
PENDING_ENTRY_BYTES = _PENDING.size
_MAX_PENDING_SUBJECT = 0xFFFF
_STRINGS = frozenset((0x2A, 0x3A, 0x42, 0x52, 0x5A))  # stream, subject, replySubject, ackInbox, correlationId
_HEADERS = 0x4A
_OWN_HEADERS = (b"subject", b"reply")
_PUBLISH = 0
_LEADER, _ALL, _NONE = 0, 1, 2
_OK, _INCORRECT_OFFSET, _TOO_LARGE = 0, 2, 3


class Publish(NamedTuple):
    """What a message asks for; a plain one has only a value."""

    key: bytes
    value: bytes
    headers: bytes
    expected_offset: int
    inbox: bytes
    correlation_id: bytes
    policy: int


def record_tail(origin: bytes, subject: bytes, reply: bytes) -> bytes:
    """What all records of one (partition, subject, reply) have in common, after the timestamp."""
    tail = origin + bytes_field(0x3A, repair(subject))
    if reply:
        tail += bytes_field(0x42, repair(reply))
    tail += bytes_field(0x4A, map_entry(b"subject", subject))
    return tail + bytes_field(0x4A, map_entry(b"reply", reply))


def encode_records(
    batch: Buffer,
    origin: bytes,
    subject: bytes,
    tail: bytes,
    next_offset: int,
    epoch: int,
    now: int,
    last_timestamp: int,
    max_bytes: int,
    occ: bool,
    refused_prefix: bytes,
) -> tuple[bytes, int, int, int, bytes, bytes, bytes]:
    """(records, count, next offset, last timestamp, pending LEADER acks, pending ALL acks, error acks)."""
    first_offset = next_offset
    records: list[bytes] = []
    pending: tuple[list[bytes], list[bytes]] = ([], [])
    errors: list[bytes] = []
    for message_subject, reply, payload in messages(batch):
        if refused_prefix and message_subject.startswith(refused_prefix):
            continue
        publish = read_publish(payload)
        named = b"" if message_subject == subject else message_subject
        if len(payload) > max_bytes:
            errors.append(_pending(publish, 0, now, _TOO_LARGE, named))
            continue
        if occ and publish.expected_offset not in (-1, next_offset):
            errors.append(_pending(publish, 0, now, _INCORRECT_OFFSET, named))
            continue
        timestamp = max(now, last_timestamp + 1)
        constant = tail if message_subject == subject and not reply else record_tail(origin, message_subject, reply)
        record = _record(publish, next_offset, timestamp, constant, epoch)
        if len(record) > MAX_RECORD_BYTES:
            errors.append(_pending(publish, 0, now, _TOO_LARGE, named))
            continue
        records.append(frame(record))
        if publish.policy in (_LEADER, _ALL):
            pending[publish.policy].append(_pending(publish, next_offset, timestamp, _OK, named))
        last_timestamp = timestamp
        next_offset += 1
    return (
        b"".join(records),
        next_offset - first_offset,
        next_offset,
        last_timestamp,
        b"".join(pending[_LEADER]),
        b"".join(pending[_ALL]),
        b"".join(errors),
    )


def read_publish(payload: bytes) -> Publish:
    """A Publish envelope's Message, or the whole payload as a plain value if it is anything else."""
    content = envelope.content(payload, _PUBLISH)
    if content is not None:
        try:
            return _message(content)
        except MalformedError:
            pass
    return Publish(b"", payload, b"", 0, b"", b"", _NONE)


def _message(content: bytes) -> Publish:
    numbers, contents, entries = read_message(content, _STRINGS, _HEADERS)
    headers = [bytes_field(_HEADERS, map_entry(*entry)) for entry in entries if entry[0] not in _OWN_HEADERS]
    return Publish(
        contents.get(0x12, b""),
        contents.get(0x1A, b""),
        b"".join(headers),
        signed64(numbers.get(0x08, 0)),
        contents.get(0x52, b""),
        contents.get(0x5A, b""),
        signed32(numbers.get(0x60, 0)),
    )


def _record(publish: Publish, offset: int, timestamp: int, constant: bytes, epoch: int) -> bytes:
    parts = [number_field(0x08, offset)]
    if publish.key:
        parts.append(bytes_field(0x12, publish.key))
    if publish.value:
        parts.append(bytes_field(0x1A, publish.value))
    parts += (number_field(0x20, timestamp), constant, publish.headers)
    parts.append(b"\x82\x7d\x0c" + struct.pack("<Q", epoch))
    covered = b"".join(parts)
    return covered + struct.pack("<I", envelope.crc32c(covered))


def _pending(publish: Publish, offset: int, reception: int, error: int, named: bytes) -> bytes:
    """Nothing without an inbox we may publish to, or with a correlation id over its bound. A subject too long for an
    entry is left out of it."""
    if not usable_subject(publish.inbox) or len(publish.correlation_id) > MAX_CORRELATION_ID_BYTES:
        return b""
    named = repair(named)
    if len(named) > _MAX_PENDING_SUBJECT:
        named = b""
    policy = publish.policy if publish.policy in (_LEADER, _ALL) else _NONE
    inbox, correlation_id = publish.inbox, publish.correlation_id
    head = _PENDING.pack(offset, reception, policy, error, len(inbox), len(named), len(correlation_id))
    return head + inbox + named + correlation_id


def pending_acks(pending: Buffer) -> list[tuple[int, int, int, int, bytes, bytes, bytes]]:
    """(offset, reception, policy, error, inbox, message subject, correlation id) of each entry."""
    data = bytes(pending)
    acks = []
    position = 0
    while position < len(data):
        if len(data) - position < _PENDING.size:
            raise ValueError("pending acks end inside an entry")
        offset, reception, policy, error, *lengths = _PENDING.unpack_from(data, position)
        position += _PENDING.size
        parts = []
        for length in lengths:
            parts.append(data[position : position + length])
            position += length
        if position > len(data):
            raise ValueError("pending acks end inside an entry")
        acks.append((offset, reception, policy, error, parts[0], parts[1], parts[2]))
    return acks
