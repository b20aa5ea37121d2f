"""Opens partitions when a broker starts or a stream is created, a bounded number at a time.

A broker may have ten thousand. It logs its progress once a second and one line at the end, not one line for each.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from bascule.core.metadata.streams import Partition, Stream
from bascule.errors import BasculeError
from bascule.node.partition.environment import Environment
from bascule.node.partition.ports import PartitionBroker
from bascule.node.partition.replica import Replica

logger = logging.getLogger(__name__)

OPEN_AT_ONCE = 16
"""Each may hold a piece of its log in memory while it is verified."""
PROGRESS_NS = 1_000_000_000


class Manager(PartitionBroker, Protocol):
    """The manager of replicas, as it is told of those that are open."""

    def add(self, replica: Replica) -> None: ...

    def not_opened(self, stream: Stream, partition: Partition, reason: str) -> None: ...


class Opening:
    def __init__(
        self,
        environment: Environment,
        manager: Manager,
        partitions: Sequence[tuple[Stream, Partition]],
    ) -> None:
        self._environment = environment
        self._manager = manager
        self._count = len(partitions)
        self._waiting = iter(partitions)
        self._done = 0
        self._failed: list[BaseException] = []
        self._began = self._said_at = environment.ports.clock.monotonic_ns()

    async def run(self) -> None:
        """Opens every partition that can be opened. Raises the first error if some could not."""
        await asyncio.gather(*(self._work() for _ in range(min(OPEN_AT_ONCE, self._count))))
        took_ns = self._environment.ports.clock.monotonic_ns() - self._began
        if took_ns >= PROGRESS_NS:
            logger.info("%d partitions opened in %.1f s", self._count - len(self._failed), took_ns / 1e9)
        if self._failed:
            raise self._failed[0]

    async def _work(self) -> None:
        for stream, partition in self._waiting:
            try:
                replica = Replica(self._environment, self._manager, stream, partition)
                await replica.open()
                self._manager.add(replica)
            except (BasculeError, OSError) as error:
                self._failed.append(error)
                self._manager.not_opened(stream, partition, str(error))
            except Exception as error:  # a bug, in this partition: the others are opened
                where = f"the opening of {stream.name}/{partition.id}"
                consequence = "this broker has no role in it; restart this broker, and report this"
                self._environment.jobs.note_failure(where, error, consequence)
                self._manager.not_opened(stream, partition, repr(error))
            self._done += 1
            self._say()

    def _say(self) -> None:
        now = self._environment.ports.clock.monotonic_ns()
        if now - self._said_at >= PROGRESS_NS and self._done < self._count:
            self._said_at = now
            logger.info("opening partitions: %d of %d", self._done, self._count)
