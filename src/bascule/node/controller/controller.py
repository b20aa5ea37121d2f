"""The controller: the Raft leader admits brokers (`joining`), makes them voters (`voters`), fences those whose session
has expired (`fencing`), and carries out requests (`executor`).

Only a Raft leader that has committed in its own term subscribes to requests, so every answer comes from the present
controller.
"""

import logging
from collections.abc import Callable

from bascule.errors import BasculeError, Status
from bascule.limits import CHANGES_AT_ONCE, RAFT_MAX_SERVERS
from bascule.node.calls.calls import Calls
from bascule.node.calls.messages import CHANGE, JOIN
from bascule.node.calls.subjects import succeeds
from bascule.node.controller.administration import Administration
from bascule.node.controller.executor import Executor
from bascule.node.controller.fencing import Fencing
from bascule.node.controller.joining import Joining
from bascule.node.controller.livebrokers import LiveBrokers
from bascule.node.controller.proposals import Proposals
from bascule.node.controller.voters import Voters
from bascule.node.membership.peers import HEARTBEAT_S, Peer
from bascule.node.runtime.jobs import Jobs, Timer
from bascule.ports import Clock, Subscription
from bascule.wire.pb import internal_pb2 as pb

logger = logging.getLogger(__name__)

UNKNOWN_BROKER_S = 2.0
"""A broker that is alone in its cluster ends after it has received heartbeats of another cluster for so long."""


class Controller:
    def __init__(
        self,
        proposals: Proposals,
        live: LiveBrokers,
        administration: Administration,
        executor: Executor,
        fencing: Fencing,
        joining: Joining,
        voters: Voters,
        calls: Calls,
        clock: Clock,
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
        self._fencing = fencing
        self.joining = joining
        self._voters = voters
        self._calls = calls
        self._clock = clock
        self._subjects = calls.subjects
        self._on_role = on_role
        self._on_fatal = on_fatal
        self._unknown_brokers: dict[str, int] = {}
        """Other clusters, and when their first heartbeat was received."""
        self._subscriptions: list[Subscription] = []
        self._jobs = jobs
        self._timer: Timer | None = None
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
        self.joining.begin()
        self.live.begin()
        calls, subjects = self._calls, self._subjects
        self._subscriptions = [
            calls.handle(subjects.join, calls.answering(JOIN, self.joining.answer)),
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
            self._fencing.begin(peer.id)

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
        self._fencing.fence_expired()
        self._fencing.rescue()
        self._voters.demote()
        self._voters.promote()
        self._administration.upkeep()

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
