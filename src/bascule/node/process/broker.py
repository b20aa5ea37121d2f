"""The life of one broker: it enters its cluster, opens what it holds, catches up, takes roles, hands over, and stops.
Knows no socket of its own: the gRPC server calls its methods, NATS comes through the Bus, files through the Disk. So
the simulator runs all of this.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial

from bascule.core.metadata.state import StreamCreated
from bascule.log import cleanshutdown
from bascule.net.grpc import Handler
from bascule.node.api.gate import Gate
from bascule.node.controller.brokeradmin import BrokerAdmin
from bascule.node.controller.controller import Controller
from bascule.node.controller.streamstatus import StreamStatus
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.controllerclient import ControllerClient
from bascule.node.partition import repair
from bascule.node.partition.environment import Environment
from bascule.node.partition.filewatch import FileWatch
from bascule.node.partition.lagwatch import LagWatch
from bascule.node.partition.manager import ReplicaManager
from bascule.node.partition.metadatachanges import MetadataChanges
from bascule.node.partition.replica import stream_folder
from bascule.node.partition.replicas import Replicas
from bascule.node.partition.unclaimed import set_aside_unclaimed
from bascule.node.runtime.ports import Process

logger = logging.getLogger(__name__)

HAND_OVER_POLL_S = 0.01
RESIGN_S = 1.0
START_WAIT_S = 3.0
STOPS_AT_ONCE = 4
"""Whoever asks a broker to stop while it stops already waits with the others; any more do not."""


class Broker:
    def __init__(
        self,
        environment: Environment,
        cluster: Cluster,
        client: ControllerClient,
        controller: Controller,
        broker_admin: BrokerAdmin,
        stream_status: StreamStatus,
        replicas: Replicas,
        manager: ReplicaManager,
        gate: Gate,
        methods: Mapping[str, Handler],
        process: Process,
    ) -> None:
        self.environment = environment
        self.cluster = cluster
        self.client = client
        self.controller = controller
        self.broker_admin = broker_admin
        self.stream_status = stream_status
        self.replicas = replicas
        self.manager = manager
        self.gate = gate
        self.methods = methods
        """What it answers over gRPC, by path."""
        self.files = FileWatch(
            environment.ports.disk,
            environment.scheduler,
            cluster.raft.storage,
            lambda: [replica.log for replica in replicas.values()],
            self._on_files,
        )
        self.changes = MetadataChanges(manager, replicas, environment.jobs)
        self.lag_watch = LagWatch(environment, replicas)
        self._process = process
        self._jobs = environment.jobs
        self._hand_overs = self._jobs.tasks("a hand-over", STOPS_AT_ONCE, answered=True)

    # --- the start -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open every replica here, hear what the cluster decided meanwhile, then take roles. Serving may begin when
        this returns."""
        environment, manager, controller = self.environment, self.manager, self.controller
        await self.cluster.enter()
        environment.inboxes.listen()
        manager.feeds.listen()
        manager.fetchers.listen()
        manager.peer_logs.listen()
        self.broker_admin.listen()
        await manager.open_what_can_be()
        self.cluster.store.listen(self.changes.enqueue)
        self.stream_status.listen()
        self.cluster.start(controller.role_changed, controller.heard, controller.heard_unknown_broker)
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
        await environment.ports.publishes.flush()

    async def _settle_in(self) -> None:
        """Roles only once the cluster has spoken: what this broker led before may be another's by now."""
        environment, manager = self.environment, self.manager
        await self.cluster.caught_up()
        suspect = await manager.suspect_partitions()
        if manager.unclean and self.replicas:
            logger.warning(
                "relaxed sync (%s), and the last run did not end with a clean shutdown: this broker is in sync with "
                "nothing it shares until it has caught up",
                environment.scheduler.mode,
            )
        await self.cluster.broker_started(suspect, manager.unclean)
        manager.caught_up = True
        await self.changes.skip_history()
        await set_aside_unclaimed(environment.ports.disk, environment.ports.clock, self._folders())
        environment.ends.keep_streams(self._folders())
        await environment.lease.ask(self.cluster.current)
        self._run_jobs()
        self.changes.enqueue([StreamCreated(stream) for stream in self.cluster.metadata.streams.values()])
        await self.changes.carried_out()

    def _folders(self) -> dict[str, None]:
        return {stream_folder(stream): None for stream in self.cluster.metadata.streams.values()}

    def _run_jobs(self) -> None:
        """A new job is one registration here."""
        run = self._jobs.run
        keep_lease = partial(self.environment.lease.keep, self.cluster.current, self.manager.lease_changed)
        run("the lease", keep_lease, "this broker takes no writes")
        self._jobs.vital("the taking of roles", self.changes.run())
        run("the reading of all records", self._scrub, "damage at rest is found only when it is read")
        run("the look at replicas that lag", self.lag_watch.run, "they stay in their in-sync sets, and commits wait")

    async def _scrub(self) -> None:
        while True:
            await self.changes.carried_out()
            await self.manager.scrub()
            await asyncio.sleep(repair.SCRUB_EVERY_S)

    def _on_files(self) -> None:
        """The data folder, or the metadata, was taken away or is back."""
        self.manager.files_changed(bool(self.files.gone))
        self._process.on_files(self.files.gone)

    # --- the end ---------------------------------------------------------------------------------------------

    async def hand_over(self, timeout_s: float) -> None:
        """Give what we lead to others in sync, so that a stop costs each partition a moment and not a session. We also
        leave the in-sync sets, and fetch nothing more that would bring us back into one: who waits for all replicas
        must not wait for us."""
        own = self.environment.settings.broker_id
        if all(other == own for other in self.cluster.servers) or self._hand_overs.full:
            return
        self.cluster.peers.leave()
        self.manager.fetchers.close()
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
        while loop.time() < deadline and self._somebody_stays() and self.replicas.leads_what_is_anothers():
            await asyncio.sleep(HAND_OVER_POLL_S)
        await self.cluster.resign(RESIGN_S)

    def _somebody_stays(self) -> bool:
        """Another broker that could take over: heard of, and not about to stop itself."""
        servers = self.cluster.servers
        return any(peer.id in servers and not peer.leaving for peer in self.cluster.peers.alive())

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

    async def _leave_clean(self, sound: bool) -> None:
        """Everything is closed: say where all logs end, for the next start."""
        ends, mode = self.environment.ends, self.environment.scheduler.mode
        try:
            await ends.close()
            await cleanshutdown.leave(self.environment.ports.disk, sound and mode.syncs, ends.clean_ends(mode.syncs))
        except OSError as error:
            logger.warning("the next start will take this stop for a crash: %s", error)
