"""Once a second: which followers lag, whose in-sync sets have changed, and which partitions are below min ISR.

What is logged about a partition's in-sync set is logged here, one line for all partitions: a broker that dies changes
thousands of them at once."""

import asyncio
import logging

from bascule.limits import WATCH_SLICE
from bascule.node.partition.environment import Environment
from bascule.node.partition.replicas import Replicas

logger = logging.getLogger(__name__)

WATCH_EVERY_S = 1.0
NAMED = 5
"""Partitions that one line names."""


class LagWatch:
    def __init__(self, environment: Environment, replicas: Replicas) -> None:
        self._environment = environment
        self._replicas = replicas
        self._said_below: frozenset[str] = frozenset()

    async def look(self) -> None:
        """A follower that sends nothing is only found by a timer."""
        now = self._environment.active_clock.monotonic_ns()
        lagging, changed, below = list[str](), list[str](), list[str]()
        for number, replica in enumerate(list(self._replicas.values())):
            if number % WATCH_SLICE == WATCH_SLICE - 1:
                await asyncio.sleep(0)
            leading = replica.leading
            if leading is None:
                continue
            if len(replica.partition.replicas) > 1:
                leading.watch(now)
                if asked_out := leading.asked_out():
                    lagging.append(asked_out)
            if described := leading.changed_isr():
                changed.append(described)
            if leading.below_min_isr:
                below.append(replica.name)
        if lagging:
            logger.warning(
                "replicas that lag are to leave the in-sync sets of %d partitions: %s",
                len(lagging),
                first(lagging, "; "),
            )
        if changed:
            logger.info("the in-sync sets of %d partitions have changed: %s", len(changed), first(changed, "; "))
        self._say_below(below)

    def _say_below(self, below: list[str]) -> None:
        if self._said_below == frozenset(below):
            return
        self._said_below = frozenset(below)
        if below:
            logger.error(
                "%d partitions that this broker leads are below min ISR (%s): nothing is committed in them until more "
                "replicas are in sync; start the brokers that hold their replicas",
                len(below),
                first(below),
            )
        else:
            logger.warning("all partitions that this broker leads have enough replicas in sync again")


def first(described: list[str], separator: str = ", ") -> str:
    return separator.join([*described[:NAMED], *(["…"] if len(described) > NAMED else [])])
