"""The in-sync set and the eligible leaders of a partition, and how both change when a replica leaves or comes.

*In sync* (the ISR): nothing is committed while the set is smaller than the min ISR of the stream. The last member stays
in the set, alive or not: the partition waits for it.

*Eligible*: not in sync, but with everything that was committed. The replica left when, or after, the ISR fell below the
minimum; nothing is committed from then on until the ISR has reached the minimum again, and then the eligible set is
cleared. A replica that may lack committed messages is never eligible: after a lost disk, with a suspect log, or if it
gave way to a fuller log and is not known to have all it promised. The idea is Kafka's (KIP-966, eligible leader
replicas).

After every command: each in-sync or eligible replica has everything that was ever committed, if it has what it
promised; the leader is in sync; no replica is in both sets; the eligible set is empty while the ISR has its minimum. A
leader that does not know yet that its set shrank commits with the larger one, which includes the smaller one.

So a leader is elected from the ISR, else from the eligible set, and is then alone in sync; else the partition has no
leader until an administrator accepts the loss.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from bascule.core.metadata.commands import ChangeLeader, GiveWay
from bascule.core.metadata.streams import Partition, StreamConfig
from bascule.core.metadata.tombstones import begins_again, is_cleared
from bascule.types import Epoch


class Departure(Enum):
    """In which state a replica leaves the in-sync set."""

    WHOLE = "whole"
    """With everything it promised: dead, stopped, too slow, or its disk takes no writes."""
    UNCLEAN = "unclean"
    """After an unclean stop under relaxed sync: promised records may be missing, though none is known to be."""
    SUSPECT = "suspect"
    """A promised record is missing or damaged, or may be."""
    LOST = "lost"
    """Without records: its disk was lost, or it is no replica any more."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What the choice of another leader depends on."""

    index: int
    """Of the command: the new epoch."""
    alive: Sequence[str] = ()
    """The brokers that may lead; () = all."""
    draining: Sequence[str] = ()
    """Brokers that lead only if no other can."""

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.index)

    def living(self, brokers: Iterable[str]) -> list[str]:
        return [each for each in brokers if not self.alive or each in self.alive]


def minimum(config: StreamConfig) -> int:
    return max(1, config.min_isr or 1)


def leave(
    item: Partition, broker: str, how: Departure, least: int, now: ClusterState, leaders_of: Counter[str]
) -> Partition:
    """This partition without `broker` in sync; the same object if nothing changes. `least` is the stream's minimum.

    The new leader is the live member of the ISR with the fewest leaderships, a draining one only if there is no other;
    if none is alive, an eligible one. If there is neither, a leader that is whole stays, under a new epoch, because it
    may come back: records that it wrote last, and lost, may have reached replicas under the old epoch.
    """
    whole = how is Departure.WHOLE
    rest = tuple([each for each in item.isr if each != broker])
    eligible = tuple([each for each in item.eligible if each != broker])
    if broker not in item.isr:
        # The new epoch refuses requests that were made for its earlier state.
        return item if whole else item._replace(eligible=eligible, epoch=now.epoch)
    left = (broker,) if whole else ()
    if item.leader != broker:
        return with_sets(item, rest, (*eligible, *left), least, now)
    candidates = now.living(rest) or now.living(eligible) or _absent_successors(rest, eligible, how, least)
    if not candidates and how is not Departure.LOST:
        return item._replace(leader_epoch=now.epoch, epoch=now.epoch)
    leader = min(candidates, key=lambda each: (each in now.draining, leaders_of[each], each), default="")
    leaders_of[broker] -= 1
    leaders_of[leader] += 1
    isr = rest if leader in rest or not leader else (leader,)
    return with_sets(item, isr, (*rest, *eligible, *left), least, now, leader, now.epoch)


def _absent_successors(rest: tuple[str, ...], eligible: tuple[str, ...], how: Departure, least: int) -> tuple[str, ...]:
    """Replicas that may be named leader although they are not alive, because they have what the leaving one may lack.
    With a min ISR of 1 the leaving one may be the only complete replica: it stays, and compares its log before it
    leads."""
    if how is Departure.LOST or (how is Departure.SUSPECT and least > 1):
        return rest or eligible
    return ()


def enter(item: Partition, broker: str, least: int, now: ClusterState) -> Partition:
    """It has caught up: it has promised everything its leader had when elected, and everything committed."""
    isr = (*(each for each in item.isr if each != broker), broker)
    return with_sets(item, isr, item.eligible, least, now)


def give_way(item: Partition, replica: str, least: int, now: ClusterState) -> Partition:
    """The leader hands leadership over to `replica`, which has more records, and leaves the sets, because it may lack
    some that it promised (see `giving_way`). Or it goes on leading, under a new epoch.

    A replica whose log is not known to be cleared leads as after an election with accepted loss, alone in sync: better
    its records, and everything about tombstones from the beginning, than to lose what only it has."""
    if replica != item.leader and not is_cleared(item, replica):
        return with_sets(begins_again(item, now.epoch), (replica,), (), least, now, replica, now.epoch)
    others = tuple(each for each in item.isr if each not in (item.leader, replica))
    eligible = tuple(each for each in item.eligible if each != item.leader)
    return with_sets(item, (replica, *others), eligible, least, now, replica, now.epoch)


def giving_way(item: Partition, request: GiveWay, whole: bool) -> GiveWay | ChangeLeader:
    """The command for a leader that asks to give way. One whose log is `whole`, with everything that it promised,
    leaves as a leader does that steps down, and is eligible where that leaves too few; only the replica it names may
    lead next. If that one is neither in sync nor eligible it can lead by a GiveWay alone.

    It is no field of GiveWay: a broker of an earlier version would not know it, and its metadata would be another one.
    """
    if not whole or request.replica == item.leader or request.replica not in item.complete:
        return request
    return ChangeLeader(request.stream, request.partition, request.leader, request.leader_epoch, (request.replica,))


def elect_uncleanly(item: Partition, leader: str, epoch: Epoch) -> Partition:
    """It leads whatever it lacks: alone in sync, because additional messages of the others were given up."""
    replicas = item.replicas if leader in item.replicas else (*item.replicas, leader)
    return begins_again(item, epoch)._replace(
        replicas=replicas,
        isr=(leader,),
        eligible=(),
        leader=leader,
        epoch=epoch,
        leader_epoch=epoch,
        unclean_epoch=epoch,
    )


_ELIGIBLE = Partition._fields.index("eligible")


def with_sets(
    item: Partition,
    isr: tuple[str, ...],
    eligible: Iterable[str],
    least: int,
    now: ClusterState,
    leader: str | None = None,
    leader_epoch: Epoch | None = None,
) -> Partition:
    """With these sets, and with another leader if one is given. Without `_replace`, which takes twice as long."""
    eligible = () if len(isr) >= least else tuple(dict.fromkeys([each for each in eligible if each not in isr]))
    leader = item.leader if leader is None else leader
    leader_epoch = item.leader_epoch if leader_epoch is None else leader_epoch
    assert leader in isr or not isr, f"{leader} leads and is not in sync: {isr}"
    head = (item.id, item.replicas, leader, isr, leader_epoch, now.epoch)
    return Partition._make((*head, *item[len(head) : _ELIGIBLE], eligible, *item[_ELIGIBLE + 1 :]))
