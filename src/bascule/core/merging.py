"""Which small segments of a partition are merged into one.

Each segment is a file with an index, and a start opens every index. A stream with one message a segment, or with a
short `segment.max.age`, has as many files as messages. Where they are many, runs of adjacent small ones are merged.

Retention removes whole segments, so a merged one stays small beside what the stream keeps: its bytes, its messages and
the time between its first and its last record are at most one part in MERGED_SHARE of each limit. So a limit is met
about as exactly as before: retention by messages or bytes removes too much by less than that part.

A segment that holds more than half of a run is left out of it. So the file of a record at least doubles with each
merge, and a record is copied only as often as its file can double before it is as large as a merged one may be.
"""

from collections.abc import Sequence
from typing import NamedTuple

from bascule import limits
from bascule.core.retention import RetentionLimits


class Small(NamedTuple):
    """A segment, as far as a merge is concerned."""

    mergeable: bool
    nbytes: int
    messages: int
    first_timestamp: int
    last_timestamp: int


class MergeBounds(NamedTuple):
    """What one merged segment may hold."""

    nbytes: int
    messages: int
    age_ns: int


class Run(NamedTuple):
    """Numbers of adjacent segments: from the first up to the end, which is not one of them."""

    first: int
    end: int


_NO_BOUND = 1 << 62


def merge_bounds(segment_max_bytes: int, retention: RetentionLimits) -> MergeBounds:
    """For a stream with segments of this size. A tiny size is no bound: it is what makes segments many."""
    nbytes = min(max(segment_max_bytes, limits.MERGED_LEAST_BYTES), limits.MERGED_MOST_BYTES)
    return MergeBounds(
        min(nbytes, _share(retention.max_bytes)), _share(retention.max_messages), _share(retention.max_age_ns)
    )


def _share(limit: int) -> int:
    return limit // limits.MERGED_SHARE if limit else _NO_BOUND


def next_run(segments: Sequence[Small], bounds: MergeBounds) -> Run | None:
    """The oldest run that is worth merging; None if there is none."""
    if len(segments) < limits.MERGED_FROM_SEGMENTS:
        return None
    first = 0
    while first < len(segments):
        end = _fitting(segments, first, bounds)
        found = _worth(segments, Run(first, end))
        if found is not None:
            return found
        first = max(end, first + 1)
    return None


def _fitting(segments: Sequence[Small], first: int, bounds: MergeBounds) -> int:
    """How far a run from here goes."""
    nbytes = messages = 0
    for number in range(first, min(len(segments), first + limits.MERGED_AT_ONCE)):
        each = segments[number]
        nbytes += each.nbytes
        messages += each.messages
        age_ns = each.last_timestamp - segments[first].first_timestamp
        if not each.mergeable or nbytes > bounds.nbytes or messages > bounds.messages or age_ns > bounds.age_ns:
            return number
    return min(len(segments), first + limits.MERGED_AT_ONCE)


def _worth(segments: Sequence[Small], run: Run) -> Run | None:
    """The run, or the part of it before or after a segment that holds more than half of its bytes."""
    while run.end - run.first >= limits.MERGED_LEAST_SEGMENTS:
        sizes = [each.nbytes for each in segments[run.first : run.end]]
        largest = max(sizes)
        if 2 * largest <= sum(sizes):
            return run
        middle = run.first + sizes.index(largest)
        before = _worth(segments, Run(run.first, middle))
        if before is not None:
            return before
        run = Run(middle + 1, run.end)
    return None
