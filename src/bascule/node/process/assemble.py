"""Assembles a broker from its ports, for the server, the tests and the simulator alike.

Every part is given what it needs when it is created, or when it starts; nothing is set from outside later. Where two
parts need each other, one of them has a protocol, or a function of something created before both: the dictionary of the
replicas, which replication reads and the manager fills; the Raft driver, which knows the members."""

import logging
import sys
from dataclasses import dataclass

from bascule.core.metadata.state import Metadata
from bascule.core.partition.pendingacks import PendingAcksBound
from bascule.core.raft.machine import Raft, RaftConfig
from bascule.errors import StartError
from bascule.log import ballast, cleanshutdown
from bascule.log.cleanshutdown import CleanShutdown
from bascule.log.promised import PromisedEnds
from bascule.log.raftlog import RaftStorage
from bascule.log.sync import SyncMode, SyncScheduler
from bascule.node.api.admin import AdminApi
from bascule.node.api.bulk import LogApi
from bascule.node.api.gate import Gate
from bascule.node.api.groups import GroupsApi
from bascule.node.api.liftbridge import Api
from bascule.node.calls.calls import Calls
from bascule.node.calls.subjects import Subjects
from bascule.node.config.broker import BrokerSettings
from bascule.node.controller.activity import ActivityDispatcher
from bascule.node.controller.administration import Administration
from bascule.node.controller.brokeradmin import BrokerAdmin
from bascule.node.controller.controller import Controller
from bascule.node.controller.coordinatorreports import CoordinatorReports
from bascule.node.controller.executor import Executor
from bascule.node.controller.fencing import Fencing
from bascule.node.controller.joining import Joining
from bascule.node.controller.leases import Leases
from bascule.node.controller.livebrokers import LiveBrokers
from bascule.node.controller.ownstreams import OwnStreams
from bascule.node.controller.proposals import Proposals
from bascule.node.controller.streamstatus import StreamStatus
from bascule.node.controller.voters import Voters
from bascule.node.groups.expiry import MemberExpiry
from bascule.node.membership import raft as raft_driver
from bascule.node.membership.activeclock import ActiveClock
from bascule.node.membership.bootstrap import Bootstrap, Founder
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.controllerclient import ControllerClient
from bascule.node.membership.lease import Lease
from bascule.node.membership.metadata import MetadataCache, MetadataStore
from bascule.node.membership.peers import Describe, Peer, Peers
from bascule.node.membership.raft import RaftDriver
from bascule.node.partition.environment import Environment
from bascule.node.partition.inboxes import Inboxes
from bascule.node.partition.manager import ReplicaManager
from bascule.node.partition.metadatachanges import ChangeQueue, MetadataChanges
from bascule.node.partition.peerlogs import PeerLogs
from bascule.node.partition.replicas import Replicas
from bascule.node.partition.routes import Routes
from bascule.node.partition.sender import MessageSender
from bascule.node.process.broker import Broker
from bascule.node.replication.feeds import Feeds
from bascule.node.replication.fetchers import Fetchers
from bascule.node.runtime.jobs import Jobs
from bascule.node.runtime.metrics import Metrics
from bascule.node.runtime.ports import Address, Ports, Process
from bascule.ports import Bus, Clock, Disk, Random
from bascule.wire.kernels import crc32c
from bascule.wire.raft_messages import Entry, HardState, Snapshot

logger = logging.getLogger(__name__)

RAFT_FOLDER = "raft"


@dataclass(frozen=True, slots=True)
class _Recovered:
    """The stored state of earlier boots."""

    clean: CleanShutdown | None
    ends: PromisedEnds
    storage: RaftStorage
    hard_state: HardState
    snapshot: Snapshot
    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class _Ties:
    """What connects a broker to the others."""

    own: str
    incarnation: str
    session: int
    """The boot id as a number."""
    calls: Calls
    raft: RaftDriver
    store: MetadataStore
    peers: Peers
    active_clock: ActiveClock

    def members(self) -> tuple[str, ...]:
        return self.raft.membership.everyone

    def alive(self) -> list[str]:
        return [peer.id for peer in self.peers.alive()]


async def assemble(settings: BrokerSettings, ports: Ports, process: Process) -> Broker:
    _check_assertions()
    recovered = await _recover(ports, settings.sync, process)
    metrics = Metrics()
    jobs = Jobs(process.on_fatal, metrics)
    snapshot = recovered.snapshot
    cache = MetadataCache(Metadata.restore(snapshot.data) if snapshot.data else Metadata())
    replicas = Replicas(settings.broker_id, cache)
    routes = Routes()
    queue = ChangeQueue(replicas, routes)
    ties = _ties(settings, recovered, MetadataStore(cache, queue), ports, process, jobs, metrics)
    subjects = ties.calls.subjects
    bus = ports.replication
    calls = Calls(ties.own, subjects, bus, ports.random, metrics, "repair")
    feeds = Feeds(calls, bus, ties.active_clock, ties.session, replicas, ties.members, ports.publishes, jobs)
    fetchers = _fetchers(settings, calls, bus, ties.session)
    peer_logs = PeerLogs(ties.own, calls, replicas.get, ties.members, ties.alive, jobs)
    environment = Environment(
        settings=settings,
        ports=ports,
        active_clock=ties.active_clock,
        scheduler=_scheduler(settings, ports, fetchers, process),
        routes=routes,
        inboxes=Inboxes(
            Calls(ties.own, subjects, ports.publishes, ports.random, metrics), ports.publishes, ports.random, routes
        ),
        pending=_pending_acks(metrics),
        lease=Lease(ports.clock, lambda: ties.raft.alone),
        ends=recovered.ends,
        jobs=jobs,
        metrics=metrics,
        refused=metrics.counter(
            "bascule_refused_messages_total", "Messages that were published and not stored", label="reason"
        ),
        after_clean_shutdown=recovered.clean is not None and recovered.clean.everything,
    )
    brokers = BrokerAdmin(
        ties.own, ties.incarnation, ties.calls, ties.raft, ties.store, replicas, settings, ports.clock, process
    )
    status = StreamStatus(ties.own, ties.calls, ties.store, replicas)
    controller = _controller(settings, ties, ports.clock, brokers, status, process, jobs)
    client = ControllerClient(ties.own, ties.calls, ties.raft, ties.store, controller.executor)
    cluster = _cluster(settings, ties, client, ports)
    manager = ReplicaManager(environment, cluster, client, replicas, feeds, fetchers, peer_logs, process.on_grown)
    gate = Gate(manager, cluster, metrics)
    sender = MessageSender(environment, manager.refusal, client.resume_stream)
    timeout_ns = settings.groups.consumer_timeout_ns
    expiry = MemberExpiry(ties.own, ties.store, client, ties.active_clock, timeout_ns, jobs)
    groups = GroupsApi(ties.own, settings.groups, cluster, client, environment.lease, expiry)
    api = Api(gate, environment, replicas, manager, cluster, client, sender, groups, ports.address)
    admin = AdminApi(gate, cluster, client, brokers, settings.defaults, ports)
    bulk = LogApi(gate, replicas, cluster)
    methods = {**api.methods(), **admin.methods(), **bulk.methods()}
    changes = MetadataChanges(manager, replicas, queue, jobs)
    own_streams = OwnStreams(settings, controller.proposals, controller.live, controller.executor)
    activity = ActivityDispatcher(settings.activity, controller.proposals, controller.live, sender)
    return Broker(
        environment,
        cluster,
        client,
        controller,
        own_streams,
        activity,
        brokers,
        status,
        replicas,
        manager,
        changes,
        expiry,
        gate,
        methods,
        process,
    )


def _check_assertions() -> None:
    if sys.flags.optimize:
        raise StartError(
            "Python runs with -O or PYTHONOPTIMIZE, which removes the assertions that stop a broker after a bug: start "
            "it without"
        )


async def _recover(ports: Ports, mode: SyncMode, process: Process) -> _Recovered:
    disk = ports.disk
    clean = await cleanshutdown.read(disk)
    ends = PromisedEnds(disk, process.on_fatal, synced=mode.syncs)
    await ends.load(clean.ends if clean else None)
    storage = RaftStorage(disk, RAFT_FOLDER, ends.record(RAFT_FOLDER))
    return _Recovered(clean, ends, storage, *await _open_storage(storage, disk, ends, ports.random))


def _ties(
    settings: BrokerSettings,
    recovered: _Recovered,
    store: MetadataStore,
    ports: Ports,
    process: Process,
    jobs: Jobs,
    metrics: Metrics,
) -> _Ties:
    own, snapshot = settings.broker_id, recovered.snapshot
    raft = _raft(own, recovered.hard_state, snapshot, recovered.entries, ports.random)
    subjects = Subjects(settings.namespace, raft.membership.cluster)
    calls = Calls(own, subjects, ports.control, ports.random, metrics)
    driver = RaftDriver(raft, recovered.storage, calls, store, settings.snapshot_threshold, process.on_fatal)
    boot = ports.random.token()
    active_clock = ActiveClock(ports.clock)
    peers = Peers(calls, active_clock, _describe(own, boot, ports.address, store, raft), process.on_fatal, jobs)
    incarnation = recovered.hard_state.incarnation
    return _Ties(own, incarnation, _session(boot), calls, driver, store, peers, active_clock)


def _pending_acks(metrics: Metrics) -> PendingAcksBound:
    pending = PendingAcksBound()
    metrics.gauge("bascule_pending_ack_bytes", "Acks whose condition is not met yet", lambda: pending.nbytes)
    return pending


def _scheduler(settings: BrokerSettings, ports: Ports, fetchers: Fetchers, process: Process) -> SyncScheduler:
    return SyncScheduler(
        ports.disk,
        ports.clock,
        settings.sync,
        on_pressure=ports.streams.pause_reading,
        reports=fetchers,
        on_fatal=process.on_fatal,
    )


def _cluster(settings: BrokerSettings, ties: _Ties, client: ControllerClient, ports: Ports) -> Cluster:
    founder = Founder(ties.own, ties.incarnation, settings.seed, settings.peers)
    bootstrap = Bootstrap(ties.calls, founder, ports.disk, ports.clock)
    return Cluster(
        ties.own,
        ties.incarnation,
        ties.calls,
        bootstrap,
        ties.raft,
        ties.store,
        ties.peers,
        client,
        ports.clock,
    )


def _controller(
    settings: BrokerSettings,
    ties: _Ties,
    clock: Clock,
    brokers: BrokerAdmin,
    status: StreamStatus,
    process: Process,
    jobs: Jobs,
) -> Controller:
    live = LiveBrokers(ties.raft, ties.active_clock, ties.peers.last_heartbeat)
    proposals = Proposals(ties.raft, ties.store, live)
    administration = Administration(ties.own, proposals, live, brokers, settings.defaults, jobs)
    executor = Executor(
        proposals,
        live,
        administration,
        status,
        Leases(ties.own, clock),
        CoordinatorReports(proposals, ties.active_clock, settings.groups.coordinator_timeout_ns),
        clock,
        ties.calls.new_id,
        settings.min_replication_factor,
        settings.defaults.min_isr,
        jobs,
    )
    return Controller(
        proposals,
        live,
        administration,
        executor,
        Fencing(proposals, live, ties.active_clock, jobs),
        Joining(proposals, live, administration, ties.calls.subjects, ties.active_clock, jobs),
        Voters(proposals, live, administration, settings.max_quorum, settings.peers),
        ties.calls,
        ties.active_clock,
        process.on_role,
        process.on_fatal,
        jobs,
    )


def _describe(own: str, boot: str, address: Address, store: MetadataStore, raft: Raft) -> Describe:
    """What this broker sends about itself with every heartbeat."""

    def describe(stopping: bool) -> Peer:
        held, led = store.counts(own)
        return Peer(
            own,
            address.host,
            address.port,
            boot,
            held,
            led,
            stopping,
            commit=raft.log.commit,
            members=len(raft.membership.everyone),
        )

    return describe


def _raft(own: str, hard_state: HardState, snapshot: Snapshot, entries: list[Entry], random: Random) -> Raft:
    config = RaftConfig(own, election_ticks=raft_driver.ELECTION_TICKS, heartbeat_ticks=raft_driver.HEARTBEAT_TICKS)
    return Raft(config, hard_state, snapshot, entries, lambda low, high: int(random.uniform(low, high + 1)))


async def _open_storage(
    storage: RaftStorage, disk: Disk, ends: PromisedEnds, random: Random
) -> tuple[HardState, Snapshot, list[Entry]]:
    """The stored state of Raft. The record of a clean shutdown is loaded and removed before anything is written."""
    hard_state, snapshot, entries, fresh = await storage.open()
    await ballast.with_room(disk, ends.begin)
    await cleanshutdown.remove(disk)
    await ballast.keep(disk)
    if fresh:
        # Stored before any message is sent: a broker that loses its disk after that gets another incarnation.
        hard_state = HardState(incarnation=random.token())
        await storage.save(hard_state, [], snapshot)
    return hard_state, snapshot, entries


def _fetchers(settings: BrokerSettings, calls: Calls, bus: Bus, session: int) -> Fetchers:
    max_lag_s = settings.defaults.max_lag_ns / 1e9
    return Fetchers(calls, bus, settings.fetch_timeout_s, session, max_lag_s)


def _session(boot: str) -> int:
    """The boot id as a number, for messages of fixed width; never 0."""
    return crc32c(boot.encode()) << 32 | crc32c(boot[::-1].encode()) | 1
