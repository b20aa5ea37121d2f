"""The manager of all replicas on this broker (as Kafka's ReplicaManager): it opens them, gives them the roles that the
metadata names, deletes them, and does what a partition may ask of its broker.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from bascule.core.metadata import pausing
from bascule.core.metadata.commands import ClearedEnd, PartitionName
from bascule.core.metadata.state import Metadata
from bascule.core.metadata.streams import Key, Partition, Stream
from bascule.core.partition.leader import AskExpand, AskShrink, Refuse
from bascule.errors import BasculeError, BusUnavailable, LogError, Unavailable
from bascule.limits import CLOSE_SLICE, ISR_CHANGES_AT_ONCE, ROLES_SLICE
from bascule.log.tail import Tail
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.controllerclient import ISR_TIMEOUT_S, POLL_S, ControllerClient
from bascule.node.partition.environment import Environment
from bascule.node.partition.isrchanges import IsrChanges
from bascule.node.partition.opening import Opening
from bascule.node.partition.pausedlogs import PausedLogs
from bascule.node.partition.peerlogs import PeerLogs
from bascule.node.partition.ports import PartitionReplica
from bascule.node.partition.refusals import Refusals
from bascule.node.partition.replica import Replica, stream_folder
from bascule.node.partition.replicas import Replicas
from bascule.node.replication.feeds import Feeds
from bascule.node.replication.fetchers import Fetchers

logger = logging.getLogger(__name__)

GROWN = 100
"""How many more replicas and leader roles than ever before make one call of `on_grown`."""


class ReplicaManager:
    def __init__(
        self,
        environment: Environment,
        cluster: Cluster,
        client: ControllerClient,
        replicas: Replicas,
        feeds: Feeds,
        fetchers: Fetchers,
        peer_logs: PeerLogs,
        on_grown: Callable[[], None],
    ) -> None:
        """`on_grown` is called when there are GROWN more replicas and leader roles, whose objects are long-lived, than
        there ever were. Not for those that take the place of others: what it does with objects, it does for good."""
        self.feeds = feeds
        self.fetchers = fetchers
        self.peer_logs = peer_logs
        self.isr_changes = IsrChanges(client, cluster.peers, environment.active_clock)
        self.caught_up = False
        """This broker has applied what the cluster committed before it started."""
        self.unclean = environment.scheduler.mode.relaxed and not environment.after_clean_shutdown
        """The last boot ended without a clean shutdown, in relaxed mode: records that it had promised may be lost."""
        self._environment = environment
        self._own = environment.settings.broker_id
        self._cluster = cluster
        self._client = client
        self._replicas = replicas
        self._routes = environment.routes
        self.paused_logs = PausedLogs(environment, self, replicas)
        self._not_opened: dict[Key, str] = {}
        """Partitions whose log could not be opened, and why."""
        self._on_grown = on_grown
        self._grown = 0
        """New replicas and leader roles since they were last counted."""
        self._most = 0
        """Of them at any time, as they were counted."""
        self._refusals = Refusals(cluster, environment.jobs)
        self._isr_questions = environment.jobs.tasks("a change of an in-sync set", ISR_CHANGES_AT_ONCE)

    @property
    def _metadata(self) -> Metadata:
        return self._cluster.metadata

    @property
    def being_removed(self) -> bool:
        return self._own in self._metadata.brokers.removing

    # --- opening ---------------------------------------------------------------------------------------------

    async def open_what_can_be(self) -> None:
        """Open every replica whose disk works. The others are tried again later; open ones are served meanwhile."""
        try:
            await self.open(list(self._metadata.streams.values()))
        except (BasculeError, OSError) as error:
            logger.error(
                "some partitions could not be opened, and are not served here; this broker tries again: %s", error
            )

    async def open(self, streams: list[Stream], partitions: tuple[int, ...] = ()) -> None:
        """Open the replicas of these streams on this broker that are not open yet; if `partitions` are given, only
        those. Paused ones are opened while they are replicated, and while the broker starts: if such a log lacks
        something the broker leaves the in-sync set, before it can be elected."""
        alive = self.alive()
        missing = [
            (stream, item)
            for stream in streams
            for item in ([stream.partitions[number] for number in partitions] if partitions else stream)
            if self._own in item.replicas
            and (not item.paused or not self.caught_up or pausing.replicates(item, alive))
            and (stream.creation_index, item.id) not in self._replicas
        ]
        for stream, item in missing:
            if (key := (stream.creation_index, item.id)) in self.paused_logs:
                await self.paused_logs.end(key)
        await Opening(self._environment, self, missing).run()

    def add(self, replica: Replica) -> None:
        """It is open."""
        closed = self._replicas.closed(replica.key)
        if closed is not None:
            replica.first_received = closed.first_received
        late = closed is None and replica.key in self._not_opened
        if (late or not self.caught_up) and (self.unclean or self._cluster.joined):
            # Promised records were not synced, or are gone with the disk: each log may lack some, none is known to.
            replica.mark_suspect()
        elif closed is not None and closed.verified and replica.tail is Tail.SURE and not replica.log.damaged:
            replica.verification.verified = True  # it is as it was when this broker closed it
        self._not_opened.pop(replica.key, None)
        self._replicas.add(replica)
        self._grow()

    def not_opened(self, stream: Stream, partition: Partition, reason: str) -> None:
        """Its log could not be opened. It has no role here, and messages for it are refused with the reason."""
        self._not_opened[stream.creation_index, partition.id] = reason

    async def hand_on_unopened(self, stream: Stream) -> None:
        """What this broker is to lead and could not open goes to another replica in sync."""
        for item in stream:
            unopened = (stream.creation_index, item.id) in self._not_opened
            if unopened and item.leader == self._own and len(item.isr) > 1:
                with suppress(BasculeError):  # the next try to open it asks again
                    await self._client.change_leader(stream.name, item)

    def _grow(self) -> None:
        self._grown = (self._grown + 1) % GROWN
        if self._grown:
            return
        present = sum(1 if replica.leading is None else 2 for replica in self._replicas.values())
        if present >= self._most + GROWN:
            self._most = present
            self._on_grown()

    async def suspect_partitions(self) -> tuple[PartitionName, ...]:
        """The partitions here whose log may lack records that it had promised."""
        streams = list(self._metadata.streams.values())
        await self.open_what_can_be()
        if self._cluster.joined:
            for opened in self._replicas.values():
                opened.mark_suspect()
        return tuple(
            (stream.name, item.id)
            for stream in streams
            for item in stream
            if self._own in item.replicas
            and (
                (replica := self._replicas.get((stream.creation_index, item.id))) is None
                or replica.log.damaged
                or replica.tail is Tail.SHORT
            )
        )

    async def close_paused(self, stream: Stream, partitions: tuple[int, ...]) -> None:
        """Of a paused partition nothing is open: no file, no subscription. Except while it is replicated: then it was
        opened for that (`PausedReplication`), after it had been closed by the pause."""
        alive = self.alive()
        for number in partitions:
            key, item = (stream.creation_index, number), stream.partitions[number]
            replica = self._replicas.get(key) if item.paused else None
            if replica is None or (replica.only_replicates and pausing.replicates(item, alive)):
                continue
            self._replicas.pop(key)
            self._replicas.add_closed(key, await replica.pause())

    def alive(self) -> dict[str, None]:
        """The brokers that are alive, as this one sees it, and not about to stop."""
        others = [peer.id for peer in self._cluster.peers.alive() if not peer.stopping]
        return dict.fromkeys([self._own, *others])

    def is_misplaced(self, stream: Stream, item: Partition, alive: dict[str, None], again: bool) -> bool:
        """Whether the replica here of a paused partition is closed and to be replicated, or the other way round. One
        that could not be opened counts only `again`: the failed change is retried anyway."""
        key = (stream.creation_index, item.id)
        if self._own not in item.replicas or (key in self._not_opened and not again):
            return False
        return (key in self._replicas) != pausing.replicates(item, alive)

    # --- roles -----------------------------------------------------------------------------------------------

    def present(self, stream: Stream) -> Stream | None:
        """The stream as the metadata has it now: newer changes may have followed this one, and a replica takes its
        present role, never an older one."""
        present = self._metadata.stream(stream.name)
        return present if present is not None and present.creation_index == stream.creation_index else None

    async def take_roles(self, stream: Stream, partitions: tuple[int, ...]) -> None:
        """Take the roles that the metadata gives, in slices: a stream may have ten thousand partitions. Each slice
        reads the metadata anew."""
        self.fetchers.gather(len(partitions) > ROLES_SLICE)
        try:
            leads_more = await self._take_slices(stream, partitions)
        finally:
            self.fetchers.gather(False)
        if leads_more:  # a client may publish to NATS the moment it has its answer, so NATS must have our SUB by then
            await flush_quietly(self._environment.ports.streams.flush())

    async def _take_slices(self, stream: Stream, partitions: tuple[int, ...]) -> bool:
        leads_more = False
        for first in range(0, len(partitions), ROLES_SLICE):
            if first:
                await asyncio.sleep(0)
            present = self.present(stream)
            if present is None:
                return False
            some = partitions[first : first + ROLES_SLICE]
            leads_more = self._take_some(present, some) or leads_more
            self._route(present, some)
        return leads_more

    def _take_some(self, present: Stream, partitions: tuple[int, ...]) -> bool:
        """Whether this broker leads more than before."""
        leads_more = False
        for number in partitions:
            replica = self._replicas.get((present.creation_index, number))
            if replica is None:
                continue
            if self._own not in present.partitions[number].replicas:
                replica.resign()  # the partition has no replica on this broker any more; the files stay
                continue
            before = replica.leading
            replica.take_role(present, present.partitions[number])
            if replica.leading not in (before, None):
                leads_more = True
                self._grow()
        return leads_more

    def _route(self, stream: Stream, partitions: tuple[int, ...]) -> None:
        optimistic = self._environment.settings.defaults.optimistic_concurrency_of(stream.config)
        self._routes.set_partitions(stream, partitions, optimistic)
        for partition in partitions:
            self.writable_changed(stream.name, partition)

    # --- deletions -------------------------------------------------------------------------------------------

    async def erase_after_a_start(self, stream: Stream) -> None:
        """Erase a stream that was deleted while this broker was down, or partitioned from the cluster before it went
        down."""
        led = tuple(item.id for item in stream if item.leader == self._own)
        if led and not self._cluster.alone and await self._environment.ports.disk.list(stream_folder(stream)):
            try:
                await self.open([stream], led)
                for number in led:
                    if replica := self._replicas.get((stream.creation_index, number)):
                        await replica.quarantine_last()
            except (BasculeError, OSError) as error:
                logger.error(
                    "stream %s is deleted, but cannot be read: its files are moved to quarantine/: %s",
                    stream.name,
                    error,
                )
                for item in stream:
                    if replica := self._replicas.pop((stream.creation_index, item.id)):
                        await replica.close()
                return
        await self.erase(stream)

    async def erase(self, stream: Stream) -> None:
        """End every partition, also if the disk fails: otherwise it would store messages for a deleted stream."""
        for item in stream:
            await self.paused_logs.end((stream.creation_index, item.id))
            self._replicas.forget_closed((stream.creation_index, item.id))
            self._not_opened.pop((stream.creation_index, item.id), None)
            self._environment.awaited.forget((stream.creation_index, item.id))
        self._routes.drop_stream(stream)
        found = [self._replicas.pop((stream.creation_index, item.id)) for item in stream]
        replicas = [replica for replica in found if replica is not None]
        for replica in replicas:
            replica.resign()
        with suppress(OSError):  # the disk may be full, and this deletion frees space; the next start drops the rest
            await self._environment.ends.forget(f"{stream_folder(stream)}/{item.id}" for item in stream)
        failures: list[Exception] = []
        for replica in replicas:
            try:
                await replica.delete()
            except (LogError, OSError) as error:
                failures.append(error)
        try:
            if not failures:
                await self._environment.ports.disk.remove(stream_folder(stream))
                await self._environment.ports.disk.sync_folder("streams")
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # not found: the stream never had a record here
                failures.append(error)
        if failures:
            logger.error(
                "stream %s is deleted, but some of its files could not be removed, and stay until this broker "
                "restarts: %s",
                stream.name,
                failures[0],
            )

    # --- what a partition may ask ----------------------------------------------------------------------------

    def writable_changed(self, stream: str, partition: int) -> None:
        self._routes.set_refuses_writes(stream, partition, self.refusal(stream, partition) is not None)

    def refusal(self, stream: str, partition: int) -> str | None:
        """Why a partition that this broker leads takes no writes; None if it takes them."""
        if (replica := self._replicas.find(stream, partition)) is not None:
            return replica.refusal
        known = self._metadata.stream(stream)
        reason = self._not_opened.get((known.creation_index, partition)) if known is not None else None
        return f"its log cannot be opened: {reason}" if reason else None

    async def tell_cleared(self, replica: PartitionReplica, end: ClearedEnd) -> Partition | None:
        await self._client.tell_cleared((end,), ISR_TIMEOUT_S)
        present = self.present(replica.stream)
        return None if present is None else present.partition(end.partition)

    def hand_on(self, replica: PartitionReplica) -> None:
        """One that finds no room asks again: the disk hangs still."""
        if not self._isr_questions.full:
            self._isr_questions.start(self.isr_changes.hand_on(replica))

    def step_down(self, replica: PartitionReplica) -> Awaitable[None]:
        return self._client.change_leader(replica.stream.name, replica.partition)

    async def give_way(self, replica: PartitionReplica, other: str, whole: bool) -> bool:
        try:
            await self._client.give_way(replica.stream.name, replica.partition, other, whole)
            return True
        except BasculeError as error:
            logger.warning("%s: handing leadership to %s failed, retrying: %s", replica.name, other, error)
            return False

    def ask_isr(self, replica: PartitionReplica, asked: AskShrink | AskExpand) -> None:
        """Each replica has at most one such request in flight (`core.partition.insync`)."""
        self._isr_questions.start(self.isr_changes.ask(replica, asked))

    def refuse(self, replica: PartitionReplica, refuse: Refuse) -> None:
        self._refusals.add(replica, refuse)

    # --- paused partitions -----------------------------------------------------------------------------------

    async def opened(self, stream: str, partition: int, timeout_s: float) -> None:
        """Returns when a partition that was resumed has its role here. Unavailable if that takes longer."""
        try:
            async with asyncio.timeout(timeout_s):
                while (replica := self._replicas.find(stream, partition)) is None or not replica.has_role:
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise Unavailable("this broker has not opened the partition yet; try again") from None

    def paused_end(self, stream: str, partition: int) -> int:
        """Where the committed records of a partition that is paused end, as this broker left it."""
        known = self._metadata.stream(stream)
        return 0 if known is None else self._environment.ends.record(f"{stream_folder(known)}/{partition}").exposed

    # --- all of them -----------------------------------------------------------------------------------------

    def lease_changed(self) -> None:
        """The lease ended or was renewed: leaders here refuse writes, or take them again."""
        for replica in self._replicas.values():
            if replica.leading is not None:
                self.writable_changed(replica.stream.name, replica.partition.id)

    def files_changed(self, gone: bool) -> None:
        """The files of the metadata are gone, or back. Without them this broker does not learn of new leaders, so it
        must not act as leader."""
        for replica in self._replicas.values():
            if replica.leading is not None and len(replica.partition.replicas) > 1:
                if gone:
                    replica.leading.stop_listening()
                else:
                    replica.leading.listen()

    async def scrub(self) -> None:
        """Read all records once: damage on disk is found while other replicas can still repair it, and where there is
        no other while a backup may still have the records."""
        for replica in list(self._replicas.values()):
            try:
                await replica.repair.scrub()
            except (LogError, OSError) as error:
                logger.warning("%s: not all records could be read; the next try is in a day: %s", replica.name, error)
        await self.paused_logs.scrub()

    async def stop(self) -> None:
        """Send the publishes of gRPC clients to NATS and receive all that NATS has for this broker, then unsubscribe.
        What was received is synced and acked."""
        await flush_quietly(self._environment.ports.publishes.flush())
        await flush_quietly(self._environment.ports.streams.flush())
        for replica in self._replicas.values():
            if replica.leading is not None:
                replica.leading.stop_listening()
        for replica in self._replicas.values():
            await replica.log.flushed()
        await flush_quietly(self._environment.ports.publishes.flush())

    async def close(self) -> bool:
        """Close all replicas. True if no log had failed."""
        await self.paused_logs.close()
        replicas = list(self._replicas.values())
        for replica in replicas:
            self._replicas.pop(replica.key)
        for number, replica in enumerate(replicas):
            await asyncio.sleep(0) if number % CLOSE_SLICE == CLOSE_SLICE - 1 else None
            await replica.close()
        return not any(replica.log.failed for replica in replicas)


async def flush_quietly(flush: Awaitable[None]) -> None:
    try:
        await flush
    except BusUnavailable as error:
        logger.warning("NATS is not connected: %s", error)
