"""What came over NATS and cannot be understood: said once, and then counted.

Anyone who reaches the NATS server can send anything to the cluster's own subjects, as often as they like; the log of a
broker must neither hide that nor be filled by it. One line a kind, and then one every ten seconds with the number.
"""

import asyncio
import logging

QUIET_S = 10.0


class CountedLog:
    """A line that may be due as often as others like: said once, and then every ten seconds with the number."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._quiet_until = 0.0
        self._unsaid = 0
        self.total = 0

    def count(self, text: str, number: int = 1) -> None:
        self.total += number
        now = asyncio.get_running_loop().time()
        if now < self._quiet_until:
            self._unsaid += number
            return
        more = f" ({self._unsaid} more since the last such line)" if self._unsaid else ""
        self._logger.warning("%s%s", text, more)
        self._quiet_until, self._unsaid = now + QUIET_S, 0


class GarbageLog(CountedLog):
    """Of one kind of message. `logger` is that of the file it arrives at."""

    def __init__(self, logger: logging.Logger, kind: str) -> None:
        super().__init__(logger)
        self._kind = kind

    def say(self, error: Exception) -> None:
        self.count(f"{self._kind} that cannot be understood is passed over: {error}")
