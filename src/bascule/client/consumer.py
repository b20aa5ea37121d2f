"""Several partitions, of one stream or of several, read at the same time in one iteration.

Each partition has a subscription of its own (`parts`). Within a partition messages come in the order of their offsets;
between partitions there is no order. `position` says how far the reader has got, and a consumer that starts from it
goes on there. `Consuming` is what consumers have in common, those of a group (`groupconsumer`) too.

As a subscription, it is its own iterator: whoever stops iterating goes on with the next message by iterating again.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Literal, Self

from bascule import limits
from bascule.client.arguments import check_at_least, check_named, check_partitions, check_position, check_stream
from bascule.client.beginning import committed_end, first_since, resume, stored_end, warn_of_removed
from bascule.client.cluster import Cluster
from bascule.client.failures import Deadline
from bascule.client.parts import Name, Parts
from bascule.client.subscription import OnLost, Reading, Subscription
from bascule.client.values import Message, StartAt, StopAt
from bascule.errors import InvalidArgument, OutOfRange

Partitions = Literal["all"] | Sequence[int]
Position = Mapping[str, Mapping[int, int]]
"""By stream and partition, the offset of the message to go on with."""


class Consuming(ABC):
    """Iterate it for messages, or `batches()` for lists of them; `next` waits for one for a limited time."""

    def __init__(self) -> None:
        self._parts = Parts()
        self._busy = False
        self._closed = False
        self._buffered: Iterator[Message] = iter(())
        self._current = ("", 0)
        """Which partition the buffered messages are of."""
        self._next: dict[Name, int] = {}

    async def __aenter__(self) -> Self:
        await self.ready()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def ready(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def _batch(self) -> tuple[Name, list[Message]] | None:
        """The next messages, and the partition that they are of; None at the end."""

    # --- where it is ----------------------------------------------------------------------------------------

    @property
    def position(self) -> dict[str, dict[int, int]]:
        """By stream and partition, the offset after the last message that was given. It can be stored, also as JSON,
        and given as `start`. Partitions that have given nothing are in it once the brokers have accepted the
        subscriptions, unless they began with the earliest message."""
        found: dict[str, dict[int, int]] = {}
        for (stream, partition), offset in sorted(self._next.items()):
            found.setdefault(stream, {})[partition] = offset
        return found

    # --- reading --------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        for message in self._buffered:
            self._next[self._current] = message.offset + 1
            return message
        batch = await self._fill()
        if not batch:
            raise StopAsyncIteration
        self._buffered = iter(batch)
        return await self.__anext__()

    def next_buffered(self) -> Message | None:
        """One that has arrived already; None if there is none."""
        for message in self._buffered:
            self._next[self._current] = message.offset + 1
            return message
        return None

    async def next(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none came in time, or there are no more."""
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await self.__anext__()
        except TimeoutError:
            if not limit.expired():
                raise  # of the cluster, which did not answer
        except StopAsyncIteration:
            pass
        return None

    def batches(self) -> Batches:
        """Lists of messages of one partition each, as they arrive."""
        return Batches(self)

    async def next_batch(self) -> list[Message]:
        """The next messages, of one partition; none at the end."""
        batch = list(self._buffered) or await self._fill()
        if batch:
            self._next[self._current] = batch[-1].offset + 1
        return batch

    async def _fill(self) -> list[Message]:
        if self._busy:
            raise RuntimeError("two tasks read from one consumer: give each of them one of its own")
        self._busy = True
        try:
            await self.ready()
            if (found := await self._batch()) is None:
                return []
            self._current, batch = found
            return batch
        finally:
            self._busy = False


class Consumer(Consuming):
    """Iterate it for messages, or `batches()` for lists of them; `next` waits for one for a limited time. Use it in
    `async with`, or `close` it."""

    def __init__(
        self,
        cluster: Cluster,
        streams: Sequence[str],
        partitions: Partitions,
        start: StartAt | Position,
        stop: StopAt,
        last: int | None,
        resume_paused: bool,
        on_lost: OnLost | None,
    ) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__()
        if not streams:
            raise InvalidArgument("no stream was given")
        check_partitions(partitions)
        if last is not None:
            check_at_least(0, last=last)
            if start != "earliest":
                raise InvalidArgument(f"last={last} and start={start!r}: each says where to begin, give one of them")
        for stream in streams:
            check_stream(stream)
        if isinstance(start, Mapping):
            check_position(start, list(streams))
        self._cluster = cluster
        self._streams = list(dict.fromkeys(streams))
        self._partitions = partitions
        self._start = start
        self._stop = stop
        self._resume_paused = resume_paused
        self._on_lost = on_lost
        self._last = last
        self._opened = False
        self._opening: asyncio.Task[None] | None = None
        for stream in self._streams:  # a bad position is an error now, not at the first message
            self._reading(stream, 0).check()

    async def __aenter__(self) -> Self:
        try:
            return await super().__aenter__()
        except asyncio.CancelledError:
            await self._stop_opening()
            raise

    def __repr__(self) -> str:
        return f"<Consumer of {', '.join(self._streams)}, partitions {self._partitions}>"

    def __del__(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._parts.cancel(self._loop)

    async def close(self) -> None:
        """No more messages; harmless when it has ended."""
        self._closed = True
        self._buffered = iter(())
        await self._stop_opening()
        await self._parts.close()

    async def _stop_opening(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            await asyncio.wait([opening])

    def _reading(self, stream: str, partition: int) -> Reading:
        start: StartAt
        if isinstance(self._start, Mapping):
            known = self._start.get(stream, {})
            keys = {int(key): offset for key, offset in known.items()}  # JSON has text as keys
            start = keys.get(partition, "earliest")
        else:
            start = self._start
        return Reading(stream, partition, start, self._stop, False, self._resume_paused)

    # --- reading --------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """The brokers have accepted all its subscriptions."""
        if self._opened or self._closed:
            return
        self._loop = self._cluster.connections.check_open()
        if self._opening is None:
            # A task of its own: who waits may be cancelled, as by `next(timeout=...)`, and "new" is taken once.
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        opening = self._opening
        await asyncio.wait([opening])
        if self._opening is opening:
            self._opening = None
        if not opening.cancelled():  # `close` may have ended it
            opening.result()

    async def _open(self) -> None:
        deadline = Deadline(limits.CLIENT_RESUBSCRIBE_S)
        found: list[Reading] = []
        for stream in self._streams:
            self._cluster.forget(stream)  # it may have been made again, with more partitions
            known = await self._cluster.stream(stream, deadline)
            if isinstance(self._start, Mapping):
                check_named(self._start, stream, len(known.partitions))
            numbers = list(known.partitions) if isinstance(self._partitions, str) else list(self._partitions)
            paused = {number for number, partition in known.partitions.items() if partition.paused}
            if self._resume_paused:
                await asyncio.gather(*(resume(self._cluster, (stream, each)) for each in paused.intersection(numbers)))
                paused.clear()
            found += await asyncio.gather(
                *(self._beginning(stream, number, number in paused, deadline) for number in numbers)
            )
        subscriptions = {
            (reading.stream, reading.partition): Subscription(self._cluster, reading, self._on_lost)
            for reading in found
        }
        try:
            await asyncio.gather(*(each.ready() for each in subscriptions.values()))
        except BaseException:
            for each in subscriptions.values():
                each.close()
            raise
        self._opened = True
        for name, subscription in subscriptions.items():
            if isinstance(subscription.position, int):
                self._next[name] = subscription.position
            self._parts.add(name, subscription)

    async def _beginning(self, stream: str, number: int, paused: bool, deadline: Deadline) -> Reading:
        """What is read of a partition. One that is paused is refused by its broker; other servers call it paused after
        it was resumed, too."""
        name, reading = (stream, number), self._reading(stream, number)
        if self._last is not None:
            end = await committed_end(self._cluster, name, deadline)
            return replace(reading, start=max(0, end - self._last))
        if paused:
            return reading
        if isinstance(reading.start, datetime):
            end = await committed_end(self._cluster, name, deadline)
            return replace(reading, start=await first_since(self._cluster, name, reading.start, end))
        if isinstance(self._start, Mapping) and isinstance(reading.start, int) and reading.start:
            end = await stored_end(self._cluster, name, deadline)
            if reading.start > end:
                raise OutOfRange(
                    f"the position {reading.start} of partition {number} of stream {stream} is beyond its end, {end}: "
                    "it is of a stream that was deleted and made again, or of another cluster. Begin anew"
                )
            await warn_of_removed(self._cluster, name, reading.start, "consumer", deadline)
        return reading

    async def _batch(self) -> tuple[Name, list[Message]] | None:
        while self._parts:
            await self._parts.wait()
            if (found := self._parts.take()) is not None and found[1]:
                return found
        return None


class Batches:
    """The messages of a consumer in lists, each of one partition."""

    def __init__(self, consumer: Consuming) -> None:
        self._consumer = consumer

    def __aiter__(self) -> AsyncIterator[list[Message]]:
        return self

    async def __anext__(self) -> list[Message]:
        batch = await self._consumer.next_batch()
        if not batch:
            raise StopAsyncIteration
        return batch

    async def aclose(self) -> None:
        await self._consumer.close()
