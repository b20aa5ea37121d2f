"""Subscriptions that are read at the same time and taken in turn: one with much to read holds up no other.

One batch of each is decoded ahead. Brokers wait for a reader that stops reading, by the windows of HTTP/2. Parts come
and go while they are read: whatever had arrived of one that is removed is dropped with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from bascule.client.subscription import Subscription
from bascule.client.values import Message

Name = tuple[str, int]
"""A stream and the number of a partition."""


class Part:
    """One partition that is read."""

    def __init__(self, name: Name, subscription: Subscription) -> None:
        self.name = name
        self.subscription = subscription
        self.reading: asyncio.Task[list[Message]] | None = None


class Parts:
    def __init__(self) -> None:
        self._parts: dict[Name, Part] = {}
        self._resting: list[Part] = []
        """Their batch was taken, and the next one is not asked for yet."""
        self._ready: deque[Part] = deque()
        self._arrived = asyncio.Event()
        self.last: Name = ("", 0)
        """Of which a batch, or an error, was taken last."""

    def __len__(self) -> int:
        return len(self._parts)

    def __contains__(self, name: Name) -> bool:
        return name in self._parts

    def add(self, name: Name, subscription: Subscription) -> None:
        assert name not in self._parts, f"{name} is read already"
        part = self._parts[name] = Part(name, subscription)
        self._resting.append(part)
        self._arrived.set()

    def remove(self, name: Name) -> asyncio.Task[list[Message]] | None:
        """Gives the task that was reading it, which is being cancelled."""
        part = self._parts.pop(name, None)
        if part is None:
            return None
        if part in self._resting:
            self._resting.remove(part)
        if part in self._ready:
            self._ready.remove(part)
        if part.reading is not None:
            part.reading.cancel()
        part.subscription.close()
        return part.reading

    async def close(self) -> None:
        tasks = [self.remove(name) for name in list(self._parts)]
        self._arrived.set()
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)

    def cancel(self, loop: asyncio.AbstractEventLoop) -> None:
        """From any thread, for a reader that nobody holds any more."""
        for part in self._parts.values():
            if part.reading is not None:
                loop.call_soon_threadsafe(part.reading.cancel)

    def wake(self) -> None:
        """`wait` returns, though nothing has arrived."""
        self._arrived.set()

    async def wait(self) -> None:
        """Until a batch has arrived, or somebody changes the parts, or calls `wake`."""
        for part in self._resting:
            part.reading = asyncio.create_task(part.subscription.next_batch())
            part.reading.add_done_callback(partial(_arrived, part, self._ready, self._arrived))
        self._resting.clear()
        if not self._ready:
            self._arrived.clear()
            await self._arrived.wait()

    def take(self) -> tuple[Name, list[Message]] | None:
        """A batch that has arrived; an empty one if that part has ended, which removes it. After an error the part is
        read on by the next `wait`."""
        while self._ready:
            part = self._ready.popleft()
            if self._parts.get(part.name) is not part:
                continue  # its task was cancelled when it was removed
            self.last = part.name
            task, part.reading = part.reading, None
            self._resting.append(part)
            assert task is not None
            batch = task.result()
            if not batch:
                self.remove(part.name)
            return part.name, batch
        return None


def _arrived(part: Part, ready: deque[Part], arrived: asyncio.Event, task: asyncio.Task[list[Message]]) -> None:
    """Knows no reader: one that is dropped ends its tasks."""
    if not task.cancelled():
        task.exception()  # raised when it is taken; a part that was removed has nobody to tell
    ready.append(part)
    arrived.set()
