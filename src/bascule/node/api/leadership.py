"""Whether this broker still leads a partition, where an answer of an old leader would be wrong; and how it resumes one
that is paused."""

from collections.abc import Awaitable, Callable

from bascule.node.membership.cluster import Cluster
from bascule.node.membership.peers import SESSION_S
from bascule.node.partition.manager import ReplicaManager
from bascule.node.partition.refusals import still_leads
from bascule.node.partition.replica import Replica

RESUMED_S = 5.0
"""How long a call waits for this broker to open a partition that is resumed."""

Resume = Callable[[str, tuple[int, ...], float | None], Awaitable[None]]
"""Resumes paused partitions of a stream, within so many seconds."""


async def resume_here(
    manager: ReplicaManager, resume: Resume, stream: str, partition: int, timeout_s: float | None
) -> None:
    """A partition that is paused, with a replica here: returns when it is resumed, and has its role on this broker."""
    await resume(stream, (partition,), timeout_s)
    await manager.opened(stream, partition, RESUMED_S)


async def confirm_leads(cluster: Cluster, replica: Replica) -> bool:
    """Whether this broker still leads: while it was partitioned from the cluster, another may have been elected. Raises
    Unavailable if the controller does not answer in time."""
    leading = replica.leading
    if leading is None:
        return False
    await cluster.current(SESSION_S)
    return replica.leading is leading and still_leads(cluster, replica)
