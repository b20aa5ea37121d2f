"""An event loop with virtual time: a sleep of an hour takes no time at all, and the order of events is a function of
the program alone. Nothing on it may wait for a socket or a thread.

A `SimulatedProcess` stands for a process on that loop. Whatever runs because of it (tasks, timers, callbacks, and all
that those start) carries it in its context; each step asks it first. A dead process takes no further step, not even a
`finally`, as after kill -9; a paused one takes its steps when it goes on, as after SIGSTOP.
"""

import asyncio
import contextvars
import logging
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
_PROCESS: contextvars.ContextVar["SimulatedProcess | None"] = contextvars.ContextVar("process", default=None)
_MAX_TURNS_WITHOUT_TIME = 1_000_000


class Deadlock(Exception):
    """Every task waits and no timer is set, or tasks run for ever without waiting: a real process would hang."""


class _VirtualSelector(selectors.BaseSelector):
    """Instead of waiting for a file it moves the clock to the next timer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = 0
        self._turns_without_time = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits for something that nothing will ever do")
        self.turns += 1
        self._turns_without_time = 0 if timeout > 0 else self._turns_without_time + 1
        if self._turns_without_time > _MAX_TURNS_WITHOUT_TIME:
            self._turns_without_time = 0
            raise Deadlock("the program goes round and round without letting time pass")
        self.now += max(0.0, timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, 0, 0, None)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    @property
    def turns(self) -> int:
        """How often the loop went round: two runs of one program agree on it."""
        return self._virtual.turns

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        step = _Step(process, callback, args, context)
        step.handle = super().call_soon(step, context=context)
        return step.handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        step = _Step(process, callback, args, context)
        step.handle = timer = super().call_at(when, step, context=context)
        return timer

    def create_task(  # type: ignore[override]
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = super().create_task(coro, name=name, context=context)
        process = _PROCESS.get() if context is None else context.get(_PROCESS)
        if process is not None:
            process.adopt(task)
        return task


class _Step:
    """One callback of a process."""

    __slots__ = ("args", "callback", "context", "handle", "process")

    def __init__(
        self,
        process: "SimulatedProcess",
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> None:
        self.process = process
        self.callback = callback
        self.args = args
        self.context = context
        self.handle: asyncio.Handle | None = None

    def __call__(self) -> None:
        process = self.process
        if process.dead or (self.handle is not None and self.handle.cancelled()):
            return
        if process.paused:
            process.park(self)
        else:
            self.callback(*self.args)


class SimulatedProcess:
    """A process on a virtual loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.dead = False
        self.paused = False
        self._loop = loop
        self._context = contextvars.Context()
        self._context.run(_PROCESS.set, self)
        self._parked: list[_Step] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = 256

    @staticmethod
    def current() -> "SimulatedProcess | None":
        return _PROCESS.get()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """A task of this process: it ends when the process does."""
        return self._loop.create_task(coroutine, context=self._context.copy())

    def call(self, callback: Callable[..., object], *args: Any) -> None:
        """Something from outside (a socket became readable) makes it run this; later, if it is paused."""
        if self.dead:
            return
        context = self._context.copy()
        if self.paused:
            self._parked.append(_Step(self, callback, args, context))
        else:
            context.run(callback, *args)

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        """Everything that came due meanwhile runs now, in the order in which it did."""
        self.paused = False
        parked, self._parked = self._parked, []
        for step in parked:
            self._loop.call_soon(step, context=step.context)

    def kill(self) -> None:
        """It takes no further step. What its tasks hold is released."""
        self.dead = True
        tasks, self._tasks, self._parked = self._tasks, [], []
        for task in tasks:
            if not task.done():
                discard(task)

    def adopt(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.append(task)
        if len(self._tasks) > self._prune_at:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._prune_at = 256 + 2 * len(self._tasks)

    def park(self, step: _Step) -> None:
        step.context = step.context or contextvars.copy_context()
        self._parked.append(step)


def discard(task: "asyncio.Task[Any]") -> None:
    """Release a task that will never run again, without a log line about it."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    logged = logging.root.manager.disable
    logging.disable()  # whatever its handlers of exceptions do now, a dead process does not log it
    try:
        if coroutine is not None:
            coroutine.close()
    except RuntimeError:
        pass  # it awaited in a `finally`, which a dead process does not do
    finally:
        logging.disable(logged)


class VirtualClock:
    """`ports.Clock` on a virtual loop; `skew_ns` moves the wall clock alone, `run_at` makes both drift."""

    def __init__(self, loop: VirtualLoop, start_ns: int = 1_700_000_000_000_000_000) -> None:
        self._loop = loop
        self._start_ns = start_ns
        self.skew_ns = 0
        self._rate, self._since_s, self._at_ns = 1.0, 0.0, 0

    def time_ns(self) -> int:
        return self._start_ns + self.skew_ns + self.monotonic_ns()

    def monotonic_ns(self) -> int:
        return self._at_ns + int((self._loop.time() - self._since_s) * self._rate * 1e9)

    def run_at(self, rate: float) -> None:
        """From now on so many times as fast as the loop's time."""
        self._at_ns, self._since_s, self._rate = self.monotonic_ns(), self._loop.time(), rate


def run(coroutine: Coroutine[Any, Any, T], loop: VirtualLoop | None = None) -> T:
    """Like asyncio.run, on virtual time."""
    loop = loop or VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(coroutine)
    finally:
        for task in sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name()):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        asyncio.set_event_loop(None)
        loop.close()
