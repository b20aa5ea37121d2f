"""Messages as Arrow record batches: ranges of a log, read in bulk and decoded by the kernel that Spark uses. Of servers
without bulk reads the same by subscribing, with an object for each message.

A reader goes through its partitions one after the other, each up to the high watermark that it has when the reading
begins. A partition that ends before that is an error, and so are records that are damaged on the broker's disk, which
it does not serve: no message is left out quietly. `position` says what comes next, so that a reader that starts from it
goes on there; so does one that was interrupted, when it is iterated again: after an error about damage behind that.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from bascule import limits
from bascule.client.arguments import check_named, check_partitions, check_position, check_stream
from bascule.client.beginning import committed_end, first_since, stored_end
from bascule.client.bulk import BulkRead, log_bounds
from bascule.client.cluster import Cluster
from bascule.client.consumer import Partitions, Position
from bascule.client.failures import Deadline
from bascule.client.subscription import Reading, Subscription
from bascule.client.values import Message
from bascule.errors import CorruptError, InvalidArgument, NotFound, OutOfRange, Unavailable, Unimplemented

if TYPE_CHECKING:
    import pyarrow as pa

ArrowStart = Literal["earliest"] | int | datetime | Position
"""The earliest message, an offset, a time, or a position that was saved."""


def needs_pyarrow() -> None:
    """ImportError that says what to do, if it is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "columns need pyarrow, which is not installed: run `pip install 'bascule[arrow]'`", name="pyarrow"
        ) from error


def chosen_columns(names: Sequence[str] | None) -> tuple[str, ...]:
    """All, if none is named."""
    from bascule.client.columns import COLUMNS

    if isinstance(names, str) or (names is not None and not names):
        raise InvalidArgument(f"columns={names!r}: give a list of some of {', '.join(COLUMNS)}, or None for all")
    for name in names or ():
        if name not in COLUMNS:
            raise InvalidArgument(f'there is no column "{name}": there are {", ".join(COLUMNS)}')
    return tuple(dict.fromkeys(names)) if names else tuple(COLUMNS)


def damaged(stream: str, partition: int, offsets: Sequence[range]) -> CorruptError:
    listed = ", ".join(f"{each.start} to {each.stop - 1}" for each in offsets)
    return CorruptError(
        f"offsets {listed} of partition {partition} of stream {stream} are damaged on the broker's disk: it repairs "
        "them when a replica that has them is there. To go on without them iterate again, or export with `skip_damaged`"
    )


@dataclass(frozen=True, slots=True)
class Span:
    """What is read of a partition."""

    start: int
    end: int
    creation: int | None
    """Of the stream, for bulk reads; None where there are none."""


class ArrowRead:
    """Made by `Client.arrow`. Iterate it for pyarrow record batches, each of one partition; or `close` it."""

    def __init__(
        self,
        cluster: Cluster,
        stream: str,
        partitions: Partitions,
        columns: Sequence[str] | None,
        start: ArrowStart,
        max_bytes: int,
    ) -> None:
        needs_pyarrow()
        check_partitions(partitions)
        if not 0 < max_bytes <= limits.BULK_READ_MAX_BYTES:
            raise InvalidArgument(f"max_bytes={max_bytes}: it is 1 to {limits.BULK_READ_MAX_BYTES}")
        if isinstance(start, str) and start != "earliest":
            raise InvalidArgument(f"start {start!r}: use earliest, an offset, a datetime or a position")
        check_stream(stream)
        if isinstance(start, Mapping):
            check_position(start, [stream])
        else:
            Reading(stream, 0, start, None, False, False).check()
        self.columns = chosen_columns(columns)
        self._cluster = cluster
        self._stream = stream
        self._partitions = partitions
        self._start = start
        self._max_bytes = max_bytes
        self._spans: dict[int, Span] = {}
        self._next: dict[int, int] = {}
        self._planned = False
        self.damaged: dict[int, list[range]] = {}
        """By partition, offsets that were told as damaged, and left out."""
        self.partition = 0
        """Of the batch that was given last."""
        self._batches: AsyncGenerator[pa.RecordBatch, None] | None = None

    def __repr__(self) -> str:
        return f"<ArrowRead of {self._stream}, {self.remaining} offsets remain>"

    @property
    def position(self) -> dict[str, dict[int, int]]:
        """By stream and partition, the offset after the last message that was given; as that of a consumer."""
        return {self._stream: dict(sorted(self._next.items()))}

    @property
    def remaining(self) -> int:
        """Offsets that are to be read yet, once it is iterated."""
        return sum(max(0, span.end - self._next.get(number, span.start)) for number, span in self._spans.items())

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self._batches is None:
            self._batches = self._all()
        try:
            return await anext(self._batches)
        except StopAsyncIteration:
            raise
        except BaseException:
            self._batches = None  # it has ended: whoever iterates again goes on with the next batch
            raise

    async def aclose(self) -> None:
        if self._batches is not None:
            await self._batches.aclose()

    close = aclose

    # --- what is read -----------------------------------------------------------------------------------------

    async def _all(self) -> AsyncGenerator[pa.RecordBatch, None]:
        if not self._planned:
            await self._plan()
        for number, span in self._spans.items():
            here = replace(span, start=self._next[number])
            async with aclosing(self._of(number, here)) as batches:
                async for batch in batches:
                    self.partition = number
                    yield batch
            if self._next[number] < span.end:
                raise Unavailable(
                    f"partition {number} of stream {self._stream} ended at offset {self._next[number]}, and "
                    f"{span.end} was committed before: was the stream deleted meanwhile?"
                )

    async def _plan(self) -> None:
        deadline = Deadline(limits.CLIENT_RESUBSCRIBE_S)
        self._cluster.forget(self._stream)  # it may have been made again, with more partitions
        known = await self._cluster.stream(self._stream, deadline)
        if isinstance(self._start, Mapping):
            check_named(self._start, self._stream, len(known.partitions))
        numbers = sorted(known.partitions) if isinstance(self._partitions, str) else list(self._partitions)
        for number in numbers:
            if number not in known.partitions:
                raise NotFound(f"no such partition: {number}. Stream {self._stream} has {len(known.partitions)}")
            self._spans[number] = await self._span(number, deadline)
        self._next = {number: span.start for number, span in self._spans.items()}
        self._planned = True

    async def _span(self, number: int, deadline: Deadline) -> Span:
        start: str | int | datetime
        if isinstance(self._start, Mapping):
            known = self._start.get(self._stream, {})
            given = {int(key): offset for key, offset in known.items()}  # JSON has text as keys
            start = given.get(number, "earliest")
        else:
            start = self._start
        try:
            bounds = await log_bounds(self._cluster, self._stream, number, deadline)
        except Unimplemented:
            end = await committed_end(self._cluster, (self._stream, number), deadline)
            return Span(await self._first(number, start, 0, end, deadline), end, None)
        first = await self._first(number, start, bounds.start, bounds.end, deadline)
        return Span(first, bounds.end, bounds.creation)

    async def _first(
        self, number: int, start: str | int | datetime, log_start: int, end: int, deadline: Deadline
    ) -> int:
        if isinstance(start, str):
            return min(log_start, end)
        if isinstance(start, int):
            if start < log_start:
                raise OutOfRange(
                    f"offset {start} of {self._stream}/{number} was removed: the partition begins at {log_start}"
                )
            if start > end and isinstance(self._start, Mapping):
                await self._check_reached(number, start, deadline)
            return start
        return await first_since(self._cluster, (self._stream, number), start, end)

    async def _check_reached(self, number: int, position: int, deadline: Deadline) -> None:
        end = await stored_end(self._cluster, (self._stream, number), deadline)
        if position > end:
            raise OutOfRange(
                f"the position {position} of {self._stream}/{number} is beyond its end, {end}: it is of a stream that "
                "was deleted and made again, or of another cluster. Begin anew"
            )

    async def _of(self, number: int, span: Span) -> AsyncGenerator[pa.RecordBatch, None]:
        if span.start >= span.end:
            return
        found = self._subscribed(number, span) if span.creation is None else self._bulk(number, span, span.creation)
        async with aclosing(found) as batches:
            async for batch in batches:
                yield batch

    async def _bulk(self, number: int, span: Span, creation: int) -> AsyncGenerator[pa.RecordBatch, None]:
        from bascule.client.columns import batch_of_range

        read = BulkRead(self._cluster, self._stream, number, span.start, span.end, creation, max_bytes=self._max_bytes)
        async with aclosing(read.ranges()) as ranges:
            async for given in ranges:
                batch = batch_of_range(self.columns, self._stream, number, given) if given.count else None
                missing = given.missing()
                self._next[number] = given.end
                if batch is not None:
                    yield batch
                if missing:
                    self.damaged.setdefault(number, []).extend(missing)
                    raise damaged(self._stream, number, missing)

    async def _subscribed(self, number: int, span: Span) -> AsyncGenerator[pa.RecordBatch, None]:
        from bascule.client.columns import batch_of_messages

        reading = Reading(self._stream, number, span.start, span.end - 1, False, False)
        gathered: list[Message] = []
        size = 0
        async with Subscription(self._cluster, reading) as subscription:
            async for messages in subscription.batches():
                for message in messages:
                    if message.offset >= span.end:
                        break
                    gathered.append(message)
                    size += len(message.value) + limits.RECORD_TRAILER_BYTES
                    if size >= self._max_bytes:
                        batch = batch_of_messages(self.columns, gathered)
                        gathered, size, self._next[number] = [], 0, message.offset + 1
                        yield batch
        if gathered:
            batch = batch_of_messages(self.columns, gathered)
            self._next[number] = gathered[-1].offset + 1
            yield batch
        self._next[number] = span.end  # the last offsets may have been compacted
