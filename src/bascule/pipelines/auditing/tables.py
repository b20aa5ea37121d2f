"""The files of an archive, and the ledger beside them: what must be in it, and what is.

A file's checksum is that of its commit, so every bit of it is covered; its offsets are read all the same, because a
file that was written again may be sound and hold something else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bascule.pipelines.auditing.pieces import Damage, Piece
from bascule.pipelines.auditing.runs import Stretch
from bascule.pipelines.ledger import FOLDER, Ledger, Part, StoredFile
from bascule.pipelines.parquet import checksum_of, part_of


@dataclass(frozen=True, slots=True)
class Sheet:
    """A file that is to be looked at."""

    table: str
    name: str
    order: int
    stored: StoredFile | None
    """None: the ledger does not know it."""
    compacted_end: int


@dataclass
class Taken:
    """What the ledger says of a partition."""

    start: int
    end: int
    creation: int
    rows: int = 0
    compacted_end: int = 0
    damaged: list[Stretch] = field(default_factory=list)
    """What was damaged on the broker's disk when it was to be archived."""
    removed: list[Stretch] = field(default_factory=list)
    """Offsets between two batches: they were removed from the stream before they were archived, and the archive was
    told to go on."""


def taken(ledger: Ledger) -> tuple[dict[Part, Taken], list[Sheet]]:
    """By partition, and every file that is there or should be."""
    parts: dict[Part, Taken] = {}
    files: dict[str, StoredFile] = {}
    for batch in ledger.batches():
        for each in batch.ranges:
            part = (each.stream, each.partition)
            found = parts.setdefault(part, Taken(each.start, each.end, each.creation))
            if each.start > found.end:
                found.removed.append(Stretch(found.end, each.start - 1))
            found.damaged += [Stretch(start, end - 1) for start, end in each.damaged]
            found.end, found.rows = each.end, found.rows + each.rows
            found.compacted_end = max(found.compacted_end, min(each.end, each.compacted_end))
        files |= {each.path: each for each in batch.files}
    there = {str(path.relative_to(ledger.table)) for path in ledger.table.rglob("*.parquet")}
    there = {name for name in there if not name.startswith(FOLDER) and "=" in name}
    names = [*files, *sorted(there - files.keys())]
    sheets = [
        Sheet(str(ledger.table), name, order, files.get(name), _compacted(parts, name))
        for order, name in enumerate(names)
    ]
    return parts, sheets


def _compacted(parts: dict[Part, Taken], name: str) -> int:
    found = parts.get(part_of(Path(name)))
    return found.compacted_end if found else 0


def look(sheet: Sheet) -> Piece:
    """In an executor."""
    path = Path(sheet.table) / sheet.name
    piece = Piece(part_of(Path(sheet.name)), sheet.order)
    first, last = (None, None) if sheet.stored is None else (sheet.stored.first, sheet.stored.last)
    if not path.exists():
        piece.damage.append(Damage(sheet.name, "the file is gone", first, last))
        return piece
    if sheet.stored is not None and checksum_of(path) != sheet.stored.crc32c:
        piece.damage.append(Damage(sheet.name, "the file is not the one that was committed (checksum)"))
    try:
        offsets, times = _columns(path)
    except Exception as error:  # whatever a reader of Parquet says about bytes that are none
        piece.damage.append(Damage(sheet.name, f"cannot be read: {' '.join(str(error).split())}", first, last))
        return piece
    piece.add(offsets, times, sheet.compacted_end, path.stat().st_size)
    return piece


def offsets_in(path: Path) -> Any:
    """A numpy array."""
    return _columns(path)[0]


def _columns(path: Path) -> tuple[Any, Any]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        table = file.read(["offset", "timestamp_ns"])
    return table.column("offset").to_numpy(), table.column("timestamp_ns").to_numpy()
