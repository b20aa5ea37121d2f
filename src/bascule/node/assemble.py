"""A broker put together from its ports: where all parts meet, for the server, the tests and the simulator."""

import logging
from dataclasses import dataclass

from bascule.core.metadata.state import Metadata
from bascule.core.raft.machine import Raft, RaftConfig
from bascule.log.raftlog import RaftStorage
from bascule.log.sync import SyncScheduler
from bascule.node import raft as raft_driver
from bascule.node.bootstrap import Bootstrap
from bascule.node.broker import Broker
from bascule.node.cluster import Cluster, ClusterConfig
from bascule.node.environment import Address, Environment, StreamDefaults
from bascule.node.feeds import Feeds
from bascule.node.fetchers import Fetchers
from bascule.node.inboxes import Inboxes
from bascule.node.metadata import MetadataStore
from bascule.node.peerlogs import PeerLogs
from bascule.node.peers import Peer, Peers
from bascule.node.raft import RaftDriver
from bascule.node.requests import Requests
from bascule.node.routes import Routes
from bascule.ports import Bus, Clock, Disk, Random
from bascule.wire.kernels import crc32c
from bascule.wire.raft_messages import HardState, Membership, Snapshot

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
    scheduler: SyncScheduler,
    address: Address,
) -> Broker:
    own, namespace = settings.broker_id, settings.namespace
    storage = RaftStorage(disk, RAFT_FOLDER)
    hard_state, snapshot, entries, fresh = await storage.open()
    joining = False
    bootstrap = Bootstrap(namespace, own, settings.seed, buses.control)
    if fresh:
        founders = _founders(settings)
        joining = not founders.everyone or not await bootstrap.found()
        hard_state = HardState(incarnation=random.token() if joining else "")
        snapshot = Snapshot(0, 0, Membership() if joining else founders)
        await storage.save(hard_state, [], snapshot)
    elif own not in snapshot.membership.everyone and not entries:
        joining = True
    metadata = Metadata.restore(snapshot.data) if snapshot.data else Metadata()
    store = MetadataStore(metadata)
    config = RaftConfig(own, election_ticks=raft_driver.ELECTION_TICKS, heartbeat_ticks=raft_driver.HEARTBEAT_TICKS)
    raft = Raft(config, hard_state, snapshot, entries, lambda low, high: int(random.uniform(low, high + 1)))
    driver = RaftDriver(raft, storage, buses.control, namespace, store, settings.snapshot_threshold)
    boot = random.token()
    routes = Routes()
    environment = Environment(
        broker_id=own,
        namespace=namespace,
        disk=disk,
        clock=clock,
        random=random,
        streams_bus=buses.streams,
        publishes_bus=buses.publishes,
        scheduler=scheduler,
        routes=routes,
        inboxes=Inboxes(namespace, own, random, routes),
        feeds=Feeds(own, namespace, buses.replication, clock, _session(boot), buses.publishes.push),
        fetchers=Fetchers(own, namespace, buses.replication, settings.fetch_timeout_s, _session(boot)),
        peer_logs=PeerLogs(
            own, namespace, buses.replication, Requests(namespace, f"{own}.repair", buses.replication, random)
        ),
        defaults=settings.defaults,
    )

    scheduler.on_told = environment.fetchers.push

    def describe() -> Peer:
        held, led = broker.counts()
        return Peer(own, address.host, address.port, boot, held, led, broker.leaving)

    peers = Peers(namespace, buses.control, clock, describe)
    requests = Requests(namespace, own, buses.control, random)
    cluster_config = ClusterConfig(
        own,
        namespace,
        hard_state.incarnation,
        joining,
        settings.max_quorum,
        settings.min_replication_factor,
        settings.defaults.min_isr,
    )
    cluster = Cluster(cluster_config, driver, store, peers, requests, buses.control, clock)
    bootstrap.listen(lambda: raft.log.commit > 0)
    broker = Broker(environment, cluster)
    return broker


def _session(boot: str) -> int:
    """The boot id as a number, for messages of fixed width; never 0."""
    return crc32c(boot.encode()) << 32 | crc32c(boot[::-1].encode()) | 1


def _founders(settings: Settings) -> Membership:
    """Who makes up a new cluster; nobody if this broker is to join one. Every peer must come to the same answer."""
    if settings.peers:
        names = tuple(sorted({*settings.peers, settings.broker_id}))
        voters = settings.max_quorum or len(names)
        return Membership(names[:voters], names[voters:])
    return Membership((settings.broker_id,) if settings.seed else ())
