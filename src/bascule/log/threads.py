"""A few threads that do blocking work for the event loop, at the least price a hop can have.

The executor of the standard library puts two kinds of future, a condition and a work item around every call; a group
commit is one call per batch, and at a few messages a batch that price is what a publisher waits for. Here a hop is
one queue entry there and one `call_soon_threadsafe` back.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", Callable[..., Any], tuple[object, ...]]


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
        done: asyncio.Future[_Result] = loop.create_future()
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


def _finish(done: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if done.cancelled():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)
