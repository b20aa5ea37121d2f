"""The background work of one broker: every task that outlives the call that started it is started here, has a name and
an owner, and ends when the broker closes. asyncio reports a failed task when it is collected, which is late, or never
while it is referenced; here a failure is logged at once and counted by name.

There are four kinds of work:

- A *job* (`run`) goes on as long as the broker does. When it fails it is started again, after a pause that doubles up
  to a bound and is short again once the job has run well for a while. A failed assertion is a bug, which a second run
  would meet again: the job then stays down, and an error says what the broker does without it.
- A *timer* (`every`) is a job that calls a function at intervals instead of awaiting.
- *Vital* work (`vital`) cannot be started again, because half of it may be done: a start, the taking of roles. When it
  fails the process ends. Raft is vital too, and has a loop of its own (`membership.raft`).
- Work of single calls (`tasks`): each is started once and never again. A set of them has a bound.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TypeVar

from bascule.errors import BasculeError
from bascule.limits import JOB_FIRST_PAUSE_S, JOB_MAX_PAUSE_S, JOB_STEADY_S
from bascule.node.runtime.metrics import Metrics

logger = logging.getLogger(__name__)

T = TypeVar("T")
Work = Coroutine[object, object, T]

NEVER_RETRIED = "a failed assertion is never retried: restart this broker, and report this"


class Jobs:
    def __init__(self, on_fatal: Callable[[str], None], metrics: Metrics) -> None:
        """`on_fatal` ends the process with a reason."""
        self.failures = metrics.counter("bascule_job_failures_total", "Background work that failed", label="job")
        """Number of failures by name of the work."""
        self._on_fatal = on_fatal
        self._running: dict[asyncio.Task[None], None] = {}
        self._timers: dict[str, Timer] = {}
        self._sets: list[Tasks] = []
        self.closed = False

    def run(self, name: str, work: Callable[[], Work[None]], without: str) -> None:
        """A job. `without` completes "Without it ..." in the log line that the job stays down."""
        assert not self.closed, f"{name}: this broker is closed"
        self._start(self._supervise(name, work, without))

    def every(self, name: str, interval_s: float, function: Callable[[], None], without: str) -> "Timer":
        """A timer: calls `function` now, and again `interval_s` after each call has returned."""
        assert not self.closed, f"{name}: this broker is closed"
        timer = self._timers.get(name)
        if timer is None:
            timer = self._timers[name] = Timer(name, interval_s, function, without, self)
        timer.start()
        return timer

    def vital(self, name: str, work: Work[None]) -> asyncio.Task[None]:
        """Work without which the process must not go on. The task raises the error to its awaiter, too."""
        task = self._start(work)
        task.add_done_callback(lambda done: self._vital_ended(name, done))
        return task

    def tasks(self, name: str, most: int, *, answered: bool = False) -> "Tasks":
        """An empty set for work of single calls. `answered`: the awaiter of the work gets its error, so it is not
        logged."""
        tasks = Tasks(name, most, answered, self)
        self._sets.append(tasks)
        return tasks

    async def close(self) -> None:
        """Cancel all work. Returns when all of it has ended."""
        self.closed = True
        for timer in self._timers.values():
            timer.stop()
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for tasks in self._sets:
            await tasks.end()

    def note_failure(self, name: str, error: BaseException, consequence: str) -> None:
        """Errors of the cluster and of the disk explain themselves; any other one is a bug, and the log has its
        traceback (which the simulator counts as a violation)."""
        self.failures.add(name)
        expected = isinstance(error, BasculeError | OSError)
        reason = str(error) if expected else repr(error)
        logger.error("%s failed: %s; %s", name, reason, consequence, exc_info=None if expected else error)

    # --- jobs ------------------------------------------------------------------------------------------------

    def _start(self, work: Work[None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))
        return task

    async def _supervise(self, name: str, work: Callable[[], Work[None]], without: str) -> None:
        loop, pause = asyncio.get_running_loop(), Pause()
        while True:
            began = loop.time()
            try:
                await work()
                return
            except AssertionError as error:
                self.note_failure(name, error, f"it stays down. Without it {without}; {NEVER_RETRIED}")
                return
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                failed: BaseException = error  # something that it waited for was cancelled, not the job
            except Exception as error:
                failed = error
            pause_s = pause.after(loop.time() - began)
            self.note_failure(name, failed, f"it starts again in {pause_s:g} s")
            await asyncio.sleep(pause_s)

    def _vital_ended(self, name: str, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            if task.cancelling():
                return
            error: BaseException = asyncio.CancelledError("something it waited for was cancelled")
        elif (failed := task.exception()) is not None:
            error = failed
        else:
            return
        self.note_failure(name, error, "the broker cannot go on without it, and ends")
        self._on_fatal(f"{name} ended unexpectedly: {error!r}; start the broker again, and report this")


class Pause:
    """How long a failed job waits: twice as long as the last time, unless it ran well for a while."""

    def __init__(self) -> None:
        self._next_s = JOB_FIRST_PAUSE_S

    def after(self, ran_s: float) -> float:
        if ran_s >= JOB_STEADY_S:
            self._next_s = JOB_FIRST_PAUSE_S
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, JOB_MAX_PAUSE_S)
        return pause_s


class Timer:
    """Made by `Jobs.every`. It may be stopped and started again."""

    def __init__(self, name: str, interval_s: float, function: Callable[[], None], without: str, jobs: Jobs) -> None:
        self._name = name
        self._interval_s = interval_s
        self._function = function
        self._without = without
        self._jobs = jobs
        self._pause = Pause()
        self._well_since: float | None = None
        """The time of the first call without an error after the last failure."""
        self._handle: asyncio.TimerHandle | None = None
        self._running = False

    def start(self) -> None:
        assert not self._running, f"{self._name} runs already"
        self._running = True
        self._call()

    def stop(self) -> None:
        self._running = False
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _call(self) -> None:
        loop = asyncio.get_running_loop()
        self._handle = None
        wait_s = self._interval_s
        try:
            self._function()
            self._well_since = loop.time() if self._well_since is None else self._well_since
        except AssertionError as error:
            self._running = False
            consequence = f"it stays down. Without it {self._without}; {NEVER_RETRIED}"
            self._jobs.note_failure(self._name, error, consequence)
        except Exception as error:
            well_s = loop.time() - self._well_since if self._well_since is not None else 0.0
            wait_s, self._well_since = max(wait_s, self._pause.after(well_s)), None
            self._jobs.note_failure(self._name, error, f"it runs again in {wait_s:g} s")
        if self._running and self._handle is None:  # the function may have stopped it, or started it again
            self._handle = loop.call_later(wait_s, self._call)


class Tasks:
    """Made by `Jobs.tasks`: the work of single calls that one part of a broker has under way."""

    def __init__(self, name: str, most: int, answered: bool, jobs: Jobs) -> None:
        self._name = name
        self._most = most
        self._answered = answered
        self._jobs = jobs
        self._running: dict[asyncio.Task[object], None] = {}

    @property
    def full(self) -> bool:
        """No more can be started now. Callers check this before they accept work from others."""
        return len(self._running) >= self._most

    def start(self, work: Work[T]) -> asyncio.Task[T]:
        """If the broker is closed, the task is cancelled before its first step."""
        assert not self.full, f"{self._name}: {self._most} are under way already"
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(self._ended)
        if self._jobs.closed:
            task.cancel()
        return task

    async def end(self) -> None:
        """Cancel all tasks. Returns when they have ended."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._running.pop(task, None)
        if task.cancelled() or (error := task.exception()) is None or self._answered:
            return
        self._jobs.note_failure(self._name, error, "it is not tried again")
