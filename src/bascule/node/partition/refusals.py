"""Refusals of messages, which wait until it is confirmed that this broker still leads their partition.

A leader that was replaced and does not know it yet still receives messages from NATS, as its successor does. It lacks
what that one has stored, so it may take an expected offset for wrong, or a producer for unknown, while the successor
stores the message. So a refusal waits until the controller has confirmed this broker's metadata: one request for all
refusals that came before it. If nobody confirms it the outcome is unknown.
"""

from bascule.core.partition.leader import Confirmed, Refuse
from bascule.errors import Unavailable
from bascule.limits import PENDING_REFUSAL_BYTES
from bascule.node.membership.cluster import Cluster
from bascule.node.membership.peers import SESSION_S
from bascule.node.partition.ports import PartitionReplica
from bascule.node.replication.feeds import LeaderRole
from bascule.node.runtime.jobs import Jobs


class Refusals:
    def __init__(self, cluster: Cluster, jobs: Jobs) -> None:
        self._cluster = cluster
        self._questions = jobs.tasks("the confirmation of refusals", 1)
        self._waiting: list[tuple[PartitionReplica, LeaderRole, bytes]] = []
        self._nbytes = 0

    def add(self, replica: PartitionReplica, refuse: Refuse) -> None:
        leading = replica.leading
        assert leading is not None, "only a leader refuses messages"
        if self._nbytes + len(refuse.pending) > PENDING_REFUSAL_BYTES:
            leading.step(Confirmed(refuse.pending, False))
            return
        self._waiting.append((replica, leading, refuse.pending))
        self._nbytes += len(refuse.pending)
        if not self._questions.full:
            self._questions.start(self._confirm())

    async def _confirm(self) -> None:
        while self._waiting:
            waiting, self._waiting, self._nbytes = self._waiting, [], 0
            try:
                await self._cluster.current(SESSION_S)
                current = True
            except Unavailable:
                current = False
            for replica, leading, pending in waiting:
                leads = current and replica.leading is leading and still_leads(self._cluster, replica)
                leading.step(Confirmed(pending, leads))


def still_leads(cluster: Cluster, replica: PartitionReplica) -> bool:
    """Whether this broker leads by its metadata as it is now, in the epoch of its present role."""
    leading, known = replica.leading, cluster.metadata.partition(replica.stream.name, replica.partition.id)
    if leading is None or known is None:
        return False
    return known.is_led_by(cluster.broker_id, leading.epoch)
