"""The brokers tell each other how far their logs are cleared, so that tombstones may go in streams with several
replicas (`core.metadata.tombstones`).

One command for all partitions of a broker whose logs are cleared further than the metadata has it. A broker of an older
release would end at this command: it is sent where tombstones may go already, or when all members have said in their
heartbeats that they know it.
"""

import asyncio
import logging

from bascule.core.metadata.commands import ClearedEnd
from bascule.core.metadata.tombstones import is_used
from bascule.errors import BasculeError
from bascule.limits import TOLD_CLEARED_ENDS, WATCH_SLICE
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.controllerclient import DEFAULT_TIMEOUT_S, ControllerClient
from bascule.node.partition.replicas import Replicas

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0


class ClearedEnds:
    def __init__(self, replicas: Replicas, cluster: Cluster, client: ControllerClient) -> None:
        self._replicas = replicas
        self._cluster = cluster
        self._client = client

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            await self.tell()

    async def tell(self) -> None:
        all_know = self._cluster.peers.all_know_cleared(self._cluster.raft.membership.everyone)
        ends: list[ClearedEnd] = []
        for number, replica in enumerate(list(self._replicas.values())):
            if number % WATCH_SLICE == WATCH_SLICE - 1:
                await asyncio.sleep(0)
            if not replica.has_role:
                continue
            try:
                await replica.cleared.count_from_now()
            except OSError as error:
                logger.warning("%s: how far it is cleared cannot be stored: %s", replica.name, error)
                continue
            end = replica.cleared.untold()
            if end is not None and (all_know or is_used(replica.partition)):
                ends.append(end)
        for first in range(0, len(ends), TOLD_CLEARED_ENDS):
            await self._tell(tuple(ends[first : first + TOLD_CLEARED_ENDS]))

    async def _tell(self, ends: tuple[ClearedEnd, ...]) -> None:
        try:
            await self._client.tell_cleared(ends, DEFAULT_TIMEOUT_S)
        except BasculeError as error:
            logger.info("how far the logs of %d partitions are cleared is not told yet: %s", len(ends), error)
