"""Another cluster in this namespace: which of the two was founded by mistake, and ends.

Most likely a seed lost its disk, came back while no broker of its cluster answered, and founded a second one. Brokers
that asked to join at that time are in the second one, too. Its brokers end, and say what to do, as long as that costs
nothing: if it has one broker, or is the smaller one and has one voter and no stream of a client. Nothing is
removed, so a cluster that ends by this rule and was none by mistake has all it had. In every other case both go on and
ignore each other, and an administrator decides.
"""

import logging
from collections.abc import Callable

from bascule.core.metadata.streams import ACTIVITY, CURSORS
from bascule.limits import RAFT_MAX_SERVERS
from bascule.node.calls.subjects import Subjects, succeeds
from bascule.node.controller.livebrokers import LiveBrokers
from bascule.node.membership.metadata import MetadataStore
from bascule.node.membership.peers import Peer
from bascule.node.membership.raft import RaftDriver
from bascule.ports import Clock

logger = logging.getLogger(__name__)

OTHER_CLUSTER_S = 2.0
"""A controller ends its cluster after it has received heartbeats of the other one for so long."""
ABANDONED_S = 5.0
"""A learner ends after it has received none of its only voter for so long, though it does of the other cluster."""


class OtherClusters:
    def __init__(
        self,
        raft: RaftDriver,
        store: MetadataStore,
        live: LiveBrokers,
        subjects: Subjects,
        clock: Clock,
        last_heartbeat: Callable[[str], int],
        on_fatal: Callable[[str], None],
    ) -> None:
        """`last_heartbeat` says when this broker last received a heartbeat of another one, or started."""
        self._raft = raft
        self._store = store
        self._live = live
        self._subjects = subjects
        self._clock = clock
        self._last_heartbeat = last_heartbeat
        self._on_fatal = on_fatal
        self._known: dict[str, int] = {}
        """By other cluster, when its first heartbeat was received."""
        self._said: dict[str, None] = {}

    def on_heartbeat(self, peer: Peer) -> None:
        """A heartbeat of another cluster, perhaps under the id of a member."""
        now = self._clock.monotonic_ns()
        since_ns = now - self._known.setdefault(peer.cluster, now)
        if len(self._known) > RAFT_MAX_SERVERS:
            forgotten = next(iter(self._known))
            del self._known[forgotten]
            self._said.pop(forgotten, None)
        text = (
            f"broker {peer.id} of another cluster ({peer.cluster}, brokers: {peer.members}) uses namespace "
            f"{self._subjects.namespace} too"
        )
        if self._live.active:
            self._say(peer.cluster, text)
        if succeeds(self._subjects.cluster, peer.cluster):
            return  # it was recovered from the other one, by an administrator
        if self._live.active and since_ns >= int(OTHER_CLUSTER_S * 1e9) and self._is_mistaken(peer):
            self._on_fatal(f"{text}, and {self._why_mistaken()}")
        elif self._is_abandoned(peer, now):
            (voter,) = self._raft.membership.voters
            self._on_fatal(
                f"{text}, and this broker joined cluster {self._subjects.cluster}, which has no streams and of which "
                f"the only voter, {voter}, sends no heartbeats. If this broker belongs to the other one, empty its "
                f"data folder and restart it: it joins. Otherwise start {voter} first, and set another "
                "clustering.namespace for both"
            )

    def _say(self, cluster: str, text: str) -> None:
        if cluster in self._said:
            return
        self._said[cluster] = None
        logger.error(
            "%s; its messages are ignored. This is cluster %s, of %s. If one of the two was founded by mistake, by a "
            "broker that had lost its disk, empty the data folders of its brokers and restart them: they join the "
            "other one. Messages stored there since are lost with the folders, so look at it first. Otherwise set "
            "another clustering.namespace",
            text,
            self._subjects.cluster,
            ", ".join(self._raft.membership.everyone),
        )

    def _is_mistaken(self, peer: Peer) -> bool:
        """As the controller sees it. Of two clusters of one broker each the one with fewer partitions, then with fewer
        commands, ends."""
        if self._live.others:
            return self._is_worthless and len(self._raft.membership.everyone) < peer.members
        own, commit = self._raft.raft.id, self._raft.raft.log.commit
        ours = (1, self._store.counts(own)[0], commit, self._subjects.cluster)
        return ours < (peer.members, peer.partition_count, peer.commit, peer.cluster)

    def _why_mistaken(self) -> str:
        cluster, others = self._subjects.cluster, ", ".join(self._live.others)
        if not others:
            return (
                f"this broker is alone in cluster {cluster}. If it belongs to the other one (it lost its disk and "
                "founded this one by mistake), empty its data folder and restart it: it joins. Messages that were "
                "stored here since are lost with the folder, so look at it first. Otherwise set another "
                "clustering.namespace"
            )
        return (
            f"this broker is the only voter of cluster {cluster}, which has no streams. If it belongs to the other one "
            "(it lost its disk and founded this one by mistake), empty its data folder and restart it: it joins. So do "
            f"with {others}, which joined this one. Otherwise set another clustering.namespace for them"
        )

    def _is_abandoned(self, peer: Peer, now: int) -> bool:
        """As a broker sees it that joined such a cluster: nobody is left there who could let it go."""
        membership = self._raft.membership
        if not self._is_worthless or self._raft.raft.id in membership.voters:
            return False
        silent_ns = now - self._last_heartbeat(membership.voters[0])
        return silent_ns >= int(ABANDONED_S * 1e9) and len(membership.everyone) < peer.members

    @property
    def _is_worthless(self) -> bool:
        """It has one voter, as when it was founded, and no stream of a client. Groups outlive streams for moments."""
        if len(self._raft.membership.voters) != 1:
            return False
        return all(name in (CURSORS, ACTIVITY) for name in self._store.metadata.streams)
