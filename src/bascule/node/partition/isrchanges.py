"""Changes of the in-sync set, asked for by the leader of a partition until the outcome is known (as Kafka's
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
        self._attention = active_clock

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
            leading.step(ShrinkFailed(other, self._attention.monotonic_ns()))

    async def expand(self, replica: PartitionReplica, other: str) -> None:
        """The leader counts with one that may be in sync for the cluster: if it cannot be had in it is asked out, until
        one of the two is sure. There is no use asking for one that is not alive: the controller would refuse."""
        asked, leading = replica.partition, replica.leading
        if leading is None:
            return
        if all(peer.id != other or peer.leaving for peer in self._peers.alive()):
            leading.step(ExpandFailed(other, False, self._attention.monotonic_ns()))
            return
        client, stream = self._client, replica.stream.name
        while replica.leading is leading and replica.partition.epoch == asked.epoch:
            if await self._was_made(replica, client.expand_isr(stream, asked, other)):
                return
            if await self._was_made(replica, client.shrink_isr(stream, asked, other, lacks=False)):
                leading.step(ExpandFailed(other, True, self._attention.monotonic_ns()))
                return
            await asyncio.sleep(POLL_S)

    async def _was_made(self, replica: PartitionReplica, change: Awaitable[None]) -> bool:
        try:
            await change
        except FailedPrecondition as error:  # something was quicker, and the leader looks again: no news
            logger.debug("%s: the in-sync set stays as it is: %s", replica.name, error)
            return False
        except BasculeError as error:
            logger.info("%s: the in-sync set stays as it is: %s", replica.name, error)
            return False
        except Exception:  # without an answer the leader would wait for one for good, and count with the larger set
            logger.exception("%s: the in-sync set stays as it is", replica.name)
            return False
        return True
