"""What the commands of an administrator do to the streams and brokers.

A partition must never lose its last in-sync or eligible replica, nor get a leader that lacks committed messages, unless
the command names that partition: then an administrator has accepted the loss. `check` refuses other such commands, when
they are proposed and again when they are applied. All commands may be applied twice.
"""

from collections.abc import Mapping

from bascule.core.metadata.brokers import Brokers
from bascule.core.metadata.commands import (
    AdminCommand,
    At,
    BeginRemoval,
    DrainBroker,
    ElectLeader,
    RemoveBroker,
    UndrainBroker,
)
from bascule.core.metadata.isr import ClusterState, Departure, elect_uncleanly, leave, minimum
from bascule.core.metadata.placement import Changed, count_leaders
from bascule.core.metadata.streams import Partition, Stream
from bascule.core.metadata.tombstones import begins_again, without
from bascule.errors import FailedPrecondition, NotFound
from bascule.types import Epoch

NAMED = 20
"""Partitions named in the text of a refusal."""

Streams = Mapping[str, Stream]


def check(streams: Streams, command: AdminCommand) -> None:
    """Raise the error for the administrator if this cannot be done now."""
    match command:
        case RemoveBroker(broker, _, elected):
            named = {(at.stream, at.partition) for at in elected if at.replica not in ("", broker)}
            last = [name_of(*key) for key in last_copies(streams, broker) if key not in named]
            if last:
                raise FailedPrecondition(
                    f"{broker} has the last good copy of {some(last)}: committed messages would be lost"
                )
        case ElectLeader():
            _check_election(streams, command)
        case DrainBroker() | UndrainBroker() | BeginRemoval():
            pass


def _check_election(streams: Streams, command: ElectLeader) -> None:
    at = command.at
    stream = streams.get(at.stream)
    if stream is None:
        raise NotFound(f"no such stream: {at.stream}")
    item = stream.partition(at.partition)
    if item is None:
        raise NotFound(f"no such partition: stream {at.stream} has {len(stream.partitions)}, counted from 0")
    name = name_of(at.stream, at.partition)
    if at.replica not in item.replicas:
        raise FailedPrecondition(f"{at.replica} is no replica of {name}; the replicas are {', '.join(item.replicas)}")
    for what, now, seen in (("in sync with", item.isr, command.isr), ("eligible for", item.eligible, command.eligible)):
        if sorted(now) != sorted(seen):
            raise FailedPrecondition(
                f"{what} {name} is {', '.join(now) or 'nobody'} by now, not {', '.join(seen) or 'nobody'}; look again, "
                "then decide"
            )


def apply(streams: Streams, brokers: Brokers, index: int, command: AdminCommand) -> tuple[Changed, Brokers]:
    match command:
        case DrainBroker(broker, avoid):
            drained = brokers.with_draining(broker)
            return move_leaderships(streams, broker, (*drained.draining, *avoid), index), drained
        case UndrainBroker(broker):
            return {}, brokers.without(broker)
        case BeginRemoval(broker, additions):
            return _add(streams, broker, additions, index), brokers.with_removing(broker)
        case RemoveBroker(broker, incarnation):
            return _remove(streams, brokers, command, index), brokers.with_removed(broker, incarnation)
        case ElectLeader(at):
            item = streams[at.stream].partitions[at.partition]
            return {at.stream: {item.id: elect_uncleanly(item, at.replica, Epoch(index))}}, brokers


def move_leaderships(streams: Streams, broker: str, avoid: tuple[str, ...], index: int) -> Changed:
    """Everything it leads goes to other in-sync replicas, where there are any; it stays in sync itself. No leadership
    goes to an eligible leader: the present one is alive, and has messages that are not committed yet."""
    leaders_of = count_leaders(streams)
    changed: Changed = {}
    for name in sorted(streams):
        for item in streams[name]:
            others = [each for each in item.isr if each != broker and each not in avoid]
            if item.leader == broker and others:
                leader = min(others, key=lambda server: (leaders_of[server], server))
                leaders_of[leader] += 1
                changed.setdefault(name, {})[item.id] = _led_by(item, leader, index)
    return changed


def last_copies(streams: Streams, broker: str) -> list[tuple[str, int]]:
    """Partitions with no in-sync or eligible replica but this broker; or with none at all, because then any replica may
    have the most messages."""
    return [
        (name, item.id)
        for name in sorted(streams)
        for item in streams[name]
        if item.complete == (broker,) or (not item.complete and broker in item.replicas)
    ]


def _led_by(item: Partition, leader: str, index: int) -> Partition:
    return item._replace(leader=leader, leader_epoch=Epoch(index), epoch=Epoch(index))


def _add(streams: Streams, broker: str, additions: tuple[At, ...], index: int) -> Changed:
    changed: Changed = {}
    for at in additions:
        stream = streams.get(at.stream)
        item = stream.partition(at.partition) if stream else None
        if item is not None and broker in item.replicas and at.replica not in item.replicas:
            # One replica alone removes tombstones by itself: no log that another broker may still have counts.
            known = begins_again(item, Epoch(index)) if len(item.replicas) == 1 else item
            grown = known._replace(replicas=(*item.replicas, at.replica), epoch=Epoch(index))
            changed.setdefault(at.stream, {})[item.id] = grown
    return changed


def _remove(streams: Streams, brokers: Brokers, command: RemoveBroker, index: int) -> Changed:
    broker, now = command.broker, ClusterState(index, draining=brokers.draining)
    elected = {(at.stream, at.partition): at.replica for at in command.elected}
    leaders_of = count_leaders(streams)
    changed: Changed = {}
    for name in sorted(streams):
        least = minimum(streams[name].config)
        for item in streams[name]:
            if broker not in item.replicas:
                continue
            left = leave(item, broker, Departure.LOST, least, now, leaders_of)
            rest = without(left, broker)._replace(replicas=tuple(each for each in item.replicas if each != broker))
            if not rest.isr and (item.isr or not rest.replicas):
                rest = elect_uncleanly(rest, elected[name, item.id], now.epoch)
            changed.setdefault(name, {})[item.id] = rest
    return changed


def name_of(stream: str, partition: int) -> str:
    return f"{stream}/{partition}"


def elect_command(stream: str, partition: int, replica: str) -> str:
    """What an administrator types to have this replica lead, whatever is lost."""
    return f"bascule cluster elect {stream} {partition} --replica {replica} --accept-loss"


def some(names: list[str]) -> str:
    """All of them in words, or the first few and how many more."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
