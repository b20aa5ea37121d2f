"""This broker as a member of its cluster: it founds or joins one, catches up with it, and leaves it."""

import asyncio
import logging
from collections.abc import Callable

from bascule.core.metadata.commands import BrokerStarted, PartitionName
from bascule.core.metadata.state import Metadata
from bascule.errors import BasculeError, BusUnavailable, DeadlineExceeded, StartError, Unavailable
from bascule.node.calls.calls import Calls
from bascule.node.calls.messages import JOIN
from bascule.node.calls.subjects import succeeds
from bascule.node.membership.bootstrap import Bootstrap
from bascule.node.membership.controllerclient import ISR_TIMEOUT_S, POLL_S, ControllerClient
from bascule.node.membership.metadata import MetadataStore
from bascule.node.membership.peers import Peer, Peers
from bascule.node.membership.raft import RaftDriver
from bascule.node.membership.waiting import Waiting
from bascule.ports import Clock
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.raft_messages import Membership

logger = logging.getLogger(__name__)

JOIN_EVERY_S = 1.0

OnRole = Callable[[], None]
OnHeartbeat = Callable[[Peer], None]


class Cluster:
    def __init__(
        self,
        broker_id: str,
        incarnation: str,
        calls: Calls,
        bootstrap: Bootstrap,
        raft: RaftDriver,
        store: MetadataStore,
        peers: Peers,
        client: ControllerClient,
        clock: Clock,
    ) -> None:
        self.broker_id = broker_id
        self.subjects = calls.subjects
        self._calls = calls
        self.raft = raft
        self.store = store
        self.peers = peers
        self.joined = False
        """In this boot: it had no state before."""
        self._incarnation = incarnation
        self._bootstrap = bootstrap
        self._client = client
        self._clock = clock
        self._waiting: Waiting | None = None
        self._successor = ""
        """The id of a cluster that was recovered from this one, if one of its brokers sent a heartbeat."""
        self._unknown_broker = ""
        """The id of any other cluster whose broker sent a heartbeat."""

    @property
    def metadata(self) -> Metadata:
        return self.store.metadata

    @property
    def alone(self) -> bool:
        """This broker is the only voter."""
        return self.raft.alone

    @property
    def servers(self) -> tuple[str, ...]:
        return self.raft.membership.everyone

    # --- start and stop ------------------------------------------------------------------------------------

    async def enter(self) -> None:
        """Returns when this broker is in a cluster: the one in its stored state, one that it founded or one that it
        joined. Waits without limit. Raises StartError if it cannot enter one."""
        self._calls.listen()
        if not self.subjects.cluster:
            if self._bootstrap.may_found and await self._bootstrap.found():
                await self._found()
            else:
                await self._join()
        self._bootstrap.answer()

    async def _found(self) -> None:
        """Found a cluster of this broker alone, with a new id, which is stored before any message is sent."""
        own, cluster = self.broker_id, self._calls.new_id()
        await self.raft.found(Membership((own,), (), ((own, self._incarnation),), cluster))
        self.subjects.enter(cluster)
        logger.info("this broker has founded a new cluster, %s", cluster)

    def start(self, on_role: OnRole, on_heartbeat: OnHeartbeat, on_unknown_broker: OnHeartbeat) -> None:
        """Take part in the cluster that was entered. The callbacks inform the controller of a change of the role in
        Raft, a heartbeat of a member, and a heartbeat of a broker of another cluster."""

        def note_unknown_broker(peer: Peer) -> None:
            self._note_unknown_broker(peer)
            on_unknown_broker(peer)

        self.raft.start(on_role)
        self.peers.start(on_heartbeat, note_unknown_broker)

    async def stop(self) -> None:
        self.peers.stop()
        await self.raft.stop()

    async def resign(self, timeout_s: float) -> None:
        """Transfer the controller to another voter, and wait until it has taken over."""
        alive = {peer.id: None for peer in self.peers.alive() if not peer.stopping}
        others = [server for server in self.raft.membership.voters if server in alive]
        others.sort(key=lambda server: server in self.metadata.brokers.draining)
        if not self.raft.raft.is_leader or not others:
            return
        self.raft.transfer(others[0])
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while self.raft.raft.leader in ("", self.broker_id) and loop.time() < deadline:
            await asyncio.sleep(POLL_S)

    async def _join(self) -> None:
        """Ask to join until the cluster answers, without limit: a broker that is to join a cluster must neither end nor
        found another one. Raises StartError if a retry cannot help."""
        request = pb.RaftJoinRequest(nodeID=self.broker_id, incarnation=self._incarnation)
        waiting = self._waiting = Waiting(self._clock, "waiting to join the cluster")
        while True:
            try:
                response = await self._calls.ask(self.subjects.join, JOIN, request, JOIN_EVERY_S)
                request.cluster = response.cluster  # if two clusters answer, the first one
                if not response.error and response.cluster:
                    self.subjects.enter(response.cluster)
                    self.joined = True
                    self._waiting = None
                    return
                if response.final:
                    raise StartError(f"the cluster does not let this broker in: {response.error}")
                waiting.say(response.error)
            except DeadlineExceeded:
                request.cluster = ""  # the one that answered may be gone for good
                waiting.say(
                    f"no controller answers in namespace {self.subjects.namespace}; start more of its brokers, a "
                    "majority of its voters is needed, or check nats.servers and clustering.namespace. How a new "
                    "cluster is founded: docs/operations.md"
                )
            except BusUnavailable as error:
                waiting.say(f"NATS is not connected: {error}")
            await asyncio.sleep(JOIN_EVERY_S / 4)

    async def caught_up(self) -> None:
        """Returns when everything is applied here that was committed when it asked. Waits without limit."""
        request = pb.PropagatedRequest(op=pb.BARRIER)  # without a lease: this broker leads nothing yet
        waiting = self._waiting = Waiting(self._clock, "waiting for the cluster")
        while True:
            try:
                await self._client.apply(request, ISR_TIMEOUT_S)
                self._waiting = None
                return
            except BasculeError as error:
                waiting.say(self._missing(error))
                await asyncio.sleep(POLL_S)

    @property
    def waits(self) -> str:
        """What this broker waits for, since when, and what to do; empty if it does not wait."""
        waiting = self._waiting or self._bootstrap.waiting
        return waiting.text if waiting is not None and waiting.reason else ""

    def _note_unknown_broker(self, peer: Peer) -> None:
        if succeeds(peer.cluster, self.subjects.cluster):
            self._successor = peer.cluster
        else:
            self._unknown_broker = peer.cluster

    def _missing(self, error: BasculeError) -> str:
        if self._successor and not self.raft.raft.leader:
            return (
                f"{error}; an administrator recovered this cluster as {self._successor} from the data of another "
                "broker, and this broker is not a member of it: empty its data folder and restart it, and it joins"
            )
        if self._unknown_broker and not self.raft.raft.leader:
            return (
                f"{error}; this broker is in cluster {self.subjects.cluster}, and another one, {self._unknown_broker}, "
                "is in the same namespace: if this broker belongs to that one, empty its data folder and restart it"
            )
        own, membership = self.broker_id, self.raft.membership
        alive = {own: None, **{peer.id: None for peer in self.peers.alive()}}
        absent = [voter for voter in membership.voters if voter not in alive]
        if not absent or self.raft.raft.leader:
            return str(error)
        return (
            f"{error}; {membership.quorum} of the voters {', '.join(membership.voters)} are needed, and these "
            f"send no heartbeats: {', '.join(absent)}; start more of them. If they are lost for good, "
            "`bascule cluster recover` recovers the cluster from the data of one broker"
        )

    async def current(self, timeout_s: float) -> None:
        """Returns when everything committed before the call is applied here. Raises Unavailable if that takes longer:
        this broker may be partitioned from the others, and its metadata out of date."""
        if self.alone:
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._client.barrier(timeout_s)
        except (BasculeError, TimeoutError) as error:
            raise Unavailable(
                f"this broker may be partitioned from the cluster, and its metadata out of date: {error}; try again"
            ) from error

    async def broker_started(self, suspect: tuple[PartitionName, ...], all_suspect: bool = False) -> None:
        """Get new leader epochs for the partitions that this broker led in an earlier boot: records that it had written
        and not synced may be on other replicas, so it must never write in the old epochs again. It leaves the ISR of
        each partition whose log is suspect, if other replicas are in it. Waits without limit."""
        own = self.broker_id
        waiting = Waiting(self._clock, "waiting for the cluster")
        started = BrokerStarted(own, all_suspect or self.joined, suspect)
        while any(own in item.replicas for stream in self.metadata.streams.values() for item in stream):
            try:
                await self._client.broker_started(started)
                return
            except BasculeError as error:
                waiting.say(self._missing(error))
                await asyncio.sleep(POLL_S)
