"""Consumer groups changed by commands: who joins and leaves, who coordinates, and what a deleted stream leaves behind.

Every change gives the group another epoch, and works out anew who reads what (`assignment`). A partition has one reader
in an epoch. A member that asks its coordinator under an older one is told so. The leader of a partition compares the
epochs that clients send with each other only (`GroupMembers`): a member with a newer epoch replaces the one that reads
now, one with an older epoch is refused while that one reads. Once nobody reads, an older epoch is let in; and nobody
reads when the leader of the partition has changed.

A coordinator that is dead is replaced with the command that says so, in all its groups: the reports of members alone
would not do, for of two members of which one is dead, too, there is never a majority.

Working out is done in slices, before anything is changed: whoever reads the metadata meanwhile sees it as it was.
"""

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping
from dataclasses import replace

from bascule.core.groups.assignment import assigning
from bascule.core.groups.group import Group, Member, count_subscriptions
from bascule.core.metadata.commands import (
    BrokerDied,
    ChangeCoordinator,
    Command,
    DeleteStream,
    GroupCommand,
    HandOver,
    JoinGroup,
    LeaveGroup,
)
from bascule.core.metadata.streams import Stream
from bascule.errors import FailedPrecondition, InvalidArgument, NotFound, Outdated, ResourceExhausted
from bascule.limits import (
    GROUPS_SLICE,
    MAX_ASSIGNED_PARTITIONS,
    MAX_GROUP_ID_BYTES,
    MAX_GROUP_MEMBERS,
    MAX_GROUP_PARTITIONS,
    MAX_GROUP_SUBSCRIPTIONS,
    MAX_GROUPS,
    MAX_MEMBER_STREAMS,
    MAX_SUBSCRIPTIONS,
)

NOT_A_MEMBER = "consumer is not a member of the consumer group"
NO_SUCH_GROUP = "consumer group does not exist"
NO_SUCH_STREAM = "stream does not exist"
NO_CANDIDATES = "No group coordinator candidates"

Groups = dict[str, Group]
Streams = Mapping[str, Stream]
Changed = dict[str, Group | None]
"""Groups as they are afterwards, by id; None if one is gone."""


# --- whether a change can be made ------------------------------------------------------------------------------------


def check(groups: Groups, streams: Streams, command: GroupCommand) -> None:
    """Raises what a client is told if it cannot be done now."""
    match command:
        case JoinGroup():
            _check_join(groups, streams, command)
        case LeaveGroup():
            _check_leave(groups.get(command.group), command)
        case ChangeCoordinator():
            group = groups.get(command.group)
            if group is None:
                raise NotFound(NO_SUCH_GROUP)
            if group.epoch != command.epoch:
                raise FailedPrecondition(f"the group is at epoch {group.epoch} by now, and not at {command.epoch}")
            if not _others(group, command.alive):
                raise FailedPrecondition(NO_CANDIDATES)


def check_ids(group: str, consumer: str) -> None:
    if not group:
        raise InvalidArgument("No groupId provided")
    if not consumer:
        raise InvalidArgument("No consumerId provided")
    if max(len(group.encode()), len(consumer.encode())) > MAX_GROUP_ID_BYTES:
        raise InvalidArgument(f"groupId and consumerId have at most {MAX_GROUP_ID_BYTES} bytes each")


def check_streams(streams: Collection[str]) -> None:
    if not streams:
        raise InvalidArgument("No streams provided")
    if len(streams) > MAX_MEMBER_STREAMS:
        raise InvalidArgument(f"a consumer subscribes to at most {MAX_MEMBER_STREAMS} streams")


def _check_join(groups: Groups, streams: Streams, command: JoinGroup) -> None:
    check_ids(command.group, command.consumer)
    check_streams(command.streams)
    group = groups.get(command.group)
    if group is not None and command.consumer in group.members:
        raise FailedPrecondition("consumer is already a member of the consumer group")
    if any(name not in streams for name in command.streams):
        raise FailedPrecondition(NO_SUCH_STREAM)
    if group is None and not command.alive:
        raise FailedPrecondition(NO_CANDIDATES)
    _check_bounds(groups, streams, command)


def _check_bounds(groups: Groups, streams: Streams, command: JoinGroup) -> None:
    group = groups.get(command.group)
    members = group.members if group else {}
    if group is None and len(groups) >= MAX_GROUPS:
        raise ResourceExhausted(f"a cluster has at most {MAX_GROUPS} consumer groups")
    if len(members) >= MAX_GROUP_MEMBERS:
        raise ResourceExhausted(f"a consumer group has at most {MAX_GROUP_MEMBERS} members")
    if len(command.streams) + (group.subscriptions if group else 0) > MAX_GROUP_SUBSCRIPTIONS:
        raise ResourceExhausted(f"the members of a consumer group have at most {MAX_GROUP_SUBSCRIPTIONS} subscriptions")
    if len(command.streams) + sum(each.subscriptions for each in groups.values()) > MAX_SUBSCRIPTIONS:
        raise ResourceExhausted(f"consumers of a cluster have at most {MAX_SUBSCRIPTIONS} subscriptions altogether")
    subscribed = {name: None for member in members.values() for name in member.streams}
    more = _count(streams, [name for name in dict.fromkeys(command.streams) if name not in subscribed])
    if _count(streams, subscribed) + more > MAX_GROUP_PARTITIONS:
        raise ResourceExhausted(f"the members of a consumer group read at most {MAX_GROUP_PARTITIONS} partitions")
    if sum(each.partitions for each in groups.values()) + more > MAX_ASSIGNED_PARTITIONS:
        raise ResourceExhausted(
            f"the consumer groups of a cluster read at most {MAX_ASSIGNED_PARTITIONS} partitions altogether"
        )


def _count(streams: Streams, names: Iterable[str]) -> int:
    return sum(len(streams[name].partitions) for name in names)


def _check_leave(group: Group | None, command: LeaveGroup) -> None:
    if group is None:
        raise NotFound(NO_SUCH_GROUP)
    member = group.members.get(command.consumer)
    if member is None:
        raise FailedPrecondition(NOT_A_MEMBER)
    if command.expired and command.epoch != group.epoch:
        raise FailedPrecondition(f"the group is at epoch {group.epoch} by now, and not at {command.epoch}")
    if command.operation.id and member.joined > command.operation.since:
        raise Outdated("the consumer has joined meanwhile; ask again")


# --- the change ------------------------------------------------------------------------------------------------------


def changing(
    groups: Groups, streams: Streams, index: int, command: Command, draining: Collection[str]
) -> Generator[None, None, Changed]:
    """The groups that a command changes, one that can be made; in slices."""
    match command:
        case JoinGroup(group=name):
            return {name: (yield from _joining(groups, streams, index, command, draining))}
        case LeaveGroup(group=name, consumer=consumer):
            members = {**groups[name].members}
            del members[consumer]
            if not members:
                return {name: None}
            return {name: (yield from _with_members(groups[name], members, streams, index))}
        case ChangeCoordinator(group=name, alive=alive):
            group = groups[name]
            chosen = _least_loaded(_others(group, alive), draining, _coordinations(groups))
            return {name: _coordinated(group, chosen, index)}
        case BrokerDied(broker, alive) | HandOver(broker, alive):
            return (yield from _replacing_coordinator(groups, broker, alive, draining, index))
        case DeleteStream(name):
            return (yield from _without_stream(groups, streams, name, index))
        case _:
            return {}


def _joining(
    groups: Groups, streams: Streams, index: int, command: JoinGroup, draining: Collection[str]
) -> Generator[None, None, Group]:
    group = groups.get(command.group)
    if group is None:
        coordinator = _least_loaded(command.alive, draining, _coordinations(groups))
        group = Group(command.group, coordinator, index, index, index, members={}, partitions=0, subscriptions=0)
    joined = Member(tuple(sorted(set(command.streams))), index, {})
    return (yield from _with_members(group, {**group.members, command.consumer: joined}, streams, index))


def _with_members(
    group: Group, members: Mapping[str, Member], streams: Streams, index: int
) -> Generator[None, None, Group]:
    """The group with these members, and their partitions assigned anew."""
    partitions = {
        name: len(streams[name].partitions) for member in members.values() for name in member.streams if name in streams
    }
    assignment = yield from assigning(
        {name: member.streams for name, member in members.items()},
        partitions,
        {name: member.assigned for name, member in members.items()},
    )
    made = {name: members[name]._replace(assigned=assignment[name]) for name in sorted(members)}
    return replace(
        group,
        epoch=index,
        members=made,
        partitions=sum(partitions.values()),
        subscriptions=count_subscriptions(made),
    )


def _without_stream(groups: Groups, streams: Streams, deleted: str, index: int) -> Generator[None, None, Changed]:
    """Members that subscribe to nothing else stay: they leave, or expire, as all others."""
    rest = {name: stream for name, stream in streams.items() if name != deleted} if groups else {}
    changed: Changed = {}
    for number, group in enumerate(groups.values(), 1):
        if number % GROUPS_SLICE == 0:
            yield
        if not any(deleted in member.streams for member in group.members.values()):
            continue
        members = {
            name: member._replace(streams=tuple([each for each in member.streams if each != deleted]))
            for name, member in group.members.items()
        }
        changed[group.id] = yield from _with_members(group, members, rest, index)
    return changed


# --- coordinators ----------------------------------------------------------------------------------------------------


def _replacing_coordinator(
    groups: Groups, broker: str, alive: Collection[str], draining: Collection[str], index: int
) -> Generator[None, None, Changed]:
    """Where nobody else is alive it stays the coordinator: the controller sees to it when somebody is."""
    candidates = [each for each in alive if each != broker]
    if not candidates:
        return {}
    load, changed = _coordinations(groups), Changed()
    for number, group in enumerate(groups.values(), 1):
        if number % GROUPS_SLICE == 0:
            yield
        if group.coordinator == broker:
            chosen = _least_loaded(candidates, draining, load)
            load[chosen] += 1
            changed[group.id] = _coordinated(group, chosen, index)
    return changed


def _others(group: Group, alive: Iterable[str]) -> list[str]:
    return [broker for broker in alive if broker != group.coordinator]


def _coordinations(groups: Groups) -> Counter[str]:
    return Counter(group.coordinator for group in groups.values())


def _least_loaded(candidates: Collection[str], draining: Collection[str], load: Counter[str]) -> str:
    return min(candidates, key=lambda broker: (broker in draining, load[broker], broker))


def _coordinated(group: Group, broker: str, index: int) -> Group:
    return replace(group, coordinator=broker, epoch=index, coordinator_epoch=index)
