"""Which offsets a query reads: worked out once, by the driver, from what each partition's leader says.

A range is fixed when it is planned: however often Spark runs a task again, it reads the same offsets, and messages
published meanwhile wait for the next read.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from bascule import limits
from bascule.client import Client, LogBounds, Stream
from bascule.client.cursors import CURSORS
from bascule.errors import FailedPrecondition, InvalidArgument, NotFound, OutOfRange, Unavailable, Unimplemented
from bascule.spark.connecting import connect
from bascule.spark.options import EARLIEST, LATEST, Bound, ReadOptions
from bascule.spark.registry import REGISTRY
from bascule.spark.retrying import Retrying

logger = logging.getLogger(__name__)

ASKED_AT_ONCE = 32
FIRST_S = 30.0
"""How long the first message of a partition may take, of a server without bulk reads."""
SAMPLE_OFFSETS = 64
LOOKS, LOOK_AGAIN_S = 20, 0.1
"""A stream may be deleted, and made again, between the question which partitions it has and those what they hold."""
Part = tuple[str, int]
Bounds = dict[Part, LogBounds]


class _ChangedError(Exception):
    """A partition that the metadata has is not there; the cause is what the broker says."""


@dataclass
class StreamRange(InputPartition):
    """Offsets from `start` to `end`, exclusive, of one partition."""

    stream: str
    partition: int
    start: int
    end: int
    creation: int
    """As in a `Position`."""


class Planner:
    def __init__(self, options: ReadOptions, retrying: Retrying | None = None) -> None:
        self._options = options
        self._retrying = retrying if retrying is not None else Retrying(0.0)
        self.paused: set[Part] = set()
        """Partitions that `bounds` left out."""
        self._deleted: set[str] = set()
        """Streams that are not there any more, of which it was told."""
        self._starts: dict[tuple[Part, int], int] = {}
        """Where partitions of servers without bulk reads began when they were first asked."""

    def bounds(self, known: Set[str] = frozenset()) -> Bounds:
        """What every partition of the streams holds now; without those that are paused, if these are skipped. `known`:
        streams that were there before, so that one which is not there any more was deleted."""

        async def main() -> Bounds:
            async with await connect(self._options) as client:
                return await self._bounds(client, known)

        return self._retrying.ask(main)

    def paused_ends(self) -> dict[Part, int]:
        """Where the partitions end that `bounds` left out, as they were closed; -1 where nobody knows."""

        async def main() -> dict[Part, int]:
            async with await connect(self._options) as client:
                ends: dict[Part, int] = {}
                for stream in sorted({stream for stream, _ in self.paused}):
                    ends |= await _closed_ends(client, stream)
                return {part: ends.get(part, -1) for part in sorted(self.paused)}

        return self._retrying.ask(main) if self.paused else {}

    def is_there(self, stream: str) -> bool:
        async def main() -> bool:
            async with await connect(self._options) as client:
                return stream in (await client.fetch_metadata([stream])).streams

        return self._retrying.ask(main)

    def positions(self, bound: Bound, bounds: Bounds, option: str) -> dict[Part, int]:
        """The offset that a bound names, of every partition. `option` is named in errors."""
        match bound.kind:
            case "earliest":
                return {part: each.start for part, each in bounds.items()}
            case "latest":
                return {part: each.end for part, each in bounds.items()}
            case "timestamp":
                assert bound.timestamp is not None
                moment = bound.timestamp
                return self._retrying.ask(lambda: self._at(moment, bounds))
        return self._named(bound.offsets, bounds, option)

    def position(self, bound: Bound, part: Part, each: LogBounds, option: str) -> int:
        """The same of one partition."""
        stream, partition = part
        if stream in bound.offsets:
            offsets = {number: at for number, at in bound.offsets[stream].items() if number == partition}
            bound = replace(bound, offsets={stream: offsets})
        elif bound.kind == "offsets":
            bound = replace(bound, offsets={})
        return self.positions(bound, {part: each}, option)[part]

    def ranges(self, start: dict[Part, int], end: dict[Part, int], bounds: Bounds) -> list[StreamRange]:
        """At least `minPartitions` ranges, if there are so many messages; none that is empty."""
        found = [
            StreamRange(*part, start[part], end[part], bounds[part].creation)
            for part in sorted(bounds)
            if start[part] < end[part]
        ]
        return list(split(found, self._options.min_partitions))

    async def _bounds(self, client: Client, before: Set[str]) -> Bounds:
        for _ in range(LOOKS):
            try:
                return await self._bounds_once(client, before)
            except _ChangedError as changed:
                error = changed.__cause__
            await asyncio.sleep(LOOK_AGAIN_S)
        assert error is not None
        raise error

    async def _bounds_once(self, client: Client, before: Set[str]) -> Bounds:
        known = (await client.fetch_metadata(self._options.streams)).streams
        if self._options.pattern:
            known = {name: known[name] for name in matching(known, self._options.pattern)}
        elif missing := [name for name in self._options.streams if name not in known]:
            if unknown := [name for name in missing if name not in before]:
                raise NotFound(
                    f"no such stream: {', '.join(unknown)}. Check the spelling in option streams, or whether it was "
                    "deleted"
                )
            for name in set(missing) - self._deleted:
                self.lost(f"stream {name} was deleted")
            self._deleted = set(missing)
        turns = asyncio.Semaphore(ASKED_AT_ONCE)

        async def ask(part: Part) -> tuple[Part, LogBounds | None]:
            async with turns:
                try:
                    return part, await self._of(client, *part, known[part[0]])
                except NotFound as error:
                    raise _ChangedError from error

        parts = [(name, number) for name, stream in known.items() for number in stream.partitions]
        found = dict(await asyncio.gather(*map(ask, parts)))
        self.paused = {part for part, each in found.items() if each is None}
        return {part: each for part, each in found.items() if each is not None}

    async def _of(self, client: Client, stream: str, partition: int, known: Stream) -> LogBounds | None:
        """None: it is paused."""
        try:
            return await self._bounds_of(client, stream, partition, known)
        except FailedPrecondition as error:
            if not is_paused(error):
                raise
        if self._options.paused == "resume":
            await client.admin.resume_stream(stream, [partition])
            return await self._bounds_of(client, stream, partition, known)
        if self._options.paused == "fail":
            raise paused(stream, partition)
        return None

    async def _bounds_of(self, client: Client, stream: str, partition: int, known: Stream) -> LogBounds:
        try:
            return await client.log_bounds(stream, partition)
        except Unimplemented:  # another Liftbridge server
            now = await client.fetch_partition_metadata(stream, partition)
        if now.paused and self._options.paused != "resume":
            raise FailedPrecondition(f"{stream}/{partition} is paused")
        creation = -known.creation_timestamp
        place = ((stream, partition), creation)
        if place not in self._starts:
            self._starts[place] = await _first(client, stream, partition, now.high_watermark + 1, now.paused)
        return LogBounds(min(self._starts[place], now.high_watermark + 1), now.high_watermark + 1, creation, 0)

    def sizes(self, spans: dict[Part, tuple[int, int, int]]) -> dict[Part, int]:
        """How many bytes an offset has, about, of each partition: by the first messages of a span, which is the
        stream's number, the start and the end."""

        async def sample(client: Client, part: Part, creation: int, start: int, end: int) -> int:
            read = client.read_range(
                *part, start, min(end, start + SAMPLE_OFFSETS), creation=creation, max_bytes=limits.SPARK_SAMPLE_BYTES
            )
            try:
                async with aclosing(read.ranges()) as ranges:
                    async for given in ranges:
                        if given.end > given.start:
                            return len(given.records) // (given.end - given.start)
            except (OutOfRange, NotFound, FailedPrecondition):  # the task that reads it says so
                pass
            return 0

        async def ask(client: Client, part: Part, turns: asyncio.Semaphore) -> tuple[Part, int]:
            async with turns:
                return part, max(1, await sample(client, part, *spans[part]))

        async def main() -> dict[Part, int]:
            turns = asyncio.Semaphore(ASKED_AT_ONCE)
            async with await connect(self._options) as client:
                return dict(await asyncio.gather(*(ask(client, part, turns) for part in spans)))

        return self._retrying.ask(main)

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
                if (stream, partition) not in bounds and (stream, partition) not in self.paused:
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


async def _first(client: Client, stream: str, partition: int, end: int, resumes: bool) -> int:
    """The first offset that a partition has below `end`: its server does not say, but its first message does."""
    if not end:
        return 0
    try:
        async with asyncio.timeout(FIRST_S):
            subscription = client.subscribe(stream, partition, stop=end - 1, resume_paused=resumes)
            async with subscription as messages:
                async for message in messages:
                    return min(message.offset, end)
    except TimeoutError:
        raise Unavailable(
            f"partition {partition} of stream {stream} has offsets up to {end - 1}, and its server gave no message in "
            f"{FIRST_S:g} s"
        ) from None
    return end


def matching(streams: Iterable[str], pattern: str) -> list[str]:
    """Those whose whole name matches; none that brokers and writes keep for themselves."""
    wanted = re.compile(pattern)
    return [name for name in streams if name not in (CURSORS, REGISTRY) and wanted.fullmatch(name)]


async def _closed_ends(client: Client, stream: str) -> dict[Part, int]:
    """Of the partitions of which a replica in sync is known."""
    try:
        described = await client.admin.describe_stream(stream)
    except (NotFound, Unimplemented):  # deleted since, or another Liftbridge server
        return {}
    return {
        (stream, item.partition): max(each.highWatermarkEnd for each in known)
        for item in described.partitions
        if (known := [each for each in item.replicas if each.answered and each.inSync])
    }


def is_paused(error: Exception) -> bool:
    return isinstance(error, FailedPrecondition) and "is paused" in str(error)


def paused(stream: str, partition: int) -> FailedPrecondition:
    return FailedPrecondition(
        f"partition {partition} of stream {stream} is paused: resume it (`bascule stream resume {stream}`), or set the "
        'option "pausedPartitions" to resume or skip'
    )


def split(ranges: Sequence[StreamRange], least: int) -> Iterator[StreamRange]:
    """The same offsets in at least so many ranges, of about the same size."""
    total = sum(each.end - each.start for each in ranges)
    for each in ranges:
        size = each.end - each.start
        parts = max(1, min(size, -(-least * size // total))) if len(ranges) < least else 1
        edges = [each.start + size * number // parts for number in range(parts + 1)]
        for start, end in pairwise(edges):
            yield StreamRange(each.stream, each.partition, start, end, each.creation)
