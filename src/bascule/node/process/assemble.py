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
from bascule.node.api.batches import BatchPublisher
from bascule.node.api.bulk import LogApi
from bascule.node.api.bulkwrite import BulkWrites
from bascule.node.api.gate import Gate
from bascule.node.api.groups import GroupsApi
from bascule.node.api.liftbridge import Api
from bascule.node.api.producers import ProducersApi
from bascule.node.api.unread import UnreadRecords
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
from bascule.node.controller.otherclusters import OtherClusters
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
from bascule.node.partition.awaited import AwaitedReplicas
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
from bascule.node.runtime.metrics import Counter, Metrics
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
    awaited: AwaitedReplicas
    whole_index: int
    """The index of the metadata at which the last boot ended that has left its records of who is waited for."""
    storage: RaftStorage
    hard_state: HardState
    snapshot: Snapshot
    entries: list[Entry]

    @property
    def known_index(self) -> int:
        """The last entry of the metadata that was on the disk."""
        return _last_index(self.snapshot, self.entries)


@dataclass(frozen=True, slots=True)
class _Links:
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
    links = _links(
        settings, recovered, MetadataStore(cache, queue, recovered.whole_index), ports, process, jobs, metrics
    )
    subjects = links.calls.subjects
    bus = ports.replication
    calls = Calls(links.own, subjects, bus, ports.random, metrics, "repair")
    feeds = Feeds(calls, bus, links.active_clock, links.session, replicas, links.members, ports.publishes, jobs)
    fetchers = _fetchers(settings, calls, bus, links.session)
    peer_logs = PeerLogs(links.own, calls, replicas.asked_for, links.members, links.alive, jobs)
    environment = Environment(
        settings=settings,
        ports=ports,
        active_clock=links.active_clock,
        scheduler=_scheduler(settings, ports, fetchers, process),
        routes=routes,
        inboxes=Inboxes(
            Calls(links.own, subjects, ports.publishes, ports.random, metrics), ports.publishes, ports.random, routes
        ),
        pending=_pending_acks(metrics),
        lease=Lease(ports.clock, lambda: links.raft.alone),
        ends=recovered.ends,
        awaited=recovered.awaited,
        jobs=jobs,
        metrics=metrics,
        refused=_refused(metrics),
        duplicates=_duplicates(metrics),
        after_clean_shutdown=recovered.clean is not None and recovered.clean.everything,
        known_index=recovered.known_index,
        at_start=links.store.at_start,
    )
    brokers = BrokerAdmin(
        links.own, links.incarnation, links.calls, links.raft, links.store, replicas, settings, ports.clock, process
    )
    status = StreamStatus(links.own, links.calls, links.store, replicas)
    controller = _controller(settings, links, ports.clock, brokers, status, process, jobs)
    client = ControllerClient(links.own, links.calls, links.raft, links.store, controller.executor)
    cluster = _cluster(settings, links, client, ports)
    manager = ReplicaManager(environment, cluster, client, replicas, feeds, fetchers, peer_logs, process.on_grown)
    gate = Gate(manager, cluster, metrics)
    sender = MessageSender(environment, manager.refusal, client.resume_stream)
    timeout_ns = settings.groups.consumer_timeout_ns
    expiry = MemberExpiry(links.own, links.store, client, links.active_clock, timeout_ns, jobs)
    groups = GroupsApi(links.own, settings.groups, cluster, client, environment.lease, expiry)
    unread = UnreadRecords(metrics)
    api = Api(gate, environment, replicas, manager, cluster, client, sender, groups, unread, brokers, ports.address)
    admin = AdminApi(gate, cluster, client, brokers, settings.defaults, ports)
    writes = BulkWrites(gate, environment, replicas, manager, client.resume_stream)
    bulk = LogApi(gate, replicas, cluster, writes, unread)
    producers = ProducersApi(gate, cluster, client, BatchPublisher(sender))
    methods = {**api.methods(), **admin.methods(), **bulk.methods(), **producers.methods()}
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
    awaited = AwaitedReplicas(disk)
    await awaited.load()
    hard_state, snapshot, entries = await _open_storage(storage, disk, ends, ports.random)
    whole_index = await awaited.begin(
        _last_index(snapshot, entries), clean=clean is not None and clean.everything and mode.syncs
    )
    return _Recovered(clean, ends, awaited, whole_index, storage, hard_state, snapshot, entries)


def _last_index(snapshot: Snapshot, entries: list[Entry]) -> int:
    return entries[-1].index if entries else snapshot.index


def _links(
    settings: BrokerSettings,
    recovered: _Recovered,
    store: MetadataStore,
    ports: Ports,
    process: Process,
    jobs: Jobs,
    metrics: Metrics,
) -> _Links:
    own, snapshot = settings.broker_id, recovered.snapshot
    raft = _raft(own, recovered.hard_state, snapshot, recovered.entries, ports.random)
    subjects = Subjects(settings.namespace, raft.membership.cluster)
    calls = Calls(own, subjects, ports.control, ports.random, metrics)
    driver = RaftDriver(raft, recovered.storage, calls, store, settings.snapshot_threshold, process.on_fatal)
    boot = ports.random.token()
    active_clock = ActiveClock(ports.clock)
    max_lag_s = settings.defaults.max_lag_ns / 1e9
    describe = _describe(own, boot, ports.address, store, driver, max_lag_s)
    peers = Peers(calls, active_clock, describe, process.on_fatal, jobs)
    incarnation = recovered.hard_state.incarnation
    return _Links(own, incarnation, _session(boot), calls, driver, store, peers, active_clock)


def _pending_acks(metrics: Metrics) -> PendingAcksBound:
    pending = PendingAcksBound()
    metrics.gauge("bascule_pending_ack_bytes", "Acks whose condition is not met yet", lambda: pending.nbytes)
    return pending


def _refused(metrics: Metrics) -> Counter:
    help = "Messages that were published and not stored"
    return metrics.counter("bascule_refused_messages_total", help, label="reason")


def _duplicates(metrics: Metrics) -> Counter:
    help = "Messages of idempotent producers that were stored before"
    return metrics.counter("bascule_duplicate_messages_total", help)


def _scheduler(settings: BrokerSettings, ports: Ports, fetchers: Fetchers, process: Process) -> SyncScheduler:
    return SyncScheduler(
        ports.disk,
        ports.clock,
        settings.sync,
        on_pressure=ports.streams.pause_reading,
        reports=fetchers,
        on_fatal=process.on_fatal,
    )


def _cluster(settings: BrokerSettings, links: _Links, client: ControllerClient, ports: Ports) -> Cluster:
    founder = Founder(links.own, links.incarnation, settings.seed, settings.peers)
    bootstrap = Bootstrap(links.calls, founder, ports.disk, ports.clock)
    return Cluster(
        links.own,
        links.incarnation,
        links.calls,
        bootstrap,
        links.raft,
        links.store,
        links.peers,
        client,
        ports.clock,
    )


def _controller(
    settings: BrokerSettings,
    links: _Links,
    clock: Clock,
    brokers: BrokerAdmin,
    status: StreamStatus,
    process: Process,
    jobs: Jobs,
) -> Controller:
    live = LiveBrokers(links.raft, links.active_clock, links.peers.last_heartbeat, links.peers.announced_stop)
    proposals = Proposals(links.raft, links.store, live)
    others = OtherClusters(
        links.raft,
        links.store,
        live,
        links.calls.subjects,
        links.active_clock,
        links.peers.last_heartbeat,
        process.on_fatal,
    )
    administration = Administration(links.own, proposals, live, brokers, settings.defaults, jobs)
    executor = Executor(
        proposals,
        live,
        administration,
        status,
        Leases(links.own, clock),
        CoordinatorReports(proposals, links.active_clock, settings.groups.coordinator_timeout_ns),
        clock,
        links.calls.new_id,
        settings.min_replication_factor,
        settings.defaults.min_isr,
        jobs,
    )
    return Controller(
        proposals,
        live,
        administration,
        executor,
        Fencing(proposals, live, links.active_clock, jobs),
        Joining(proposals, live, administration, links.calls.subjects, links.active_clock, jobs),
        Voters(proposals, live, administration, settings.max_quorum, settings.peers),
        others,
        links.calls,
        process.on_role,
        jobs,
    )


def _describe(
    own: str, boot: str, address: Address, store: MetadataStore, driver: RaftDriver, max_lag_s: float
) -> Describe:
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
            commit=driver.raft.log.commit,
            members=len(driver.membership.everyone),
            stalled=driver.stalled(max_lag_s),
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
