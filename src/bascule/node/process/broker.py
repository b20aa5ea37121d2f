"""Start and stop of one broker: it enters its cluster, opens its replicas, catches up, takes roles, hands over, and
stops. It has no sockets of its own: the gRPC server calls its methods, and NATS and files are ports. So the simulator
runs all of this.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from bascule.core.metadata.state import StreamCreated
from bascule.log import cleanshutdown
from bascule.net.grpc import Handler
from bascule.node.api.gate import Gate
from bascule.node.controller.activity import ActivityDispatcher
from bascule.node.controller.brokeradmin import BrokerAdmin
from bascule.node.controller.controller import Controller
from bascule.node.controller.ownstreams import OwnStreams
from bascule.node.controller.streamstatus import StreamStatus
from bascule.node.groups.expiry import MemberExpiry
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.controllerclient import ControllerClient
from bascule.node.partition import repair
from bascule.node.partition.abandonedacks import AbandonedAcks
from bascule.node.partition.autopause import AutoPause
from bascule.node.partition.cleaner import Cleaner
from bascule.node.partition.clearedends import ClearedEnds
from bascule.node.partition.compactor import Compactor
from bascule.node.partition.environment import Environment
from bascule.node.partition.filewatch import FileWatch
from bascule.node.partition.lagwatch import WATCH_EVERY_S, LagWatch
from bascule.node.partition.manager import ReplicaManager
from bascule.node.partition.metadatachanges import MetadataChanges
from bascule.node.partition.pausedreplication import PausedReplication
from bascule.node.partition.replica import stream_folder
from bascule.node.partition.replicas import Replicas
from bascule.node.partition.unclaimed import set_aside_unclaimed
from bascule.node.runtime.ports import Process

logger = logging.getLogger(__name__)

HAND_OVER_POLL_S = 0.01
RESIGN_S = 1.0
START_WAIT_S = 3.0
STOPS_AT_ONCE = 4
"""Requests to stop that wait for one hand-over; further ones do not wait."""


class Broker:
    def __init__(
        self,
        environment: Environment,
        cluster: Cluster,
        client: ControllerClient,
        controller: Controller,
        own_streams: OwnStreams,
        activity: ActivityDispatcher,
        broker_admin: BrokerAdmin,
        stream_status: StreamStatus,
        replicas: Replicas,
        manager: ReplicaManager,
        changes: MetadataChanges,
        member_expiry: MemberExpiry,
        gate: Gate,
        methods: Mapping[str, Handler],
        process: Process,
    ) -> None:
        self.environment = environment
        self.cluster = cluster
        self.client = client
        self.controller = controller
        self.own_streams = own_streams
        self.activity = activity
        self.broker_admin = broker_admin
        self.stream_status = stream_status
        self.replicas = replicas
        self.manager = manager
        self.member_expiry = member_expiry
        self.gate = gate
        self.methods = methods
        """Its gRPC methods, by path."""
        self.files = FileWatch(
            environment.ports.disk,
            environment.scheduler,
            cluster.raft.storage,
            lambda: [replica.log for replica in replicas.values()],
            self._on_files,
        )
        self.changes = changes
        self.lag_watch = LagWatch(environment, replicas)
        self.abandoned_acks = AbandonedAcks(environment)
        self.auto_pause = AutoPause(environment, replicas, client, manager.alive)
        self.paused_replication = PausedReplication(manager, replicas, changes.queue)
        self.cleaner = Cleaner(environment, replicas, client)
        self.compactor = Compactor(environment, replicas)
        self.cleared_ends = ClearedEnds(replicas, cluster, client)
        self._process = process
        self._jobs = environment.jobs
        self._hand_overs = self._jobs.tasks("a hand-over", STOPS_AT_ONCE, answered=True)

    # --- the start -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open every replica here, apply what the cluster committed meanwhile, then take roles. Serving may begin when
        this returns."""
        environment, manager, controller = self.environment, self.manager, self.controller
        await self.cluster.enter()
        environment.inboxes.listen()
        manager.feeds.listen()
        manager.fetchers.listen()
        manager.peer_logs.listen()
        self.broker_admin.listen()
        await manager.open_what_can_be()
        self.stream_status.listen()
        self.cluster.start(controller.role_changed, controller.on_heartbeat, controller.other_clusters.on_heartbeat)
        self._jobs.run("the file check", self.files.run, "files that are removed under this broker go unnoticed")
        finishing = self._jobs.vital("the end of the start", self._finish_start())
        if not self.cluster.alone:
            # A cluster without a majority must still answer its clients, if only with the reason.
            try:
                async with asyncio.timeout(START_WAIT_S):
                    await asyncio.shield(finishing)
            except TimeoutError:
                logger.warning("serving, but without a role in any partition until the cluster has a majority")
        else:
            await finishing
        await environment.ports.publishes.flush()

    async def _finish_start(self) -> None:
        """Take roles only after catching up: partitions that this broker led before may have other leaders by now."""
        environment, manager = self.environment, self.manager
        await self.cluster.caught_up()
        suspect = await manager.suspect_partitions()
        if manager.unclean and self.replicas:
            logger.warning(
                "relaxed sync (%s), and the last run did not end with a clean shutdown: this broker leaves the in-sync "
                "set of every partition with other replicas until it has caught up",
                environment.scheduler.mode,
            )
        await self.cluster.broker_started(suspect, manager.unclean)
        manager.caught_up = True
        await self.changes.skip_history()
        await set_aside_unclaimed(environment.ports.disk, environment.ports.clock, self._folders())
        environment.ends.keep_streams(self._folders())
        environment.awaited.keep(
            (s.creation_index, item.id) for s in self.cluster.metadata.streams.values() for item in s
        )
        await environment.lease.ask(self.cluster.current)
        self._run_jobs()
        self.changes.queue.enqueue([StreamCreated(stream) for stream in self.cluster.metadata.streams.values()])
        await self.changes.until_carried_out()
        environment.awaited.complete()

    def _folders(self) -> dict[str, None]:
        return {stream_folder(stream): None for stream in self.cluster.metadata.streams.values()}

    def _run_jobs(self) -> None:
        """Every job that needs a broker that has caught up; the check of files begins in `start`."""
        run = self._jobs.run
        keep_lease = partial(self.environment.lease.keep, self.cluster.current, self.manager.lease_changed)
        run("the lease", keep_lease, "this broker takes no writes")
        self._jobs.vital("the taking of roles", self.changes.run())
        run("the scrub of all records", self._scrub, "damage on disk is found only when a record is read")
        lag = "followers that lag stay in the in-sync set, and commits wait; acks of calls that ended stay pending"
        run("the check for lag", self._watch, lag)
        run("the cleaner", self.cleaner.run, "nothing expires")
        run("the compactor", self.compactor.run, "nothing is compacted")
        run("the telling of cleared ends", self.cleared_ends.run, "tombstones stay where there are several replicas")
        run("the pausing of idle partitions", self.auto_pause.run, "idle partitions stay open")
        replicate = self.paused_replication.run
        run("the replication of paused partitions", replicate, "their replicas do not come back into the in-sync sets")
        lend = self.manager.paused_logs.run
        run(
            "the opening of paused logs",
            lend,
            "damaged replicas of paused partitions are not repaired from this broker",
        )
        if self.own_streams.configured:
            run("the creation of the cluster's own streams", self.own_streams.run, "there are no cursors, or no events")
        if self.activity.enabled:
            run("the activity stream", self.activity.run, "nothing is published in it while this is the controller")
        run("the expiry of group members", self.member_expiry.run, "partitions of consumers that are gone go unread")

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            await self.lag_watch.look()
            await self.abandoned_acks.drop()

    async def _scrub(self) -> None:
        while True:
            await self.changes.until_carried_out()
            await self.manager.scrub()
            await asyncio.sleep(repair.SCRUB_EVERY_S)

    def _on_files(self) -> None:
        """The data folder or the metadata was removed, or is back."""
        self.manager.files_changed(bool(self.files.gone))
        self._process.on_files(self.files.gone)

    # --- the end ---------------------------------------------------------------------------------------------

    async def hand_over(self, timeout_s: float) -> None:
        """Hand leaderships over to other replicas in sync, so that a stop interrupts each partition for a moment and
        not for a session. This broker also leaves every ISR, and stops fetching so that it does not come back into one:
        publishers with ack policy ALL must not wait for it."""
        own = self.environment.settings.broker_id
        if all(other == own for other in self.cluster.servers) or self._hand_overs.full:
            return
        self.cluster.peers.announce_stop()
        self.manager.fetchers.close()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        handing_over = self._hand_overs.start(self.client.hand_over(timeout_s))
        while not handing_over.done() and self._somebody_stays():
            await asyncio.sleep(HAND_OVER_POLL_S)
        handing_over.cancel()  # no effect if it is done
        (outcome,) = await asyncio.gather(handing_over, return_exceptions=True)
        if isinstance(outcome, asyncio.CancelledError):
            logger.info("stopping without handing over: every other broker is stopping too, or is down")
            return
        if isinstance(outcome, BaseException):
            logger.warning(
                "stopping without handing over: the partitions of this broker have no leader until it is fenced: %s",
                outcome,
            )
            return
        while loop.time() < deadline and self._somebody_stays() and self.replicas.leads_what_is_anothers():
            await asyncio.sleep(HAND_OVER_POLL_S)
        await self.cluster.resign(RESIGN_S)

    def _somebody_stays(self) -> bool:
        """Whether another broker could take over: it is alive, and not about to stop itself."""
        servers = self.cluster.servers
        return any(peer.id in servers and not peer.stopping for peer in self.cluster.peers.alive())

    async def stop(self) -> None:
        self.gate.close()
        await self.manager.stop()

    async def close(self) -> None:
        self.controller.stop()
        await self.cluster.stop()
        await self._jobs.close()
        self.manager.feeds.close()
        self.manager.fetchers.close()
        in_order = await self.manager.close()
        await self._leave_clean(in_order and self.manager.caught_up)

    async def _leave_clean(self, in_order: bool) -> None:
        """Everything is closed: store where all logs end, for the next start."""
        ends, mode = self.environment.ends, self.environment.scheduler.mode
        try:
            await self.environment.awaited.close()
            await ends.close()
            await cleanshutdown.leave(self.environment.ports.disk, in_order and mode.syncs, ends.clean_ends(mode.syncs))
        except OSError as error:
            logger.warning(
                "the clean shutdown could not be recorded, and the next start recovers as after a crash: %s", error
            )
