"""Who is in sync with a partition, who is eligible to lead it, and what becomes of both when a replica leaves or comes.

*In sync* (the ISR) is who is in sync now. Nothing is committed while these are fewer than the stream's minimum. The
last member stays listed, alive or not: it names whom to wait for.

*Eligible* is who is not in sync and still has everything that was committed: its leaving took the ISR below the
minimum, or it left while the ISR was below. Nothing is committed from then on until the ISR has reached the minimum
again, and with that the eligible are forgotten. Never eligible is who may lack something: a lost disk, a suspect log,
one that gave way. The idea is Kafka's (KIP-966, eligible leader replicas).

What holds after every command: whoever is in sync or eligible has everything that was ever committed, as long as it
keeps what it promised; the leader is in sync; nobody is in both sets; nobody is eligible while the ISR has its minimum.
A leader that has not heard yet that its set shrank commits with the larger one, so with nothing that the set lacks.

So a leader is elected from the ISR, else from the eligible, which is then alone in sync; else nobody leads until an
administrator accepts the loss.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from bascule.core.metadata.streams import Partition, StreamConfig
from bascule.types import Epoch


class Departure(Enum):
    """In which state a replica leaves the in-sync set."""

    WHOLE = "whole"
    """With everything it promised: dead, stopped, silent, too slow, or its disk takes nothing more."""
    UNCLEAN = "unclean"
    """After a start that may have lost something, though nothing is known to be missing (relaxed sync)."""
    SUSPECT = "suspect"
    """Something it promised is missing, or damaged."""
    LOST = "lost"
    """With nothing: its disk was lost, or it is no replica any more."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What decides who leads instead."""

    index: int
    """Of the command: the new epoch."""
    alive: Sequence[str] = ()
    """Who may lead; () = everybody."""
    draining: Sequence[str] = ()
    """Who leads only if nobody else can."""

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.index)

    def living(self, brokers: Iterable[str]) -> list[str]:
        return [each for each in brokers if not self.alive or each in self.alive]


def minimum(config: StreamConfig) -> int:
    return max(1, config.min_isr or 1)


def leave(
    item: Partition, broker: str, how: Departure, least: int, now: Circumstances, leaders_of: Counter[str]
) -> Partition:
    """This partition without `broker` in sync; the same object if nothing changes. `least` is the stream's minimum.

    A new leader is the living member of the ISR with the fewest leaderships, one that drains only if there is no other;
    where none lives, an eligible one. Where there is neither, a leader that is whole stays, under a new epoch, for it
    may come back: what it wrote last, and lost, may have reached replicas under the old one.
    """
    whole = how is Departure.WHOLE
    rest = tuple([each for each in item.isr if each != broker])
    eligible = tuple([each for each in item.eligible if each != broker])
    if broker not in item.isr:
        # What was asked for it before, in a better state, comes too late now.
        return item if whole else item._replace(eligible=eligible, epoch=now.epoch)
    left = (broker,) if whole else ()
    if item.leader != broker:
        return _with_sets(item, rest, (*eligible, *left), least, now)
    candidates = now.living(rest) or now.living(eligible) or _absent_successors(rest, eligible, how, least)
    if not candidates and how is not Departure.LOST:
        return item._replace(leader_epoch=now.epoch, epoch=now.epoch)
    leader = min(candidates, key=lambda each: (each in now.draining, leaders_of[each], each), default="")
    leaders_of[broker] -= 1
    leaders_of[leader] += 1
    isr = rest if leader in rest or not leader else (leader,)
    return _with_sets(item, isr, (*rest, *eligible, *left), least, now, leader, now.epoch)


def _absent_successors(rest: tuple[str, ...], eligible: tuple[str, ...], how: Departure, least: int) -> tuple[str, ...]:
    """Who is named leader although it is away, because it has what the one that leaves may lack. Where one replica is
    enough to commit the one that leaves may be all there ever is: it stays, and compares its log before it leads."""
    if how is Departure.LOST or (how is Departure.SUSPECT and least > 1):
        return rest or eligible
    return ()


def enter(item: Partition, broker: str, least: int, now: Circumstances) -> Partition:
    """It has caught up: everything its leader had when it was elected, and everything committed, is promised there."""
    isr = (*(each for each in item.isr if each != broker), broker)
    return _with_sets(item, isr, item.eligible, least, now)


def give_way(item: Partition, replica: str, least: int, now: Circumstances) -> Partition:
    """The leader lets `replica` lead, which has more; its own log is suspect. Or it leads on, under a new epoch."""
    others = tuple(each for each in item.isr if each not in (item.leader, replica))
    eligible = tuple(each for each in item.eligible if each != item.leader)
    return _with_sets(item, (replica, *others), eligible, least, now, replica, now.epoch)


def elect_uncleanly(item: Partition, leader: str, epoch: Epoch) -> Partition:
    """It leads whatever it lacks: alone in sync, for what the others have more was given up."""
    replicas = item.replicas if leader in item.replicas else (*item.replicas, leader)
    return item._replace(
        replicas=replicas,
        isr=(leader,),
        eligible=(),
        leader=leader,
        epoch=epoch,
        leader_epoch=epoch,
        unclean_epoch=epoch,
    )


def _with_sets(
    item: Partition,
    isr: tuple[str, ...],
    eligible: Iterable[str],
    least: int,
    now: Circumstances,
    leader: str | None = None,
    leader_epoch: Epoch | None = None,
) -> Partition:
    """With these sets, and with another leader if one is given. Without `_replace`, which takes twice as long."""
    eligible = () if len(isr) >= least else tuple(dict.fromkeys([each for each in eligible if each not in isr]))
    id, replicas, led_by, _, led_since, _, paused, readonly, unclean_epoch, _ = item
    leader, leader_epoch = led_by if leader is None else leader, led_since if leader_epoch is None else leader_epoch
    assert leader in isr or not isr, f"{leader} leads and is not in sync: {isr}"
    return Partition(id, replicas, leader, isr, leader_epoch, now.epoch, paused, readonly, unclean_epoch, eligible)
