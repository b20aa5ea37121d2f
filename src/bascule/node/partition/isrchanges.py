"""Requests of partition leaders to change the ISR, repeated until the outcome is known (as Kafka's
AlterPartitionManager)."""

import asyncio
import logging
from collections.abc import Awaitable

from bascule.core.partition.leader import AskExpand, AskShrink, ExpandFailed, ShrinkFailed
from bascule.errors import BasculeError, FailedPrecondition
from bascule.node.membership.controllerclient import POLL_S, ControllerClient
from bascule.node.membership.peers import Peers
from bascule.node.partition.ports import PartitionReplica
from bascule.ports import Clock

logger = logging.getLogger(__name__)


class IsrChanges:
    def __init__(self, client: ControllerClient, peers: Peers, active_clock: Clock) -> None:
        self._client = client
        self._peers = peers
        self._active_clock = active_clock

    async def ask(self, replica: PartitionReplica, asked: AskShrink | AskExpand) -> None:
        match asked:
            case AskShrink(other, lacks):
                await self.shrink(replica, other, lacks)
            case AskExpand(other):
                await self.expand(replica, other)

    async def shrink(self, replica: PartitionReplica, other: str, lacks: bool) -> None:
        leading = replica.leading
        asked = self._client.shrink_isr(replica.stream.name, replica.partition, other, lacks)
        if not await self._was_made(replica, asked) and leading is not None:
            leading.step(ShrinkFailed(other, self._active_clock.monotonic_ns()))

    async def expand(self, replica: PartitionReplica, other: str) -> None:
        """After a request without an answer the replica may be in the ISR, so the leader waits for its promises. It
        asks the controller to add the replica, then to remove it, until one of the two is confirmed. It does not ask
        for a replica that is not alive: the controller would refuse."""
        asked, leading = replica.partition, replica.leading
        if leading is None:
            return
        if all(peer.id != other or peer.stopping for peer in self._peers.alive()):
            leading.step(ExpandFailed(other, False, self._active_clock.monotonic_ns()))
            return
        client, stream = self._client, replica.stream.name
        while replica.leading is leading and replica.partition.epoch == asked.epoch:
            if await self._was_made(replica, client.expand_isr(stream, asked, other)):
                return
            if await self._was_made(replica, client.shrink_isr(stream, asked, other, lacks=False)):
                leading.step(ExpandFailed(other, True, self._active_clock.monotonic_ns()))
                return
            await asyncio.sleep(POLL_S)

    async def _was_made(self, replica: PartitionReplica, change: Awaitable[None]) -> bool:
        try:
            await change
        except FailedPrecondition as error:  # the partition changed first, and the leader decides anew
            logger.debug("%s: the in-sync set stays as it is: %s", replica.name, error)
            return False
        except BasculeError as error:
            logger.info("%s: the in-sync set stays as it is: %s", replica.name, error)
            return False
        except Exception:  # otherwise the leader would wait for the outcome forever, with the larger ISR
            logger.exception("%s: the in-sync set stays as it is", replica.name)
            return False
        return True
