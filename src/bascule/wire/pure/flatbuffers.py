"""The FlatBuffers draft: what a PublishRequest of it says.

A buffer is offsets that its writer chose, and may be bent: each is checked against the end before it is followed, and
what is taken together is no longer than the buffer, however often parts of it are referred to.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from bascule.limits import MAX_MESSAGE_FIELDS

_OFFSET, _KEY, _VALUE, _SUBJECT, _REPLY, _HEADERS, _ACK_INBOX, _CORRELATION_ID, _ACK_POLICY = 0, 1, 2, 4, 5, 6, 7, 8, 9
_U16, _U32, _I32, _I64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<q")


class BentError(Exception):
    """An offset or a size that does not fit its buffer."""


class Drafted(NamedTuple):
    """What a message of the draft asks for."""

    offset: int
    key: bytes
    value: bytes
    headers: list[tuple[bytes, bytes]]
    ack_inbox: bytes
    correlation_id: bytes
    ack_policy: int


class _Table:
    def __init__(self, data: bytes, at: int) -> None:
        if len(data) - at < 4:
            raise BentError
        vtable = at - _I32.unpack_from(data, at)[0]
        if vtable < 0 or len(data) - vtable < 4:
            raise BentError
        self._data = data
        self._at = at
        self._vtable = vtable
        self._vtable_size = _U16.unpack_from(data, vtable)[0]
        self._size = _U16.unpack_from(data, vtable + 2)[0]
        if self._vtable_size < 4 or self._vtable_size & 1 or self._vtable_size > len(data) - vtable:
            raise BentError
        if not 4 <= self._size <= len(data) - at:
            raise BentError

    def find(self, number: int, width: int) -> int | None:
        """Where the field is, if it is there."""
        slot = 4 + 2 * number
        if slot + 2 > self._vtable_size:
            return None
        offset = int(_U16.unpack_from(self._data, self._vtable + slot)[0])
        if offset == 0:
            return None
        if offset < 4 or offset + width > self._size:
            raise BentError
        return self._at + offset

    def vector(self, number: int, width: int) -> tuple[int, int] | None:
        """Where its elements begin, and how many they are."""
        at = self.find(number, 4)
        if at is None:
            return None
        begin = _referred(self._data, at)
        if len(self._data) - begin < 4:
            raise BentError
        count = int(_U32.unpack_from(self._data, begin)[0])
        if count * width > len(self._data) - begin - 4:
            raise BentError
        return begin + 4, count

    def content(self, number: int, *, is_text: bool = False) -> bytes | None:
        found = self.vector(number, 1)
        if found is None:
            return None
        content = self._data[found[0] : sum(found)]
        if is_text:
            try:
                content.decode()
            except UnicodeDecodeError:
                raise BentError from None
        return content


def _referred(data: bytes, at: int) -> int:
    return at + int(_U32.unpack_from(data, at)[0])


def drafted(data: bytes) -> Drafted:
    """BentError if this is no PublishRequest of the draft."""
    if len(data) < 4:
        raise BentError
    request = _Table(data, _referred(data, 0))
    at = request.find(0, 4)
    if at is None:
        raise BentError
    message = _Table(data, _referred(data, at))
    key, value = message.content(_KEY) or b"", message.content(_VALUE) or b""
    message.content(_SUBJECT, is_text=True)
    message.content(_REPLY, is_text=True)
    room = len(data) - len(key) - len(value)
    if room < 0:
        raise BentError
    offset, policy = message.find(_OFFSET, 8), message.find(_ACK_POLICY, 1)
    return Drafted(
        _I64.unpack_from(data, offset)[0] if offset is not None else 0,
        key,
        value,
        _headers(data, message, room),
        message.content(_ACK_INBOX, is_text=True) or b"",
        message.content(_CORRELATION_ID, is_text=True) or b"",
        data[policy] if policy is not None else 0,
    )


def _headers(data: bytes, message: _Table, room: int) -> list[tuple[bytes, bytes]]:
    begin, count = message.vector(_HEADERS, 4) or (0, 0)
    if count > MAX_MESSAGE_FIELDS:
        raise BentError
    headers = []
    for at in range(begin, begin + 4 * count, 4):
        header = _Table(data, _referred(data, at))
        key, value = header.content(0, is_text=True), header.content(1)
        if key is None or value is None:
            raise BentError
        room -= len(key) + len(value)
        if room < 0:
            raise BentError
        headers.append((key, value))
    return headers
