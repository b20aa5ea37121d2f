"""Paused partitions are open for replication while a live replica of them is not in sync.

During a pause brokers die, stop, lose their disks, come back and are replaced as at other times, and a replica that has
left the in-sync set must come back into it: else it has fewer and fewer members, and at last nobody. So the brokers
that hold such a partition open it: its leader feeds the others, takes no message and keeps no subscription, and no
client reads it. They close it when all live replicas are in sync.

Each broker decides this for itself, by the metadata and the heartbeats, for every change of the partition when it
carries it out (`ReplicaManager`), and here for all partitions when another broker comes or goes.
"""

import asyncio

from bascule.core.metadata.state import PartitionsChanged
from bascule.limits import WATCH_SLICE
from bascule.node.partition.manager import ReplicaManager
from bascule.node.partition.metadatachanges import ChangeQueue
from bascule.node.partition.replicas import Replicas

LOOK_EVERY_S = 1.0


class PausedReplication:
    def __init__(self, manager: ReplicaManager, replicas: Replicas, queue: ChangeQueue) -> None:
        self._manager = manager
        self._replicas = replicas
        self._queue = queue

    async def run(self) -> None:
        index, before = -1, dict[str, None]()
        while True:
            alive, changed = self._manager.alive(), self._replicas.metadata_index
            if (changed, alive) != (index, before) and not self._replicas.behind:
                await self._look(alive, again=alive != before)
                index, before = changed, alive
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self, alive: dict[str, None], again: bool) -> None:
        """What is to be opened or closed is carried out in the queue of the metadata's changes, as one of them. Not
        while earlier changes wait there: the metadata is ahead of what is open then."""
        looked = 0
        for stream in list(self._replicas.streams()):
            wrong = []
            for item in stream:
                looked += 1
                if looked % WATCH_SLICE == 0:
                    await asyncio.sleep(0)
                if item.paused and self._manager.is_misplaced(stream, item, alive, again):
                    wrong.append(item.id)
            if wrong:
                self._queue.enqueue([PartitionsChanged(stream, tuple(wrong))])
