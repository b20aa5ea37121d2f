"""A partition's log as files, without a broker: a copy of a data folder, of a stream's folder or of a partition's.

Segments are read as they lie on the disk, so a record that stands in the wrong place is found where a broker would
already have repaired it. What follows a damaged record is looked for, and the audit goes on there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from bascule import limits
from bascule.errors import InvalidArgument
from bascule.pipelines.auditing.pieces import Damage, Piece
from bascule.pipelines.ledger import Part
from bascule.wire import kernels

_SEGMENT = re.compile(r"(\d{20})\.log")
_STREAM = re.compile(r"(.+)@\d+")


@dataclass(frozen=True, slots=True)
class Segment:
    path: str
    name: str
    """Below the folder that is audited."""
    part: Part
    base: int
    is_last: bool
    compacted_end: int


def segments_in(folder: Path) -> list[Segment]:
    """Of all logs below the folder, each in order."""
    found: dict[Path, list[Path]] = {}
    for path in sorted(folder.rglob("*.log")):
        if _SEGMENT.fullmatch(path.name) and path.parent.name.isdecimal() and "quarantine" not in path.parts:
            found.setdefault(path.parent, []).append(path)
    if not found:
        raise InvalidArgument(
            f"{folder} has no log: name a copy of a broker's data folder, of a stream's folder in streams/, or of a "
            "partition's folder in that"
        )
    return [
        Segment(str(path), str(path.relative_to(folder)), _part(place), int(path.name[:20]), path == paths[-1], 0)
        for place, paths in found.items()
        for path in paths
    ]


def _part(folder: Path) -> Part:
    stream = _STREAM.fullmatch(folder.parent.name)
    return unquote(stream[1]) if stream else folder.parent.name, int(folder.name)


def look(segment: Segment) -> Piece:
    """In an executor."""
    piece = Piece(segment.part, segment.base)
    expected = segment.base
    with Path(segment.path).open("rb") as file:
        rest, at, complete = b"", 0, False
        while not complete:
            more = file.read(limits.AUDIT_READ_BYTES)
            complete = not more
            data = rest + more
            used, expected = _scan(segment, piece, data, at, expected, complete)
            rest, at = data[used:], at + used
    return piece


def _scan(segment: Segment, piece: Piece, data: bytes, at: int, expected: int, complete: bool) -> tuple[int, int]:
    """Up to where whole records go, and the offset after the last one."""
    import numpy as np

    position = 0
    while position < len(data):
        before = position
        position, count, status, buffers = kernels.record_columns(data, position, len(data), 0, 0)
        if count:
            offsets = np.frombuffer(buffers[0], np.int64)
            piece.add(offsets, np.frombuffer(buffers[1], np.int64), segment.compacted_end, position - before)
            expected = int(offsets[-1]) + 1
            continue  # a record with a lower offset ends the kernel's run: it is no damage
        if position == len(data):
            break
        if not complete and len(data) - position < limits.MAX_RECORD_BYTES + limits.KIB:
            return position, expected  # the rest of the record is still to be read
        found = kernels.find_record(data, position + 1, len(data), 0)
        if found < 0 and not complete:
            return position, expected
        ends = len(data) if found < 0 else found
        if found < 0 and status == _INCOMPLETE and segment.is_last:
            where = f"{segment.name} from byte {at + position} on"
            piece.notes.append(Damage(where, "ends in the middle of a record: a write that was under way, or damage"))
            return len(data), expected
        where = f"{segment.name}, bytes {at + position} to {at + ends}"
        following = None if found < 0 else _offset(data, found)
        last = expected if following is None or following <= expected else following - 1
        piece.damage.append(Damage(where, "no sound record (checksum or form)", expected, last))
        expected, position = last + 1, ends
    return position, expected


_INCOMPLETE = 1


def _offset(data: bytes, position: int) -> int:
    return int(kernels.seek_record(data, position, len(data), 0, 0)[1])


def with_compaction(segments: Sequence[Segment], ends: dict[Part, int]) -> list[Segment]:
    return [replace(each, compacted_end=ends.get(each.part, 0)) for each in segments]
