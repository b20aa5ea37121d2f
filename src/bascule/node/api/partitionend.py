"""Where a partition ends: its leader knows, and no other replica.

The log of a replica that follows, or has led, may lack what is committed, and may have records at its end that will be
truncated. So the leader says whatever is final for a subscription, that nothing comes any more or that its last message
was sent: this broker, once the controller has confirmed that it leads, or another one, which is asked.
"""

import asyncio
from typing import NamedTuple

from bascule.errors import Unavailable
from bascule.node.api.leadership import confirm_leads
from bascule.node.controller.brokeradmin import BrokerAdmin
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.peers import SESSION_S
from bascule.node.partition.replica import Replica
from bascule.node.partition.replicas import Replicas

CAUGHT_UP_S = 5.0
"""How long a replica that lags may take until it has what was committed when it was asked."""
ASK_AGAIN_S = 0.2
"""After a leader did not answer, or does not know yet what is committed."""


class LeaderEnd(NamedTuple):
    """The log of a leader that was not replaced when it was asked."""

    end: int
    hw_end: int
    established: bool
    """Everything that its predecessors had committed is below `hw_end`."""
    readonly: bool
    """It stores nothing."""

    @property
    def is_last(self) -> bool:
        """For as long as the partition is read-only it ends there, whoever leads: while the leader is not established,
        a replica in sync may have more, and lead next."""
        return self.readonly and self.established


class PartitionEnds:
    def __init__(self, cluster: Cluster, replicas: Replicas, brokers: BrokerAdmin) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._brokers = brokers

    async def of(self, replica: Replica) -> LeaderEnd | None:
        """By the leader of its partition, which may be this broker; None if nobody leads it, or does not answer. Raises
        Unavailable if the controller does not answer in time."""
        if replica.leading is not None:
            if not await confirm_leads(self._cluster, replica):
                return None
            leading = replica.leading
            return LeaderEnd(replica.log.end, replica.hw_end, leading.established, leading.readonly)
        await self._cluster.current(SESSION_S)
        item = self._replicas.partition(replica)
        if item is None or not item.leader:
            return None
        answer = await self._brokers.positions(item.leader, replica.stream.name, [item.id])
        for each in answer.positions if answer is not None else ():
            if each.leads and each.leaderEpoch == item.leader_epoch:
                return LeaderEnd(each.end, each.hwEnd, each.established, each.readonly)
        return None

    async def caught_up(self, replica: Replica) -> LeaderEnd:
        """Of a replica that follows: returns when it shows everything that was committed before, and a last end is of
        that moment: before, the partition may have been writable. Raises Unavailable if that takes longer."""
        log = replica.log
        try:
            async with asyncio.timeout(CAUGHT_UP_S):
                while True:
                    while (found := await self.of(replica)) is None or not found.established:
                        await asyncio.sleep(ASK_AGAIN_S)
                    lags = log.visible_end < found.hw_end
                    while log.visible_end < found.hw_end and log.waiters.ended is None:
                        await log.waiters.wait()
                    if not lags or not found.is_last or log.waiters.ended is not None:
                        return found
        except TimeoutError:
            raise Unavailable(
                f"{replica.name}: this replica does not have everything that is committed, or its leader cannot be "
                "asked; try again, or read from the leader"
            ) from None
