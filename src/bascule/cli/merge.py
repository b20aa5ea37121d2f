"""Several partitions as one: what is stored by time, what is new as it arrives. Within a partition nothing changes
places, whatever its timestamps say: clocks of leaders differ."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from itertools import accumulate
from typing import Any

from bascule.client import Message

Batches = AsyncIterator[list[Message]]

BUFFERED_BATCHES = 16
"""That have arrived and are not printed yet; beyond it the partitions wait."""


class _Head:
    """The messages of one partition that are read and not given yet, with the times they are ordered by: a message
    behind another one is never earlier than that one."""

    def __init__(self, source: Batches) -> None:
        self._source = source
        self._latest = 0
        self.messages: list[Message] = []
        self.times: list[int] = []
        self.ended = False

    async def fill(self) -> None:
        while not self.messages and not self.ended:
            batch = await anext(self._source, None)
            if batch is None:
                self.ended = True
            else:
                self.messages = batch
                self.times = list(accumulate((each.timestamp for each in batch), max, initial=self._latest))[1:]
                self._latest = self.times[-1] if self.times else self._latest

    def take(self, until: int) -> list[tuple[int, Message]]:
        count = bisect_right(self.times, until)
        taken = list(zip(self.times[:count], self.messages[:count], strict=True))
        self.times, self.messages = self.times[count:], self.messages[count:]
        return taken


async def by_time(sources: Sequence[Batches]) -> AsyncGenerator[list[Message], None]:
    """All messages of sources that end, ordered by time. Holds a batch of each."""
    if len(sources) == 1:
        async for batch in sources[0]:
            yield batch
        return
    heads = [_Head(source) for source in sources]
    while True:
        await asyncio.gather(*(head.fill() for head in heads))
        heads = [head for head in heads if head.messages]
        if not heads:
            return
        # Up to the earliest end of a batch all messages are here. The sort keeps what is equal in its order.
        until = min(head.times[-1] for head in heads)
        taken = [entry for head in heads for entry in head.take(until)]
        taken.sort(key=lambda entry: entry[0])
        yield [message for _, message in taken]


async def arriving(sources: Sequence[Batches]) -> AsyncGenerator[list[Message], None]:
    """Batches of all sources as they come; ends with the first failure, or when all have ended."""
    arrived: asyncio.Queue[list[Message]] = asyncio.Queue(BUFFERED_BATCHES)

    async def pump(source: Batches) -> None:
        async for batch in source:
            await arrived.put(batch)

    async def pump_all() -> None:
        await asyncio.gather(*map(pump, sources))

    pumps = asyncio.create_task(pump_all())
    taking = asyncio.create_task(arrived.get())
    try:
        while True:
            tasks: set[asyncio.Task[Any]] = {pumps, taking}
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if taking.done():
                yield taking.result()
                taking = asyncio.create_task(arrived.get())
            else:
                pumps.result()
                return
    finally:
        pumps.cancel()
        taking.cancel()
        await asyncio.gather(pumps, taking, return_exceptions=True)
