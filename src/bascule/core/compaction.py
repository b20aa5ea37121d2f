"""When a log is compacted, and which of its segments become one file.

A pass reads all of the log. A small log is compacted as soon as it has something new; a larger one when what is new is
a good part of it, so that what a byte costs does not grow with the log. Tombstones make another pass due, over all
keys, when what they delete has been gone for long enough.
"""

from collections.abc import Sequence
from typing import Protocol

from bascule import limits
from bascule.core.merging import MergeBounds


class Mark(Protocol):
    @property
    def last_timestamp(self) -> int: ...


class Sized(Protocol):
    """A segment."""

    @property
    def first_timestamp(self) -> int: ...

    @property
    def appended(self) -> Mark: ...


def is_due(total_bytes: int, new_bytes: int) -> bool:
    """`total_bytes` may be compacted, of which `new_bytes` were not yet."""
    return new_bytes > 0 and (
        total_bytes <= limits.COMPACT_WHOLE_BYTES or new_bytes * limits.COMPACT_SHARE >= total_bytes
    )


def tombstones_due(alone_until: int, alone_at: int, now: int, delay_ns: int) -> bool:
    """The records before those tombstones that were written until `alone_until` (negative: there are none) were gone at
    `alone_at`."""
    return alone_until >= 0 and now - alone_at >= max(delay_ns, 1)


def shared_tombstones_due(alone_end: int, gone_end: int, cleared_end: int, clean_end: int) -> bool:
    """Whether a pass over all keys can do more than the last one, where others have logs of the same records: more
    tombstones wait in all of them, or something kept this log from being cleared to where it is compacted."""
    return alone_end > gone_end or cleared_end < clean_end


def joins(
    bounds: MergeBounds, group: Sequence[Sized], segment: Sized, nbytes: int, records: int, more_records: int
) -> bool:
    """Whether one file may hold what is left of these, `records`, and of that one, `more_records`. Where nothing is
    left of either it is a matter of bytes alone: otherwise there could be an empty file for each segment ever."""
    if not (records and more_records):
        return not nbytes or nbytes <= bounds.nbytes
    first_timestamp = next(
        (each.first_timestamp for each in group if each.first_timestamp >= 0), segment.first_timestamp
    )
    age_ns = segment.appended.last_timestamp - first_timestamp
    return nbytes <= bounds.nbytes and records + more_records <= bounds.messages and age_ns <= bounds.age_ns
