"""An event loop with virtual time: a sleep of an hour takes no time at all, and the order of events is a function of
the program alone. Nothing on it may wait for a socket or a thread.
"""

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """Every task waits and no timer is set: in real life this would hang for ever."""


class _VirtualSelector(selectors.BaseSelector):
    """Instead of waiting for a file it moves the clock to the next timer."""

    def __init__(self) -> None:
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("every task waits for something that nothing will ever do")
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


class VirtualClock:
    """`ports.Clock` on a virtual loop; `skew_ns` moves the wall clock alone."""

    def __init__(self, loop: VirtualLoop, start_ns: int = 1_700_000_000_000_000_000) -> None:
        self._loop = loop
        self._start_ns = start_ns
        self.skew_ns = 0

    def time_ns(self) -> int:
        return self._start_ns + self.skew_ns + self.monotonic_ns()

    def monotonic_ns(self) -> int:
        return int(self._loop.time() * 1e9)


def run(coroutine: Coroutine[Any, Any, T], loop: VirtualLoop | None = None) -> T:
    """Like asyncio.run, on virtual time."""
    loop = loop or VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(coroutine)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        asyncio.set_event_loop(None)
        loop.close()
