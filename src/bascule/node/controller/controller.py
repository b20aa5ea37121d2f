"""The controller: the Raft leader admits brokers, fences those whose session has expired, and carries out requests.

Only a Raft leader that has committed in its own term subscribes to requests, so every answer comes from the present
controller. A broker that sends no heartbeat for a session, or that returns with another boot id, loses its leaderships.
New brokers join as learners. When they have caught up and were alive for a while they become voters, in pairs, so that
the number of voters stays odd, up to `raft.max.quorum.size`.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from bascule.core.metadata.commands import BrokerDied, Command, DiskLost
from bascule.errors import BasculeError, FailedPrecondition, Status, Unavailable
from bascule.limits import CHANGES_AT_ONCE, FENCINGS_AT_ONCE, RAFT_MAX_SERVERS
from bascule.node.calls.calls import Calls
from bascule.node.calls.messages import CHANGE, JOIN
from bascule.node.calls.subjects import succeeds
from bascule.node.controller.administration import Administration
from bascule.node.controller.executor import Executor
from bascule.node.controller.livebrokers import LiveBrokers
from bascule.node.controller.proposals import Proposals
from bascule.node.membership.peers import HEARTBEAT_S, SESSION_S, Peer
from bascule.node.runtime.jobs import Jobs, Timer
from bascule.ports import Clock, Subscription
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.raft_messages import Membership
from bascule.wire.subjects import usable_id, usable_token

logger = logging.getLogger(__name__)

UNKNOWN_BROKER_S = 2.0
"""A broker that is alone in its cluster ends after it has received heartbeats of another cluster for so long."""
RESCUE_EVERY_S = 0.5
STEADY_S = 5.0
"""A broker that is not configured as a voter must be alive for so long before it may become one."""
DOUBLE_S = 4 * SESSION_S
"""A broker that asks to join under the id of a live member for so long is another broker."""
CHANGING = "the membership is changing"


class Controller:
    def __init__(
        self,
        proposals: Proposals,
        live: LiveBrokers,
        administration: Administration,
        executor: Executor,
        calls: Calls,
        clock: Clock,
        max_quorum: int,
        wanted: tuple[str, ...],
        on_role: Callable[[int, bool], None],
        on_fatal: Callable[[str], None],
        jobs: Jobs,
    ) -> None:
        """`on_role` is called with the Raft term and whether this broker leads it, when that or the leader changes."""
        self.live = live
        self.proposals = proposals
        self._raft = proposals.raft
        self._administration = administration
        self.executor = executor
        self._calls = calls
        self._clock = clock
        self._subjects = calls.subjects
        self._max_quorum = max_quorum
        self._wanted = wanted
        """The brokers that the configuration names as voters."""
        self._on_role = on_role
        self._on_fatal = on_fatal
        self._unknown_brokers: dict[str, int] = {}
        """Other clusters, and when their first heartbeat was received."""
        self._doubles: dict[tuple[str, str], int] = {}
        """Broker and incarnation of those that ask to join under the id of a live member, and since when."""
        self._next_rescue_at = 0
        self._disks_lost: dict[tuple[str, str], None] = {}
        """Broker and incarnation whose lost disk is committed: they may join."""
        self._recording: dict[tuple[str, str], None] = {}
        """Broker and incarnation whose lost disk is being proposed."""
        self._subscriptions: list[Subscription] = []
        self._jobs = jobs
        self._timer: Timer | None = None
        self._fencings = jobs.tasks("the fencing of a broker", FENCINGS_AT_ONCE)
        self._recordings = jobs.tasks("the record of a lost disk", RAFT_MAX_SERVERS)
        self._requests = jobs.tasks("a request of another broker", CHANGES_AT_ONCE)

    @property
    def active(self) -> bool:
        return self.live.active

    def role_changed(self) -> None:
        self._on_role(self._raft.raft.term, self._raft.raft.is_leader)
        if self._raft.is_leader and not self.active:
            self._begin()
        elif not self._raft.is_leader and self.active:
            self.stop()

    def _begin(self) -> None:
        logger.info("this broker is the controller, term %d", self._raft.raft.term)
        self._disks_lost, self._doubles = {}, {}  # they are of an earlier term
        self.live.begin()
        calls, subjects = self._calls, self._subjects
        self._subscriptions = [
            calls.handle(subjects.join, calls.answering(JOIN, self._on_join)),
            calls.handle(subjects.changes, calls.answering_later(CHANGE, self._carry_out, self._requests, _any)),
        ]
        without = "dead brokers keep their leaderships; restart this broker, and another one becomes the controller"
        self._timer = self._jobs.every("the watch of the controller", HEARTBEAT_S, self._tick, without)
        self.executor.begin()

    def stop(self) -> None:
        self.live.end()
        for subscription in self._subscriptions:
            subscription.unsubscribe()
        self._subscriptions = []
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    # --- live brokers ----------------------------------------------------------------------------------------

    def on_heartbeat(self, peer: Peer) -> None:
        if not self.active or peer.id == self._raft.raft.id:
            return
        if peer.id not in self.live.others:
            if not self._administration.tell_removed(peer.id):
                logger.debug("a heartbeat of broker %s, which is not a member, is ignored", peer.id)
            return
        if self.live.on_heartbeat(peer):
            logger.warning("broker %s has restarted (another boot id): its leaderships go to others first", peer.id)
            self._begin_fencing(peer.id)

    def on_unknown_broker(self, peer: Peer) -> None:
        """A heartbeat of another cluster in this namespace, perhaps under the id of a member. Otherwise it is ignored.
        If one of the two clusters has a single broker, that broker ends: most likely it lost its disk and founded a
        cluster by mistake. If both have one, the one with fewer partitions and commands ends."""
        if not self.active:
            return
        now = self._clock.monotonic_ns()
        news = peer.cluster not in self._unknown_brokers
        first = self._unknown_brokers.setdefault(peer.cluster, now)
        if len(self._unknown_brokers) > RAFT_MAX_SERVERS:
            del self._unknown_brokers[next(iter(self._unknown_brokers))]
        text = (
            f"broker {peer.id} of another cluster ({peer.cluster}, brokers: {peer.members}) uses namespace "
            f"{self._subjects.namespace} too"
        )
        if news:
            logger.error("%s; its messages are ignored. This is cluster %s", text, self._subjects.cluster)
        theirs = (peer.members, peer.partition_count, peer.commit, peer.cluster)
        ours = (
            1,
            self.proposals.store.counts(self._raft.raft.id)[0],
            self._raft.raft.log.commit,
            self._subjects.cluster,
        )
        recovered = succeeds(self._subjects.cluster, peer.cluster)
        if not self.live.others and not recovered and ours < theirs and now - first >= int(UNKNOWN_BROKER_S * 1e9):
            self._on_fatal(
                f"{text}, and this broker is alone in cluster {self._subjects.cluster}. If it belongs to the other one "
                "(it lost its disk and founded this one by mistake), empty its data folder and restart it: it joins. "
                "Messages that were stored here since are lost with the folder, so look at it first. Otherwise set "
                "another clustering.namespace"
            )

    def _tick(self) -> None:
        for broker in self.live.expired():
            if broker in self.live.leaving:
                logger.info("broker %s has stopped, as it announced", broker)
            else:
                logger.warning(
                    "broker %s has sent no heartbeat for %.1f s: it is fenced, and its leaderships go to others",
                    broker,
                    SESSION_S,
                )
            self.live.fencing[broker] = None
            self._begin_fencing(broker)
        self._rescue()
        self._demote()
        self._promote()
        self._administration.upkeep()

    def _rescue(self) -> None:
        """Elect a leader for partitions whose whole ISR was dead, when the first replica of it is back."""
        now, staying = self._clock.monotonic_ns(), self.live.staying()
        if len(staying) == len(self._raft.membership.everyone) or now < self._next_rescue_at:
            return
        self._next_rescue_at = now + int(RESCUE_EVERY_S * 1e9)
        for broker in self._orphaned_by(staying):
            if not self.live.alive(broker):
                self._begin_fencing(broker)

    def _begin_fencing(self, broker: str) -> None:
        if not self._fencings.full:  # else `_rescue` moves its leaderships later
            self._fencings.start(self._fence(broker))

    def _orphaned_by(self, alive: tuple[str, ...]) -> list[str]:
        """Dead leaders of partitions of which a replica in sync or eligible is alive."""
        gone = {
            item.leader: None
            for stream in self.proposals.metadata.streams.values()
            for item in stream
            if item.leader not in alive and any(replica in alive for replica in item.complete)
        }
        return [leader for leader in gone if leader]

    async def _fence(self, broker: str) -> None:
        """Retries until the fencing is committed, or another broker is the controller: until then the partitions of the
        dead broker have no leader."""
        self.live.fencing[broker] = None
        try:
            while self.active:
                try:
                    await self._submit(BrokerDied(broker))
                    return
                except BasculeError as error:
                    logger.warning("the fencing of broker %s is not committed yet, and is retried: %s", broker, error)
                    await asyncio.sleep(HEARTBEAT_S)
        finally:
            self.live.fencing.pop(broker, None)

    # --- members ---------------------------------------------------------------------------------------------

    def _promote(self) -> None:
        """Make learners voters, so that the number of voters is odd if possible: one if the number is even, two at once
        if it is one, otherwise two one after the other."""
        membership = self._raft.membership
        voters = len(membership.voters)
        room = (self._max_quorum or RAFT_MAX_SERVERS) - voters
        ready = [learner for learner in membership.learners if self._is_ready(learner)]
        wanted = 1 if voters % 2 == 0 else 2
        if len(ready) < wanted or room < wanted:
            return
        ready.sort(key=lambda learner: learner not in self._wanted)
        proposed = membership.with_voter(ready[0])
        if voters == 1:
            proposed = proposed.with_voter(ready[1])
        self._try_membership(proposed)

    def _is_ready(self, learner: str) -> bool:
        """Whether it may become a voter: it has caught up, and was alive for a while, for a new broker may soon be gone
        again. Brokers that the configuration names do not wait, nor does one that lost its disk and with it its vote:
        until it votes again the other voters tolerate fewer failures."""
        if self._refusal(learner, self._raft.membership.incarnation_of(learner)) or learner in self.live.leaving:
            return False
        alive_ns = self.live.alive_for(learner)
        belongs = learner in self._wanted or (self._lacks_a_vote and self._holds(learner))
        steady = alive_ns is not None and (belongs or alive_ns >= int(STEADY_S * 1e9))
        return steady and self._raft.raft.caught_up(learner)

    @property
    def _lacks_a_vote(self) -> bool:
        return len(self._raft.membership.voters) % 2 == 0

    def _demote(self) -> None:
        """Make a voter that is stopping and holds no replicas a learner, if an odd number of voters is left: it may
        never come back, and the quorum must not need it."""
        membership = self._raft.membership
        if len(membership.voters) % 2:
            return
        for voter in membership.voters:
            if voter in self.live.leaving and voter != self._raft.raft.id and not self._holds(voter):
                self._try_membership(membership.with_learner(voter))
                return

    def _holds(self, broker: str) -> bool:
        return any(broker in item.replicas for stream in self.proposals.metadata.streams.values() for item in stream)

    def _refusal(self, broker: str, incarnation: str) -> str:
        return self._administration.refusal(broker, incarnation)

    def _try_membership(self, membership: Membership) -> None:
        try:
            self._raft.propose_membership(membership)
        except (Unavailable, FailedPrecondition) as error:
            logger.debug("the membership is not changed yet: %s", error)

    def _on_join(self, request: pb.RaftJoinRequest) -> pb.RaftJoinResponse | None:
        """A request to join; one for another cluster gets no answer."""
        if request.cluster not in ("", self._subjects.cluster):
            return None
        if not usable_id(request.nodeID):
            answer = pb.RaftJoinResponse(error=f"{request.nodeID!r} is not a valid broker id", final=True)
        elif not usable_token(request.incarnation):
            answer = pb.RaftJoinResponse(error=f"{request.incarnation!r} is not a valid incarnation", final=True)
        elif self._is_double(request):
            error = f"a broker named {request.nodeID} is in the cluster and alive: choose another clustering.server.id"
            answer = pb.RaftJoinResponse(error=error, final=True)
        else:
            answer = pb.RaftJoinResponse(error=self._join(request), final=self._was_removed(request))
        answer.cluster = self._subjects.cluster
        return answer

    def _join(self, request: pb.RaftJoinRequest) -> str:
        """Empty once it is a member; otherwise what it waits for."""
        if reason := self._refusal(request.nodeID, request.incarnation):
            return reason
        membership = self._raft.membership
        known = request.nodeID in membership.everyone
        if known and membership.incarnation_of(request.nodeID) == request.incarnation:
            # Only once the membership is committed: the next leader may not have an uncommitted one.
            log = self._raft.raft.log
            return "" if log.membership_index <= log.commit else CHANGING
        if known and self.live.alive(request.nodeID):
            return f"a broker named {request.nodeID} is in the cluster and sent a heartbeat just now"
        server = (request.nodeID, request.incarnation)
        if server not in self._disks_lost:
            # Only once: a second DiskLost, after it has joined, would take the broker out of every ISR.
            if server not in self._recording and len(self._recording) < RAFT_MAX_SERVERS:
                self._recording[server] = None
                self._recordings.start(self._record_loss(*server))
            return "its lost disk is recorded in the metadata first"
        try:
            base = membership.without(request.nodeID) if request.nodeID in membership.voters else membership
            if base is not membership:
                self._raft.propose_membership(base)
            else:
                self._raft.propose_membership(membership.with_learner(request.nodeID, request.incarnation))
        except (Unavailable, FailedPrecondition) as error:
            return str(error)
        return CHANGING

    def _was_removed(self, request: pb.RaftJoinRequest) -> bool:
        return self._administration.removed(request.nodeID, request.incarnation)

    def _is_double(self, request: pb.RaftJoinRequest) -> bool:
        """Whether another broker runs under this id. A broker that lost its disk may ask while its last boot still
        counts as alive, for a session at most; one that asks for longer has the same id as another broker."""
        name, server = request.nodeID, (request.nodeID, request.incarnation)
        membership = self._raft.membership
        named = name in membership.everyone and membership.incarnation_of(name) != request.incarnation
        if not named or not self.live.alive(name):
            self._doubles.pop(server, None)
            return False
        now = self._clock.monotonic_ns()
        first = self._doubles.setdefault(server, now)
        if len(self._doubles) > RAFT_MAX_SERVERS:
            del self._doubles[next(iter(self._doubles))]
        return now - first >= int(DOUBLE_S * 1e9)

    async def _record_loss(self, broker: str, incarnation: str) -> None:
        """A broker without state has no data either, also if the metadata names replicas on a broker of that id."""
        try:
            await self._submit(DiskLost(broker))
            self._disks_lost[broker, incarnation] = None
            while len(self._disks_lost) > RAFT_MAX_SERVERS:  # a broker that is dropped here asks again
                del self._disks_lost[next(iter(self._disks_lost))]
        except BasculeError as error:
            logger.warning("the lost disk of %s is not recorded yet: %s", broker, error)
        finally:
            self._recording.pop((broker, incarnation), None)

    async def _submit(self, command: Command) -> None:
        await self.proposals.propose(partial(_same, command))

    # --- requests --------------------------------------------------------------------------------------------

    async def _carry_out(self, request: pb.PropagatedRequest) -> pb.PropagatedResponse:
        response = pb.PropagatedResponse(op=request.op)
        try:
            response.index = await self.executor.carry_out(request)
        except BasculeError as error:
            response.index = self._raft.raft.log.commit
            response.error.code, response.error.msg = error.status, str(error)
        except Exception as error:
            logger.exception("a request of another broker failed")
            response.error.code, response.error.msg = Status.INTERNAL, str(error)
        return response


def _any(request: pb.PropagatedRequest) -> bool:
    return True


def _same(command: Command) -> Command:
    return command
