"""A few threads that do blocking work for the event loop, at the least price a hop can have.

The executor of the standard library puts two kinds of future, a condition and a work item around every call; a group
commit is one call per batch, and at a few messages a batch that price is what a publisher waits for. Here a hop is
one queue entry there and one `call_soon_threadsafe` back, and the waiting task goes on in that very turn of the loop: a
future of the standard library would have it wait for the next one.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_Job = tuple[asyncio.AbstractEventLoop, "_Hop[Any]", Callable[..., Any], tuple[object, ...]]


class Threads:
    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._busy = 0

    async def run(self, work: Callable[..., _Result], *arguments: object) -> _Result:
        """The result of `work(*arguments)`, computed in one of the threads."""
        if self._busy >= len(self._threads) < self._most:
            thread = Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        loop = asyncio.get_running_loop()
        done: _Hop[_Result] = _Hop(loop=loop)
        self._busy += 1
        self._jobs.put((loop, done, work, arguments))
        try:
            return await done
        finally:
            self._busy -= 1

    def close(self) -> None:
        """Wait for what was begun."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, done, work, arguments = job
            try:
                result, error = work(*arguments), None
            except BaseException as caught:
                result, error = None, caught
            try:
                loop.call_soon_threadsafe(_finish, done, result, error)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more
            # A thread that waits must not keep the last job's buffers alive.
            del job, loop, done, work, arguments, result, error


class _Hop(asyncio.Future[_Result]):
    """A future for one task, which goes on as soon as it is done. It is done by the loop and by no other task, so that
    no task runs inside another."""

    _wake: Callable[["_Hop[_Result]"], object] | None = None
    _context: Context | None = None

    def add_done_callback(
        self, callback: Callable[["_Hop[_Result]"], object], *, context: Context | None = None
    ) -> None:
        assert self._wake is None, "one task waits, and no other"
        self._wake, self._context = callback, context

    def cancel(self, msg: Any | None = None) -> bool:
        """By another task: the one that waits goes on at the next turn."""
        cancelled = super().cancel(msg)
        if cancelled:
            self.get_loop().call_soon(self.wake)
        return cancelled

    def wake(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None:
            (self._context or Context()).run(wake, self)


def _finish(done: "_Hop[Any]", result: object, error: BaseException | None) -> None:
    if done.cancelled():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
    done.wake()
