"""Idle partitions are paused by the brokers that lead them (`streams.auto.pause.time`).

A partition is idle when no message has come since this broker looked at it first as its leader, for as long as the
setting says. How much came is compared at each look, by a clock that only goes forward: a jump of the wall clock pauses
nothing. A partition is not paused before what it has is committed, and all its live replicas are in sync.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import NamedTuple

from bascule.core.metadata import pausing
from bascule.core.metadata.streams import Key
from bascule.errors import BasculeError
from bascule.limits import PAUSES_AT_ONCE, WATCH_SLICE
from bascule.node.membership.controllerclient import ControllerClient
from bascule.node.partition.environment import Environment
from bascule.node.partition.replica import Replica
from bascule.node.partition.replicas import Replicas

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
SOONEST_LOOK_S = 0.02
LOOKS = 4
"""How often partitions are looked at within the time after which an idle one is paused."""


class Idle(NamedTuple):
    """Since when a partition has been as it is."""

    leader_epoch: int
    end: int
    since: int


class AutoPause:
    def __init__(
        self,
        environment: Environment,
        replicas: Replicas,
        client: ControllerClient,
        alive: Callable[[], Collection[str]],
    ) -> None:
        self._clock = environment.active_clock
        self._settings = environment.settings
        self._replicas = replicas
        self._client = client
        self._alive = alive
        self._idle: dict[Key, Idle] = {}
        self._pauses = environment.jobs.tasks("the pause of an idle partition", PAUSES_AT_ONCE)

    async def run(self) -> None:
        while True:
            shortest_s = LOOK_EVERY_S * LOOKS
            seen: dict[Key, Idle] = {}
            alive = self._alive()
            wanted = any(map(self._settings.auto_pause_ns_of, self._replicas.streams()))
            for number, replica in enumerate(list(self._replicas.values()) if wanted else ()):
                if number % WATCH_SLICE == WATCH_SLICE - 1:
                    await asyncio.sleep(0)
                after_ns = self._settings.auto_pause_ns_of(replica.stream)
                if replica.leading is None or replica.only_replicates or not after_ns:
                    continue
                shortest_s = min(shortest_s, after_ns / 1e9)
                seen[replica.key] = self._look(replica, after_ns, alive)
            self._idle = seen
            await asyncio.sleep(max(shortest_s / LOOKS, SOONEST_LOOK_S))

    def _look(self, replica: Replica, after_ns: int, alive: Collection[str]) -> Idle:
        now, end, epoch = self._clock.monotonic_ns(), replica.log.end, replica.partition.leader_epoch
        idle = self._idle.get(replica.key)
        if idle is None or (idle.leader_epoch, idle.end) != (epoch, end):
            return Idle(epoch, end, now)
        if replica.subscribers and self._settings.defaults.auto_pause_spares_subscribers(replica.stream.config):
            return idle
        if replica.log.compaction.running:
            return idle  # the pass would begin anew after each pause, and may never end
        if replica.hw_end < end or pausing.replicates(replica.partition, alive):
            return idle  # it is being replicated
        if now - idle.since > after_ns and not self._pauses.full:
            self._pauses.start(self._pause(replica))
            return Idle(epoch, end, now)  # if it cannot be paused now, it is tried after as long again
        return idle

    async def _pause(self, replica: Replica) -> None:
        try:
            await self._client.pause_idle(replica.stream.name, replica.partition)
            logger.info("%s is paused: no message has come for its streams.auto.pause.time", replica.name)
        except BasculeError as error:
            logger.info("%s is idle, and is not paused: %s", replica.name, error)
