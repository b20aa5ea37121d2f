"""An unclean election: which replica would lead, and what is known about the messages that are lost.

A live replica knows its own log, and the last high watermark that it received from its leader. How much the leader
committed after that is not known to any live broker: the statement says so, and does not guess.
"""

from bascule.core.metadata import plans
from bascule.core.metadata.administration import name_of
from bascule.core.metadata.streams import Partition, Stream
from bascule.errors import Unavailable
from bascule.node.api.replicastatus import ReplicaStatus, replicas, waits_for
from bascule.wire.pb import admin_pb2 as admin


def was_elected(item: Partition, replica: str, alive: tuple[str, ...]) -> admin.ElectLeaderResponse | None:
    """The answer to a repeated request whose first answer was lost; None if the election has not been made yet."""
    if item.unclean_epoch != item.leader_epoch or item.leader not in alive or replica not in ("", item.leader):
        return None
    return admin.ElectLeaderResponse(
        done=True,
        leader=item.leader,
        statement=f"{item.leader} was elected at epoch {item.unclean_epoch} and leads; nothing was done now",
        epoch=item.epoch,
    )


async def propose_election(
    status: ReplicaStatus, stream: Stream, item: Partition, replica: str
) -> admin.ElectLeaderResponse:
    alive = status.live_members()
    known = await status.positions(stream, (item,))
    candidates = plans.electable(item, stream.name, alive, replica, bool(waits_for(item, known)))
    described = replicas(item, alive, known)
    answered = [each for each in described if each.answered and each.broker in candidates]
    chosen = [each for each in answered if each.broker == replica] if replica else answered
    if not chosen:
        raise Unavailable("no live replica answers with its log end; ask again")
    leader = max(chosen, key=lambda each: (each.lastEpoch, each.end, each.broker))
    known_end = max(each.highWatermarkEnd for each in answered)
    loss = max(0, known_end - leader.end)
    return admin.ElectLeaderResponse(
        leader=leader.broker,
        leaderEnd=leader.end,
        knownCommittedEnd=known_end,
        certainLoss=loss,
        statement=_statement(name_of(stream.name, item.id), item, leader, answered, loss),
        replicas=described,
        inSync=item.isr,
        eligible=item.eligible,
    )


def _statement(
    name: str, item: Partition, leader: admin.Replica, answered: list[admin.Replica], certain_loss: int
) -> str:
    away = [each for each in item.complete if each not in (other.broker for other in answered)]
    whole = f"was on {', '.join(item.complete)}, and of these {', '.join(away) or 'none'} is down or does not answer"
    parts = [
        f"{leader.broker} would lead {name} with the messages below offset {leader.end}; everything that was committed "
        f"{whole if item.complete else 'was on disks that are lost'}"
    ]
    if certain_loss:
        parts.append(f"{certain_loss} messages that were committed are lost for certain")
    longer = [each for each in answered if (each.lastEpoch, each.end) > (leader.lastEpoch, leader.end)]
    parts += [f"{each.broker} has more, up to offset {each.end}" for each in longer]
    parts.append(
        f"every acked message from offset {leader.end} on is lost; how many those are is not known to any live broker"
    )
    parts.append("when the old replicas come back they truncate what differs, into quarantine/")
    return "; ".join(parts)
