"""Logs what a broker waits for, and since when: soon after the reason changes, else every few seconds."""

import logging

from bascule.ports import Clock

logger = logging.getLogger(__name__)

SAY_FROM_S = 1.0
"""Shorter waits are not logged, and changing reasons are not logged more often than this."""
SAY_EVERY_S = 10.0
WARN_FROM_S = 10.0
"""Brokers that start together wait for each other: a longer wait is a warning."""


class Waiting:
    def __init__(self, clock: Clock, what: str) -> None:
        self._clock = clock
        self._what = what
        self._since = clock.monotonic_ns()
        self._said, self._said_at = "", self._since
        self.reason = ""
        """The newest reason; empty before the first."""

    @property
    def text(self) -> str:
        since_s = (self._clock.monotonic_ns() - self._since) / 1e9
        return f"{self._what} for {since_s:.0f} s: {self.reason}"

    def say(self, reason: str) -> None:
        now = self._clock.monotonic_ns()
        due_at = self._said_at + int((SAY_EVERY_S if reason == self._said else SAY_FROM_S) * 1e9)
        self.reason = reason
        if now >= due_at:
            self._said, self._said_at = reason, now
            lasts = now - self._since >= int(WARN_FROM_S * 1e9)
            logger.log(logging.WARNING if lasts else logging.INFO, "%s", self.text)
