"""Which records of a partition expire: the limits of a stream, applied to the sizes of its segments.

Only whole segments go, from the oldest on, and never the active one. The limits are applied in the order of the Go
server: age by the last record of a segment, then messages, then bytes, both counted from the newest segment back, the
active one included. A segment at which a sum exceeds its limit goes, with all that are older.
"""

from collections.abc import Sequence
from typing import NamedTuple


class SegmentSize(NamedTuple):
    """What one segment holds."""

    base: int
    end: int
    messages: int
    nbytes: int
    last_timestamp: int


class RetentionLimits(NamedTuple):
    """0 is no limit."""

    max_bytes: int = 0
    max_messages: int = 0
    max_age_ns: int = 0

    def __bool__(self) -> bool:
        return any(self)


UNLIMITED = RetentionLimits()


def retained_from(segments: Sequence[SegmentSize], limits: RetentionLimits, now: int) -> int:
    """The base of the first of these segments that stays; the last one is the active one."""
    assert segments, "a log has at least its active segment"
    first = _by_age(segments, limits.max_age_ns, now)
    first = max(first, _by_sum([each.messages for each in segments], limits.max_messages))
    first = max(first, _by_sum([each.nbytes for each in segments], limits.max_bytes))
    return segments[first].base


def _by_age(segments: Sequence[SegmentSize], max_age_ns: int, now: int) -> int:
    """The number of the first segment that stays: one whose last record is young enough, or the active one."""
    if not max_age_ns:
        return 0
    last = len(segments) - 1
    return next((number for number in range(last) if segments[number].last_timestamp > now - max_age_ns), last)


def _by_sum(sizes: Sequence[int], most: int) -> int:
    if not most:
        return 0
    total = sizes[-1]
    for number in range(len(sizes) - 2, -1, -1):
        total += sizes[number]
        if total > most:
            return number + 1
    return 0
