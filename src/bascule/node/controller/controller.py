"""The controller: the Raft leader admits brokers (`joining`), makes them voters (`voters`), fences those whose session
has expired (`fencing`), and carries out requests (`executor`).

Only a Raft leader that has committed in its own term subscribes to requests, so every answer comes from the present
controller.
"""

import logging
from collections.abc import Callable

from bascule.errors import BasculeError, Status
from bascule.limits import CHANGES_AT_ONCE
from bascule.node.calls.calls import Calls
from bascule.node.calls.messages import CHANGE, JOIN
from bascule.node.controller.administration import Administration
from bascule.node.controller.executor import Executor
from bascule.node.controller.fencing import Fencing
from bascule.node.controller.joining import Joining
from bascule.node.controller.livebrokers import LiveBrokers
from bascule.node.controller.otherclusters import OtherClusters
from bascule.node.controller.proposals import Proposals
from bascule.node.controller.voters import Voters
from bascule.node.membership.peers import HEARTBEAT_S, Peer
from bascule.node.runtime.jobs import Jobs, Timer
from bascule.ports import Subscription
from bascule.wire.pb import internal_pb2 as pb

logger = logging.getLogger(__name__)


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
        other_clusters: OtherClusters,
        calls: Calls,
        on_role: Callable[[int, bool], None],
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
        self.other_clusters = other_clusters
        self._calls = calls
        self._subjects = calls.subjects
        self._on_role = on_role
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
            calls.subscribe(subjects.join, self._on_joining),
            calls.subscribe(subjects.changes, self._on_changes),
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

    def _tick(self) -> None:
        self._fencing.fence_expired()
        self._fencing.rescue()
        self._voters.demote()
        self._voters.promote()
        self._administration.upkeep()

    # --- requests --------------------------------------------------------------------------------------------

    def _on_joining(self, batch: bytes, count: int) -> None:
        for message in self._calls.received(batch, JOIN.question):
            with message as payload:
                answer = self.joining.answer(JOIN.question.decode(payload))
                if answer is not None:
                    self._calls.tell(message.reply, JOIN.answer, answer)

    def _on_changes(self, batch: bytes, count: int) -> None:
        """What exceeds the bound is dropped: the caller asks again."""
        for message in self._calls.received(batch, CHANGE.question):
            with message as payload:
                request = CHANGE.question.decode(payload)
                if not self._requests.full:
                    self._requests.start(self._carry_out(request, message.reply))

    async def _carry_out(self, request: pb.PropagatedRequest, reply: bytes) -> None:
        response = pb.PropagatedResponse(op=request.op)
        try:
            response.index = await self.executor.carry_out(request)
        except BasculeError as error:
            response.index = self._raft.raft.log.commit
            response.error.code, response.error.msg = error.status, str(error)
        except Exception as error:
            logger.exception("a request of another broker failed")
            response.error.code, response.error.msg = Status.INTERNAL, str(error)
        self._calls.tell(reply, CHANGE.answer, response)
