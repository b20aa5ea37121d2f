"""Cursors: where clients have got to, kept by the cluster in the stream `__cursors`. A cursor is the offset of the last
message that was processed; -1 is one that was never set."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from google.protobuf.message import DecodeError

from bascule.client.values import Message
from bascule.wire.pb import internal_pb2 as stored

CURSORS = "__cursors"
GROUP = "__group:"
"""The cursors of a consumer group have this before its id, as go-liftbridge's Consumer has it."""
NEVER_SET = -1
BEFORE_THE_FIRST = -2
"""A client that goes on after it asks for offset -1, and begins with the first message. (The members of a consumer
group take NEVER_SET for a choice of their own: they may begin with the next new message.)"""


class Cursor(NamedTuple):
    id: str
    stream: str
    partition: int
    offset: int


def cursor_partition(id: str, stream: str, partition: int, partitions: int) -> int:
    """The partition of `__cursors` whose leader answers for it."""
    return zlib.crc32(f"{id},{stream},{partition}".encode()) % partitions


def cursor_of(message: Message) -> Cursor | None:
    """As a record of `__cursors` has it; None if it is something else: anybody may publish there."""
    try:
        found = stored.Cursor.FromString(message.value)
    except DecodeError:
        return None
    if message.key != f"{found.cursorId},{found.stream},{found.partition}".encode():
        return None
    return Cursor(found.cursorId, found.stream, found.partition, found.offset)
