"""Offsets as runs, and what is wrong with them: the same judgement for a stream, a table and a log.

A run is a stretch of offsets in a row, in the order in which they were read. A partition without any fault is one run
from its start to its end. Compaction leaves holes below the compacted end, and these are in a run as its `holes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bascule import limits
from bascule.errors import ResourceExhausted


class Run(NamedTuple):
    first: int
    last: int
    holes: int = 0


class Stretch(NamedTuple):
    """Offsets from `first` to `last`, inclusive."""

    first: int
    last: int


@dataclass
class Faults:
    missing: list[Stretch] = field(default_factory=list)
    duplicate: list[Stretch] = field(default_factory=list)
    out_of_order: list[Stretch] = field(default_factory=list)
    compacted: int = 0
    """Holes that compaction left: none of the above."""


def runs_of(offsets: Any, compacted_end: int) -> list[Run]:
    """Of a numpy array of offsets, as they were read."""
    import numpy as np

    if not len(offsets):
        return []
    steps = np.diff(offsets)
    breaks = np.flatnonzero((steps != 1) & ~((steps > 1) & (offsets[1:] <= compacted_end)))
    if len(breaks) > limits.AUDIT_RUNS:
        raise ResourceExhausted(
            f"more than {limits.AUDIT_RUNS} breaks in the order of the offsets from {offsets[0]} on: this is no log"
        )
    begins = np.concatenate(([0], breaks + 1))
    ends = np.concatenate((breaks, [len(offsets) - 1]))
    return [
        Run(int(offsets[begin]), int(offsets[end]), int(offsets[end] - offsets[begin] - (end - begin)))
        for begin, end in zip(begins, ends, strict=True)
    ]


def joined(runs: Iterable[Run], compacted_end: int) -> list[Run]:
    """Neighbours that go on where the one before ended become one."""
    found: list[Run] = []
    for run in runs:
        if found:
            before = found[-1]
            hole = run.first - before.last - 1
            if hole == 0 or (hole > 0 and run.first <= compacted_end):
                found[-1] = Run(before.first, run.last, before.holes + run.holes + hole)
                continue
        found.append(run)
    return found


def faults_of(runs: Sequence[Run], start: int, end: int, compacted_end: int) -> Faults:
    """What a partition that has the offsets from `start` to `end`, exclusive, lacks, has twice or in another order.
    Records below the start have expired, and may still be there."""
    found = Faults()
    expected = start
    gaps: list[Stretch] = []
    for run in runs:
        found.compacted += run.holes
        first = max(run.first, start)
        if first > run.last:
            continue
        if first > expected:
            gaps.append(Stretch(expected, first - 1))
        elif first < expected:
            _late(Stretch(first, min(run.last, expected - 1)), gaps, found)
        expected = max(expected, run.last + 1)
    if expected < end:
        gaps.append(Stretch(expected, end - 1))
    for gap in gaps:
        legal = max(0, min(gap.last + 1, compacted_end) - gap.first)
        found.compacted += legal
        if gap.first + legal <= gap.last:
            found.missing.append(Stretch(gap.first + legal, gap.last))
    return found


def _late(stretch: Stretch, gaps: list[Stretch], found: Faults) -> None:
    """Offsets below one that was read before: what fills a gap came late, and the rest came twice."""
    position = stretch.first
    for gap in list(gaps):
        first, last = max(gap.first, position), min(gap.last, stretch.last)
        if first > last:
            continue
        if position < first:
            found.duplicate.append(Stretch(position, first - 1))
        found.out_of_order.append(Stretch(first, last))
        place = gaps.index(gap)
        gaps[place : place + 1] = [
            each for each in (Stretch(gap.first, first - 1), Stretch(last + 1, gap.last)) if each.first <= each.last
        ]
        position = last + 1
    if position <= stretch.last:
        found.duplicate.append(Stretch(position, stretch.last))
