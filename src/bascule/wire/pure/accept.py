"""From a batch of NATS messages to records for the log, and to their pending acks."""

from __future__ import annotations

import struct
from typing import NamedTuple

from bascule.limits import (
    ATOMIC_MESSAGE_BYTES,
    BULK_WRITE_HEADERS,
    BULK_WRITE_MESSAGES,
    MAX_CORRELATION_ID_BYTES,
    MAX_MESSAGE_FIELDS,
    MAX_RECORD_BYTES,
)
from bascule.wire.pure import envelope
from bascule.wire.pure.flatbuffers import BentError, drafted
from bascule.wire.pure.nats import messages
from bascule.wire.pure.producers import ACCEPTED, PRODUCER_TAG, STORED, Numbered, ProducerTable, producer_field
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
_BATCH = struct.Struct("<BBBHH")
PENDING_ENTRY_BYTES = _PENDING.size
_MAX_PENDING_SUBJECT = 0xFFFF
MESSAGE_STRINGS = frozenset((0x2A, 0x3A, 0x42, 0x52, 0x5A))  # stream, subject, replySubject, ackInbox, correlationId
_HEADERS = 0x4A
_OWN_HEADERS = (b"subject", b"reply")
_PUBLISH, _BATCH_TYPE = 0, 128
_LEADER, _ALL, _NONE = 0, 1, 2
_OK, _UNKNOWN, _INCORRECT_OFFSET, _TOO_LARGE = 0, 1, 2, 3
_EMPTY, _BENT, _LONG = 105, 106, 107


class Publish(NamedTuple):
    """What a message asks for; a plain one has only a value."""

    key: bytes
    value: bytes
    headers: bytes
    expected_offset: int
    inbox: bytes
    correlation_id: bytes
    policy: int
    entries: int = 0
    """How many headers came with it, those that are replaced too."""
    producer: bytes = b""
    """The content of field 2001."""
    is_batch: bool = False
    """Its value has the framed messages of an atomic batch."""


def record_tail(origin: bytes, subject: bytes, reply: bytes) -> bytes:
    """What all records of one (partition, subject, reply) have in common, after the timestamp."""
    tail = origin + bytes_field(0x3A, repair(subject))
    if reply:
        tail += bytes_field(0x42, repair(reply))
    tail += bytes_field(0x4A, map_entry(b"subject", subject))
    return tail + bytes_field(0x4A, map_entry(b"reply", reply))


class _Encoder:
    """The state of one call."""

    def __init__(
        self,
        origin: bytes,
        subject: bytes,
        tail: bytes,
        next_offset: int,
        epoch: int,
        now: int,
        last_timestamp: int,
        max_bytes: int,
        occ: bool,
        producers: ProducerTable | None,
        flatbuffers: bool = False,
    ) -> None:
        self.origin = origin
        self.subject = subject
        self.tail = tail
        self.next_offset = next_offset
        self.epoch = epoch
        self.now = now
        self.last_timestamp = last_timestamp
        self.max_bytes = max_bytes
        self.occ = occ
        self.producers = producers
        self.flatbuffers = flatbuffers
        self.records: list[bytes] = []
        self.taken = 0
        self.pending: tuple[list[bytes], list[bytes]] = ([], [])
        self.errors: list[bytes] = []

    @property
    def timestamp(self) -> int:
        """Of the next record."""
        return max(self.now, self.last_timestamp + 1)

    def take(self, message_subject: bytes, reply: bytes, payload: bytes) -> None:
        """What NATS delivered is stored, or not; the ack says which."""
        publish = read_publish(payload, self.flatbuffers)
        named = b"" if message_subject == self.subject else message_subject
        if message_subject == self.subject and not reply:
            tail = self.tail
        else:
            tail = record_tail(self.origin, message_subject, reply)
        offset, reception = self.next_offset, self.now
        if len(payload) > self.max_bytes:
            error, stored = _TOO_LARGE, None
        elif publish.is_batch:
            error, stored = self._take_batch(publish, tail)
        else:
            error, stored = self._take_one(publish, tail)
        if error:
            self.errors.append(_pending(publish, 0, self.now, error, named))
            return
        if stored is None:
            self.taken += 1
            reception = self.last_timestamp
        else:
            offset = stored
        if publish.policy in (_LEADER, _ALL):
            self.pending[publish.policy].append(_pending(publish, offset, reception, _OK, named))

    def _take_one(self, publish: Publish, tail: bytes) -> tuple[int, int | None]:
        """The error, or 0; where it was stored before."""
        numbered = self.producers.numbered(publish.producer) if self.producers is not None else None
        if self.producers is not None and numbered is not None:
            verdict, stored = self.producers.judge(numbered, self.timestamp) if self.producers.ready else (_UNKNOWN, 0)
            if verdict == STORED:
                return _OK, stored
            if verdict != ACCEPTED:
                return verdict, None
        if self.occ and publish.expected_offset not in (-1, self.next_offset):
            return _INCORRECT_OFFSET, None
        if not self.put(publish, (producer_field(publish.producer) if numbered is not None else b"") + tail):
            return _TOO_LARGE, None
        if self.producers is not None and numbered is not None:
            self.producers.observe(numbered, self.next_offset - 1, self.last_timestamp)
        return _OK, None

    def _take_batch(self, publish: Publish, tail: bytes) -> tuple[int, int | None]:
        """All its messages, or none."""
        count = _count_framed(publish.value)
        if not publish.value or count < 0:
            return (_BENT if publish.value else _EMPTY), None
        if count > BULK_WRITE_MESSAGES:
            return _LONG, None
        numbered = self.producers.numbered(publish.producer) if self.producers is not None else None
        if self.producers is not None and numbered is not None:
            if not self.producers.ready:
                return _UNKNOWN, None
            verdict, stored = self.producers.judge(numbered, self.timestamp, count)
            if verdict == STORED:
                return _OK, stored
            if verdict != ACCEPTED:
                return verdict, None
        if self.occ and publish.expected_offset not in (-1, self.next_offset):
            return _INCORRECT_OFFSET, None
        before = len(self.records), self.next_offset, self.last_timestamp
        common = len(tail) - len(self.origin)
        producer = publish.producer if numbered is not None else b""
        problem = self.put_framed(publish.value, tail, common, count, True, producer)
        if problem:
            count_before, self.next_offset, self.last_timestamp = before
            del self.records[count_before:]
            return _BATCH_ERRORS.get(problem, _BENT), None
        if numbered is not None:
            self.observe(numbered, count)
        return _OK, None

    def put(self, publish: Publish, constant: bytes) -> bool:
        """One record; False if it would be longer than a log takes."""
        timestamp = self.timestamp
        record = _record(publish, self.next_offset, timestamp, constant, self.epoch)
        if len(record) > MAX_RECORD_BYTES:
            return False
        self.records.append(frame(record))
        self.last_timestamp = timestamp
        self.next_offset += 1
        return True

    def put_framed(self, data: bytes, tail: bytes, common: int, most: int, atomic: bool, producer: bytes) -> int:
        """Records of framed messages, all or up to one with the problem. The size of an atomic batch is counted without
        what only records of this stream have (its name, offsets, numbers): all streams that listen on a subject take a
        batch, or none does. `common`: the bytes of the tail that have to do with the subject."""
        position = headers = count = nbytes = 0
        in_batch = most & 0xFFFF if atomic else 0
        while position < len(data):
            if count == most:
                return _TOO_MANY
            end = position + 5 + int.from_bytes(data[position + 1 : position + 5], "big")
            if len(data) - position < 5 or data[position] or end > len(data):
                return _TORN
            if end - position - 5 > self.max_bytes:
                return _MESSAGE_TOO_LARGE
            try:
                message = _message(data[position + 5 : end])
            except MalformedError:
                return _NOT_PROTOBUF
            headers += message.entries
            if message.entries > MAX_MESSAGE_FIELDS or headers > BULK_WRITE_HEADERS:
                return _TOO_MANY_HEADERS
            place = _BATCH.pack(0x92, 0x7D, 4, count & 0xFFFF, in_batch) if in_batch else b""
            if not self.put(message, _advanced(producer, count) + place + tail):
                return _MESSAGE_TOO_LARGE
            nbytes += end - position + common + ATOMIC_MESSAGE_BYTES
            if in_batch and nbytes > self.max_bytes:
                self.records.pop()
                return _TOGETHER_TOO_LARGE
            count, position = count + 1, end
        return _WHOLE

    def observe(self, numbered: Numbered, count: int) -> None:
        """The last records, so many, are of this producer."""
        assert self.producers is not None, "who numbers is known"
        for index in range(count):
            before = count - index
            each = numbered._replace(sequence=numbered.sequence + index)
            self.producers.observe(each, self.next_offset - before, self.last_timestamp - before + 1)


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
    producers: ProducerTable | None = None,
    flatbuffers: bool = False,
) -> tuple[bytes, int, int, int, bytes, bytes, bytes, int]:
    """(records, count, next offset, last timestamp, pending LEADER acks, pending ALL acks, error acks, taken).

    A message that one of the `producers` has stored before is not stored again: its ack has its first offset. `taken`
    is how many of the messages are stored: an atomic batch is one of them, and several records. With `flatbuffers` a
    message of the FlatBuffers draft, which is none of the protocol, is understood."""
    encoder = _Encoder(
        origin, subject, tail, next_offset, epoch, now, last_timestamp, max_bytes, occ, producers, flatbuffers
    )
    for message_subject, reply, payload in list(messages(batch)):  # nothing of a batch that is truncated
        if not (refused_prefix and message_subject.startswith(refused_prefix)):
            encoder.take(message_subject, reply, payload)
    if producers is not None and encoder.records:
        producers.end = encoder.next_offset
    return (
        b"".join(encoder.records),
        len(encoder.records),
        encoder.next_offset,
        encoder.last_timestamp,
        b"".join(encoder.pending[_LEADER]),
        b"".join(encoder.pending[_ALL]),
        b"".join(encoder.errors),
        encoder.taken,
    )


_WHOLE, _TORN, _NOT_PROTOBUF, _MESSAGE_TOO_LARGE, _TOO_MANY, _TOO_MANY_HEADERS = range(6)
_TOGETHER_TOO_LARGE, _TOO_FEW, _NOT_NUMBERED = 6, 7, 8
_BATCH_ERRORS = {_MESSAGE_TOO_LARGE: _TOO_LARGE, _TOGETHER_TOO_LARGE: _TOO_LARGE, _TOO_MANY_HEADERS: _LONG}


def encode_messages(
    messages: Buffer,
    subject: bytes,
    tail: bytes,
    next_offset: int,
    epoch: int,
    now: int,
    last_timestamp: int,
    max_bytes: int,
    most: int,
    atomic: bool,
    producer: bytes = b"",
    producers: ProducerTable | None = None,
) -> tuple[bytes, int, int, int, int]:
    """(records, count, next offset, last timestamp, problem) of framed Messages: of all, or of none, and `count` is the
    number of the message with the problem. `most` of an atomic batch, all of it, fit 16 bits.

    With `producers`, field 2001 of the first message is `producer`, and there are exactly `most` of them: they are
    stored once, all together. If they were before, the problem is -1 and `count` their first offset; from 100 on it is
    the error of an ack."""
    encoder = _Encoder(b"", subject, tail, next_offset, epoch, now, last_timestamp, max_bytes, False, producers)
    numbered = None
    if producers is not None:
        numbered = producers.numbered(producer)
        if numbered is None:
            return b"", 0, next_offset, last_timestamp, _NOT_NUMBERED
        verdict, stored = producers.judge(numbered, encoder.timestamp, most)
        if verdict != ACCEPTED:
            return b"", stored, next_offset, last_timestamp, verdict
    common = len(record_tail(b"", subject, b""))
    said = producer if numbered is not None else b""
    problem = encoder.put_framed(bytes(messages), tail, common, most, atomic, said)
    count = len(encoder.records)
    if numbered is not None and not problem and count != most:
        problem = _TOO_FEW
    if problem:
        return b"", count, next_offset, last_timestamp, problem
    if producers is not None and numbered is not None:
        encoder.observe(numbered, count)
        producers.end = encoder.next_offset
    return b"".join(encoder.records), count, encoder.next_offset, encoder.last_timestamp, problem


def _advanced(producer: bytes, count: int) -> bytes:
    """Field 2001 of a message so many after the one that says this; nothing if that says nothing."""
    if not producer:
        return b""
    sequence = int.from_bytes(producer[-8:], "little") + count
    return producer_field(producer[:-8] + (sequence & (1 << 64) - 1).to_bytes(8, "little"))


def _count_framed(data: bytes) -> int:
    """How many messages there are, or -1 if the last one is torn."""
    position = count = 0
    while position < len(data):
        if len(data) - position < 5:
            return -1
        position += 5 + int.from_bytes(data[position + 1 : position + 5], "big")
        count += 1
    return count if position == len(data) else -1


def read_publish(payload: bytes, flatbuffers: bool = False) -> Publish:
    """The Message of an envelope of a message or a batch, or the whole payload as a plain value if it is neither."""
    for message_type in (_PUBLISH, _BATCH_TYPE):
        content = envelope.content(payload, message_type)
        if content is not None:
            try:
                return _message(content)._replace(is_batch=message_type == _BATCH_TYPE)
            except MalformedError:
                pass
    content = envelope.content(payload, _PUBLISH) if flatbuffers else None
    if content is not None:
        try:
            return _of_draft(content)
        except BentError:
            pass
    return Publish(b"", payload, b"", 0, b"", b"", _NONE)


def _of_draft(content: bytes) -> Publish:
    said = drafted(content)
    headers = [bytes_field(_HEADERS, map_entry(*entry)) for entry in said.headers if entry[0] not in _OWN_HEADERS]
    return Publish(
        said.key,
        said.value,
        b"".join(headers),
        said.offset,
        said.ack_inbox,
        said.correlation_id,
        said.ack_policy,
        len(said.headers),
    )


def _message(content: bytes) -> Publish:
    numbers, contents, entries = read_message(content, MESSAGE_STRINGS, _HEADERS)
    headers = [bytes_field(_HEADERS, map_entry(*entry)) for entry in entries if entry[0] not in _OWN_HEADERS]
    return Publish(
        contents.get(0x12, b""),
        contents.get(0x1A, b""),
        b"".join(headers),
        signed64(numbers.get(0x08, 0)),
        contents.get(0x52, b""),
        contents.get(0x5A, b""),
        signed32(numbers.get(0x60, 0)),
        len(entries),
        contents.get(PRODUCER_TAG, b""),
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
