"""Up to where tombstones may go, in a partition with several replicas.

Each replica tells, by a command, up to where its log is *cleared*: of every tombstone below that end no older record of
its key is in this log any more, but for the last records of leader epochs, which all logs have and which keep their
tombstones everywhere. The least end of *all* assigned replicas is `tombstones_end`: tombstones below may go. It only
rises. So whatever a replica that is fed, or repaired, gets from another one, it gets no record that a tombstone deletes
which is gone somewhere.

Rules:
- A replica that has told nothing counts as 0: nothing rises past it. So does one that is away: what it told last
  stands.
- A told end counts if the partition is as the replica knew it, and if it is the replica's next one (`since`): a late
  copy of a request may be of a log that has begun anew since then.
- Whoever enters the in-sync set has told an end that is no lower than `tombstones_end`: it could lead, and feed others.
- After an election with accepted loss, of whatever kind, the logs of the others and of the new leader are not known to
  have one history. Then everything begins again at 0, under a new `tombstones_epoch`, and a log from before it begins
  anew when its replica follows.

A new end is no reason for another partition epoch: who leads and who is in sync has nothing to do with it.
"""

from collections.abc import Mapping

from bascule.core.metadata.commands import TellCleared
from bascule.core.metadata.streams import Cleared, Partition, Stream
from bascule.errors import FailedPrecondition
from bascule.types import Epoch


def told(item: Partition, replica: str) -> Cleared | None:
    return next((each for each in item.cleared if each.replica == replica), None)


def tell_cleared(streams: Mapping[str, Stream], index: int, command: TellCleared) -> dict[str, dict[int, Partition]]:
    changed: dict[str, dict[int, Partition]] = {}
    replica = command.replica
    for name, creation_index, number, epoch, since, end in command.ends:
        stream = streams.get(name)
        item = stream.partition(number) if stream and stream.creation_index == creation_index else None
        if item is None or replica not in item.replicas or item.epoch != epoch:
            continue
        before = told(item, replica)
        if since != (before.at if before is not None else 0):
            continue
        others = [each for each in item.cleared if each.replica != replica]
        cleared = tuple(sorted([*others, Cleared(replica, end, index)]))
        changed.setdefault(name, {})[item.id] = _risen(item._replace(cleared=cleared))
    return changed


def _risen(item: Partition) -> Partition:
    """With what all replicas have told by now."""
    ends = {each.replica: each.end for each in item.cleared}
    least = min((ends.get(each, 0) for each in item.replicas), default=0)
    return item._replace(tombstones_end=least) if least > item.tombstones_end else item


def is_used(item: Partition) -> bool:
    """Tombstones may go here, or might have gone before an election with accepted loss."""
    return bool(item.tombstones_end or item.tombstones_epoch)


def is_cleared(item: Partition, replica: str) -> bool:
    """Whether this replica is known to have no record that may return a key. Where no tombstone may go, all are."""
    if not is_used(item):
        return True
    known = told(item, replica)
    return known is not None and known.end >= item.tombstones_end


def check_enters(item: Partition, replica: str) -> None:
    if not is_cleared(item, replica):
        raise FailedPrecondition(
            f"{replica} has not told yet that its log has no record of a key whose tombstone may be gone"
        )


def without(item: Partition, replica: str) -> Partition:
    """It is no replica any more: should it be one again, what it has told does not count."""
    return item._replace(cleared=tuple(each for each in item.cleared if each.replica != replica))


def begins_again(item: Partition, epoch: Epoch) -> Partition:
    """Nothing that was told counts any more: a log may lead that is not known to have one history with the others.
    Where no tombstone may have gone no log has to begin anew."""
    return item._replace(cleared=(), tombstones_end=0, tombstones_epoch=epoch if is_used(item) else Epoch(0))
