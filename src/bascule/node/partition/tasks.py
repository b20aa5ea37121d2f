"""Work in the background that ends with its owner, and whose errors are never lost.

asyncio says that a task died when the task is collected, which is late, or never while somebody holds it. Here it is
said at once; and where a broker could not do without the work, it ends with the reason instead of going on as if all
were well.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine

from bascule.errors import BasculeError

logger = logging.getLogger(__name__)

Work = Coroutine[object, object, None]


class Tasks:
    def __init__(self, on_fatal: Callable[[str], None]) -> None:
        self._on_fatal = on_fatal
        self._running: dict[asyncio.Task[None], None] = {}

    def spawn(self, work: Work) -> asyncio.Task[None]:
        return self._start(work, "")

    def keep(self, work: Work, what: str) -> asyncio.Task[None]:
        """Work that a broker cannot do without: `what` it does, for whoever reads why the broker ended."""
        return self._start(work, what)

    async def end(self) -> None:
        """Returns when all of it has ended."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _start(self, work: Work, what: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(lambda done: self._ended(done, what))
        return task

    def _ended(self, task: asyncio.Task[None], what: str) -> None:
        self._running.pop(task, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        ours = not isinstance(error, BasculeError | OSError)  # the others say by themselves what is wrong
        logger.error("%s ended: %s", what or "work in the background", error, exc_info=error if ours else None)
        if what:
            self._on_fatal(f"{what} ended unexpectedly: {error!r}; start the broker again, and report this")
