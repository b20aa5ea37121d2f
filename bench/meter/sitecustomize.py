"""How long callbacks block the event loop of a broker. The interpreter loads this into its process, because this folder
is on its PYTHONPATH. Processor time of the loop's thread, not wall time: the machine is shared.

Every callback that takes longer than `NOTED_S` is a line in the file that BASCULE_LOOP_METER names: when it ended on
the system's monotonic clock, how long it took, how much of that was garbage collection, and what it was.
"""

import asyncio
import asyncio.events
import gc
import os
import time
from typing import Any

NOTED_S = 0.005


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


def _name(callback: Any) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(getattr(owner.get_coro(), "__qualname__", owner))
    return str(getattr(callback, "__qualname__", callback))


def install(path: str) -> None:
    file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 - open until the process ends
    garbage = _Garbage()
    gc.callbacks.append(garbage)
    run = asyncio.events.Handle._run

    def metered(self: asyncio.Handle) -> None:
        callback, collected, began = self._callback, garbage.total_s, time.thread_time()  # type: ignore[attr-defined]
        run(self)
        took = time.thread_time() - began
        if took > NOTED_S:
            collecting = garbage.total_s - collected
            file.write(f"{time.monotonic():.6f} {took:.6f} {collecting:.6f} {_name(callback)}\n")

    asyncio.events.Handle._run = metered  # type: ignore[method-assign]


if target := os.environ.get("BASCULE_LOOP_METER"):
    install(target)
