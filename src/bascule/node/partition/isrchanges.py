"""Requests of partition leaders to change the ISR, repeated until the outcome is known (as Kafka's
AlterPartitionManager); and of those whose disk hangs, that another one leads."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine

from bascule.core.metadata.streams import Partition
from bascule.core.partition.leader import AskExpand, AskShrink, ExpandFailed, ShrinkFailed
from bascule.errors import BasculeError, FailedPrecondition
from bascule.node.membership.controllerclient import POLL_S, ControllerClient
from bascule.node.membership.peers import Peers
from bascule.node.partition.ports import PartitionReplica
from bascule.node.replication.feeds import LeaderRole
from bascule.ports import Clock

logger = logging.getLogger(__name__)


class IsrChanges:
    def __init__(self, client: ControllerClient, peers: Peers, active_clock: Clock) -> None:
        self._client = client
        self._peers = peers
        self._active_clock = active_clock

    def ask(self, replica: PartitionReplica, asked: AskShrink | AskExpand) -> Coroutine[object, object, None]:
        """The request names the partition as it is now, when the leader decided: if anything changes the partition
        before it is sent, the leader has dropped it, does not count on its outcome, and it must be refused."""
        leading, partition = replica.leading, replica.partition
        assert leading is not None, "only a leader requests changes of the in-sync set"
        match asked:
            case AskShrink(other, lacks):
                return self._shrink(replica, leading, partition, other, lacks)
            case AskExpand(other):
                return self._expand(replica, leading, partition, other)

    async def hand_on(self, replica: PartitionReplica) -> None:
        logger.error(
            "%s: the disk has stored nothing for longer than a replica may lag, without an error, and the other "
            "replicas in sync wait for it; another one is to lead; check the disk",
            replica.name,
        )
        asked = self._client.change_leader(replica.stream.name, replica.partition)
        await self._was_made(replica, asked, "leader")

    async def _shrink(
        self, replica: PartitionReplica, leading: LeaderRole, partition: Partition, other: str, lacks: bool
    ) -> None:
        asked = self._client.shrink_isr(replica.stream.name, partition, other, lacks)
        if not await self._was_made(replica, asked) and _is_open(replica, leading, partition):
            leading.step(ShrinkFailed(other, self._active_clock.monotonic_ns()))

    async def _expand(self, replica: PartitionReplica, leading: LeaderRole, partition: Partition, other: str) -> None:
        """After a request without an answer the replica may be in the ISR, so the leader waits for its promises. It
        asks the controller to add the replica, then to remove it, until one of the two is confirmed. It does not ask
        for a replica that is not alive: the controller would refuse."""
        if not _is_open(replica, leading, partition):
            return
        if all(peer.id != other or peer.stopping for peer in self._peers.alive()):
            leading.step(ExpandFailed(other, False, self._active_clock.monotonic_ns()))
            return
        client, stream = self._client, replica.stream.name
        while _is_open(replica, leading, partition):
            if await self._was_made(replica, client.expand_isr(stream, partition, other)):
                return
            if await self._was_made(replica, client.shrink_isr(stream, partition, other, lacks=False)):
                if _is_open(replica, leading, partition):
                    leading.step(ExpandFailed(other, True, self._active_clock.monotonic_ns()))
                return
            await asyncio.sleep(POLL_S)

    async def _was_made(self, replica: PartitionReplica, change: Awaitable[None], of: str = "in-sync set") -> bool:
        try:
            await change
        except FailedPrecondition as error:  # the partition changed first, and the leader decides anew
            logger.debug("%s: the change of the %s was not made: %s", replica.name, of, error)
            return False
        except BasculeError as error:
            logger.info("%s: the change of the %s was not made: %s", replica.name, of, error)
            return False
        except Exception:  # otherwise the leader would wait for the outcome forever, with the larger ISR
            logger.exception("%s: the change of the %s was not made", replica.name, of)
            return False
        return True


def _is_open(replica: PartitionReplica, leading: LeaderRole, partition: Partition) -> bool:
    """Whether a request for this epoch of the partition still waits for its outcome: any change resolves it."""
    return replica.leading is leading and replica.partition.epoch == partition.epoch
