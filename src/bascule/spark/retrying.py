"""Requests that are made again while no broker answers: those of a query may be restarted, or out of reach, under it.

What is asked again as a whole only reads. What is written keeps its numbers, and is sent again by `NumberedWrite`. The
first request of a query is not made again: more often than not its address is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from threading import Event
from typing import Any, TypeVar

from bascule import errors, limits
from bascule.errors import BasculeError, DeadlineExceeded, Unavailable

logger = logging.getLogger(__name__)

T = TypeVar("T")
NO_ANSWER = (Unavailable, DeadlineExceeded)
_NAMED = re.compile(r"bascule\.errors\.(\w+)")


class Retrying:
    """The requests of a driver, each for so long; of another thread's `over` the last error is raised at once."""

    def __init__(self, for_s: float, over: Event | None = None) -> None:
        self._for_s = for_s
        self._over = over
        self._reached = False

    def ask(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        tried = Tried(self._for_s if self._reached else 0.0)
        while True:
            try:
                found = asyncio.run(request())
            except NO_ANSWER as error:
                pause = tried.pause_after(error)
                if self._over is None:
                    time.sleep(pause)
                elif self._over.wait(pause):
                    raise
            else:
                self._reached = True
                return found


class Tried:
    """A request that has had no answer yet."""

    def __init__(self, for_s: float) -> None:
        self._for_s = for_s
        self._since: float | None = None
        self._pause_s = limits.CLIENT_RETRY_MIN_S

    def pause_after(self, error: BasculeError) -> float:
        """How long to wait before it is made again. The error is raised when it was tried long enough."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            if self._for_s:
                most = f", for up to {self._for_s:g} s" if self._for_s != float("inf") else ""
                logger.warning("%s. It is tried again until a broker answers%s", error, most)
        if now - self._since >= self._for_s:
            raise error
        self._pause_s = min(2 * self._pause_s, limits.SPARK_RETRY_MAX_S)
        return self._pause_s

    def over(self) -> None:
        """It has had one."""
        self._since, self._pause_s = None, limits.CLIENT_RETRY_MIN_S


async def asked_again(request: Callable[[], Awaitable[T]], for_s: float = limits.SPARK_RETRY_S) -> T:
    """In a task: what `request` reads, once a broker answers."""
    tried = Tried(for_s)
    while True:
        try:
            return await request()
        except NO_ANSWER as error:
            await asyncio.sleep(tried.pause_after(error))


def has_no_answer(text: str) -> bool:
    """Whether a trace of Spark is of such an error, as its worker raised it."""
    found = [getattr(errors, name, None) for name in _NAMED.findall(text)]
    return bool(found) and isinstance(found[-1], type) and issubclass(found[-1], NO_ANSWER)
