"""What a table and its stream both must have, where compaction has been in the stream: there a gap in the table may be
a row that is lost, or a record that was gone before. If the brokers have a record now, it was there when the table was
made: compaction only removes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bascule import limits
from bascule.pipelines.auditing.pieces import Damage
from bascule.pipelines.auditing.runs import Stretch
from bascule.pipelines.auditing.streams import Looking, Wish
from bascule.pipelines.auditing.tables import Sheet, Taken, offsets_in
from bascule.pipelines.ledger import Part
from bascule.pipelines.parquet import part_of

if TYPE_CHECKING:
    from bascule.client import LogBounds
    from bascule.spark.options import ReadOptions


@dataclass(frozen=True, slots=True)
class Overlap:
    """A range of a partition, and the files of the table that have offsets of it."""

    wish: Wish
    sheets: tuple[Sheet, ...]


@dataclass
class Lacking:
    part: Part
    stretches: list[Stretch] = field(default_factory=list)
    """That the brokers have, and the table has not."""
    unread: list[Damage] = field(default_factory=list)


def overlaps(
    options: ReadOptions, part: Part, taken: Taken, now: LogBounds, sheets: Iterable[Sheet]
) -> Iterator[Overlap]:
    """Below the compacted end; above it a table that lacks an offset is wrong in any case."""
    own = [each for each in sheets if each.stored is not None and part_of(Path(each.name)) == part]
    end = min(taken.end, taken.compacted_end, now.end)
    for start in range(max(taken.start, now.start), end, limits.AUDIT_RANGE_OFFSETS):
        wish = Wish(
            options, *part, start, min(start + limits.AUDIT_RANGE_OFFSETS, end), now.creation, now.compacted_end
        )
        there = (each for each in own if each.stored and each.stored.last >= start and each.stored.first < wish.end)
        yield Overlap(wish, tuple(there))


def look(task: Overlap) -> Lacking:
    """In an executor."""
    import numpy as np

    looking = _Looking(task.wish)
    piece = looking.look()
    wanted = np.concatenate([np.empty(0, np.int64), *looking.offsets])
    rest = np.setdiff1d(wanted, np.concatenate([np.empty(0, np.int64), *map(_offsets, task.sheets)]))
    lacking = Lacking(piece.part, [], piece.unread)
    if len(rest):
        breaks = np.flatnonzero(np.diff(rest) != 1)
        begins, ends = np.concatenate(([0], breaks + 1)), np.concatenate((breaks, [len(rest) - 1]))
        pairs = zip(begins[: limits.AUDIT_RUNS], ends, strict=False)
        lacking.stretches = [Stretch(int(rest[begin]), int(rest[last])) for begin, last in pairs]
    return lacking


def _offsets(sheet: Sheet) -> Any:
    """All that it should have, where it cannot be read, which is a finding of its own."""
    import numpy as np

    try:
        return offsets_in(Path(sheet.table) / sheet.name)
    except Exception:  # whatever a reader of Parquet says
        assert sheet.stored is not None
        return np.arange(sheet.stored.first, sheet.stored.last + 1)


class _Looking(Looking):
    """Keeps the offsets."""

    def __init__(self, wish: Wish) -> None:
        super().__init__(wish)
        self.offsets: list[Any] = []

    def note(self, offsets: Any) -> None:
        self.offsets.append(offsets.copy())
