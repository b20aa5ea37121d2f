"""Which offsets a query reads: worked out once, by the driver, from what each partition's leader says.

A range is fixed when it is planned: however often Spark runs a task again, it reads the same offsets, and messages
published meanwhile wait for the next read.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from bascule.client import Client, LogBounds
from bascule.errors import InvalidArgument, NotFound, OutOfRange, Unimplemented
from bascule.spark.connecting import connect
from bascule.spark.options import EARLIEST, LATEST, Bound, ReadOptions

logger = logging.getLogger(__name__)

ASKED_AT_ONCE = 32
Part = tuple[str, int]
Bounds = dict[Part, LogBounds]


@dataclass
class StreamRange(InputPartition):
    """Offsets from `start` to `end`, exclusive, of one partition."""

    stream: str
    partition: int
    start: int
    end: int
    creation: int
    """0: the server has no bulk reads, and does not tell streams of one name apart."""


class Planner:
    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def bounds(self) -> Bounds:
        """What every partition of the streams holds now."""

        async def main() -> Bounds:
            async with await connect(self._options) as client:
                return await self._bounds(client)

        return asyncio.run(main())

    def positions(self, bound: Bound, bounds: Bounds, option: str) -> dict[Part, int]:
        """The offset that a bound names, of every partition. `option` is named in errors."""
        match bound.kind:
            case "earliest":
                return {part: each.start for part, each in bounds.items()}
            case "latest":
                return {part: each.end for part, each in bounds.items()}
            case "timestamp":
                assert bound.timestamp is not None
                return asyncio.run(self._at(bound.timestamp, bounds))
        return self._named(bound.offsets, bounds, option)

    def ranges(self, start: dict[Part, int], end: dict[Part, int], bounds: Bounds) -> list[StreamRange]:
        """At least `minPartitions` ranges, if there are so many messages; none that is empty."""
        found = [
            StreamRange(*part, start[part], end[part], bounds[part].creation)
            for part in sorted(bounds)
            if start[part] < end[part]
        ]
        return list(split(found, self._options.min_partitions))

    async def _bounds(self, client: Client) -> Bounds:
        known = (await client.fetch_metadata(self._options.streams)).streams
        if self._options.pattern:
            pattern = re.compile(self._options.pattern)
            known = {name: stream for name, stream in known.items() if pattern.fullmatch(name)}
        elif missing := [name for name in self._options.streams if name not in known]:
            raise NotFound(f"no such stream: {', '.join(missing)}. Check the spelling in option streams")
        turns = asyncio.Semaphore(ASKED_AT_ONCE)

        async def ask(part: Part) -> tuple[Part, LogBounds]:
            async with turns:
                return part, await _bounds_of(client, *part)

        parts = [(name, number) for name, stream in known.items() for number in stream.partitions]
        return dict(await asyncio.gather(*map(ask, parts)))

    async def _at(self, moment: datetime, bounds: Bounds) -> dict[Part, int]:
        """The first offset at or after that time; the end if there is none yet."""
        found: dict[Part, int] = {}
        async with await connect(self._options) as client:
            for (stream, partition), each in bounds.items():
                found[stream, partition] = each.end
                if each.start < each.end:
                    async with client.subscribe(stream, partition, start=moment, stop=each.end - 1) as messages:
                        async for message in messages:
                            found[stream, partition] = min(max(message.offset, each.start), each.end)
                            break
        return found

    def _named(self, offsets: dict[str, dict[int, int]], bounds: Bounds, option: str) -> dict[Part, int]:
        for stream, partitions in offsets.items():
            for partition in partitions:
                if (stream, partition) not in bounds:
                    raise InvalidArgument(f"{option} names partition {partition} of stream {stream}, which is not read")
        found: dict[Part, int] = {}
        for (stream, partition), each in bounds.items():
            wanted = offsets.get(stream, {}).get(partition, LATEST if option == "endingOffsets" else EARLIEST)
            wanted = each.start if wanted == EARLIEST else each.end if wanted == LATEST else wanted
            if wanted > each.end:
                raise InvalidArgument(
                    f"{option} names offset {wanted} of partition {partition} of stream {stream}, and the partition "
                    f"ends at {each.end}"
                )
            if wanted < each.start:
                self.lost(f"{option} names offset {wanted} of {stream}/{partition}, and it begins at {each.start}")
                wanted = each.start
            found[stream, partition] = wanted
        return found

    def lost(self, what: str) -> None:
        """Messages that were to be read are not there."""
        if self._options.fail_on_loss:
            raise OutOfRange(
                f"{what}: messages were removed before they were read. Begin at a later offset, or set the option "
                '"failOnDataLoss" to false to go on without them'
            )
        logger.warning("%s: messages were removed before they were read; the query goes on without them", what)


async def _bounds_of(client: Client, stream: str, partition: int) -> LogBounds:
    try:
        return await client.log_bounds(stream, partition)
    except Unimplemented:  # another Liftbridge server: it does not say where a partition begins, either
        known = await client.fetch_partition_metadata(stream, partition)
        return LogBounds(0, known.high_watermark + 1, 0, 0)


def split(ranges: Sequence[StreamRange], least: int) -> Iterator[StreamRange]:
    """The same offsets in at least so many ranges, of about the same size."""
    total = sum(each.end - each.start for each in ranges)
    for each in ranges:
        size = each.end - each.start
        parts = max(1, min(size, -(-least * size // total))) if len(ranges) < least else 1
        edges = [each.start + size * number // parts for number in range(parts + 1)]
        for start, end in pairwise(edges):
            yield StreamRange(each.stream, each.partition, start, end, each.creation)
