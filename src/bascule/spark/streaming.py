"""`spark.readStream.format("liftbridge")`: micro-batches of exact ranges.

An offset of Spark names, of each stream, its number (`creation`) and the next offset of each partition. So a stream
that was deleted and made again between two batches is told apart, and never mixed with the old one. A partition that is
new (a stream that begins to match the pattern) enters with its first offset, and is read from the next batch on: then
both ends of every range are in Spark's log, and a batch that is run again reads the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from bascule.errors import FailedPrecondition, InvalidArgument
from bascule.spark.options import Bound, ReadOptions
from bascule.spark.planning import Bounds, Part, Planner, StreamRange, split

logger = logging.getLogger(__name__)

VERSION = 1
Position = dict[str, tuple[int, dict[int, int]]]
"""Of each stream its number, and the next offset of each partition."""


class LiftbridgeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, names: Sequence[str]) -> None:
        self._options = options
        self._names = names
        self._planner = Planner(options)
        self._target: Bounds | None = None
        self._waits_since: float | None = None

    # --- what Spark asks ------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        bounds = self._planner.bounds()
        start = self._options.start or Bound("latest")
        return to_json(_position(self._planner.positions(start, bounds, "startingOffsets"), bounds))

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._planner.bounds()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        if self._options.min_offsets is not None:
            return ReadMinRows(self._options.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        bounds = self._target if self._target is not None else self._planner.bounds()
        before = from_json(start)
        position = self._carried_on(before, bounds)
        backlog = {
            (stream, partition): bounds[stream, partition].end - offset
            for stream, (creation, offsets) in position.items()
            if before.get(stream, (None, {}))[0] == creation
            for partition, offset in offsets.items()
            if partition in before[stream][1]
        }
        if self._waits(sum(backlog.values()), limit):
            return to_json(position)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        for (stream, partition), count in shares(backlog, most).items():
            position[stream][1][partition] += count
        return to_json(position)

    def reportLatestOffset(self) -> dict[str, Any]:
        bounds = self._planner.bounds()
        return to_json(_position({part: each.end for part, each in bounds.items()}, bounds))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begins = from_json(start)
        ranges = [
            StreamRange(stream, partition, begins[stream][1][partition], offset, creation)
            for stream, (creation, offsets) in from_json(end).items()
            if stream in begins and begins[stream][0] == creation
            for partition, offset in offsets.items()
            if partition in begins[stream][1] and begins[stream][1][partition] < offset
        ]
        return list(split(ranges, self._options.min_partitions))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from bascule.spark.reading import read

        assert isinstance(partition, StreamRange)
        return read(self._options, self._names, partition)

    # --- how far a batch goes ---------------------------------------------------------------------------------------

    def _carried_on(self, position: Position, bounds: Bounds) -> Position:
        """Where the last batch ended, with streams and partitions that are new since at their beginning."""
        there: dict[str, int] = {stream: each.creation for (stream, _), each in bounds.items()}
        self._check_streams(position, there)
        found: Position = {}
        for (stream, partition), each in bounds.items():
            creation, offsets = position.get(stream, (each.creation, {}))
            if creation != each.creation:
                self._replaced(stream)
                offsets = {}
            begin = offsets.get(partition, each.start)
            if not each.start <= begin <= each.end:
                self._planner.lost(
                    f"{stream}/{partition} is to be read from {begin}, and has {each.start} to {each.end}"
                )
                begin = min(max(begin, each.start), each.end)
            found.setdefault(stream, (each.creation, {}))[1][partition] = begin
        return found

    def _check_streams(self, position: Position, there: Mapping[str, int]) -> None:
        for stream in position:
            if stream in there:
                continue
            if not self._options.pattern:
                raise InvalidArgument(
                    f"the checkpoint is of stream {stream}, and this query reads {', '.join(self._options.streams)}: "
                    "give it a checkpointLocation of its own"
                )
            self._planner.lost(f"stream {stream} was deleted")

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


def shares(backlog: Mapping[Part, int], most: int | None) -> dict[Part, int]:
    """How many messages of each partition a batch takes, at most so many in all: each in proportion to what it has, so
    that none falls behind the others for ever."""
    total = sum(backlog.values())
    if most is None or total <= most:
        return dict(backlog)
    taken = {part: size * most // total for part, size in backlog.items()}
    rest = most - sum(taken.values())
    for part in sorted(backlog, key=lambda each: taken[each] - backlog[each]):
        if rest and taken[part] < backlog[part]:
            taken[part] += 1
            rest -= 1
    return taken


def to_json(position: Position) -> dict[str, Any]:
    streams = {
        stream: {
            "creation": creation,
            "partitions": {str(number): offset for number, offset in sorted(offsets.items())},
        }
        for stream, (creation, offsets) in sorted(position.items())
    }
    return {"version": VERSION, "streams": streams}


def from_json(offset: Mapping[str, Any]) -> Position:
    if offset.get("version") != VERSION:
        raise InvalidArgument(
            f"the checkpoint is not of this source, or of another version of it: {str(dict(offset))[:200]}. Give the "
            "query a checkpointLocation of its own"
        )
    return {
        stream: (each["creation"], {int(number): next_ for number, next_ in each["partitions"].items()})
        for stream, each in offset["streams"].items()
    }
