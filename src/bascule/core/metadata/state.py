"""The metadata machine: the streams of the cluster and what was decided about its brokers, changed by commands and by
nothing else.

`check` says whether a command may be proposed now (with the protocol's exact texts); `apply` carries it out at its
index and says what changed. Both are deterministic: the same commands give the same state on every broker, and a
snapshot restored at any prefix gives the same state as the commands it replaced. Applying never fails: a command
that no longer fits (it raced another one) changes nothing and says so in its result.
"""

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, replace

from bascule.core.groups import changes as group_changes
from bascule.core.groups.group import Group
from bascule.core.metadata import administration, altering, pausing, starts, tombstones
from bascule.core.metadata.activity import Activity, event_of
from bascule.core.metadata.brokers import Brokers
from bascule.core.metadata.commands import (
    AdminCommand,
    AlterStream,
    BrokerDied,
    BrokerStarted,
    ChangeCoordinator,
    ChangeLeader,
    Command,
    CreateStream,
    DeleteStream,
    DiskLost,
    ExpandIsr,
    GiveWay,
    HandOver,
    InitProducer,
    IsrChange,
    JoinGroup,
    LeaveGroup,
    PartitionsCommand,
    PauseStream,
    PublishActivity,
    RaiseStarts,
    RemoveHold,
    ResumeStream,
    SetHold,
    SetStreamReadonly,
    ShrinkIsr,
    TellCleared,
    operation_of,
)
from bascule.core.metadata.isr import ClusterState, Departure, enter, give_way, leave, minimum
from bascule.core.metadata.operations import Operations
from bascule.core.metadata.placement import Changed, broker_started, count_leaders, fail_over
from bascule.core.metadata.producers import Producers
from bascule.core.metadata.streams import ACTIVITY, Partition, Stream, finish
from bascule.errors import AlreadyExists, BasculeError, CorruptError, FailedPrecondition, NotFound
from bascule.types import Epoch
from bascule.wire.pb import internal_pb2 as pb


@dataclass(frozen=True, slots=True)
class StreamCreated:
    stream: Stream


@dataclass(frozen=True, slots=True)
class StreamDeleted:
    stream: Stream


@dataclass(frozen=True, slots=True)
class PartitionsChanged:
    stream: Stream
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """The command did not fit the state it met; nothing changed."""

    error: BasculeError


@dataclass(frozen=True, slots=True)
class Repeated:
    """The command at this index has done it already; nothing changed."""

    index: int


Change = StreamCreated | StreamDeleted | PartitionsChanged | Rejected | Repeated
"""What brokers carry out. A change of a consumer group is none of these: it is in the metadata, and no broker is told.
Whoever needs it looks there."""


class Metadata:
    def __init__(self) -> None:
        self.index = 0
        self.streams: dict[str, Stream] = {}
        self.groups: dict[str, Group] = {}
        self.operations = Operations()
        self.brokers = Brokers()
        self.activity = Activity()
        self.producers = Producers()

    def stream(self, name: str) -> Stream | None:
        return self.streams.get(name)

    def partition(self, name: str, partition: int) -> Partition | None:
        stream = self.streams.get(name)
        return stream.partition(partition) if stream else None

    def check(self, command: Command) -> None:
        """Raise what a client is told if this command cannot be carried out now."""
        self.operations.check_remembered(operation_of(command))
        match command:
            case CreateStream(stream, operation):
                if stream.name in self.streams:
                    raise AlreadyExists("stream already exists")
                self.operations.check_absent(operation, stream.name)
            case DeleteStream(name, operation):
                if name not in self.streams:
                    raise NotFound("stream does not exist")
                self.operations.check_present(operation, self.streams[name].creation_index)
            case PartitionsCommand():
                pausing.check(self.streams.get(command.name), command)
            case AlterStream():
                altering.check(self.streams.get(command.name), command)
            case IsrChange():
                self._check_isr(command)
            case ChangeLeader():
                self._check_term(command)
            case SetHold() | RemoveHold():
                starts.check_hold(self.partition(command.stream, command.partition), command)
            case InitProducer():
                self.producers.check(command)
            case JoinGroup() | LeaveGroup() | ChangeCoordinator():
                group_changes.check(self.groups, self.streams, command)
            case BrokerDied() | HandOver() | DiskLost() | BrokerStarted() | PublishActivity():
                pass
            case RaiseStarts() | TellCleared():
                pass  # what does not fit stays as it is
            case _:
                administration.check(self.streams, command)

    def _check_term(self, command: IsrChange | ChangeLeader) -> Partition:
        partition = self.partition(command.stream, command.partition)
        if partition is None:
            raise NotFound("partition does not exist")
        if not partition.leader:
            raise FailedPrecondition("nobody leads this partition: its last copy in sync was lost")
        if not partition.is_led_by(command.leader, command.leader_epoch):
            raise FailedPrecondition(
                f"Leader generation mismatch, current leader: {partition.leader} epoch: {partition.leader_epoch}, "
                f"got leader: {command.leader} epoch: {command.leader_epoch}"
            )
        return partition

    def _check_isr(self, command: IsrChange) -> None:
        partition = self._check_term(command)
        if partition.epoch != command.epoch:
            raise FailedPrecondition(f"the partition has changed since epoch {command.epoch}, at {partition.epoch}")
        if command.replica not in partition.replicas:
            raise FailedPrecondition(f"{command.replica} is not a replica of this partition")
        if isinstance(command, ShrinkIsr) and command.replica == partition.leader:
            raise FailedPrecondition("a leader is always in sync with itself")
        if isinstance(command, ExpandIsr):
            tombstones.check_enters(partition, command.replica)

    def apply(self, index: int, command: Command) -> list[Change]:
        return finish(self.applying(index, command))

    def applying(self, index: int, command: Command) -> Generator[None, None, list[Change]]:
        """In slices; everything changes in the last one, so that nobody sees half of a change."""
        assert index > self.index, f"command {index} applied after {self.index}"
        if made := self.operations.made(operation_of(command)):
            self.index = index
            return [Repeated(made)]
        try:
            self.check(command)
        except BasculeError as error:
            self.index = index
            return [Rejected(error)]
        groups = yield from group_changes.changing(self.groups, self.streams, index, command, self.brokers.draining)
        self.index = index
        for name, group in groups.items():
            if group is None:
                del self.groups[name]
            else:
                self.groups[name] = group
        self.operations.record(operation_of(command), index)
        changes = self._carry_out(index, command)
        if ACTIVITY in self.streams:
            self._report(index, command, changes)
        return changes

    def _report(self, index: int, command: Command, changes: list[Change]) -> None:
        """For the activity stream. Its own creation is the first event of all."""
        stream = self.streams.get(command.name) if isinstance(command, PartitionsCommand) else None
        changed = [each for change in changes if isinstance(change, PartitionsChanged) for each in change.partitions]
        event = event_of(command, stream, changed)
        if event is not None:
            self.activity.record(index, event)

    def _carry_out(self, index: int, command: Command) -> list[Change]:
        match command:
            case CreateStream(stream):
                created = stream.created_at(index)
                self.streams[created.name] = created
                return [StreamCreated(created)]
            case DeleteStream(name):
                self.operations.record_deleted(name, index)
                return [StreamDeleted(self.streams.pop(name))]
            case PauseStream() | ResumeStream() | SetStreamReadonly():
                known = self.streams[command.name]
                return self._move({known.name: pausing.apply(known, command, Epoch(index))})
            case RaiseStarts():
                return self._move(starts.raise_starts(self.streams, command))
            case TellCleared():
                return self._move(tombstones.tell_cleared(self.streams, index, command))
            case SetHold() | RemoveHold():
                item = self.streams[command.stream].partitions[command.partition]
                return self._move({command.stream: {item.id: starts.apply_hold(item, command)}})
            case AlterStream(name):
                config, changed = altering.apply(self.streams[name], command, self._now())
                self.streams[name] = replace(self.streams[name], config=config)
                return self._move({name: changed})
            case BrokerDied(broker, alive) | HandOver(broker, alive):
                return self._move(fail_over(self.streams, broker, Departure.WHOLE, self._now(alive)))
            case DiskLost(broker, alive):
                return self._move(fail_over(self.streams, broker, Departure.LOST, self._now(alive)))
            case BrokerStarted(broker, all_suspect, suspect, alive):
                return self._move(broker_started(self.streams, broker, suspect, all_suspect, self._now(alive)))
            case ShrinkIsr() | ExpandIsr() | ChangeLeader() | GiveWay():
                return self._change_sets(command)
            case PublishActivity(published):
                self.activity.publish(published)
                return []
            case InitProducer():
                self.producers.begin(index, command)
                return []
            case JoinGroup() | LeaveGroup() | ChangeCoordinator():
                return []  # groups are changed already, and brokers have nothing to carry out
            case _:
                return self._administer(index, command)

    def _now(self, alive: tuple[str, ...] = ()) -> ClusterState:
        return ClusterState(self.index, alive, self.brokers.draining)

    def _change_sets(self, command: ShrinkIsr | ExpandIsr | ChangeLeader | GiveWay) -> list[Change]:
        stream = self.streams[command.stream]
        item, least = stream.partitions[command.partition], minimum(stream.config)
        match command:
            case ShrinkIsr(replica=replica, lacks=lacks):
                how = Departure.SUSPECT if lacks else Departure.WHOLE
                # This elects no leader, so leaderships are not counted.
                moved = leave(item, replica, how, least, self._now(), Counter())
                # The new epoch refuses earlier requests to let it in.
                moved = moved._replace(epoch=Epoch(self.index))
            case ExpandIsr(replica=replica):
                moved = enter(item, replica, least, self._now())
            case ChangeLeader(alive=alive):
                moved = leave(item, item.leader, Departure.WHOLE, least, self._now(alive), count_leaders(self.streams))
            case GiveWay(replica=replica):
                moved = give_way(item, replica, least, self._now())
        return self._move({stream.name: {item.id: moved}})

    def _administer(self, index: int, command: AdminCommand) -> list[Change]:
        changed, self.brokers = administration.apply(self.streams, self.brokers, index, command)
        return self._move(changed)

    def _move(self, partitions: Changed) -> list[Change]:
        changes: list[Change] = []
        for name, moved in partitions.items():
            if not moved:
                continue
            self.streams[name] = self.streams[name].with_partitions(moved)
            changes.append(PartitionsChanged(self.streams[name], tuple(moved)))
        return changes

    def snapshot(self) -> bytes:
        return finish(self.snapshotting())

    def snapshotting(self) -> Generator[None, None, bytes]:
        """In slices: the state when it begins, whatever is applied meanwhile."""
        message = pb.MetadataSnapshot(
            index=self.index,
            operations=self.operations.to_wire(),
            activity=self.activity.to_wire(),
            producers=self.producers.to_wire(),
        )
        self.brokers.to_wire(message)
        groups = [self.groups[name] for name in sorted(self.groups)]
        for stream in [self.streams[name] for name in sorted(self.streams)]:
            message.streams.append((yield from stream.writing()))
            yield
        for group in groups:
            message.groups.append(group.to_wire())
            yield
        return message.SerializeToString(deterministic=True)

    @classmethod
    def restore(cls, snapshot: bytes) -> "Metadata":
        return finish(cls.restoring(snapshot))

    @classmethod
    def restoring(cls, snapshot: bytes) -> Generator[None, None, "Metadata"]:
        """In slices."""
        try:
            message = pb.MetadataSnapshot.FromString(snapshot)
        except Exception as error:
            raise CorruptError(f"the metadata snapshot cannot be decoded: {error}") from error
        metadata = cls()
        metadata.index = message.index
        metadata.operations = Operations.from_wire(message.operations)
        metadata.activity = Activity.from_wire(message.activity)
        metadata.producers = Producers.from_wire(message.producers)
        for item in message.streams:
            metadata.streams[item.name] = yield from Stream.reading(item)
            yield
        for group in message.groups:
            metadata.groups[group.id] = Group.from_wire(group)
            yield
        metadata.brokers = Brokers.from_wire(message)
        return metadata


def difference(before: Metadata, after: Metadata) -> list[Change]:
    """The changes between the two, for a snapshot that skips their commands."""
    changes: list[Change] = []
    for name in sorted(before.streams):
        now = after.streams.get(name)
        if now is None or now.creation_index != before.streams[name].creation_index:
            changes.append(StreamDeleted(before.streams[name]))
    for name in sorted(after.streams):
        stream, then = after.streams[name], before.streams.get(name)
        if then is None or then.creation_index != stream.creation_index:
            changes.append(StreamCreated(stream))
        elif then != stream:
            moved = [item.id for item, old in zip(stream, then, strict=True) if item != old]
            changes.append(PartitionsChanged(stream, tuple(moved)))
    return changes
