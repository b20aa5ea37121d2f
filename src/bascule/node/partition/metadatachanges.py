"""Carries out committed changes of the metadata on this broker, one after the other, in log order (as Kafka's
BrokerMetadataPublisher)."""

import asyncio
import logging
from collections.abc import Iterator

from bascule.core.metadata.state import Change, PartitionsChanged, Rejected, Repeated, StreamCreated, StreamDeleted
from bascule.core.metadata.streams import Stream
from bascule.errors import BasculeError
from bascule.limits import LATE_CHANGES_AT_ONCE, ROLES_SLICE
from bascule.node.partition.manager import ReplicaManager
from bascule.node.partition.replicas import Replicas
from bascule.node.partition.routes import Routes
from bascule.node.runtime.jobs import Jobs

logger = logging.getLogger(__name__)

OPEN_AGAIN_S = 5.0


class ChangeQueue:
    """Changes that were decided, and are not carried out yet."""

    def __init__(self, replicas: Replicas, routes: Routes) -> None:
        self._replicas = replicas
        self._routes = routes
        self._changes: asyncio.Queue[list[Change]] = asyncio.Queue()

    def enqueue(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, StreamDeleted):
                for item in change.stream:
                    if replica := self._replicas.get((change.stream.creation_index, item.id)):
                        replica.on_stream_deleted()
            elif isinstance(change, PartitionsChanged):
                self._routes.restrict(change.stream, change.partitions)
        self._replicas.behind += 1
        self._changes.put_nowait(changes)

    async def get(self) -> list[Change]:
        return await self._changes.get()

    def take_all(self) -> Iterator[list[Change]]:
        while not self._changes.empty():
            yield self._changes.get_nowait()


class MetadataChanges:
    def __init__(self, manager: ReplicaManager, replicas: Replicas, queue: ChangeQueue, jobs: Jobs) -> None:
        self.queue = queue
        self._manager = manager
        self._replicas = replicas
        self._one_done = asyncio.Event()
        self._late = jobs.tasks("a change of the metadata that waits for its disk", LATE_CHANGES_AT_ONCE)

    async def until_carried_out(self) -> None:
        """Returns when every change known by now has been carried out here."""
        while self._replicas.behind:
            self._one_done.clear()
            await self._one_done.wait()

    async def run(self) -> None:
        """This job is vital: a change that is not carried out is a role that no replica takes."""
        carried = 0
        while True:
            changes = await self.queue.get()
            for change in changes:
                try:
                    await self._carry_out(change)
                except (BasculeError, OSError) as error:
                    assert not isinstance(change, Rejected | Repeated), "these change nothing"
                    logger.error("a change of stream %s failed here, and is retried: %s", change.stream.name, error)
                    if not self._late.full:  # else it is carried out with the next change, or at the next start
                        self._late.start(self._carry_out_later(change.stream))
            self._replicas.behind -= 1
            self._one_done.set()
            carried += 1
            if carried % ROLES_SLICE == 0:
                await asyncio.sleep(0)  # nothing above yields to the event loop while the queue is not empty

    async def skip_history(self) -> None:
        """Drop the queued changes: the metadata already contains them, and a past role must not be taken even for a
        moment, for a leader writes. Only deleted streams still have to be erased."""
        for changes in self.queue.take_all():
            for change in changes:
                if isinstance(change, StreamDeleted):
                    await self._manager.erase_after_a_start(change.stream)
            self._replicas.behind -= 1

    async def _carry_out_later(self, stream: Stream) -> None:
        """Retry what could not be opened, with the roles that the metadata gives by then."""
        if present := self._manager.present(stream):
            await self._manager.hand_on_unopened(present)
        await asyncio.sleep(OPEN_AGAIN_S)
        if present := self._manager.present(stream):
            self.queue.enqueue([StreamCreated(present)])

    async def _carry_out(self, change: Change) -> None:
        match change:
            case StreamCreated(stream) if self._manager.present(stream):
                await self._open_and_take_roles(stream, tuple(item.id for item in stream))
            case PartitionsChanged(stream, partitions):
                await self._open_and_take_roles(stream, partitions)
            case StreamDeleted(stream):
                await self._manager.erase(stream)

    async def _open_and_take_roles(self, stream: Stream, partitions: tuple[int, ...]) -> None:
        """A partition that cannot be opened or closed does not keep the others from their roles."""
        failure: BasculeError | OSError | None = None
        if present := self._manager.present(stream):
            try:
                await self._manager.open([present], partitions)
            except (BasculeError, OSError) as error:
                failure = error
        if present := self._manager.present(stream):
            try:
                await self._manager.close_paused(present, partitions)
            except (BasculeError, OSError) as error:
                failure = failure or error
        await self._manager.take_roles(stream, partitions)
        if failure is not None:
            raise failure
