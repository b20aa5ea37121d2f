"""Acks on their way out: as envelopes over NATS, or as gRPC frames for the broker's own callers."""

from __future__ import annotations

from bascule.wire.producers import REFUSALS
from bascule.wire.pure import envelope
from bascule.wire.pure.accept import PENDING_ENTRY_BYTES, pending_acks
from bascule.wire.pure.http2 import split_messages
from bascule.wire.pure.nats import messages
from bascule.wire.pure.protobuf import (
    MAX_DEPTH,
    Buffer,
    MalformedError,
    bytes_field,
    frame,
    number_field,
    read_bytes,
    read_message,
    signed32,
    signed64,
)

_ACK = 1
_TOO_LARGE = 3
_STRINGS = frozenset((0x0A, 0x12, 0x1A, 0x2A, 0x32))  # stream, two subjects, ackInbox, correlationId
_STREAM, _SUBJECT, _OFFSET, _CORRELATION_ID = 0x0A, 0x1A, 0x20, 0x32
_ACK_POLICY, _RECEPTION, _COMMIT, _ACK_ERROR = 0x38, 0x40, 0x48, 0x50
_AWAITED = (0, 1)
_ASYNC_ERRORS = {
    2: b"\x08\x05" + bytes_field(0x12, b"incorrect expected offset"),
    3: b"\x08\x01" + bytes_field(0x12, b"message exceeds max replication size"),
    4: b"\x08\x06" + bytes_field(0x12, b"encryption failed on partition"),
    **{error: number_field(0x08, error) + bytes_field(0x12, text.encode()) for error, text in REFUSALS.items()},
}
_UNKNOWN_ERROR = bytes_field(0x12, b"unknown error")

Replies = list[tuple[bytes, bytes, int]]
"""Token of the waiting call, gRPC frames for it, how many acks in them are waited for: not errors of policy NONE."""
Forwarded = list[tuple[bytes, bytes, bytes, int]]
"""The same, with the stream that sent the acks behind the token."""


PlainAck = tuple[int, str, int, str, int, int, int]
"""Correlation id as a number, stream, offset, subject, policy, and the times of reception and commit."""
_MAX_DIGITS = 15


class _Frames:
    """Frames per token and stream, in the order these were first seen."""

    def __init__(self) -> None:
        self._frames: dict[tuple[bytes, bytes], list[bytes]] = {}
        self._counts: dict[tuple[bytes, bytes], int] = {}

    def add(self, token: bytes, stream: bytes, ack: bytes, correlation_id: bytes, error: int, policy: int) -> None:
        """Unary calls (token u...) take the Ack itself, PublishAsync takes a PublishResponse."""
        payload = ack if token.startswith(b"u") else publish_response(ack, correlation_id, error)
        key = (token, stream)
        self._frames.setdefault(key, []).append(frame(payload))
        self._counts[key] = self._counts.get(key, 0) + (policy in _AWAITED)

    def forwarded(self) -> Forwarded:
        return [(*key, b"".join(frames), self._counts[key]) for key, frames in self._frames.items()]

    def replies(self) -> Replies:
        return [(token, frames, count) for token, _, frames, count in self.forwarded()]


def publish_response(ack: bytes, correlation_id: bytes, error: int) -> bytes:
    """With an error the Ack is there but empty: old clients look for it before they look at the error."""
    if error:
        response = b"\x0a\x00" + bytes_field(0x12, _ASYNC_ERRORS.get(error, _UNKNOWN_ERROR))
    else:
        response = bytes_field(0x0A, ack)
    if correlation_id:
        response += bytes_field(0x1A, correlation_id)
    return response


def encode_acks(
    pending: Buffer, prefix: bytes, subject: bytes, commit_timestamp: int, local_prefix: bytes, max_payload: int
) -> tuple[bytes, Replies]:
    """(PUB commands, replies for calls that wait in this process)."""
    commands: list[bytes] = []
    local = _Frames()
    header = envelope.header(_ACK)
    for offset, reception, policy, error, inbox, named, correlation_id in pending_acks(pending):
        parts = [prefix, bytes_field(0x1A, named or subject)]
        if offset:
            parts.append(number_field(0x20, offset))
        parts.append(bytes_field(0x2A, inbox))
        if correlation_id:
            parts.append(bytes_field(0x32, correlation_id))
        if policy:
            parts.append(number_field(0x38, policy))
        parts.append(number_field(0x40, reception))
        if error != _TOO_LARGE:
            parts.append(number_field(0x48, commit_timestamp))
        if error:
            parts.append(number_field(0x50, error))
        ack = b"".join(parts)
        token = inbox[len(local_prefix) :]
        if local_prefix and inbox.startswith(local_prefix) and token:
            local.add(token, b"", ack, correlation_id, error, policy)
        elif len(header) + len(ack) <= max_payload:
            commands.append(b"PUB %b %d\r\n%b%b\r\n" % (inbox, len(header) + len(ack), header, ack))
    return b"".join(commands), local.replies()


def drop_gone(pending: Buffer, prefix: bytes, gone: dict[bytes, None]) -> bytes:
    """Pending acks without those of calls that have ended: inboxes with `prefix`, whose token is in `gone`."""
    left: list[bytes] = []
    data = bytes(pending)
    position = 0
    for _, _, _, _, inbox, named, correlation_id in pending_acks(pending):
        size = PENDING_ENTRY_BYTES + len(inbox) + len(named) + len(correlation_id)
        token = inbox.rpartition(b".")[2].partition(b"-")[0]
        if not (len(inbox) > len(prefix) and inbox.startswith(prefix) and token in gone):
            left.append(data[position : position + size])
        position += size
    return b"".join(left)


def ack_responses(batch: Buffer) -> Forwarded:
    """Ack envelopes that came over NATS, for the calls their subjects' last tokens name."""
    frames = _Frames()
    for subject, _, payload in messages(batch):
        ack = envelope.content(payload, _ACK)
        if ack is None:
            continue
        try:
            # one level is left free: in a PublishResponse the Ack must still be readable
            numbers, contents, _ = read_message(ack, _STRINGS, depth=MAX_DEPTH - 1)
        except MalformedError:
            continue
        token = subject.rpartition(b".")[2]
        correlation_id, error = contents.get(_CORRELATION_ID, b""), signed32(numbers.get(_ACK_ERROR, 0))
        policy = signed32(numbers.get(_ACK_POLICY, 0))
        frames.add(token, contents.get(_STREAM, b""), ack, correlation_id, error, policy)
    return frames.forwarded()


def decode_responses(
    data: Buffer, start: int, end: int, max_message: int
) -> tuple[int, list[PlainAck | bytes], int, int]:
    """(consumed, a plain ack or the bytes of any other `PublishResponse` each, how many of these, length of one that is
    too long or 0)."""
    consumed, responses, oversized = split_messages(data, start, end, max_message)
    answers = [_plain_ack(response) or response for _, response in responses]
    return consumed, answers, sum(isinstance(answer, bytes) for answer in answers), oversized


def _plain_ack(response: bytes) -> PlainAck | None:
    """Of a response that is an ack, and perhaps its correlation id once more, which is a number. Else None."""
    if response[:1] != b"\x0a":
        return None
    again: bytes | None = None
    try:
        ack, position = read_bytes(response, 1, len(response))
        numbers, contents, _ = read_message(ack, _STRINGS, depth=MAX_DEPTH - 1)
        if response[position : position + 1] == b"\x1a":
            again, position = read_bytes(response, position + 1, len(response))
    except MalformedError:
        return None
    digits, policy = contents.get(_CORRELATION_ID, b""), numbers.get(_ACK_POLICY, 0)
    if position < len(response) or again not in (None, digits) or numbers.get(_ACK_ERROR) or policy > 2:
        return None
    if not digits.isdigit() or len(digits) > _MAX_DIGITS:
        return None
    return (
        int(digits),
        contents.get(_STREAM, b"").decode(),
        signed64(numbers.get(_OFFSET, 0)),
        contents.get(_SUBJECT, b"").decode(),
        policy,
        signed64(numbers.get(_RECEPTION, 0)),
        signed64(numbers.get(_COMMIT, 0)),
    )
