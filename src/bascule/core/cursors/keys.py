"""Which cursor is meant, and which partition of the stream `__cursors` has it: clients compute the same to find its
leader."""

import zlib
from typing import NamedTuple

from google.protobuf.message import DecodeError

from bascule.errors import InvalidArgument
from bascule.limits import MAX_CURSOR_ID_BYTES, MAX_CURSOR_STREAM_BYTES
from bascule.wire.pb import internal_pb2 as pb


class CursorValue(NamedTuple):
    """What a cursor was set to."""

    offset: int
    creation_index: int
    """Of the stream when it was set; 0 if there was none of its name, or if it was not noted."""

    def holds_for(self, creation_index: int | None) -> bool:
        """Whether it is a position in the stream that has this creation index, or in one that does not exist (None). A
        stream that was deleted and made again has other messages at the same offsets."""
        return not self.creation_index or creation_index is None or self.creation_index == creation_index


class CursorName(NamedTuple):
    """A cursor: the key of its records does not tell two of them apart where an id or a stream has a comma."""

    cursor_id: str
    stream: str
    partition: int

    def check(self) -> None:
        if not self.stream:
            raise InvalidArgument("No stream provided")
        if not self.cursor_id:
            raise InvalidArgument("No cursorId provided")
        if len(self.cursor_id.encode()) > MAX_CURSOR_ID_BYTES:
            raise InvalidArgument(f"cursorId is too long: it takes at most {MAX_CURSOR_ID_BYTES} bytes as UTF-8")
        if len(self.stream.encode()) > MAX_CURSOR_STREAM_BYTES:
            raise InvalidArgument(f"stream is too long: it takes at most {MAX_CURSOR_STREAM_BYTES} bytes as UTF-8")

    @property
    def key(self) -> bytes:
        return f"{self.cursor_id},{self.stream},{self.partition}".encode()

    def value(self, offset: int, creation_index: int = 0) -> bytes:
        """What is stored under the key."""
        return pb.Cursor(
            stream=self.stream,
            partition=self.partition,
            cursorId=self.cursor_id,
            offset=offset,
            creationIndex=creation_index,
        ).SerializeToString(deterministic=True)

    def found_in(self, value: bytes) -> CursorValue | None:
        """What a record has for this cursor; None if it is another cursor's, or none at all: clients may publish
        anything to the stream."""
        try:
            cursor = pb.Cursor.FromString(value)
        except DecodeError:
            return None
        if (cursor.cursorId, cursor.stream, cursor.partition) != self:
            return None
        return CursorValue(cursor.offset, cursor.creationIndex)


def partition_of(key: bytes, partitions: int) -> int:
    return zlib.crc32(key) % partitions
