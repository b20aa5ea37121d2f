"""`spark.readStream.format("liftbridge")`: micro-batches of exact ranges.

An offset of Spark names, of each stream, its number (`creation`) and the next offset of each partition. So a stream
that was deleted and made again between two batches is told apart, and never mixed with the old one. A partition that is
new (a stream that begins to match the pattern) enters with its first offset, and is read from the next batch on: then
both ends of every range are in Spark's log, and a batch that is run again reads the same. One that was paused when the
query began, and is skipped, enters where the query was told to begin; until then an offset names it as `waiting`.

Where the first batch begins is in its end: Spark has no log of it, and asks for the initial offset again when that
batch is run again, when "latest" is later, and retention has moved the earliest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from bascule import limits
from bascule.client import LogBounds
from bascule.errors import FailedPrecondition, InvalidArgument
from bascule.spark.cursor import Cursor
from bascule.spark.options import Bound, ReadOptions
from bascule.spark.planning import SAMPLE_OFFSETS, Bounds, Part, Planner, StreamRange, matching, split
from bascule.spark.position import Position, from_json, has_bulk_reads, same_stream, to_json
from bascule.spark.retrying import Retrying
from bascule.spark.told import batches_plainly, plainly

logger = logging.getLogger(__name__)


INITIAL, BEGAN, WAITING = "initial", "began", "waiting"
"""Keys of an offset: it is the initial one; where the batch that it ends begins; partitions that have no place yet, and
where each ended when the query began."""


class LiftbridgeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = names
        self._planner = Planner(options, Retrying(limits.SPARK_RETRY_S))
        self._target: Bounds | None = None
        self._target_paused: Set[Part] = frozenset()
        self._turn = 0
        """Of the partitions: who is first if a batch cannot take something of each."""
        self._waits_since: float | None = None
        self._cursor = Cursor(options)

    # --- what Spark asks ------------------------------------------------------------------------------------------

    @plainly
    def initialOffset(self) -> dict[str, Any]:
        bounds = self._planner.bounds()
        position = _position(self._planner.positions(self._begin, bounds, "startingOffsets"), bounds)
        return to_json(position) | {INITIAL: True} | _waiting(self._planner.paused_ends())

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._planner.bounds(self._not_missed())
        self._target_paused = frozenset(self._planner.paused)

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    @plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Spark asks when every batch up to `start` is committed."""
        before = from_json(start)
        self._cursor.follow(before)
        bounds = self._target if self._target is not None else self._planner.bounds(before.keys() | self._not_missed())
        waiting = {
            (stream, int(number)): end
            for stream, ends in start.get(WAITING, {}).items()
            for number, end in ends.items()
        }
        skipped = (self._planner.paused if self._target is None else self._target_paused) - bounds.keys()
        position = self._carried_on(before, bounds, skipped, waiting)
        backlog = {
            (stream, partition): bounds[stream, partition].end - offset
            for stream, (creation, offsets) in position.items()
            if stream in before and same_stream(before[stream][0], creation)
            for partition, offset in offsets.items()
            if partition in before[stream][1] and (stream, partition) in bounds
        }
        if not self._waits(sum(backlog.values()), limit):
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            self._turn += 1
            taken = shares(in_turn(backlog, self._turn), most)
            if self._options.max_bytes is not None and not isinstance(limit, ReadAllAvailable):
                taken = self._within_bytes(self._options.max_bytes, taken, position)
            for (stream, partition), count in taken.items():
                position[stream][1][partition] += count
        if position == before:
            return start
        began = {BEGAN: start["streams"]} if start.get(INITIAL) else {}
        return to_json(position) | began | _waiting({part: end for part, end in waiting.items() if part in skipped})

    @plainly
    def reportLatestOffset(self) -> dict[str, Any]:
        """Spark asks after `latestOffset`, which has found the streams: one that is not there was deleted since."""
        bounds = self._planner.bounds(frozenset(self._options.streams))
        return to_json(_position({part: each.end for part, each in bounds.items()}, bounds))

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begins = from_json({**start, "streams": end[BEGAN]} if start.get(INITIAL) and BEGAN in end else start)
        ranges = [
            StreamRange(stream, partition, begins[stream][1][partition], offset, creation)
            for stream, (creation, offsets) in from_json(end).items()
            if stream in begins and same_stream(begins[stream][0], creation)
            for partition, offset in offsets.items()
            if partition in begins[stream][1] and begins[stream][1][partition] < offset
        ]
        return list(split(ranges, self._options.min_partitions))

    @plainly
    def commit(self, end: dict[str, Any]) -> None:
        self._cursor.follow(from_json(end))

    @batches_plainly
    def read(self, partition: InputPartition) -> Iterator[Any]:
        from bascule.spark.reading import read

        assert isinstance(partition, StreamRange)
        return read(self._options, self._names, partition)

    @property
    def _begin(self) -> Bound:
        return self._options.start or Bound("latest")

    def _not_missed(self) -> Set[str]:
        """Streams that may be gone. `initialOffset` tells one that was never there."""
        return frozenset() if self._options.fail_on_loss else frozenset(self._options.streams)

    # --- how far a batch goes ---------------------------------------------------------------------------------------

    def _within_bytes(self, most: int, taken: Mapping[Part, int], position: Position) -> dict[Part, int]:
        """Fewer of each partition. How large messages are is asked where the batch begins, and then where it would end:
        the larger ones count."""
        starts = {
            (stream, number): (offsets[number], creation)
            for stream, (creation, offsets) in position.items()
            for number in offsets
        }
        found = {part: count for part, count in taken.items() if count}
        if not all(has_bulk_reads(starts[part][1]) for part in found):
            raise InvalidArgument(
                'the option "maxBytesPerTrigger" needs bulk reads, and these servers are not Bascule: set '
                '"maxOffsetsPerTrigger"'
            )
        sizes = dict.fromkeys(found, 0)
        for behind in (False, True):
            spans = {}
            for part, count in found.items():
                start, creation = starts[part]
                first = max(start, start + count - SAMPLE_OFFSETS) if behind else start
                spans[part] = (creation, first, start + count)
            seen = self._planner.sizes(spans) if spans else {}
            sizes = {part: max(sizes[part], size) for part, size in seen.items()}
            found = within(found, sizes, most)
        return found

    def _carried_on(
        self, position: Position, bounds: Bounds, skipped: Set[Part], waiting: Mapping[Part, int]
    ) -> Position:
        """Where the last batch ended, with streams and partitions that are new since at their beginning, and those that
        were paused all the time where the query was told to begin: from "latest", where they ended then."""
        there: dict[str, int] = {stream: each.creation for (stream, _), each in bounds.items()}
        self._check_streams(position, there.keys() | {stream for stream, _ in skipped})
        found: Position = {}
        for (stream, partition), each in bounds.items():
            creation, offsets = position.get(stream, (each.creation, {}))
            if not same_stream(creation, each.creation):
                self._replaced(stream)
                offsets = {}
            begin = offsets.get(partition)
            if begin is None and (stream, partition) in waiting:
                begin = self._placed((stream, partition), each, waiting[stream, partition])
            begin = each.start if begin is None else begin
            if not each.start <= begin <= each.end:
                self._planner.lost(
                    f"{stream}/{partition} is to be read from {begin}, and has {each.start} to {each.end}"
                )
                begin = min(max(begin, each.start), each.end)
            found.setdefault(stream, (each.creation, {}))[1][partition] = begin
        for stream, partition in skipped:  # where it was, until it is resumed
            if stream in position and partition in position[stream][1]:
                creation, offsets = position[stream]
                if same_stream(there.get(stream, creation), creation):
                    found.setdefault(stream, (creation, {}))[1][partition] = offsets[partition]
        self._check_partitions(position, found)
        return found

    def _placed(self, part: Part, each: LogBounds, ended: int) -> int:
        """Where a partition begins that was paused when the query began, and ended there."""
        if self._begin.kind != "latest":
            return self._planner.position(self._begin, part, each, "startingOffsets")
        known = 0 <= ended <= each.end  # else nobody knew, or it is another stream by now: nothing of it is missed
        return max(ended, each.start) if known else each.start

    def _check_partitions(self, position: Position, found: Position) -> None:
        """Each one of before is there, unless its stream is another one or was deleted, which was told."""
        for stream, (creation, offsets) in position.items():
            now, there = found.get(stream, (creation, offsets))
            for partition in sorted(offsets.keys() - there.keys()) if same_stream(now, creation) else ():
                self._planner.lost(f"{stream}/{partition} is not there any more")

    def _check_streams(self, position: Position, there: Set[str]) -> None:
        for stream in position:
            if stream in there:
                continue
            if not self._options.pattern and stream not in self._options.streams:
                raise InvalidArgument(
                    f"the checkpoint is of stream {stream}, and this query reads {', '.join(self._options.streams)}: "
                    "give it a checkpointLocation of its own"
                )
            if self._options.pattern:
                self._check_matches(stream)
                self._planner.lost(f"stream {stream} was deleted")

    def _check_matches(self, stream: str) -> None:
        """Going on without it would read it again from its beginning when it matches again."""
        if not matching([stream], self._options.pattern) and self._planner.is_there(stream):
            raise InvalidArgument(
                f'the checkpoint is of stream {stream}, which does not match the option "streamPattern" any more, '
                f"{self._options.pattern!r}: let it match, or give the query a checkpointLocation of its own"
            )

    def _replaced(self, stream: str) -> None:
        if self._options.fail_on_loss:
            raise FailedPrecondition(
                f"stream {stream} was deleted and made again since the last batch: what it held and was not read is "
                'gone. Begin with a new checkpointLocation, or set the option "failOnDataLoss" to false to go on with '
                "the new one"
            )
        logger.warning("stream %s was deleted and made again since the last batch; the query reads the new one", stream)

    def _waits(self, available: int, limit: ReadLimit) -> bool:
        """Whether the batch waits for more messages (`minOffsetsPerTrigger`)."""
        least = self._options.min_offsets
        if least is None or self._target is not None or isinstance(limit, ReadAllAvailable) or available >= least:
            self._waits_since = None
            return False
        now = time.monotonic()
        if self._waits_since is None:
            self._waits_since = now
        if now - self._waits_since < self._options.max_delay_s:
            return True
        self._waits_since = None
        return False


def _position(offsets: Mapping[Part, int], bounds: Bounds) -> Position:
    found: Position = {}
    for (stream, partition), offset in offsets.items():
        found.setdefault(stream, (bounds[stream, partition].creation, {}))[1][partition] = offset
    return found


def _waiting(ends: Mapping[Part, int]) -> dict[str, Any]:
    found: dict[str, dict[str, int]] = {}
    for (stream, number), end in sorted(ends.items()):
        found.setdefault(stream, {})[str(number)] = end
    return {WAITING: found} if found else {}


def in_turn(counts: Mapping[Part, int], turn: int) -> dict[Part, int]:
    """The same in another order each turn, so that each partition is the first one now and then."""
    parts = sorted(counts)
    first = turn % len(parts) if parts else 0
    return {part: counts[part] for part in parts[first:] + parts[:first]}


def within(counts: Mapping[Part, int], sizes: Mapping[Part, int], most: int) -> dict[Part, int]:
    """So many messages of these sizes that they have at most so many bytes, but one message at least: one of each
    partition, or of those that come first if there is no room for all, and of the rest each in proportion."""
    total = sum(count * sizes[part] for part, count in counts.items())
    if total <= most:
        return dict(counts)
    least = sum(sizes[part] for part in counts)
    if least <= most:
        return {part: 1 + (count - 1) * (most - least) // (total - least) for part, count in counts.items()}
    found: dict[Part, int] = {}
    for part in counts:
        if not found or sizes[part] <= most:
            found[part] = 1
            most -= sizes[part]
    return found


def shares(backlog: Mapping[Part, int], most: int | None) -> dict[Part, int]:
    """How many messages of each partition a batch takes, at most so many in all: one of each that has some, or of those
    that come first if there are more partitions than messages; and of the rest each in proportion to what it has, so
    that none falls behind the others for ever."""
    total = sum(backlog.values())
    if most is None or total <= most:
        return dict(backlog)
    some = [part for part, size in backlog.items() if size]
    if most <= len(some):
        return dict.fromkeys(backlog, 0) | dict.fromkeys(some[:most], 1)
    taken = {
        part: 1 + (size - 1) * (most - len(some)) // (total - len(some)) if size else 0
        for part, size in backlog.items()
    }
    rest = most - sum(taken.values())
    for part in sorted(backlog, key=lambda each: taken[each] - backlog[each]):
        if rest and taken[part] < backlog[part]:
            taken[part] += 1
            rest -= 1
    return taken
