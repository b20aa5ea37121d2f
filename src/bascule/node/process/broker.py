"""One broker: the replicas it holds, the roles the metadata gives them, and the routes publishes take. Knows no
socket of its own: the gRPC server calls `api`, NATS comes through the Bus, files through the Disk. So the simulator
runs all of this.
"""

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from bascule.core.metadata.commands import PartitionName
from bascule.core.metadata.state import (
    Change,
    PartitionsChanged,
    Rejected,
    Repeated,
    StreamCreated,
    StreamDeleted,
)
from bascule.core.metadata.streams import Key, Stream
from bascule.core.partition.leader import AskExpand, AskShrink
from bascule.errors import BasculeError, BusUnavailable, LogError, Unavailable
from bascule.limits import CLOSE_SLICE, ISR_CHANGES_AT_ONCE, LATE_CHANGES_AT_ONCE, ROLES_SLICE, WATCH_SLICE
from bascule.log import cleanshutdown
from bascule.log.tail import Tail
from bascule.node.api.publish import Publisher
from bascule.node.controller.brokeradmin import BrokerAdmin
from bascule.node.controller.controller import Controller
from bascule.node.controller.proposals import Proposals
from bascule.node.controller.streamstatus import StreamStatus
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.controllerclient import ControllerClient
from bascule.node.membership.peers import SESSION_S
from bascule.node.partition.environment import Environment
from bascule.node.partition.filewatch import FileWatch
from bascule.node.partition.isrchanges import IsrChanges
from bascule.node.partition.opening import Opening
from bascule.node.partition.peerlogs import PeerLogs
from bascule.node.partition.ports import PartitionReplica
from bascule.node.partition.repair import SCRUB_EVERY_S
from bascule.node.partition.replica import Replica, stream_folder
from bascule.node.partition.unclaimed import set_aside_unclaimed
from bascule.node.replication.feeds import Feeds
from bascule.node.replication.fetchers import Fetchers

logger = logging.getLogger(__name__)

HAND_OVER_POLL_S = 0.01
RESIGN_S = 1.0
START_WAIT_S = 3.0
OPEN_AGAIN_S = 5.0
WATCH_EVERY_S = 1.0
NAMED_BELOW = 5
"""Partitions below their minimal in-sync set that one line names."""
GROWN = 100
"""Replicas opened or come to lead between two calls of `on_grown`."""


@dataclass(frozen=True, slots=True)
class ControllerParts:
    controller: Controller
    proposals: Proposals
    broker_admin: BrokerAdmin
    status: StreamStatus


class Broker:
    def __init__(
        self,
        environment: Environment,
        cluster: Cluster,
        client: ControllerClient,
        controller: ControllerParts,
        replicas: dict[Key, Replica],
        feeds: Feeds,
        fetchers: Fetchers,
        peer_logs: PeerLogs,
    ) -> None:
        self.environment = environment
        self.cluster = cluster
        self.client = client
        self.controller = controller.controller
        self.proposals = controller.proposals
        self.broker_admin = controller.broker_admin
        self.stream_status = controller.status
        self.feeds = feeds
        self.fetchers = fetchers
        self.peer_logs = peer_logs
        self.routes = environment.routes
        self.publisher = Publisher(self.environment, self._refusal)
        self.stopping = False
        self._unclean = False
        """The last life ended in a way that may have taken what it had promised."""
        self._settled_in = False
        self._replicas = replicas
        self.isr_changes = IsrChanges(client, cluster.peers, environment.attention)
        self.files = FileWatch(
            environment.disk,
            environment.scheduler,
            cluster.raft.storage,
            lambda: [replica.log for replica in self._replicas.values()],
            self._on_gone,
        )
        self._changes: asyncio.Queue[list[Change]] = asyncio.Queue()
        self._carried_out = asyncio.Event()
        self._behind = 0
        self._grown = 0
        self._jobs = environment.jobs
        self._isr_questions = self._jobs.tasks("a change of an in-sync set", ISR_CHANGES_AT_ONCE)
        self._hand_overs = self._jobs.tasks("a hand-over", 1, answered=True)
        self._late_changes = self._jobs.tasks("a change of the metadata that waits for its disk", LATE_CHANGES_AT_ONCE)
        self._said_below = 0

    # --- life ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open every replica here, hear what the cluster decided meanwhile, then take roles. Serving may begin when
        this returns."""
        environment = self.environment
        self._unclean = environment.scheduler.mode.relaxed and not environment.after_clean_shutdown
        await self.cluster.enter()
        environment.inboxes.listen(environment.publishes_bus)
        self.feeds.listen()
        self.fetchers.listen()
        self.peer_logs.listen()
        self.broker_admin.listen()
        await self._open_what_can_be(list(self.cluster.metadata.streams.values()))
        self.cluster.store.listen(self._enqueue)
        self.stream_status.listen(self._status)
        self.cluster.start(self.controller.role_changed, self.controller.heard, self.controller.heard_stranger)
        self._jobs.run("the look at the files", self.files.run, "files taken away under this broker go unnoticed")
        settling = self._jobs.vital("what follows a start", self._settle_in())
        if not self.cluster.alone:
            # A cluster without a majority must still answer its clients, if only to say so.
            try:
                async with asyncio.timeout(START_WAIT_S):
                    await asyncio.shield(settling)
            except TimeoutError:
                logger.warning("serving, but without a role in any partition until the cluster has a majority")
        else:
            await settling
        await environment.publishes_bus.flush()

    async def _settle_in(self) -> None:
        """Roles only once the cluster has spoken: what this broker led before may be another's by now."""
        await self.cluster.caught_up()
        doubtful = await self._doubtful()
        if self._unclean and self._replicas:
            logger.warning(
                "relaxed sync (%s), and the last run did not end with a clean shutdown: this broker is in sync with "
                "nothing it shares until it has caught up",
                self.environment.scheduler.mode,
            )
        await self.cluster.begin_life(doubtful, self._unclean)
        self._settled_in = True
        await self._skip_history()
        await set_aside_unclaimed(self.environment.disk, self.environment.clock, self._folders())
        self.environment.ends.keep_streams(self._folders())
        await self.environment.lease.ask(self.cluster.current)
        self._run_jobs()
        self._enqueue([StreamCreated(stream) for stream in self.cluster.metadata.streams.values()])
        await self.carried_out()

    def _run_jobs(self) -> None:
        """A new job is one registration here."""
        run = self._jobs.run
        keep_lease = partial(self.environment.lease.keep, self.cluster.current, self._on_lease)
        run("the lease", keep_lease, "this broker takes no writes")
        self._jobs.vital("the taking of roles", self._turn())
        run("the reading of all records", self._scrub, "damage at rest is found only when it is read")
        run("the look at replicas that lag", self._watch_replicas, "they stay in their in-sync sets, and commits wait")

    def _folders(self) -> dict[str, None]:
        return {stream_folder(stream): None for stream in self.cluster.metadata.streams.values()}

    async def _scrub(self) -> None:
        while True:
            await self.carried_out()
            for replica in list(self._replicas.values()):
                try:
                    if len(replica.partition.replicas) > 1:
                        await replica.repair.scrub()
                except (LogError, OSError) as error:
                    logger.warning("%s was not read to its end: %s", replica.name, error)
            await asyncio.sleep(SCRUB_EVERY_S)

    async def _doubtful(self) -> tuple[PartitionName, ...]:
        """The partitions here whose log may lack something it had promised."""
        streams = list(self.cluster.metadata.streams.values())
        await self._open_what_can_be(streams)
        if self.cluster.joined:
            for opened in self._replicas.values():
                opened.doubt()
        return tuple(
            (stream.name, item.id)
            for stream in streams
            for item in stream
            if self.environment.broker_id in item.replicas
            and (
                (replica := self._replicas.get((stream.creation_index, item.id))) is None
                or replica.log.damaged
                or replica.tail is Tail.SHORT
            )
        )

    async def _open_what_can_be(self, streams: list[Stream]) -> None:
        """The others are tried again later; those that are open are served meanwhile."""
        try:
            await self._open(streams)
        except (BasculeError, OSError) as error:
            logger.error("some partitions wait for their disk: %s", error)

    async def hand_over(self, timeout_s: float) -> None:
        """Give what we lead to others in sync, so that a stop costs each partition a moment and not a session. We also
        leave the in-sync sets, and fetch nothing more that would bring us back into one: who waits for all replicas
        must not wait for us."""
        own = self.environment.broker_id
        if all(other == own for other in self.cluster.servers):
            return
        self.cluster.peers.leave()
        self.fetchers.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        handing_over = self._hand_overs.start(self.client.hand_over(timeout_s))
        while not handing_over.done() and self._somebody_stays():
            await asyncio.sleep(HAND_OVER_POLL_S)
        handing_over.cancel()  # no effect if it is done
        (outcome,) = await asyncio.gather(handing_over, return_exceptions=True)
        if isinstance(outcome, asyncio.CancelledError):
            logger.info("stopping without handing over: every other broker stops too, or is away")
            return
        if isinstance(outcome, BaseException):
            logger.warning("stopping without handing over: %s", outcome)
            return
        while loop.time() < deadline and self._somebody_stays() and self._leads_what_is_anothers():
            await asyncio.sleep(HAND_OVER_POLL_S)
        await self.cluster.resign(RESIGN_S)

    def _somebody_stays(self) -> bool:
        """Another broker that could take over: heard of, and not about to stop itself."""
        servers = self.cluster.servers
        return any(peer.id in servers and not peer.leaving for peer in self.cluster.peers.alive())

    def _leads_what_is_anothers(self) -> bool:
        """Whether the metadata names others for something that is still led here."""
        return self._behind > 0 or any(
            replica.leading is not None
            and (item := self.cluster.metadata.partition(replica.stream.name, replica.partition.id)) is not None
            and item.leader != self.environment.broker_id
            for replica in self._replicas.values()
        )

    async def stop(self) -> None:
        """What gRPC clients gave us goes to NATS and comes back, with all that NATS has for us; then no more of it.
        What came is synced and acked."""
        self.stopping = True
        await self._flush_quietly(self.environment.publishes_bus.flush())
        await self._flush_quietly(self.environment.streams_bus.flush())
        for replica in self._replicas.values():
            if replica.leading is not None:
                replica.leading.stop_listening()
        for replica in self._replicas.values():
            await replica.log.settled()
        await self._flush_quietly(self.environment.publishes_bus.flush())

    async def close(self) -> None:
        self.controller.stop()
        await self.cluster.stop()
        await self._jobs.close()
        self.feeds.close()
        self.fetchers.close()
        replicas = list(self._replicas.values())
        self._replicas.clear()
        for number, replica in enumerate(replicas):
            await asyncio.sleep(0) if number % CLOSE_SLICE == CLOSE_SLICE - 1 else None
            await replica.close()
        sound = self._settled_in and not any(replica.log.failed for replica in replicas)
        await self._leave_clean(sound)

    async def _leave_clean(self, sound: bool) -> None:
        """Everything is closed: say where all logs end, for the next start."""
        ends, mode = self.environment.ends, self.environment.scheduler.mode
        try:
            await ends.close()
            await cleanshutdown.leave(self.environment.disk, sound and mode.syncs, ends.clean_ends(mode.syncs))
        except OSError as error:
            logger.warning("the next start will take this stop for a crash: %s", error)

    def _on_gone(self) -> None:
        """Who cannot store metadata does not hear who leads: it must not answer in place of whoever does by now."""
        for replica in self._replicas.values():
            if replica.leading is not None and len(replica.partition.replicas) > 1:
                if self.files.gone:
                    replica.leading.stop_listening()
                else:
                    replica.leading.listen()
        self.environment.process.on_files(self.files.gone)

    # --- what the API asks -----------------------------------------------------------------------------------

    def check_settled(self) -> None:
        """Raises Unavailable while this broker does not know what its cluster knows: it must not say that a stream does
        not exist, nor that all is well."""
        if not self._settled_in:
            raise Unavailable(
                self.cluster.waits or "this broker has started and has not caught up with its cluster yet; try again"
            )

    def replica(self, stream: str, partition: int) -> Replica | None:
        known = self.cluster.metadata.stream(stream)
        return self._replicas.get((known.creation_index, partition)) if known else None

    def replica_of(self, key: Key) -> Replica | None:
        return self._replicas.get(key)

    async def confirm_leads(self, replica: Replica) -> bool:
        """Whether this broker still leads: one that was cut off may have been replaced without knowing. Raises
        Unavailable if that cannot be found out in time."""
        leading = replica.leading
        if leading is None:
            return False
        await self.cluster.current(SESSION_S)
        known = self.cluster.metadata.partition(replica.stream.name, replica.partition.id)
        same = known is not None and (known.leader, known.leader_epoch) == (self.environment.broker_id, leading.epoch)
        return same and replica.leading is leading

    async def carried_out(self) -> None:
        """Returns when every change known by now has been carried out here."""
        while self._behind:
            self._carried_out.clear()
            await self._carried_out.wait()

    def _status(self, creation_index: int) -> bool:
        """Whether everything of that stream that this broker should lead is being led."""
        if self._behind:
            return False
        led = [
            item
            for stream in self.cluster.metadata.streams.values()
            if stream.creation_index == creation_index
            for item in stream
            if item.leader == self.environment.broker_id
        ]
        replicas = [self._replicas.get((creation_index, item.id)) for item in led]
        return bool(led) and all(replica is not None and replica.leading is not None for replica in replicas)

    # --- metadata changes to roles ------------------------------------------------------------------------------

    def _enqueue(self, changes: list[Change]) -> None:
        for change in changes:
            if isinstance(change, StreamDeleted):
                for item in change.stream:
                    if replica := self._replicas.get((change.stream.creation_index, item.id)):
                        replica.let_go()
        self._behind += 1
        self._changes.put_nowait(changes)

    async def _turn(self) -> None:
        carried = 0
        while True:
            changes = await self._changes.get()
            for change in changes:
                try:
                    await self._carry_out(change)
                except (BasculeError, OSError) as error:
                    assert not isinstance(change, Rejected | Repeated), "these change nothing"
                    logger.error("a change of stream %s waits for its disk: %s", change.stream.name, error)
                    if not self._late_changes.full:  # else it waits for the next change, or the next start
                        self._late_changes.start(self._carry_out_later(change.stream))
                except Exception:
                    logger.exception("a change of the metadata could not be carried out here")
            self._behind -= 1
            self._carried_out.set()
            carried += 1
            if carried % ROLES_SLICE == 0:
                await asyncio.sleep(0)  # nothing above lets go of the event loop while more is in the queue

    async def _watch_replicas(self) -> None:
        """Who is late is found out by time passing, not only by others being early."""
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            now = self.environment.attention.monotonic_ns()
            below: list[str] = []
            for number, replica in enumerate(list(self._replicas.values())):
                if number % WATCH_SLICE == WATCH_SLICE - 1:
                    await asyncio.sleep(0)
                if replica.leading is None:
                    continue
                if len(replica.partition.replicas) > 1:
                    replica.leading.watch(now)
                if replica.leading.below_min_isr:
                    below.append(replica.name)
            self._say_below(below)
            await self._drop_abandoned_acks()

    async def _drop_abandoned_acks(self) -> None:
        """What waits for gRPC calls that are over, here or at another broker."""
        environment = self.environment
        environment.owed.tick()
        environment.inboxes.tell_gone(environment.publishes_bus)
        while environment.owed.forget(environment.inboxes.gone):
            await asyncio.sleep(0)

    def _say_below(self, below: list[str]) -> None:
        """One line for all partitions, and another one when their number has changed: there may be thousands."""
        if len(below) == self._said_below:
            return
        self._said_below = len(below)
        if below:
            logger.error(
                "%d partitions that this broker leads are below their minimal in-sync set (%s): nothing is committed "
                "in them until it has grown; start the brokers that hold their replicas",
                len(below),
                ", ".join(below[:NAMED_BELOW]) + (", …" if len(below) > NAMED_BELOW else ""),
            )
        else:
            logger.warning("all partitions that this broker leads have enough replicas in sync again")

    async def _skip_history(self) -> None:
        """What changed until now is in the metadata. Roles of the past must not be taken, not even for a moment: who
        leads writes. Only the streams that are gone still need a hand."""
        while not self._changes.empty():
            for change in self._changes.get_nowait():
                if isinstance(change, StreamDeleted):
                    await self._erase_after_a_start(change.stream)
            self._behind -= 1

    async def _carry_out_later(self, stream: Stream) -> None:
        """Open what could not be opened, with the roles the metadata gives by then."""
        await asyncio.sleep(OPEN_AGAIN_S)
        if present := self._present(stream):
            self._enqueue([StreamCreated(present)])

    def _present(self, stream: Stream) -> Stream | None:
        """The stream as it is now: a change may have been overtaken by others, and a role is taken as it is, never as
        it was."""
        present = self.cluster.metadata.stream(stream.name)
        return present if present is not None and present.creation_index == stream.creation_index else None

    async def _carry_out(self, change: Change) -> None:
        match change:
            case StreamCreated(stream) if self._present(stream):
                await self._open([stream])
                await self._take_roles(stream, tuple(item.id for item in stream))
            case PartitionsChanged(stream, partitions):
                if present := self._present(stream):
                    await self._open([present], partitions)
                await self._take_roles(stream, partitions)
            case StreamDeleted(stream):
                await self._erase(stream)

    async def _open(self, streams: list[Stream], partitions: tuple[int, ...] = ()) -> None:
        """What this broker holds of them, if it is not open yet; of some partitions only, if they are named."""
        own = self.environment.broker_id
        missing = [
            (stream, item)
            for stream in streams
            for item in ([stream.partitions[number] for number in partitions] if partitions else stream)
            if own in item.replicas and (stream.creation_index, item.id) not in self._replicas
        ]
        await Opening(self.environment, self, missing, self._add).run()

    def _add(self, replica: Replica) -> None:
        if not self._settled_in and (self._unclean or self.cluster.joined):
            # What was promised was not synced, or is gone with the disk: no end is sure, and none is known to be short.
            replica.doubt()
        self._replicas[replica.key] = replica
        self._grow()

    def _grow(self) -> None:
        self._grown = (self._grown + 1) % GROWN
        if not self._grown:
            self.environment.process.on_grown()

    async def _take_roles(self, stream: Stream, partitions: tuple[int, ...]) -> None:
        """Some at a time: a stream may have ten thousand. Each as the metadata has it when its turn has come."""
        self.fetchers.gather(len(partitions) > ROLES_SLICE)
        try:
            leads_more = await self._take_slices(stream, partitions)
        finally:
            self.fetchers.gather(False)
        if leads_more:  # a client may publish to NATS the moment it has its answer, so NATS must have our SUB by then
            await self._flush_quietly(self.environment.streams_bus.flush())

    async def _take_slices(self, stream: Stream, partitions: tuple[int, ...]) -> bool:
        leads_more = False
        for first in range(0, len(partitions), ROLES_SLICE):
            if first:
                await asyncio.sleep(0)
            present = self._present(stream)
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
            if self.environment.broker_id not in present.partitions[number].replicas:
                replica.resign()  # it is another's now; the files stay
                continue
            before = replica.leading
            replica.take_role(present, present.partitions[number])
            if replica.leading not in (before, None):
                leads_more = True
                self._grow()
        return leads_more

    async def _erase_after_a_start(self, stream: Stream) -> None:
        """A stream that was deleted while this broker was down, or cut off before it went down."""
        led = tuple(item.id for item in stream if item.leader == self.environment.broker_id)
        if led and not self.cluster.alone and await self.environment.disk.list(stream_folder(stream)):
            try:
                await self._open([stream], led)
                for number in led:
                    await self._replicas[stream.creation_index, number].keep_last()
            except (BasculeError, OSError) as error:
                logger.error("stream %s is deleted, and cannot be read: it is moved aside: %s", stream.name, error)
                for item in stream:
                    if replica := self._replicas.pop((stream.creation_index, item.id), None):
                        await replica.close()
                return
        await self._erase(stream)

    async def _erase(self, stream: Stream) -> None:
        """Every partition ends, whatever the disk says: one that went on would store for a stream that is gone."""
        self.routes.drop_stream(stream)
        found = [self._replicas.pop((stream.creation_index, item.id), None) for item in stream]
        replicas = [replica for replica in found if replica is not None]
        for replica in replicas:
            replica.resign()
        with suppress(OSError):  # a full disk, which this may free; the next start drops what no stream has
            await self.environment.ends.forget(f"{stream_folder(stream)}/{item.id}" for item in stream)
        failures: list[Exception] = []
        for replica in replicas:
            try:
                await replica.delete()
            except (LogError, OSError) as error:
                failures.append(error)
        try:
            if not failures:
                await self.environment.disk.remove(stream_folder(stream))
                await self.environment.disk.sync_folder("streams")
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # else it never had a record here
                failures.append(error)
        if failures:
            logger.error("files of stream %s stay until the next start: %s", stream.name, failures[0])

    def _route(self, stream: Stream, partitions: tuple[int, ...]) -> None:
        optimistic = self.environment.defaults.optimistic_concurrency_of(stream.config)
        self.routes.set_partitions(stream, partitions, optimistic)
        for partition in partitions:
            self.writable_changed(stream.name, partition)

    def writable_changed(self, stream: str, partition: int) -> None:
        self.routes.set_refuses_writes(stream, partition, self._refusal(stream, partition) is not None)

    def _on_lease(self) -> None:
        for replica in self._replicas.values():
            if replica.leading is not None:
                self.writable_changed(replica.stream.name, replica.partition.id)

    def _refusal(self, stream: str, partition: int) -> str | None:
        replica = self.replica(stream, partition)
        return replica.refusal if replica and replica.leading else None

    def step_down(self, replica: PartitionReplica) -> Awaitable[None]:
        return self.client.change_leader(replica.stream.name, replica.partition)

    async def give_way(self, replica: PartitionReplica, other: str) -> bool:
        try:
            await self.client.give_way(replica.stream.name, replica.partition, other)
            return True
        except BasculeError as error:
            logger.warning("%s: %s does not lead yet: %s", replica.name, other, error)
            return False

    def ask_isr(self, replica: PartitionReplica, asked: AskShrink | AskExpand) -> None:
        """Of each replica at most one question is under way (`core.partition.insync`)."""
        self._isr_questions.start(self.isr_changes.ask(replica, asked))

    async def _flush_quietly(self, flush: Awaitable[None]) -> None:
        try:
            await flush
        except BusUnavailable as error:
            logger.warning("NATS is away: %s", error)
