"""How long callbacks block the event loop of a broker. The interpreter loads this into its process, because this folder
is on its PYTHONPATH. Processor time of the loop's thread, not wall time: the machine is shared.

Every callback that takes longer than `NOTED_S` is a line in the file that BASCULE_LOOP_METER names: when it ended on
the system's monotonic clock, how long it took, how much of that was garbage collection, and what it was.

With BASCULE_LOOP_METER_ALL the time counts too in which a callback is blocked, unless the machine lacks processors:
then its thread waits for one, or for another thread of this process that waits, and nobody can tell how long. A second
file, `.tasks`, has how many tasks there are.
"""

import asyncio
import asyncio.events
import gc
import os
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

NOTED_S = 0.005
TASKS_EVERY_S = 2.0
MOST_WAITING = 20.0


class _Collections:
    """Processor time that the garbage collector took."""

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


def _lacks_processors() -> bool:
    """As the kernel has it of the last ten seconds: whether something could run and had no processor, for more than
    MOST_WAITING percent of the time."""
    try:
        return float(re.findall(r"some avg10=([\d.]+)", Path("/proc/pressure/cpu").read_text())[0]) > MOST_WAITING
    except (OSError, IndexError):
        return True


def _blocked_too(run: Callable[[asyncio.Handle], None], handle: asyncio.Handle) -> float:
    began, cpu = time.monotonic(), time.thread_time()
    run(handle)
    took = time.monotonic() - began
    return time.thread_time() - cpu if took > NOTED_S and _lacks_processors() else took


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
    collections = _Collections()
    gc.callbacks.append(collections)
    run = asyncio.events.Handle._run
    timed = partial(_blocked_too, run) if everything else partial(_ran, run)
    tasks = _Tasks(path) if everything else None

    def metered(self: asyncio.Handle) -> None:
        callback, collected = self._callback, collections.total_s  # type: ignore[attr-defined]
        took = timed(self)
        if took > NOTED_S:
            collecting = collections.total_s - collected
            file.write(f"{time.monotonic():.6f} {took:.6f} {collecting:.6f} {_name(callback)}\n")
        if tasks is not None:
            tasks.look()

    asyncio.events.Handle._run = metered  # type: ignore[method-assign]


if target := os.environ.get("BASCULE_LOOP_METER"):
    install(target, bool(os.environ.get("BASCULE_LOOP_METER_ALL")))
