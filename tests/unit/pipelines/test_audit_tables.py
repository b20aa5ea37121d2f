"""What a ledger says that a table must have, and what it says of the rest."""

from pathlib import Path

import pytest

from bascule.pipelines.archive import missing
from bascule.pipelines.auditing.pieces import PartitionAudit, Piece
from bascule.pipelines.auditing.runs import Run, Stretch
from bascule.pipelines.auditing.tables import Taken, taken
from bascule.pipelines.ledger import PARQUET, Batch, End, Ledger, Range

PART = ("s", 0)


def ledger(folder: Path, *ranges: Range) -> Ledger:
    """A batch for each range."""
    made = Ledger(folder / "lake")
    made.lock()
    made.create(PARQUET)
    for number, each in enumerate(ranges):
        ends = {(each.stream, each.partition): End(each.creation, each.end)}
        made.commit(Batch(number, 1, f"{number}-x", (each,), (), ends))
    made.unlock()
    return made


def judged(found: Taken, *runs: Run) -> PartitionAudit:
    seen = Piece(PART, runs=list(runs), records=found.rows)
    audit = PartitionAudit(*PART, found.start, found.end, found.compacted_end, seen, 0, found.damaged, found.removed)
    audit.judge()
    return audit


@pytest.mark.parametrize("compacted_end", [0, 100])
def test_what_was_gone_before_it_was_archived_is_said_to_be(tmp_path: Path, compacted_end: int) -> None:
    """Two batches with a jump between them: the archive was told to go on without what had been removed."""
    parts, _ = taken(
        ledger(tmp_path, Range(*PART, 7, 0, 10, 10, compacted_end), Range(*PART, 7, 40, 50, 10, compacted_end))
    )
    found = parts[PART]
    assert (found.start, found.end, found.removed) == (0, 50, [Stretch(10, 39)])
    audit = judged(found, Run(0, 9), Run(40, 49))
    (finding,) = audit.findings
    assert (finding.kind, finding.first, finding.last) == ("missing", 10, 39)
    assert finding.what == "removed from the stream before it was archived"
    assert audit.compacted == 0


def test_what_was_damaged_at_the_broker_is_said_to_be_also_where_compaction_has_been(tmp_path: Path) -> None:
    batch = Range(*PART, 7, 0, 50, 30, 50, ((10, 12), (20, 21)))
    made = ledger(tmp_path, batch, Range(*PART, 7, 50, 60, 10, 60))
    assert next(made.batches()).ranges == (batch,)
    assert "damaged" not in (made.folder / "batches" / f"{1:020d}.json").read_text()
    audit = judged(taken(made)[0][PART], Run(0, 9), Run(15, 19), Run(35, 59))
    assert [(each.kind, each.first, each.last) for each in audit.findings] == [("damaged", 10, 11), ("damaged", 20, 20)]
    assert audit.compacted == 20 - 3


@pytest.mark.parametrize(
    ("compacted_end", "damaged", "expected"),
    [(0, (), 5), (0, ((1, 2),), 5), (50, (), 0), (50, ((1, 3),), 2), (50, ((1, 40),), 5)],
)
def test_how_many_are_missing_in_a_batch(
    compacted_end: int, damaged: tuple[tuple[int, int], ...], expected: int
) -> None:
    assert missing(Range(*PART, 7, 0, 50, 45, compacted_end, damaged)) == expected


def test_what_is_missing_beside_it_is_lost(tmp_path: Path) -> None:
    parts, _ = taken(ledger(tmp_path, Range(*PART, 7, 0, 10, 10, 0), Range(*PART, 7, 40, 50, 10, 0)))
    findings = judged(parts[PART], Run(0, 7), Run(42, 49)).findings
    assert [(each.first, each.last, each.what[:9]) for each in findings] == [
        (10, 39, "removed f"),
        (8, 9, "no record"),
        (40, 41, "no record"),
    ]
