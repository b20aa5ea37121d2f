"""What came over NATS and cannot be understood: said once, and then counted.

Anyone who reaches the NATS server can send anything to the cluster's own subjects, as often as they like; the log of a
broker must neither hide that nor be filled by it. One line a kind, and then one every ten seconds with the number.
"""

import asyncio
import logging

QUIET_S = 10.0


class GarbageLog:
    """Of one kind of message. `logger` is that of the file it arrives at."""

    def __init__(self, logger: logging.Logger, kind: str) -> None:
        self._logger = logger
        self._kind = kind
        self._quiet_until = 0.0
        self._unsaid = 0

    def say(self, error: Exception) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._quiet_until:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more since the last such line)" if self._unsaid else ""
        self._logger.warning("%s that cannot be understood is passed over: %s%s", self._kind, error, more)
        self._quiet_until, self._unsaid = now + QUIET_S, 0
