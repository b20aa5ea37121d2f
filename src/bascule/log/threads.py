"""A few threads that do blocking work for the event loop, with as little overhead as possible.

The executor of the standard library puts two kinds of future, a condition and a work item around every call; a group
commit is one call per batch, and at a few messages a batch a publisher waits for that overhead. Here a hop is one
queue entry to the thread and one write to an eventfd back, and the waiting task goes on in the same turn of the loop: a
future of the standard library would have it wait for the next one.

The loop watches the eventfd (`_Bell`), which is written with the GIL held. The standard library's
`call_soon_threadsafe` releases the GIL while it wakes the loop, and then the thread takes it back, for a few
microseconds, while the loop is running.

Hops that end together, as those of a thousand partitions that are opened, go on in slices, in the order in which they
ended: in between other tasks run.
"""

import asyncio
import ctypes
import os
from collections import deque
from collections.abc import Callable
from contextvars import Context
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from bascule.limits import HOPS_SLICE

_Result = TypeVar("_Result")
_Job = tuple["_Hop[Any]", Callable[..., Any], tuple[object, ...]]


class Threads:
    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._busy = 0
        self._bell = _Bell()

    async def run(self, work: Callable[..., _Result], *arguments: object) -> _Result:
        """The result of `work(*arguments)`, computed in one of the threads."""
        if self._busy >= len(self._threads) < self._most:
            thread = Thread(target=self._serve, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        loop = asyncio.get_running_loop()
        self._bell.hang_in(loop)
        done: _Hop[_Result] = _Hop(loop=loop)
        self._busy += 1
        self._jobs.put((done, work, arguments))
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
        self._bell.take_down()

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            done, work, arguments = job
            try:
                result, error = work(*arguments), None
            except BaseException as caught:
                result, error = None, caught
            self._bell.ring(done, result, error)
            # A thread that waits must not keep the last job's buffers alive.
            del job, done, work, arguments, result, error


class _Hop(asyncio.Future[_Result]):
    """A future for one task, which goes on at once when it is done. Only the loop sets it done, so that no task runs
    inside another."""

    _wake: Callable[["_Hop[_Result]"], object] | None = None
    _context: Context | None = None

    def add_done_callback(
        self, callback: Callable[["_Hop[_Result]"], object], *, context: Context | None = None
    ) -> None:
        assert self._wake is None, "one task waits, and no other"
        self._wake, self._context = callback, context

    def cancel(self, msg: Any | None = None) -> bool:
        """By another task: the waiting one goes on at the next turn."""
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


class _Bell:
    """Informs the loop that hops are over. It stays open as long as the threads, so that no thread writes to a
    descriptor that is another file by now. Without eventfd `call_soon_threadsafe` is used."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._descriptor = -1
        self._over: deque[tuple[_Hop[Any], object, BaseException | None]] = deque()
        self._rest: asyncio.Handle | None = None
        """The next turn, for the hops that did not fit into this slice."""

    def hang_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """`loop` watches it from now on."""
        if loop is self._loop or _ring is None:
            return
        if self._descriptor < 0:
            self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop = loop
        loop.add_reader(self._descriptor, self._heard)
        # Hops that an earlier loop has left are finished by this one: that loop may not run again.
        self._rest = loop.call_soon(self._finish_some) if self._over else None

    def take_down(self) -> None:
        """The threads have ended. Tasks that still wait go on at the next turn."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        while self._over:
            _finish_in_loop(*self._over.popleft())
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
        self._loop = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def ring(self, done: _Hop[Any], result: object, error: BaseException | None) -> None:
        """By a thread."""
        if _ring is None:
            _finish_in_loop(done, result, error)
        else:
            self._over.append((done, result, error))
            _ring(self._descriptor, 1)

    def _heard(self) -> None:
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:  # another loop was faster
            return
        if self._rest is None:  # else they wait for those before them
            self._finish_some()

    def _finish_some(self) -> None:
        self._rest = None
        for _ in range(HOPS_SLICE):
            if not self._over:
                return
            done, result, error = self._over.popleft()
            if done.get_loop() is self._loop:
                _finish(done, result, error)
            else:
                _finish_in_loop(done, result, error)
        if self._over and self._loop is not None:
            self._rest = self._loop.call_soon(self._finish_some)


def _finish_in_loop(done: _Hop[Any], result: object, error: BaseException | None) -> None:
    try:
        done.get_loop().call_soon_threadsafe(_finish, done, result, error)
    except RuntimeError:
        pass  # the loop is closed: nobody waits any more


def _find_ring() -> Callable[[int, int], object] | None:
    """`eventfd_write` of the C library, called with the GIL held: it never blocks."""
    ring = getattr(ctypes.PyDLL(None), "eventfd_write", None) if hasattr(os, "eventfd") else None
    if ring is not None:
        ring.argtypes = (ctypes.c_int, ctypes.c_uint64)
    return ring


_ring = _find_ring()
