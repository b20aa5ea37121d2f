"""Whether this broker still leads a partition, where an answer of an old leader would be wrong."""

from bascule.node.membership.cluster import Cluster
from bascule.node.membership.peers import SESSION_S
from bascule.node.partition.replica import Replica


async def confirm_leads(cluster: Cluster, replica: Replica) -> bool:
    """Whether this broker still leads: while it was partitioned from the cluster, another may have been elected. Raises
    Unavailable if the controller does not answer in time."""
    leading = replica.leading
    if leading is None:
        return False
    await cluster.current(SESSION_S)
    known = cluster.metadata.partition(replica.stream.name, replica.partition.id)
    same = known is not None and (known.leader, known.leader_epoch) == (cluster.broker_id, leading.epoch)
    return same and replica.leading is leading
