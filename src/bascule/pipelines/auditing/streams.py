"""Ranges of a stream, read from its brokers: what a consumer would get.

Retention and administrators go on meanwhile: what they remove of a range before it is read has expired, and the audit
goes on where the partition begins by then. A range whose broker does not answer says nothing of its records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bascule import limits
from bascule.errors import BasculeError, CorruptError, OutOfRange
from bascule.pipelines.auditing.pieces import Damage, Piece
from bascule.spark.connecting import connected
from bascule.wire.columns import Wanted, columns_of

if TYPE_CHECKING:
    from bascule.client import BlockingClient, LogRange
    from bascule.spark.options import ReadOptions
    from bascule.spark.planning import Bounds


@dataclass(frozen=True, slots=True)
class Wish:
    """Offsets from `start` to `end`, exclusive, that are to be read."""

    options: ReadOptions
    stream: str
    partition: int
    start: int
    end: int
    creation: int
    compacted_end: int


def wishes(options: ReadOptions, bounds: Bounds) -> list[Wish]:
    return [
        Wish(
            options,
            *part,
            start,
            min(start + limits.AUDIT_RANGE_OFFSETS, each.end),
            each.creation,
            each.compacted_end,
        )
        for part, each in sorted(bounds.items())
        for start in range(each.start, each.end, limits.AUDIT_RANGE_OFFSETS)
    ]


def look(wish: Wish) -> Piece:
    """In an executor."""
    return Looking(wish).look()


class Looking:
    def __init__(self, wish: Wish) -> None:
        self._wish = wish
        self._part = (wish.stream, wish.partition)
        self._position = wish.start
        self._piece = Piece(self._part, wish.start)

    def look(self) -> Piece:
        try:
            with connected(self._wish.options) as client:
                while self._position < self._wish.end and self._read(client):
                    pass
        except BasculeError as error:
            stopped = Damage(
                f"{self._wish.stream}/{self._wish.partition} cannot be read on",
                " ".join(str(error).split()),
                self._position,
                self._wish.end - 1,
            )
            (self._piece.damage if isinstance(error, CorruptError) else self._piece.unread).append(stopped)
        return self._piece

    def _read(self, client: BlockingClient) -> bool:
        """To the end, or to where the partition begins by now. False: there is no more, and the rest is missing."""
        before = self._position
        try:
            for given in client.read_range(*self._part, self._position, self._wish.end, creation=self._wish.creation):
                self._add(given)
        except OutOfRange:
            self._position = self._piece.start = max(before, client.log_bounds(*self._part).start)
            if self._position == before:
                raise
        return self._position > before

    def note(self, offsets: Any) -> None:
        """For who wants to know which records there are."""

    def _add(self, given: LogRange) -> None:
        import numpy as np

        piece, where = self._piece, f"{self._wish.stream}/{self._wish.partition}"
        _, columns = columns_of(given.records, Wanted(0), where)
        offsets, times = (np.frombuffer(each, np.int64) for each in (columns.offsets, columns.timestamps))
        piece.compacted_end = max(piece.compacted_end, self._wish.compacted_end, given.compacted_end)
        piece.add(offsets, times, piece.compacted_end, len(given.records))
        self.note(offsets)
        piece.damage += [
            Damage(where, "damaged on the broker's disk, and no replica has a whole copy", each.start, each.stop - 1)
            for each in given.damaged
        ]
        self._position = given.end
