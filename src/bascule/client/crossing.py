"""Publishing from a thread without an event loop: values go to the client's thread in pieces, acks come back.

The source and the callbacks run in the thread of the caller, who waits anyway: they may use what belongs to that
thread, and the client itself.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, Protocol, TypeVar

from bascule import limits
from bascule.client.pipeline import OnAcks
from bascule.client.retrying import OnRetry
from bascule.client.values import Outgoing
from bascule.errors import BasculeError, ClientClosed

T = TypeVar("T")
R = TypeVar("R")
Value = bytes | Outgoing
Acks = list[tuple[int, int, int]]


class Run(Protocol):
    """Waits for work in the client's thread."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


class Submit(Protocol):
    """Begins work in the client's thread."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> Future[T]: ...


def outcome(work: Future[T]) -> T:
    """Of work in the client's thread. It is cancelled there when the client is closed."""
    try:
        return work.result()
    except CancelledError:
        raise ClientClosed("this client was closed meanwhile: connect a new one") from None


def tell(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    """In the client's thread; not at all if the client was closed: nobody waits for it there."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


class Crossing:
    def __init__(self, values: Iterable[Value], on_acks: OnAcks | None, on_retry: OnRetry | None) -> None:
        self._values = iter(values)
        self._on_acks = on_acks
        self._on_retry = on_retry
        self._pieces: asyncio.Queue[list[Value] | None] = asyncio.Queue()  # of the client's thread
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        """For the caller's thread to make; None when the publishing has ended."""
        self._exhausted = False
        self._failure: BaseException | None = None
        self._confirmed = 0

    # --- in the client's thread -----------------------------------------------------------------------------

    async def run(self, publish: Callable[[AsyncIterator[Value], OnAcks, OnRetry], Awaitable[T]]) -> T:
        return await publish(self._source(), self._acked, self._retries)

    async def _source(self) -> AsyncIterator[Value]:
        while True:
            self._calls.put(self._give_more)
            piece = await self._pieces.get()
            if piece is None:
                return
            for value in piece:
                yield value

    def _acked(self, acks: Acks) -> None:
        self._confirmed += len(acks)
        if self._on_acks is not None:
            on_acks = self._on_acks
            self._calls.put(lambda: on_acks(acks))

    def _retries(self, count: int, error: BasculeError) -> None:
        if self._on_retry is not None:
            on_retry = self._on_retry
            self._calls.put(lambda: on_retry(count, error))

    # --- in the caller's thread -----------------------------------------------------------------------------

    def wait(self, work: Future[T], loop: asyncio.AbstractEventLoop) -> T:
        self._loop = loop
        work.add_done_callback(lambda _: self._calls.put(None))
        try:
            while (call := self._calls.get()) is not None:
                call()
        except BaseException as error:
            work.cancel()
            raise self._noted(error)  # noqa: B904
        result = outcome(work)
        if self._failure is not None:
            raise self._noted(self._failure)
        return result

    def _give_more(self) -> None:
        piece: list[Value] = []
        if not self._exhausted:
            try:
                for value in self._slice():
                    piece.append(value)
            except Exception as error:  # what it gave before is published first
                self._failure, self._exhausted = error, True
        tell(self._loop, self._put, piece)

    def _put(self, piece: list[Value]) -> None:
        if piece:
            self._pieces.put_nowait(piece)
        if self._exhausted:
            self._pieces.put_nowait(None)

    def _slice(self) -> Iterator[Value]:
        """Some values: few if the source takes its time."""
        until = time.monotonic() + limits.CLIENT_SOURCE_SLICE_S
        for count, value in enumerate(self._values, 1):
            yield value
            if count == limits.CLIENT_PUBLISH_BATCH or time.monotonic() > until:
                return
        self._exhausted = True

    def _noted(self, error: BaseException) -> BaseException:
        error.add_note(f"{self._confirmed} messages are confirmed")
        return error


class CrossingSource(AsyncIterator[T]):
    """An iterable of the caller's thread, for work in the client's thread that takes one item after the other. It is
    asked for an item while the caller waits for that work."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        """For the caller's thread to make; None when what it waits for is done."""

    # --- in the client's thread -----------------------------------------------------------------------------

    async def __anext__(self) -> T:
        loop = asyncio.get_running_loop()
        taken: asyncio.Future[list[T]] = loop.create_future()
        self._calls.put(lambda: self._give(loop, taken))
        for item in await taken:
            return item
        raise StopAsyncIteration

    # --- in the caller's thread -----------------------------------------------------------------------------

    def wait(self, work: Future[R]) -> R:
        work.add_done_callback(lambda _: self._calls.put(None))
        while (call := self._calls.get()) is not None:
            call()
        return outcome(work)

    def _give(self, loop: asyncio.AbstractEventLoop, taken: asyncio.Future[list[T]]) -> None:
        try:
            item = [next(self._items)]
        except StopIteration:
            item = []
        except Exception as error:
            tell(loop, fail, taken, error)
            return
        tell(loop, fulfil, taken, item)


def fail(taken: asyncio.Future[Any], error: BaseException) -> None:
    if not taken.done():
        taken.set_exception(error)


def fulfil(taken: asyncio.Future[T], result: T) -> None:
    if not taken.done():
        taken.set_result(result)
