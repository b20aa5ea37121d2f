"""Reopens a log that cannot be written, again and again until it can.

If the leader's log fails, followers may have records of its epoch that it lost: it must not write in this epoch again,
and another replica may lead meanwhile. So it asks the controller for another leader, or a new epoch, before and after
it reopens the log.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Protocol

from bascule.core.partition.roles import Role
from bascule.errors import BasculeError, LogError
from bascule.node.partition.leading import Leading
from bascule.node.partition.ports import PartitionBroker, PartitionReplica
from bascule.node.partition.repair import Repair
from bascule.node.partition.roles import Roles
from bascule.node.partition.verification import Verification

logger = logging.getLogger(__name__)

REOPEN_FIRST_S = 1.0
REOPEN_MAX_S = 30.0


class ReopenedReplica(PartitionReplica, Protocol):
    @property
    def verification(self) -> Verification: ...

    @property
    def replicated(self) -> bool:
        """Other brokers have replicas too."""

    @property
    def others_in_sync(self) -> bool:
        """Another replica has everything that was promised here."""

    def spawn(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Work that ends with the replica."""


class Reopening:
    def __init__(self, broker: PartitionBroker, replica: ReopenedReplica, roles: Roles, repair: Repair) -> None:
        self.under_way = False
        self._broker = broker
        self._replica = replica
        self._roles = roles
        self._repair = repair
        self._led: Leading | None = None
        """The leading role when the log last failed."""

    def begin(self) -> None:
        """The log has failed. It may have failed before under another role, and not be reopened yet."""
        self._led = self._roles.leading or self._led
        if not self.under_way:
            self.under_way = True
            self._replica.spawn(self._run())

    async def _run(self) -> None:
        replica, log = self._replica, self._replica.log
        await self._step_down()
        delay_s = REOPEN_FIRST_S
        while True:
            await asyncio.sleep(delay_s)
            if self._is_pointless():
                self.under_way = False
                return
            try:
                await log.reopen(heals=replica.others_in_sync)
                delay_s = REOPEN_FIRST_S
                if await self._step_down() and log.failed is None:
                    break
            except (LogError, OSError) as error:
                logger.debug("%s still takes no writes: %s", replica.name, error)
                delay_s = min(REOPEN_MAX_S, delay_s * 2)
        self.under_way = False
        self._led = None
        if log.damaged:  # files were removed
            if replica.replicated:
                replica.verification.withdraw()
            elif replica.verification.verified:
                replica.verification.confirm()
            self._repair.start()
        if self._is_pointless():
            return
        self._roles.reopened()
        self._broker.writable_changed(replica.stream.name, replica.partition.id)
        logger.warning("%s takes writes again, from offset %d on", replica.name, log.end)

    def _is_pointless(self) -> bool:
        """An assertion failed: this replica has no role until another start."""
        return self._roles.role is Role.FAILED

    async def _step_down(self) -> bool:
        """True if the leadership in which the log failed has ended, or there are no followers."""
        if self._led is None or self._roles.leading is not self._led or not self._replica.replicated:
            return True
        try:
            await self._broker.step_down(self._replica)
        except BasculeError as error:
            logger.warning("%s: its log failed, and it has no new leader yet: %s", self._replica.name, error)
        return False
