"""Requests to join the cluster. A new broker, or one that returns without its state, becomes a learner once its lost
disk is recorded in the metadata. A broker that asks for longer than a session under the id of a live member is another
broker, and is refused.
"""

import logging

from bascule.core.metadata.commands import DiskLost
from bascule.errors import BasculeError, FailedPrecondition, Unavailable
from bascule.limits import RAFT_MAX_SERVERS
from bascule.node.calls.subjects import Subjects
from bascule.node.controller.administration import Administration
from bascule.node.controller.livebrokers import LiveBrokers
from bascule.node.controller.proposals import Proposals
from bascule.node.membership.peers import SESSION_S
from bascule.node.runtime.jobs import Jobs
from bascule.ports import Clock
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.subjects import usable_id, usable_token

logger = logging.getLogger(__name__)

DOUBLE_S = 4 * SESSION_S
"""A broker that asks to join under the id of a live member for so long is another broker."""
CHANGING = "the membership is changing"


class Joining:
    def __init__(
        self,
        proposals: Proposals,
        live: LiveBrokers,
        administration: Administration,
        subjects: Subjects,
        clock: Clock,
        jobs: Jobs,
    ) -> None:
        self._proposals = proposals
        self._raft = proposals.raft
        self._live = live
        self._administration = administration
        self._subjects = subjects
        self._clock = clock
        self._doubles: dict[tuple[str, str], int] = {}
        """Broker and incarnation of those that ask to join under the id of a live member, and since when."""
        self._disks_lost: dict[tuple[str, str], None] = {}
        """Broker and incarnation whose lost disk is committed: they may join."""
        self._recording: dict[tuple[str, str], None] = {}
        """Broker and incarnation whose lost disk is being proposed."""
        self._recordings = jobs.tasks("the record of a lost disk", RAFT_MAX_SERVERS)

    def begin(self) -> None:
        """This broker has become the controller."""
        self._disks_lost, self._doubles = {}, {}  # of an earlier term of ours

    def answer(self, request: pb.RaftJoinRequest) -> pb.RaftJoinResponse | None:
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
        if reason := self._administration.refusal(request.nodeID, request.incarnation):
            return reason
        membership = self._raft.membership
        known = request.nodeID in membership.everyone
        if known and membership.incarnation_of(request.nodeID) == request.incarnation:
            # Only once the membership is committed: the next leader may not have an uncommitted one.
            log = self._raft.raft.log
            return "" if log.membership_index <= log.commit else CHANGING
        if known and self._live.alive(request.nodeID):
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
        if not named or not self._live.alive(name):
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
            await self._proposals.submit(DiskLost(broker))
            self._disks_lost[broker, incarnation] = None
            while len(self._disks_lost) > RAFT_MAX_SERVERS:  # a broker that is dropped here asks again
                del self._disks_lost[next(iter(self._disks_lost))]
        except BasculeError as error:
            logger.warning("the lost disk of %s is not recorded yet: %s", broker, error)
        finally:
            self._recording.pop((broker, incarnation), None)
