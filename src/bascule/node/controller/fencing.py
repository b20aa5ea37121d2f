"""Brokers whose session has expired are fenced: the metadata records that they are dead, and their leaderships go to
others. The record is proposed until it is made or another broker is the controller. A partition whose whole ISR was
dead gets a leader when the first member of it is back. Consumer groups get another coordinator with the same record.
"""

import asyncio
import logging

from bascule.core.metadata.commands import BrokerDied
from bascule.errors import BasculeError
from bascule.limits import FENCINGS_AT_ONCE
from bascule.node.controller.livebrokers import LiveBrokers
from bascule.node.controller.proposals import Proposals
from bascule.node.membership.peers import HEARTBEAT_S, SESSION_S
from bascule.node.runtime.jobs import Jobs
from bascule.ports import Clock

logger = logging.getLogger(__name__)

RESCUE_EVERY_S = 0.5


class Fencing:
    def __init__(self, proposals: Proposals, live: LiveBrokers, clock: Clock, jobs: Jobs) -> None:
        self._proposals = proposals
        self._live = live
        self._clock = clock
        self._next_rescue_at = 0
        self._fencings = jobs.tasks("the fencing of a broker", FENCINGS_AT_ONCE)

    def fence_expired(self) -> None:
        for broker in self._live.expired():
            if broker in self._live.stopping:
                logger.info("broker %s has stopped, as it announced", broker)
            else:
                logger.warning(
                    "broker %s has sent no heartbeat for %.1f s: it is fenced, and its leaderships go to others",
                    broker,
                    SESSION_S,
                )
            self._live.fencing[broker] = None
            self.begin(broker)

    def rescue(self) -> None:
        """Elect a leader for partitions whose whole ISR was dead, when the first replica of it is back, and a
        coordinator for consumer groups whose coordinator is dead or not a member any more."""
        now, staying = self._clock.monotonic_ns(), self._live.staying()
        if now < self._next_rescue_at:
            return
        groups = self._proposals.metadata.groups.values()
        gone = dict.fromkeys(group.coordinator for group in groups if group.coordinator not in staying)
        if len(staying) < len(self._proposals.raft.membership.everyone):
            gone.update(dict.fromkeys(self._orphaned_by(staying)))
        elif not gone:
            return
        self._next_rescue_at = now + int(RESCUE_EVERY_S * 1e9)
        for broker in gone:
            if not self._live.alive(broker):
                self.begin(broker)

    def begin(self, broker: str) -> None:
        if not self._fencings.full:  # else `rescue` moves its leaderships later
            self._fencings.start(self._fence(broker))

    def _orphaned_by(self, alive: tuple[str, ...]) -> list[str]:
        """Dead leaders of partitions of which a replica in sync or eligible is alive. And dead brokers in sync with a
        leader that is alive, and waits for them: they came into the ISR while nobody led (`altering.expansions`)."""
        there = (*alive, *self._live.fencing)
        gone: dict[str, None] = {}
        for stream in self._proposals.metadata.streams.values():
            for item in stream:
                if item.leader in alive:
                    gone.update({each: None for each in item.isr if each not in there})
                elif any(replica in alive for replica in item.complete):
                    gone[item.leader] = None
        return [broker for broker in gone if broker]

    async def _fence(self, broker: str) -> None:
        """Retries until the fencing is committed, or another broker is the controller: until then the partitions of the
        dead broker have no leader."""
        self._live.fencing[broker] = None
        try:
            while self._live.active:
                try:
                    await self._proposals.submit(BrokerDied(broker))
                    return
                except BasculeError as error:
                    logger.warning("the fencing of broker %s is not committed yet, and is retried: %s", broker, error)
                    await asyncio.sleep(HEARTBEAT_S)
        finally:
            self._live.fencing.pop(broker, None)
