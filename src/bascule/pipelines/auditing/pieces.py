"""What one task of an audit saw, and what all of them together say of a partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bascule import limits
from bascule.pipelines.auditing.runs import Run, Stretch, faults_of, joined, runs_of
from bascule.pipelines.ledger import Part

_WIDTHS_S = (1, 60, 3600, 86_400)


@dataclass(frozen=True, slots=True)
class Damage:
    where: str
    """The file and the byte, or the stream."""
    what: str
    offset: int | None = None
    """That was expected there."""
    last: int | None = None


@dataclass
class Piece:
    """Of one partition: a range of a stream, a file of a table, a segment of a log."""

    part: Part
    order: int = 0
    """Its place among the pieces of the partition."""
    runs: list[Run] = field(default_factory=list)
    records: int = 0
    bytes: int = 0
    first_ns: int = 0
    last_ns: int = 0
    backwards: int = 0
    """Records with an earlier time than the one before."""
    by_time: Counter[int] = field(default_factory=Counter)
    """Records, by the second in which their stretch of time begins."""
    width_s: int = _WIDTHS_S[0]
    damage: list[Damage] = field(default_factory=list)
    notes: list[Damage] = field(default_factory=list)
    """What is worth knowing, and no fault."""
    unread: list[Damage] = field(default_factory=list)
    """What could not be looked at: nothing is known of it."""
    start: int = 0
    """Of the partition, as far as its broker said so while it was read: what is below has expired."""
    compacted_end: int = 0
    """As it was when the records were read, if that was asked then."""

    def add(self, offsets: Any, times: Any, compacted_end: int, size: int) -> None:
        """Records in the order in which they were read; numpy arrays of their offsets and times (ns)."""
        import numpy as np

        if not len(offsets):
            return
        self.runs = joined([*self.runs, *runs_of(offsets, compacted_end)], compacted_end)
        self.records += len(offsets)
        self.bytes += size
        if self.last_ns > times[0]:
            self.backwards += 1
        self.backwards += int(np.count_nonzero(np.diff(times) < 0))
        self.first_ns = min(self.first_ns or int(times[0]), int(times.min()))
        self.last_ns = max(self.last_ns, int(times[-1]))
        seconds, counts = np.unique(times // (self.width_s * 1_000_000_000), return_counts=True)
        for second, count in zip(seconds.tolist(), counts.tolist(), strict=True):
            self.by_time[second * self.width_s] += count
        self._coarsen()

    def add_piece(self, other: Piece, compacted_end: int) -> None:
        self.runs = joined([*self.runs, *other.runs], compacted_end)
        self.records += other.records
        self.bytes += other.bytes
        self.backwards += other.backwards
        if other.records:
            self.first_ns = min(self.first_ns or other.first_ns, other.first_ns)
            self.last_ns = max(self.last_ns, other.last_ns)
        self.damage += other.damage
        self.notes += other.notes
        self.unread += other.unread
        self.start = max(self.start, other.start)
        self.width_s = max(self.width_s, other.width_s)
        self.by_time = rebinned([*self.by_time.items(), *other.by_time.items()], self.width_s)
        self._coarsen()

    def _coarsen(self) -> None:
        while len(self.by_time) > limits.AUDIT_TIMES and self.width_s < _WIDTHS_S[-1]:
            self.width_s = next(width for width in _WIDTHS_S if width > self.width_s)
            self.by_time = rebinned(self.by_time.items(), self.width_s)


def rebinned(counts: Iterable[tuple[int, int]], width_s: int) -> Counter[int]:
    found: Counter[int] = Counter()
    for second, count in counts:
        found[second - second % width_s] += count
    return found


@dataclass(frozen=True, slots=True)
class Finding:
    stream: str
    partition: int
    kind: str
    """damaged, not read, missing, duplicate, out of order, unexpected, hold"""
    first: int | None
    last: int | None
    what: str


@dataclass
class PartitionAudit:
    stream: str
    partition: int
    start: int
    """Everything below has expired."""
    end: int
    compacted_end: int
    seen: Piece
    compacted: int = 0
    damaged: list[Stretch] = field(default_factory=list)
    """What was not archived because it was damaged on the broker's disk."""
    removed: list[Stretch] = field(default_factory=list)
    """What was gone before it was archived."""
    findings: list[Finding] = field(default_factory=list)

    def judge(self) -> None:
        """From what was seen."""
        faults = faults_of(self.seen.runs, self.start, self.end, self.compacted_end)
        self.compacted = faults.compacted
        for kind, places in (("damaged", self.seen.damage), ("not read", self.seen.unread)):
            for each in places:
                self.find(kind, each.offset, each.last or each.offset, f"{each.what}: {each.where}")
        known = [
            Stretch(each.offset, each.last or each.offset)
            for each in (*self.seen.damage, *self.seen.unread)
            if each.offset is not None
        ]
        for stretch in self.damaged:
            self.find("damaged", *stretch, "damaged on the broker's disk when it was to be archived")
        for stretch in self.removed:
            self.find("missing", *stretch, "removed from the stream before it was archived")
        known += self.damaged + self.removed
        self.compacted = max(0, self.compacted - covered(known, self.start, min(self.end, self.compacted_end)))
        for stretch in faults.missing:
            for rest in without(stretch, known):
                self.find("missing", *rest, "no record, though neither retention nor compaction removed it")
        for stretch in faults.duplicate:
            self.find("duplicate", *stretch, "read a second time")
        for stretch in faults.out_of_order:
            self.find("out of order", *stretch, "stands after a higher offset")

    def find(self, kind: str, first: int | None, last: int | None, what: str) -> None:
        self.findings.append(Finding(self.stream, self.partition, kind, first, last, what))


def covered(stretches: Iterable[Stretch], start: int, end: int) -> int:
    """How many of the offsets from `start` to `end`, exclusive, are in one of them."""
    count, position = 0, start
    for first, last in sorted(stretches):
        first, after = max(first, position), min(last + 1, end)
        count += max(0, after - first)
        position = max(position, after)
    return count


def without(stretch: Stretch, others: Iterable[Stretch]) -> list[Stretch]:
    """What is left of it."""
    left = [stretch]
    for other in others:
        left = [
            rest
            for each in left
            for rest in (
                Stretch(each.first, min(each.last, other.first - 1)),
                Stretch(max(each.first, other.last + 1), each.last),
            )
            if rest.first <= rest.last
        ]
    return left
