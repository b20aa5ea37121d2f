"""The controller's plan for a request of an administrator: the command to propose, what to wait for, or an error.

Pure: members and live brokers are arguments, because Raft and the heartbeats have them and the metadata does not. The
commands name everything they depend on, so that they apply alike everywhere.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bascule.core.metadata.administration import elect_command, last_copies, name_of, some
from bascule.core.metadata.commands import At, BeginRemoval, DrainBroker, RemoveBroker
from bascule.core.metadata.state import Metadata
from bascule.core.metadata.streams import Partition, StreamConfig
from bascule.errors import FailedPrecondition, NotFound


@dataclass(frozen=True, slots=True)
class Members:
    """The cluster as the controller sees it now."""

    voters: tuple[str, ...]
    learners: tuple[str, ...] = ()
    alive: tuple[str, ...] = ()
    """Those that are alive and not about to stop."""

    @property
    def everyone(self) -> tuple[str, ...]:
        return self.voters + self.learners

    @property
    def absent(self) -> tuple[str, ...]:
        return tuple(each for each in self.everyone if each not in self.alive)


@dataclass(frozen=True, slots=True)
class Named:
    """A partition, with a reason."""

    stream: str
    partition: int
    reason: str

    def __str__(self) -> str:
        return f"{name_of(self.stream, self.partition)} ({self.reason})"


Waiting = Mapping[tuple[str, int], tuple[str, ...]]
"""By stream and partition, the replicas that the named leader waits for before it leads."""


def known(members: Members, broker: str) -> None:
    if broker not in members.everyone:
        raise NotFound(f"no broker {broker!r} in this cluster; it has {', '.join(members.everyone)}")


# --- draining ---------------------------------------------------------------------------------------------------


def drain(metadata: Metadata, members: Members, broker: str) -> DrainBroker:
    known(members, broker)
    draining = metadata.brokers.draining
    others = [each for each in members.alive if each != broker and each not in draining]
    if not others and broker not in draining:
        raise FailedPrecondition(
            f"nobody would be left to lead: no other broker is alive and not drained; start one, or "
            f"`bascule cluster undrain` one, before you drain {broker}"
        )
    return DrainBroker(broker, members.absent)


def not_movable(metadata: Metadata, broker: str, absent: Sequence[str] = ()) -> list[Named]:
    """Partitions that a draining broker still leads because no other can, with the reason."""
    draining = metadata.brokers.draining
    found = []
    for name in sorted(metadata.streams):
        for item in metadata.streams[name]:
            if item.leader == broker and not successors(item, broker, (*draining, *absent)):
                found.append(Named(name, item.id, _why_not_moved(item, broker, draining)))
    return found


def _why_not_moved(item: Partition, broker: str, draining: Sequence[str]) -> str:
    others = [each for each in item.isr if each != broker]
    if others:
        what = "drain" if all(each in draining for each in others) else "drain or are away"
        return f"the others in sync, {', '.join(others)}, {what}"
    if item.replicas == (broker,):
        return "it has no other replica"
    eligible = f", eligible: {', '.join(item.eligible)}" if item.eligible else ""
    return f"nobody else is in sync; replicas: {', '.join(item.replicas)}{eligible}"


def due(metadata: Metadata, absent: Sequence[str]) -> list[str]:
    """Draining brokers that lead a partition which another could lead by now."""
    draining = metadata.brokers.draining
    if not draining:
        return []
    avoid = (*draining, *absent)
    leaders = {
        item.leader
        for stream in metadata.streams.values()
        for item in stream
        if item.leader in draining and successors(item, item.leader, avoid)
    }
    return sorted(leaders)


def successors(item: Partition, broker: str, avoid: Sequence[str]) -> list[str]:
    return [each for each in item.isr if each != broker and each not in avoid]


# --- removing ---------------------------------------------------------------------------------------------------


def may_remove(metadata: Metadata, members: Members, broker: str) -> None:
    """Raise an error if this broker cannot be removed now."""
    known(members, broker)
    others = tuple(each for each in members.voters if each != broker)
    if not others:
        raise FailedPrecondition(f"{broker} is the last voter of the cluster: let another broker join first")
    if broker in members.alive and broker not in metadata.brokers.draining:
        raise FailedPrecondition(
            f"{broker} is alive: hand over what it leads first with `bascule cluster drain {broker}`"
        )
    living = [each for each in others if each in members.alive]
    quorum = len(others) // 2 + 1
    if broker in members.voters and len(living) < quorum:
        away = ", ".join(each for each in others if each not in members.alive)
        raise FailedPrecondition(
            f"without {broker} the cluster could decide nothing: {quorum} of {len(others)} voters are needed and "
            f"{len(living)} live; start {away} first"
        )


def begin_removal(metadata: Metadata, members: Members, broker: str) -> BeginRemoval:
    """Another broker gets a replica of each partition it holds, where one is free: least loaded first."""
    unfit = {*metadata.brokers.draining, *members.absent, broker}
    fit = [each for each in members.everyone if each not in unfit]
    replicas_of: Counter[str] = Counter(
        each for stream in metadata.streams.values() for item in stream for each in item.replicas
    )
    additions = []
    for name in sorted(metadata.streams):
        for item in metadata.streams[name]:
            free = [each for each in fit if each not in item.replicas]
            if broker in item.replicas and free:
                chosen = min(free, key=lambda server: (replicas_of[server], server))
                replicas_of[chosen] += 1
                additions.append(At(name, item.id, chosen))
    return BeginRemoval(broker, tuple(additions))


def removal_waits(metadata: Metadata, members: Members, broker: str) -> list[Named]:
    """Partitions it should not leave yet: it is alive and in sync, and others still catch up."""
    if broker not in members.alive:
        return []
    waits = []
    for name in sorted(metadata.streams):
        for item in metadata.streams[name]:
            behind = [each for each in item.replicas if each in members.alive and each not in item.isr]
            if broker in item.isr and behind:
                waits.append(Named(name, item.id, f"{', '.join(behind)} still catches up"))
    return waits


def removal_losses(metadata: Metadata, broker: str) -> list[Named]:
    """Partitions whose committed messages are lost with this broker, or may be."""
    losses = []
    for name, partition in last_copies(metadata.streams, broker):
        item = metadata.streams[name].partitions[partition]
        others = ", ".join(each for each in item.replicas if each != broker)
        what = f"what {others} lack is lost" if others else "everything in it is lost"
        if others and not item.complete:
            what = f"nobody is in sync, and {broker} may have more than {others}"
        losses.append(Named(name, partition, what))
    return losses


def awaited(metadata: Metadata, broker: str, waiting: Waiting) -> list[Named]:
    """Partitions whose named leader waits for this broker: its own log may lack committed messages that this one has,
    so this one may have the last good copy although another replica is in sync."""
    found = []
    for (name, partition), waits_for in sorted(waiting.items()):
        item = metadata.partition(name, partition)
        if item is not None and broker in waits_for:
            found.append(Named(name, partition, f"what {item.leader}, which is to lead it, lacks is lost"))
    return found


def refuse_losses(broker: str, losses: list[Named]) -> None:
    if losses:
        raise FailedPrecondition(
            f"{broker} has the last good copy of {some([str(each) for each in losses])}: start it and wait until "
            "others are in sync (if nobody is, choose one with `bascule cluster elect`), or give those messages up "
            f"with `bascule cluster remove {broker} --force`"
        )


def removal(
    metadata: Metadata, members: Members, broker: str, incarnation: str, losses: Sequence[Named] = ()
) -> RemoveBroker:
    """Where it is the last in sync (`losses`, accepted by the administrator) a live replica leads next, or one that may
    come back, or, if there is no other, an empty one."""
    elected = []
    for loss in losses:
        item = metadata.streams[loss.stream].partitions[loss.partition]
        others = [each for each in item.replicas if each != broker]
        anybody = [each for each in members.everyone if each != broker]
        choices = sorted(others or anybody, key=lambda server: (server not in members.alive, server))
        elected.append(At(loss.stream, loss.partition, choices[0]))
    return RemoveBroker(broker, incarnation, tuple(elected))


# --- looking ----------------------------------------------------------------------------------------------------


def electable(item: Partition, stream: str, alive: Sequence[str], chosen: str = "", waits: bool = False) -> list[str]:
    """The replicas that could lead although they may lack messages. Raises an error if no election is needed, no
    replica is alive, or the chosen one cannot lead. An election is needed if no in-sync or eligible replica is alive,
    or the leader `waits` for others, because its own log is not verified."""
    name = name_of(stream, item.id)
    for what, members in (("in sync", item.isr), ("eligible to lead", item.eligible)):
        there = [each for each in members if each in alive]
        if there and not waits:
            raise FailedPrecondition(
                f"{name} needs no such election: {', '.join(there)} is {what} and alive, and nothing need be lost"
            )
    living = [each for each in item.replicas if each in alive]
    if not living:
        raise FailedPrecondition(
            f"no replica of {name} is alive: start one of {', '.join(item.replicas)}"
            + (f", best one that was in sync or is eligible ({', '.join(item.complete)})" if item.complete else "")
        )
    if chosen and chosen not in living:
        what = "is not alive" if chosen in item.replicas else "is no replica of it"
        raise FailedPrecondition(f"{chosen} cannot lead {name}, it {what}: choose among {', '.join(living)}")
    return living


@dataclass(frozen=True, slots=True)
class Health:
    """Partitions that are not as they should be."""

    under_replicated: tuple[Named, ...]
    offline: tuple[Named, ...]
    below_min_isr: tuple[Named, ...]


def health(
    metadata: Metadata, alive: Sequence[str], min_isr_of: Callable[[StreamConfig], int], waiting: Waiting | None = None
) -> Health:
    """A member of an in-sync set that is not alive counts as not in sync, also before the metadata has changed."""
    under, offline, below = [], [], []
    for name in sorted(metadata.streams):
        stream = metadata.streams[name]
        least = min_isr_of(stream.config)
        for item in stream:
            missing = [each for each in item.replicas if each not in item.isr or each not in alive]
            there = len(item.replicas) - len(missing)
            if missing:
                under.append(Named(name, item.id, f"not in sync: {', '.join(missing)}{_eligible(item)}"))
            waits_for = (waiting or {}).get((name, item.id), ())
            if item.leader not in alive or waits_for:
                offline.append(Named(name, item.id, _why_offline(item, name, waits_for)))
            if there < least:
                reason = f"{there} in sync, {least} needed: nothing is committed{_eligible(item)}"
                below.append(Named(name, item.id, reason))
    return Health(tuple(under), tuple(offline), tuple(below))


def _eligible(item: Partition) -> str:
    return f"; eligible to lead: {', '.join(item.eligible)}" if item.eligible else ""


def _why_offline(item: Partition, stream: str, waits_for: tuple[str, ...]) -> str:
    if waits_for:
        return (
            f"leader {item.leader} may lack something that {', '.join(waits_for)} has: start that one, or give it up "
            f"with `{elect_command(stream, item.id, item.leader)}`"
        )
    leader = f"leader {item.leader} is away" if item.leader else "nobody leads"
    return f"in sync: {', '.join(item.isr) or 'nobody'}; {leader}{_eligible(item)}"
