"""Where a stream query is, as its checkpoint has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bascule.errors import InvalidArgument

VERSION = 1
Position = dict[str, tuple[int, dict[int, int]]]
"""Of each stream its number (`creation`), and the next offset of each partition."""


def has_bulk_reads(creation: int) -> bool:
    """A Bascule server numbers its streams from 1 on. Others have no bulk reads: of their streams the number is the
    time at which they were made, negative, so that it is never taken for one of the former; 0 if they do not say."""
    return creation > 0


def same_stream(one: int, other: int) -> bool:
    """Whether two numbers are of the same stream, as far as they say."""
    return one == other or 0 in (one, other)


def to_json(position: Position) -> dict[str, Any]:
    streams = {
        stream: {
            "creation": creation,
            "partitions": {str(number): offset for number, offset in sorted(offsets.items())},
        }
        for stream, (creation, offsets) in sorted(position.items())
    }
    return {"version": VERSION, "streams": streams}


def from_json(offset: Mapping[str, Any]) -> Position:
    if offset.get("version") != VERSION:
        raise InvalidArgument(
            f"the checkpoint is not of this source, or of another version of it: {str(dict(offset))[:200]}. Give the "
            "query a checkpointLocation of its own"
        )
    return {
        stream: (each["creation"], {int(number): next_ for number, next_ in each["partitions"].items()})
        for stream, each in offset["streams"].items()
    }
