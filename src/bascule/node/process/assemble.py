"""A broker put together from its ports: where all parts meet, for the server, the tests and the simulator alike.

Every part is given what it needs when it is made, or when it starts; nothing is set from outside later. What two parts
need of each other one of them has as a protocol, or as a function of something made before both: the dictionary of the
replicas, which replication reads and the broker fills; the Raft driver, which knows the members."""

import logging
from dataclasses import dataclass

from bascule.core.metadata.state import Metadata
from bascule.core.metadata.streams import Key
from bascule.core.partition.owed import OwedBound
from bascule.core.raft.machine import Raft, RaftConfig
from bascule.log import ballast, cleanshutdown
from bascule.log.cleanshutdown import CleanShutdown
from bascule.log.promised import PromisedEnds
from bascule.log.raftlog import RaftStorage
from bascule.log.sync import SyncMode, SyncScheduler
from bascule.node.calls.calls import Calls
from bascule.node.calls.subjects import Subjects
from bascule.node.controller.administration import Administration
from bascule.node.controller.brokeradmin import BrokerAdmin
from bascule.node.controller.controller import Controller
from bascule.node.controller.deletion import Deletion
from bascule.node.controller.executor import Executor
from bascule.node.controller.livebrokers import LiveBrokers
from bascule.node.controller.proposals import Proposals
from bascule.node.controller.streamstatus import StreamStatus
from bascule.node.membership import raft as raft_driver
from bascule.node.membership.attention import Attention
from bascule.node.membership.bootstrap import Bootstrap, Founder
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.controllerclient import CarryOut, ControllerClient
from bascule.node.membership.lease import Lease
from bascule.node.membership.metadata import MetadataStore
from bascule.node.membership.peers import Describe, Peer, Peers
from bascule.node.membership.raft import RaftDriver
from bascule.node.partition.environment import Address, Environment, Process, StreamDefaults
from bascule.node.partition.inboxes import Inboxes
from bascule.node.partition.peerlogs import PeerLogs
from bascule.node.partition.replica import Replica
from bascule.node.partition.routes import Routes
from bascule.node.process.broker import Broker, ControllerParts
from bascule.node.replication.feeds import Feeds
from bascule.node.replication.fetchers import Fetchers
from bascule.node.runtime.jobs import Jobs
from bascule.ports import Bus, Clock, Disk, Random
from bascule.wire.kernels import crc32c
from bascule.wire.raft_messages import Entry, HardState, Snapshot

logger = logging.getLogger(__name__)

RAFT_FOLDER = "raft"


@dataclass(frozen=True, slots=True)
class Buses:
    """Four connections, so that a slow-consumer cut of one never takes the heartbeat with it."""

    control: Bus
    streams: Bus
    publishes: Bus
    replication: Bus


@dataclass(frozen=True, slots=True)
class Settings:
    """What of the configuration shapes a broker and its place in the cluster."""

    broker_id: str
    namespace: str
    seed: bool
    peers: tuple[str, ...]
    max_quorum: int
    snapshot_threshold: int
    min_replication_factor: int
    fetch_timeout_s: float
    defaults: StreamDefaults


async def assemble(
    settings: Settings,
    disk: Disk,
    clock: Clock,
    random: Random,
    buses: Buses,
    mode: SyncMode,
    address: Address,
    process: Process,
) -> Broker:
    own, namespace = settings.broker_id, settings.namespace
    clean = await cleanshutdown.read(disk)
    ends = await _load_ends(disk, clean, mode)
    storage = RaftStorage(disk, RAFT_FOLDER, ends.record(RAFT_FOLDER))
    hard_state, snapshot, entries = await _open_storage(storage, disk, ends, random)
    metadata = Metadata.restore(snapshot.data) if snapshot.data else Metadata()
    store = MetadataStore(metadata)
    raft = _raft(own, hard_state, snapshot, entries, random)
    subjects = Subjects(namespace, raft.membership.cluster)
    control = Calls(own, subjects, buses.control, random)
    driver = RaftDriver(raft, storage, control, store, settings.snapshot_threshold, process.on_fatal)
    boot = random.token()
    session, attention, routes = _session(boot), Attention(clock), Routes()
    replicas: dict[Key, Replica] = {}
    jobs = Jobs(process.on_fatal)

    def members() -> tuple[str, ...]:
        return driver.membership.everyone

    describe = _describe(own, boot, address, store, raft)
    peers = Peers(control, attention, describe, process.on_fatal, jobs)

    def alive() -> list[str]:
        return [peer.id for peer in peers.alive()]

    bus = buses.replication
    feeds = Feeds(own, subjects, bus, attention, session, replicas.get, members, buses.publishes.push)
    fetchers = _fetchers(settings, subjects, bus, session)
    repairs = Calls(own, subjects, bus, random, "repair")
    peer_logs = PeerLogs(own, repairs, replicas.get, members, alive, jobs)
    environment = Environment(
        broker_id=own,
        namespace=namespace,
        disk=disk,
        clock=clock,
        attention=attention,
        random=random,
        streams_bus=buses.streams,
        publishes_bus=buses.publishes,
        scheduler=SyncScheduler(disk, clock, mode, on_pressure=buses.streams.hold, on_told=fetchers.push),
        routes=routes,
        inboxes=Inboxes(namespace, own, random, routes),
        owed=OwedBound(),
        lease=Lease(clock, lambda: driver.alone),
        defaults=settings.defaults,
        ends=ends,
        process=process,
        jobs=jobs,
        after_clean_shutdown=clean is not None and clean.everything,
    )
    founder = Founder(own, hard_state.incarnation, settings.seed, settings.peers)
    bootstrap = Bootstrap(control, founder, disk, clock)
    broker_admin = BrokerAdmin(
        own,
        hard_state.incarnation,
        control,
        driver,
        store,
        replicas,
        mode,
        process,
    )
    parts, carry_out = _controller(
        settings, control, driver, store, peers, broker_admin, clock, attention, process, jobs
    )
    client = ControllerClient(own, control, driver, store, carry_out)
    cluster = Cluster(own, hard_state.incarnation, control, bootstrap, driver, store, peers, client, clock)
    return Broker(environment, cluster, client, parts, replicas, feeds, fetchers, peer_logs)


def _controller(
    settings: Settings,
    calls: Calls,
    driver: RaftDriver,
    store: MetadataStore,
    peers: Peers,
    broker_admin: BrokerAdmin,
    clock: Clock,
    attention: Clock,
    process: Process,
    jobs: Jobs,
) -> tuple[ControllerParts, CarryOut]:
    own = settings.broker_id
    live = LiveBrokers(driver, attention, peers.last_heard)
    proposals = Proposals(driver, store, live)
    administration = Administration(own, proposals, live, broker_admin, settings.defaults, jobs)
    status = StreamStatus(own, calls, lambda: store.metadata)
    executor = Executor(
        proposals,
        live,
        administration,
        status,
        Deletion(own, clock, status.knows_that_it_is_gone),
        clock,
        calls.new_id,
        settings.min_replication_factor,
        settings.defaults.min_isr,
        jobs,
    )
    controller = Controller(
        proposals,
        live,
        administration,
        executor,
        calls,
        attention,
        settings.max_quorum,
        settings.peers,
        process.on_role,
        process.on_fatal,
        jobs,
    )
    return ControllerParts(controller, proposals, broker_admin, status), executor.carry_out


def _describe(own: str, boot: str, address: Address, store: MetadataStore, raft: Raft) -> Describe:
    """What this broker says of itself with every heartbeat."""

    def describe(leaving: bool) -> Peer:
        held, led = store.counts(own)
        return Peer(
            own,
            address.host,
            address.port,
            boot,
            held,
            led,
            leaving,
            commit=raft.log.commit,
            members=len(raft.membership.everyone),
        )

    return describe


async def _load_ends(disk: Disk, clean: CleanShutdown | None, mode: SyncMode) -> PromisedEnds:
    ends = PromisedEnds(disk, synced=mode.syncs)
    await ends.load(clean.ends if clean else None)
    return ends


def _raft(own: str, hard_state: HardState, snapshot: Snapshot, entries: list[Entry], random: Random) -> Raft:
    config = RaftConfig(own, election_ticks=raft_driver.ELECTION_TICKS, heartbeat_ticks=raft_driver.HEARTBEAT_TICKS)
    return Raft(config, hard_state, snapshot, entries, lambda low, high: int(random.uniform(low, high + 1)))


async def _open_storage(
    storage: RaftStorage, disk: Disk, ends: PromisedEnds, random: Random
) -> tuple[HardState, Snapshot, list[Entry]]:
    """What Raft had stored. What a clean shutdown left is taken over, and then anything may be written."""
    hard_state, snapshot, entries, fresh = await storage.open()
    await ballast.with_room(disk, ends.begin)
    await cleanshutdown.remove(disk)
    await ballast.keep(disk)
    if fresh:
        # Before it says or does anything: whoever loses its disk after that is another one.
        hard_state = HardState(incarnation=random.token())
        await storage.save(hard_state, [], snapshot)
    return hard_state, snapshot, entries


def _fetchers(settings: Settings, subjects: Subjects, bus: Bus, session: int) -> Fetchers:
    max_lag_s = settings.defaults.max_lag_ns / 1e9
    return Fetchers(settings.broker_id, subjects, bus, settings.fetch_timeout_s, session, max_lag_s)


def _session(boot: str) -> int:
    """The boot id as a number, for messages of fixed width; never 0."""
    return crc32c(boot.encode()) << 32 | crc32c(boot[::-1].encode()) | 1
