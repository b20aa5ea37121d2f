"""The readers that wait for a log to change. A waiter costs one future, and nothing while the log is idle."""

import asyncio
from typing import Literal

Ended = Literal["closed", "deleted"]


class Waiters:
    __slots__ = ("_futures", "ended")

    def __init__(self) -> None:
        self.ended: Ended | None = None
        self._futures: dict[asyncio.Future[None], None] = {}

    def __len__(self) -> int:
        return len(self._futures)

    def wake(self) -> None:
        if self._futures:
            futures, self._futures = self._futures, {}
            for future in futures:
                if not future.done():
                    future.set_result(None)

    def end(self, how: Ended) -> None:
        """The log is closed or deleted: all waiters wake up, and later ones do not wait."""
        self.ended = how
        self.wake()

    async def wait(self) -> None:
        """Until the next `wake`."""
        if self.ended is not None:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures[future] = None
        try:
            await future
        finally:
            self._futures.pop(future, None)
