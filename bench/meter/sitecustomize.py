"""How long callbacks block the event loop of a broker. The interpreter loads this into its process, because this folder
is on its PYTHONPATH. Processor time of the loop's thread, not wall time: the machine is shared.

Every callback that takes longer than `NOTED_S` is a line in the file that BASCULE_LOOP_METER names: when it ended on
the system's monotonic clock, how long it took, how much of that was garbage collection, and what it was.

With BASCULE_LOOP_METER_ALL the time counts too in which a callback is blocked: all but the time in which its thread
could run and had no processor, which the kernel counts, or may have waited for another thread of this process that had
none. And a second file, `.tasks`, has how many tasks there are.
"""

import asyncio
import asyncio.events
import gc
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

NOTED_S = 0.005
TASKS_EVERY_S = 2.0
OTHERS_EVERY_S = 0.05


class _Garbage:
    """Processor time spent on collecting it."""

    def __init__(self) -> None:
        self.total_s = 0.0
        self._began = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.total_s += time.thread_time() - self._began


class _Tasks:
    """Every now and then, how many tasks there are."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).with_suffix(".tasks").open("a", buffering=1)
        self._next_s = 0.0

    def look(self) -> None:
        now = time.monotonic()
        if now >= self._next_s:
            self._next_s = now + TASKS_EVERY_S
            self._file.write(f"{now:.3f} {len(asyncio.all_tasks())}\n")


class _Waits:
    """How long threads of this process could run and had no processor, as the kernel counts it."""

    def __init__(self) -> None:
        self._own = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._since_s = 0.0
        self._others = 0.0
        """Of the other threads, at some moment in the last OTHERS_EVERY_S."""

    def own_s(self) -> float:
        return int(os.pread(self._own, 100, 0).split()[1]) / 1e9

    def look(self, now_s: float) -> None:
        if now_s - self._since_s > OTHERS_EVERY_S:
            self._since_s, self._others = now_s, self._others_s()

    def others_s(self) -> float:
        """Since then."""
        return self._others_s() - self._others

    def _others_s(self) -> float:
        total = 0
        for thread in Path("/proc/self/task").iterdir():
            try:
                total += int((thread / "schedstat").read_text().split()[1])
            except OSError:
                continue  # it has ended
        return total / 1e9


def _unstarved(run: Callable[[asyncio.Handle], None], waits: _Waits, handle: asyncio.Handle) -> float:
    """Run the callback; how long it ran, and was blocked by something else than a lack of processors."""
    began, cpu, waited = time.monotonic(), time.thread_time(), waits.own_s()
    waits.look(began)
    run(handle)
    took = time.monotonic() - began
    if took <= NOTED_S:
        return took
    cpu, waited = time.thread_time() - cpu, waits.own_s() - waited
    blocked = max(took - cpu - waited, 0.0)
    return cpu + max(blocked - waits.others_s(), 0.0)


def _ran(run: Callable[[asyncio.Handle], None], handle: asyncio.Handle) -> float:
    began = time.thread_time()
    run(handle)
    return time.thread_time() - began


def _name(callback: Any) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(getattr(owner.get_coro(), "__qualname__", owner))
    return str(getattr(callback, "__qualname__", callback))


def install(path: str, everything: bool) -> None:
    file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - open until the process ends
    garbage = _Garbage()
    gc.callbacks.append(garbage)
    run = asyncio.events.Handle._run
    timed = partial(_unstarved, run, _Waits()) if everything else partial(_ran, run)
    tasks = _Tasks(path) if everything else None

    def metered(self: asyncio.Handle) -> None:
        callback, collected = self._callback, garbage.total_s  # type: ignore[attr-defined]
        took = timed(self)
        if took > NOTED_S:
            collecting = garbage.total_s - collected
            file.write(f"{time.monotonic():.6f} {took:.6f} {collecting:.6f} {_name(callback)}\n")
        if tasks is not None:
            tasks.look()

    asyncio.events.Handle._run = metered  # type: ignore[method-assign]


if target := os.environ.get("BASCULE_LOOP_METER"):
    install(target, bool(os.environ.get("BASCULE_LOOP_METER_ALL")))
