"""The voters of Raft. New brokers join as learners. When they have caught up and were alive for a while they become
voters, in pairs, so that the number of voters stays odd, up to `raft.max.quorum.size`. A voter that stops and holds no
replicas becomes a learner again.
"""

import logging

from bascule.errors import FailedPrecondition, Unavailable
from bascule.limits import RAFT_MAX_SERVERS
from bascule.node.controller.administration import Administration
from bascule.node.controller.livebrokers import LiveBrokers
from bascule.node.controller.proposals import Proposals
from bascule.wire.raft_messages import Membership

logger = logging.getLogger(__name__)

STEADY_S = 5.0
"""A broker that is not configured as a voter must be alive for so long before it may become one."""


class Voters:
    def __init__(
        self,
        proposals: Proposals,
        live: LiveBrokers,
        administration: Administration,
        max_quorum: int,
        wanted: tuple[str, ...],
    ) -> None:
        self._proposals = proposals
        self._raft = proposals.raft
        self._live = live
        self._administration = administration
        self._max_quorum = max_quorum
        self._wanted = wanted
        """The brokers that the configuration names as voters."""

    def promote(self) -> None:
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
        refusal = self._administration.refusal(learner, self._raft.membership.incarnation_of(learner))
        if refusal or learner in self._live.stopping:
            return False
        alive_ns = self._live.alive_for(learner)
        belongs = learner in self._wanted or (self._lacks_a_vote and self._holds(learner))
        steady = alive_ns is not None and (belongs or alive_ns >= int(STEADY_S * 1e9))
        return steady and self._raft.raft.caught_up(learner)

    @property
    def _lacks_a_vote(self) -> bool:
        return len(self._raft.membership.voters) % 2 == 0

    def demote(self) -> None:
        """Make a voter that is stopping and holds no replicas a learner, if an odd number of voters is left: it may
        never come back, and the quorum must not need it."""
        membership = self._raft.membership
        if len(membership.voters) % 2:
            return
        for voter in membership.voters:
            if voter in self._live.stopping and voter != self._raft.raft.id and not self._holds(voter):
                self._try_membership(membership.with_learner(voter))
                return

    def _holds(self, broker: str) -> bool:
        return any(broker in item.replicas for stream in self._proposals.metadata.streams.values() for item in stream)

    def _try_membership(self, membership: Membership) -> None:
        try:
            self._raft.propose_membership(membership)
        except (Unavailable, FailedPrecondition) as error:
            logger.debug("the membership is not changed yet: %s", error)
