"""Once a second: which followers lag, and which partitions are below min ISR."""

import asyncio
import logging

from bascule.limits import WATCH_SLICE
from bascule.node.partition.environment import Environment
from bascule.node.partition.replicas import Replicas

logger = logging.getLogger(__name__)

WATCH_EVERY_S = 1.0
NAMED_BELOW = 5
"""Partitions below min ISR that one line names."""


class LagWatch:
    def __init__(self, environment: Environment, replicas: Replicas) -> None:
        self._environment = environment
        self._replicas = replicas
        self._said_below = 0

    async def look(self) -> None:
        """A follower that sends nothing is only found by a timer."""
        now = self._environment.active_clock.monotonic_ns()
        below: list[str] = []
        for number, replica in enumerate(list(self._replicas.values())):
            if number % WATCH_SLICE == WATCH_SLICE - 1:
                await asyncio.sleep(0)
            leading = replica.leading
            if leading is None:
                continue
            if len(replica.partition.replicas) > 1:
                leading.watch(now)
            if leading.below_min_isr:
                below.append(replica.name)
        self._say_below(below)

    def _say_below(self, below: list[str]) -> None:
        """Log one line for all partitions, and another when their number changes: there may be thousands."""
        if len(below) == self._said_below:
            return
        self._said_below = len(below)
        if below:
            logger.error(
                "%d partitions that this broker leads are below min ISR (%s): nothing is committed in them until more "
                "replicas are in sync; start the brokers that hold their replicas",
                len(below),
                ", ".join(below[:NAMED_BELOW]) + (", …" if len(below) > NAMED_BELOW else ""),
            )
        else:
            logger.warning("all partitions that this broker leads have enough replicas in sync again")
