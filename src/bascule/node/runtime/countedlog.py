"""A log line for an event that others can cause without limit: written once, and then at most every ten seconds with
the number of lines left out. Anyone who reaches the NATS server can send anything; the log of a broker must neither
hide that nor be filled by it. The count is a metric, too.
"""

import asyncio
import logging

from bascule.node.runtime.metrics import Counter

QUIET_S = 10.0


class CountedLog:
    def __init__(self, logger: logging.Logger, counter: Counter, value: str = "") -> None:
        """`value` of the label that the counter has, if it has one."""
        self._logger = logger
        self._counter = counter
        self._value = value
        self._quiet_until = 0.0
        self._not_logged = 0
        self.total = 0

    def count(self, text: str, number: int = 1) -> None:
        self.total += number
        self._counter.add(self._value, number)
        now = asyncio.get_running_loop().time()
        if now < self._quiet_until:
            self._not_logged += number
            return
        more = f" ({self._not_logged} more since the last such line)" if self._not_logged else ""
        self._logger.warning("%s%s", text, more)
        self._quiet_until, self._not_logged = now + QUIET_S, 0
