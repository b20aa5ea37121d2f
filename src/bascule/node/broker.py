"""One broker: its metadata, the partitions it leads, and the routes publishes take. Knows no socket of its own: the
gRPC server calls `api`, NATS comes through the Bus, files through the Disk. So the simulator runs all of this.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from bascule.core.metadata.commands import Command, CreateStream, DeleteStream
from bascule.core.metadata.placement import place
from bascule.core.metadata.state import Change, PartitionsChanged, StreamCreated, StreamDeleted
from bascule.core.metadata.streams import Partition, Stream, StreamConfig
from bascule.errors import BusUnavailable, Internal, InvalidArgument
from bascule.node.environment import Environment
from bascule.node.metadata import MetadataStore
from bascule.node.partition import PartitionDriver, stream_folder
from bascule.node.publish import Publisher
from bascule.node.routes import Routes

logger = logging.getLogger(__name__)

OPEN_AT_ONCE = 8
"""Partitions opened together at start: each may scan its active segment."""


@dataclass(frozen=True, slots=True)
class NewStream:
    """A stream as a client asked for it, names and numbers checked already."""

    name: str
    subject: str
    group: str
    partitions: int
    replication_factor: int
    config: StreamConfig


class Broker:
    def __init__(self, environment: Environment, store: MetadataStore) -> None:
        self.environment = replace(environment, on_writable=self._on_writable)
        self.store = store
        self.routes = Routes()
        self.publisher = Publisher(self.environment, self.routes, self._refusal)
        self._drivers: dict[tuple[str, int], PartitionDriver] = {}
        self._changing = asyncio.Lock()
        self._changes: dict[asyncio.Task[None], None] = {}
        self.stopping = False

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open every partition this broker leads, then listen. Serving may begin when this returns."""
        await self._set_strays_aside()
        self.environment.inboxes.listen(self.environment.publishes_bus)
        streams = [self.store.metadata.streams[name] for name in sorted(self.store.metadata.streams)]
        await self._open([pair for stream in streams for pair in self._led(stream)])
        for stream in streams:
            self._route(stream)
        for driver in self._drivers.values():
            driver.lead()
        await self.environment.streams_bus.flush()
        await self.environment.publishes_bus.flush()

    def _led(self, stream: Stream) -> list[tuple[Stream, Partition]]:
        return [(stream, item) for item in stream if item.leader == self.environment.broker_id]

    async def _open(self, partitions: list[tuple[Stream, Partition]]) -> list[PartitionDriver]:
        drivers: list[PartitionDriver] = []
        for first in range(0, len(partitions), OPEN_AT_ONCE):
            some = partitions[first : first + OPEN_AT_ONCE]
            drivers += await asyncio.gather(*(PartitionDriver.open(self.environment, *pair) for pair in some))
        for driver in drivers:
            self._drivers[driver.stream.name, driver.partition.id] = driver
        return drivers

    async def stop(self) -> None:
        """What gRPC clients gave us goes to NATS and comes back, with all that NATS has for us; then no more of it.
        What came is synced and acked."""
        self.stopping = True
        await self._flush_quietly(self.environment.publishes_bus.flush())
        await self._flush_quietly(self.environment.streams_bus.flush())
        for driver in self._drivers.values():
            driver.stop_listening()
        for driver in self._drivers.values():
            await driver.log.settled()
        await self._flush_quietly(self.environment.publishes_bus.flush())

    async def close(self) -> None:
        for driver in list(self._drivers.values()):
            await driver.close()
        self._drivers.clear()

    # --- what the API asks --------------------------------------------------------------------------------------

    @property
    def servers(self) -> tuple[str, ...]:
        return (self.environment.broker_id,)

    def driver(self, stream: str, partition: int) -> PartitionDriver | None:
        return self._drivers.get((stream, partition))

    async def create_stream(self, new: NewStream) -> None:
        await self._change(lambda: CreateStream(self._place(new)))

    async def delete_stream(self, name: str) -> None:
        await self._change(lambda: DeleteStream(name))

    def _place(self, new: NewStream) -> Stream:
        servers = self.servers
        asked = len(servers) if new.replication_factor == -1 else new.replication_factor
        factor = max(asked, self.environment.defaults.min_replication_factor)
        if factor > len(servers):
            raise InvalidArgument(f"Invalid replicationFactor {factor}, cluster size {len(servers)}")
        return Stream(
            name=new.name,
            subject=new.subject,
            group=new.group,
            partitions=place(new.partitions, factor, servers, self.store.metadata.streams.values()),
            config=new.config,
            creation_timestamp=self.environment.clock.time_ns(),
        )

    async def _change(self, command: Callable[[], Command]) -> None:
        """Propose a command and carry it out, one at a time. A client that gives up meanwhile stops waiting, not the
        change: half a stream must never be left behind."""
        task = asyncio.get_running_loop().create_task(self._change_alone(command))
        self._changes[task] = None
        task.add_done_callback(lambda done: self._changes.pop(done, None))
        await asyncio.shield(task)

    async def _change_alone(self, command: Callable[[], Command]) -> None:
        async with self._changing:
            await self._carry_out(await self.store.propose(command()))

    # --- metadata changes to drivers --------------------------------------------------------------------------------

    async def _carry_out(self, changes: list[Change]) -> None:
        for change in changes:
            match change:
                case StreamCreated(stream):
                    await self._start_stream(stream)
                case StreamDeleted(stream):
                    await self._erase_stream(stream)
                case PartitionsChanged(stream, _):
                    self._change_stream(stream)

    async def _start_stream(self, stream: Stream) -> None:
        for driver in await self._open(self._led(stream)):
            driver.lead()
        self._route(stream)
        try:
            # A client may publish to NATS the moment it has its answer, so NATS must have our SUB by then.
            await self.environment.streams_bus.flush()
        except BusUnavailable as error:
            logger.warning("stream %s exists, but NATS is away and cannot deliver yet: %s", stream.name, error)

    async def _erase_stream(self, stream: Stream) -> None:
        """Every partition ends, whatever the disk says: one that went on would store for a stream that is gone."""
        self.routes.drop_stream(stream)
        drivers = [self._drivers.pop((stream.name, item.id), None) for item in stream]
        failed: OSError | None = None
        for driver in drivers:
            try:
                if driver is not None:
                    await driver.delete()
            except OSError as error:
                failed = error
        try:
            await self.environment.disk.remove(stream_folder(stream))
            await self.environment.disk.sync_folder("streams")
        except OSError as error:
            failed = error
        if failed is not None:
            raise Internal(f"Failed to delete stream: its files stay until the next start: {failed}") from failed

    def _change_stream(self, stream: Stream) -> None:
        for item in stream:
            driver = self._drivers.get((stream.name, item.id))
            if driver is not None:
                driver.change(stream, item)
        self._route(stream)

    def _route(self, stream: Stream) -> None:
        self.routes.set_stream(stream, self.environment.defaults.optimistic_concurrency_of(stream.config))
        for item in stream:
            self._on_writable(stream.name, item.id)

    def _on_writable(self, stream: str, partition: int) -> None:
        self.routes.set_refuses_writes(stream, partition, self._refusal(stream, partition) is not None)

    def _refusal(self, stream: str, partition: int) -> str | None:
        driver = self._drivers.get((stream, partition))
        return driver.refusal if driver else None

    async def _set_strays_aside(self) -> None:
        """Folders no stream claims: a deletion that did not finish, or metadata that was lost. Never deleted here,
        for they might be the only copy: moved aside and said."""
        known = {stream_folder(stream) for stream in self.store.metadata.streams.values()}
        disk = self.environment.disk
        for name in await disk.list("streams"):
            folder = f"streams/{name}"
            if folder not in known:
                aside = f"quarantine/{self.environment.clock.time_ns()}-{name}"
                logger.warning("%s belongs to no stream: moved to %s, delete it if you do not miss it", folder, aside)
                await disk.make_folder("quarantine")
                await disk.rename(folder, aside)
                await disk.sync_folder("quarantine")
                await disk.sync_folder("streams")

    async def _flush_quietly(self, flush: Awaitable[None]) -> None:
        try:
            await flush
        except BusUnavailable as error:
            logger.warning("stopping without NATS: %s", error)
