"""Logs are text on stderr, one line for each event: time in UTC, level, logger, message.

Line ends inside a message or a traceback are written as \\n, so that an event is one line for grep and for
whatever collects the logs. Raft's details have a switch of their own; its warnings always show.
"""

import logging
import sys
import time
from typing import IO

from bascule.node.config.tree import LoggingConfig

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING, "error": logging.ERROR}
RAFT_LOGGER = "bascule.node.membership.raft"


class OneLineFormatter(logging.Formatter):
    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-5s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\r", "\\r").replace("\n", "\\n")


def set_up(config: LoggingConfig, stream: IO[str] | None = None) -> None:
    logging.addLevelName(logging.WARNING, "WARN")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(OneLineFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    # Of other libraries only warnings are logged.
    root.setLevel(max(LEVELS[config.level], logging.WARNING))
    logging.getLogger("bascule").setLevel(LEVELS[config.level])
    quiet = logging.NOTSET if config.raft else max(LEVELS[config.level], logging.WARNING)
    logging.getLogger(RAFT_LOGGER).setLevel(quiet)
