"""Moved to `node.calls.calls` and `node.runtime.countedlog`."""

import logging

from bascule.node.runtime.countedlog import CountedLog

__all__ = ["CountedLog", "GarbageLog"]


class GarbageLog(CountedLog):
    """Of one kind of message. `logger` is that of the file it arrives at."""

    def __init__(self, logger: logging.Logger, kind: str) -> None:
        super().__init__(logger)
        self._kind = kind

    def say(self, error: Exception) -> None:
        self.count(f"{self._kind} that cannot be decoded is ignored: {error}")
