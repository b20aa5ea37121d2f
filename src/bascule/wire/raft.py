"""Raft's messages, entries and stored states as bytes.

A message is: format version, checksum of all that follows, kind, source, target, term, then the fields of its kind in
the order of the dataclass. The checksum is there because one wrong bit in a term or a match could never be undone.
Integers are unsigned, little-endian, 64 bits; strings have a length of 16 bits, byte strings of 32. The indexes of an
append's entries are not written: they follow `prev_index` without a gap.

Decoding trusts nothing: a wrong length, an unknown kind, an invalid name, trailing bytes, anything raises PeerError and
nothing else. A newer format version is refused with that reason.
"""

import struct
from collections.abc import Callable, Iterable

from bascule import limits
from bascule.errors import PeerError
from bascule.wire.kernels import crc32c
from bascule.wire.raft_messages import (
    AppendReply,
    AppendRequest,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatReply,
    Membership,
    Message,
    Snapshot,
    SnapshotReply,
    SnapshotRequest,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from bascule.wire.subjects import usable_token

FORMAT_VERSION = 2
"""Of what a server stores."""
MESSAGE_VERSION = 3
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_ENTRY = struct.Struct("<QBI")  # term, kind, length of the data
_KINDS = tuple(EntryKind)


class _Reader:
    """Takes values off the front; every step past the end raises PeerError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def byte(self) -> int:
        return self.take(1)[0]

    def flag(self) -> bool:
        value = self.byte()
        if value > 1:
            raise PeerError(f"a flag has the value {value}")
        return bool(value)

    def number(self) -> int:
        """Below 2^63: so a counter never overflows, whatever value a peer sends."""
        value = int.from_bytes(self.take(8), "little")
        if value >> 63:
            raise PeerError(f"a number of {value} is no index, term or length")
        return value

    def count(self, bound: int) -> int:
        value = int.from_bytes(self.take(4), "little")
        if value > bound:
            raise PeerError(f"a list of {value}, where {bound} are the most there can be")
        return value

    def text(self) -> str:
        try:
            return self.take(int.from_bytes(self.take(2), "little")).decode()
        except UnicodeDecodeError as error:
            raise PeerError(f"a name is not UTF-8: {error}") from error

    def blob(self) -> bytes:
        return self.take(int.from_bytes(self.take(4), "little"))

    def take(self, length: int) -> bytes:
        end = self._position + length
        piece = self._data[self._position : end]
        if len(piece) != length:
            raise PeerError(f"truncated: {length} bytes expected, {len(piece)} are there")
        self._position = end
        return piece

    def entries(self, prev_index: int) -> list[Entry]:
        """As `_encode_entries` wrote them: a count, then all of it in one pass."""
        data, position = self._data, self._position + _U32.size
        count = self.count(len(data) // _ENTRY.size)
        entries = []
        for index in range(prev_index + 1, prev_index + 1 + count):
            start = position + _ENTRY.size
            if start > len(data):
                raise PeerError("truncated within an entry")
            term, kind, length = _ENTRY.unpack_from(data, position)
            position = start + length
            if position > len(data) or kind >= len(_KINDS) or term >> 63:
                raise PeerError(f"entry {index} is truncated, of an unknown kind ({kind}) or of term {term}")
            entry = Entry(index, term, _KINDS[kind], data[start:position])
            if entry.kind is EntryKind.MEMBERSHIP:
                decode_membership(entry.data)
            entries.append(entry)
        self._position = position
        return entries

    def end(self) -> None:
        if self._position != len(self._data):
            raise PeerError(f"{len(self._data) - self._position} bytes too many")


def _number(value: int) -> bytes:
    return _U64.pack(value)


def _text(value: str) -> bytes:
    data = value.encode()
    return _U16.pack(len(data)) + data


def _blob(value: bytes) -> bytes:
    return _U32.pack(len(value)) + value


def _flag(value: bool) -> bytes:
    return b"\1" if value else b"\0"


# --- memberships and snapshots --------------------------------------------------------------------------------


def encode_membership(membership: Membership) -> bytes:
    pieces = [_U32.pack(len(membership.voters)), *map(_text, membership.voters)]
    pieces += [_U32.pack(len(membership.learners)), *map(_text, membership.learners)]
    pieces += [_U32.pack(len(membership.incarnations))]
    pieces += [_text(server) + _text(incarnation) for server, incarnation in membership.incarnations]
    pieces += [_text(membership.cluster)]
    return b"".join(pieces)


def decode_membership(data: bytes) -> Membership:
    """Raises PeerError."""
    reader = _Reader(data)
    membership = _read_membership(reader)
    reader.end()
    return membership


def _read_membership(reader: _Reader) -> Membership:
    voters = tuple(reader.text() for _ in range(reader.count(limits.RAFT_MAX_SERVERS)))
    learners = tuple(reader.text() for _ in range(reader.count(limits.RAFT_MAX_SERVERS)))
    incarnations = tuple((reader.text(), reader.text()) for _ in range(reader.count(2 * limits.RAFT_MAX_SERVERS)))
    membership = Membership(voters, learners, incarnations, reader.text())
    if not membership.well_formed:
        raise PeerError("a membership names a server twice, without a name, or in an incarnation without the server")
    return membership


def _encode_snapshot(snapshot: Snapshot) -> bytes:
    pieces = (_number(snapshot.index), _number(snapshot.term), encode_membership(snapshot.membership))
    return b"".join((*pieces, _blob(snapshot.data)))


def _read_snapshot(reader: _Reader) -> Snapshot:
    return Snapshot(reader.number(), reader.number(), _read_membership(reader), reader.blob())


def _encode_entries(entries: Iterable[Entry]) -> bytes:
    pieces = [b""]
    for entry in entries:
        pieces += (_ENTRY.pack(entry.term, entry.kind, len(entry.data)), entry.data)
    pieces[0] = _U32.pack(len(pieces) // 2)
    return b"".join(pieces)


# --- messages -------------------------------------------------------------------------------------------------


def encode_message(message: Message) -> bytes:
    match message:
        case AppendRequest():
            kind = 1
            body = _number(message.prev_index) + _number(message.prev_term) + _number(message.commit)
            body += _encode_entries(message.entries)
        case AppendReply():
            kind = 2
            body = _number(message.match) + _flag(message.rejected) + _number(message.hint_term)
            body += _number(message.prev_index) + _text(message.incarnation)
        case Heartbeat():
            kind, body = 3, _number(message.commit) + _number(message.commit_term) + _number(message.round)
        case HeartbeatReply():
            kind, body = 4, _number(message.round) + _text(message.incarnation)
        case VoteRequest():
            kind = 5
            body = _number(message.last_index) + _number(message.last_term) + _text(message.incarnation)
            body += _flag(message.pre) + _flag(message.transfer)
        case VoteReply():
            kind, body = 6, _flag(message.granted) + _flag(message.pre)
        case SnapshotRequest():
            kind = 7
            body = _encode_snapshot(message.snapshot) + _number(message.offset) + _number(message.total)
        case SnapshotReply():
            kind, body = 8, _number(message.index) + _number(message.received) + _text(message.incarnation)
        case TimeoutNow():
            kind, body = 9, b""
        case _:
            raise TypeError(f"{type(message).__name__} is not a message between servers")
    head = bytes((kind,)) + _text(message.source) + _text(message.target) + _number(message.term)
    content = head + body
    return bytes((MESSAGE_VERSION,)) + _U32.pack(crc32c(content)) + content


def decode_message(data: bytes) -> Message:
    """Raises PeerError, whatever the bytes."""
    reader = _Reader(data)
    version = reader.byte()
    if version != MESSAGE_VERSION:
        raise PeerError(
            f"a Raft message of format {version}, this broker knows {MESSAGE_VERSION}; run the same release"
        )
    if int.from_bytes(reader.take(4), "little") != crc32c(memoryview(data)[5:]):
        raise PeerError("a Raft message whose checksum is wrong")
    read = _READERS.get(kind := reader.byte())
    if read is None:
        raise PeerError(f"a Raft message of an unknown kind, {kind}")
    source, target, term = reader.text(), reader.text(), reader.number()
    if not usable_token(source) or not usable_token(target):
        raise PeerError(f"a Raft message from {source[:40]!r} to {target[:40]!r}: those are no names of servers")
    message = read(reader, source, target, term)
    reader.end()
    return message


def _append_request(reader: _Reader, source: str, target: str, term: int) -> Message:
    prev_index, prev_term, commit = reader.number(), reader.number(), reader.number()
    entries = tuple(reader.entries(prev_index))
    terms = [prev_term, *(entry.term for entry in entries), term]
    if sorted(terms) != terms:
        raise PeerError("the terms of an append go back")
    return AppendRequest(source, target, term, prev_index, prev_term, commit, entries)


def _append_reply(reader: _Reader, source: str, target: str, term: int) -> Message:
    match, rejected, hint_term = reader.number(), reader.flag(), reader.number()
    return AppendReply(source, target, term, match, rejected, hint_term, reader.number(), reader.text())


def _heartbeat(reader: _Reader, source: str, target: str, term: int) -> Message:
    return Heartbeat(source, target, term, reader.number(), reader.number(), reader.number())


def _heartbeat_reply(reader: _Reader, source: str, target: str, term: int) -> Message:
    return HeartbeatReply(source, target, term, reader.number(), reader.text())


def _vote_request(reader: _Reader, source: str, target: str, term: int) -> Message:
    last_index, last_term, incarnation = reader.number(), reader.number(), reader.text()
    return VoteRequest(source, target, term, last_index, last_term, incarnation, reader.flag(), reader.flag())


def _vote_reply(reader: _Reader, source: str, target: str, term: int) -> Message:
    return VoteReply(source, target, term, reader.flag(), reader.flag())


def _snapshot_request(reader: _Reader, source: str, target: str, term: int) -> Message:
    snapshot, offset, total = _read_snapshot(reader), reader.number(), reader.number()
    if offset + len(snapshot.data) > total or total > limits.MAX_CHECKPOINT_BYTES or snapshot.term > term:
        raise PeerError(f"a snapshot's chunk at {offset} of {total} bytes is impossible")
    return SnapshotRequest(source, target, term, snapshot, offset, total)


def _snapshot_reply(reader: _Reader, source: str, target: str, term: int) -> Message:
    return SnapshotReply(source, target, term, reader.number(), reader.number(), reader.text())


def _timeout_now(reader: _Reader, source: str, target: str, term: int) -> Message:
    return TimeoutNow(source, target, term)


_READERS: dict[int, Callable[[_Reader, str, str, int], Message]] = {
    1: _append_request,
    2: _append_reply,
    3: _heartbeat,
    4: _heartbeat_reply,
    5: _vote_request,
    6: _vote_reply,
    7: _snapshot_request,
    8: _snapshot_reply,
    9: _timeout_now,
}


# --- what a server stores -------------------------------------------------------------------------------------


def encode_stored(hard_state: HardState | None, snapshot: Snapshot | None, entries: list[Entry]) -> bytes:
    """One save of a server's state: any of the three may be missing."""
    pieces = [bytes((FORMAT_VERSION,)), _flag(hard_state is not None)]
    if hard_state is not None:
        pieces += (_number(hard_state.term), _text(hard_state.vote), _number(hard_state.commit))
        pieces.append(_text(hard_state.incarnation))
    pieces.append(_flag(snapshot is not None))
    if snapshot is not None:
        pieces.append(_encode_snapshot(snapshot))
    pieces += (_number(entries[0].index if entries else 1), _encode_entries(entries))
    return b"".join(pieces)


def decode_stored(data: bytes) -> tuple[HardState | None, Snapshot | None, list[Entry]]:
    """Raises PeerError: the caller knows where the bytes are from."""
    reader = _Reader(data)
    version = reader.byte()
    if version != FORMAT_VERSION:
        raise PeerError(
            f"stored in format {version}, this broker knows {FORMAT_VERSION}; run the release that wrote it"
        )
    hard_state = snapshot = None
    if reader.flag():
        hard_state = HardState(reader.number(), reader.text(), reader.number(), reader.text())
    if reader.flag():
        snapshot = _read_snapshot(reader)
    first = reader.number()
    if not first:
        raise PeerError("an entry with the index 0")
    entries = reader.entries(first - 1)
    reader.end()
    return hard_state, snapshot, entries
