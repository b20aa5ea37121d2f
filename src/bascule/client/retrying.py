"""Publishing that goes on after a lost connection: messages without an ack are sent again, in order, until they have
one.

At least once: some messages in flight when the connection was lost may have been stored, and are then stored twice. The
window of the pipeline bounds how many are buffered to be sent again. The source is read by a task of its own, because
each try is cancelled when it fails, and a cancelled generator would be finished.

Known to be imperfect: some microseconds more per message than without.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable

from bascule import limits
from bascule.client.pipeline import OnAcks, Values
from bascule.client.values import Outgoing
from bascule.errors import BasculeError, PublishError, Unavailable, Unconfirmed

Value = bytes | Outgoing
Attempt = Callable[[Values, OnAcks], Awaitable[int]]
OnRetry = Callable[[int, BasculeError], None]
"""Takes how many messages are about to be sent again, and why."""


class Retrying:
    def __init__(self, on_acks: OnAcks | None, on_retry: OnRetry | None) -> None:
        self._on_acks = on_acks
        self._on_retry = on_retry
        self._arriving: asyncio.Queue[Value | None] = asyncio.Queue(limits.CLIENT_PUBLISH_BATCH)
        self._ended = False
        self._failure: Exception | None = None  # of the source
        self._taken = 0
        self._confirmed = 0
        self._again: deque[tuple[int, Value]] = deque()
        self._unanswered: dict[int, tuple[int, Value]] = {}
        """Number in this try -> number overall, and the value."""

    async def run(self, values: Values, attempt: Attempt, patience_s: float) -> int:
        """The number of messages, all confirmed. Gives up when nothing was confirmed for `patience_s`."""
        clock = asyncio.get_running_loop().time
        reading = asyncio.create_task(self._read(values))
        progress_at = clock()
        try:
            while True:
                confirmed = self._confirmed
                try:
                    await attempt(self._values(), self._note_acks)
                    return self._confirmed
                except (Unconfirmed, Unavailable, PublishError) as error:
                    if isinstance(error, PublishError) and not isinstance(error.__cause__, Unavailable):
                        raise self._refused(error) from error.__cause__
                    if self._confirmed > confirmed:
                        progress_at = clock()
                    if clock() - progress_at >= patience_s:
                        raise
                    self._take_back()
                    if self._on_retry is not None:
                        self._on_retry(len(self._again), error)
                    await asyncio.sleep(limits.CLIENT_RETRY_MIN_S)
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _refused(self, error: PublishError) -> PublishError:
        """With the number it has in the source."""
        overall, _ = self._unanswered.get(error.index, (error.index, b""))
        why = error.__cause__ or error
        return PublishError(
            f"message {overall} was refused: {why} ({self._confirmed} confirmed)", overall, self._confirmed
        )

    async def _read(self, values: Values) -> None:
        try:
            if isinstance(values, AsyncIterable):
                async for value in values:
                    await self._arriving.put(value)
            else:
                for value in values:
                    await self._arriving.put(value)
        except Exception as error:
            self._failure = error
        await self._arriving.put(None)

    async def _values(self) -> AsyncIterator[Value]:
        number = 0
        while self._again:
            self._unanswered[number] = self._again.popleft()
            number += 1
            yield self._unanswered[number - 1][1]
        while not self._ended:
            value = await self._arriving.get()
            if value is None:
                self._ended = True
                break
            self._unanswered[number] = (self._taken, value)
            self._taken += 1
            number += 1
            yield value
        if self._failure is not None:
            raise self._failure

    def _note_acks(self, acks: list[tuple[int, int, int]]) -> None:
        confirmed = [(self._unanswered.pop(number)[0], offset, partition) for number, offset, partition in acks]
        self._confirmed += len(confirmed)
        if self._on_acks is not None:
            self._on_acks(confirmed)

    def _take_back(self) -> None:
        """In the order of the source: messages that this try had taken come before those that it had not."""
        self._again = deque([*sorted(self._unanswered.values(), key=lambda item: item[0]), *self._again])
        self._unanswered = {}
