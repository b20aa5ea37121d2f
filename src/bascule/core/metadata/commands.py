"""The commands that change the cluster's metadata. A command says everything its outcome depends on (chosen
replicas, the creation time), so that applying it is deterministic on every broker and at every replay.

A command is declared here, once: its fields, and where they stand in a message (`layout`). Its bytes follow from that
(`codec`), and `state` says what it does. A command that is not among `Command` is one that nobody can propose.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast

from bascule.core.metadata.operations import UNASKED, Operation
from bascule.core.metadata.streams import Stream, StreamConfig
from bascule.wire.pb import internal_pb2 as pb

T = TypeVar("T")


class Layout(NamedTuple):
    """Where a command stands in a message."""

    op: pb.Op
    body: str
    """The part of the message that has its fields, under their own names in protobuf's spelling."""
    renamed: dict[str, str]
    """The fields that have another name in the message, each with that name."""


LAYOUTS: dict[type, Layout] = {}


def layout(op: pb.Op, body: str, **renamed: str) -> Callable[[type[T]], type[T]]:
    def declare(command: type[T]) -> type[T]:
        LAYOUTS[command] = Layout(op, body, renamed)
        return command

    return declare


@layout(pb.CREATE_STREAM, "createStreamOp")
@dataclass(frozen=True, slots=True)
class CreateStream:
    stream: Stream
    operation: Operation = UNASKED


@layout(pb.DELETE_STREAM, "deleteStreamOp", name="stream")
@dataclass(frozen=True, slots=True)
class DeleteStream:
    name: str
    operation: Operation = UNASKED


@dataclass(frozen=True, slots=True)
class PartitionsCommand:
    """Some partitions of a stream, or, if none is named, all of them."""

    name: str
    partitions: tuple[int, ...]


@layout(pb.PAUSE_STREAM, "pauseStreamOp", name="stream")
@dataclass(frozen=True, slots=True)
class PauseStream(PartitionsCommand):
    """Nothing is stored or read there until somebody resumes it. The `leader` of an idle partition asks for it on its
    own account: it is paused if that broker leads it still, in the same epoch."""

    resume_all: bool = False
    at: int = 0
    leader: str = ""
    leader_epoch: int = 0


@layout(pb.RESUME_STREAM, "resumeStreamOp", name="stream")
@dataclass(frozen=True, slots=True)
class ResumeStream(PartitionsCommand):
    """Those of them that are paused; where one was paused to resume all, every paused partition of the stream."""

    at: int = 0


@layout(pb.SET_STREAM_READONLY, "setStreamReadonlyOp", name="stream")
@dataclass(frozen=True, slots=True)
class SetStreamReadonly(PartitionsCommand):
    readonly: bool
    at: int = 0


class NewStart(NamedTuple):
    """Where a partition begins from now on."""

    stream: str
    creation_index: int
    partition: int
    leader_epoch: int
    start: int


@layout(pb.RAISE_STARTS, "raiseStartsOp")
@dataclass(frozen=True, slots=True)
class RaiseStarts:
    """Records have expired in partitions that a broker leads, all of them committed. Those where it does not lead any
    more, that a hold keeps, or that begin higher already, stay as they are."""

    leader: str
    starts: tuple[NewStart, ...]


class ClearedEnd(NamedTuple):
    """Of every tombstone below `end` no older record of its key is left in a log (`tombstones`)."""

    stream: str
    creation_index: int
    partition: int
    epoch: int
    """The partition epoch that the replica knew: if the partition has changed since, this one does not count."""
    since: int
    """The command by which the replica told its last one, as it knew; 0: none. If there is another one by now this is
    a late copy, of a log that may have begun anew since."""
    end: int


@layout(pb.TELL_CLEARED, "tellClearedOp")
@dataclass(frozen=True, slots=True)
class TellCleared:
    """A broker says how far its logs of some partitions are cleared, each of which has that on its disk. Those that do
    not fit stay as they are."""

    replica: str
    ends: tuple[ClearedEnd, ...]


@layout(pb.SET_HOLD, "holdOp")
@dataclass(frozen=True, slots=True)
class SetHold:
    """Nothing at or above this offset is removed. A hold that is there is raised to it: all below is archived."""

    stream: str
    partition: int
    name: str
    offset: int
    at: int = 0


@layout(pb.REMOVE_HOLD, "holdOp")
@dataclass(frozen=True, slots=True)
class RemoveHold:
    stream: str
    partition: int
    name: str
    operation: Operation = UNASKED


@layout(pb.JOIN_CONSUMER_GROUP, "joinConsumerGroupOp", group="groupId", consumer="consumerId")
@dataclass(frozen=True, slots=True)
class JoinGroup:
    """A consumer becomes a member. A group that is not there is created, with a coordinator among those `alive`."""

    group: str
    consumer: str
    streams: tuple[str, ...]
    operation: Operation = UNASKED
    alive: tuple[str, ...] = ()


@layout(pb.LEAVE_CONSUMER_GROUP, "leaveConsumerGroupOp", group="groupId", consumer="consumerId")
@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """A member leaves. One that has `expired` leaves only if the group is still at this epoch: then the coordinator
    that requests it has not missed that the consumer joined again, nor that another broker is the coordinator."""

    group: str
    consumer: str
    expired: bool = False
    epoch: int = 0
    operation: Operation = UNASKED


@layout(pb.CHANGE_CONSUMER_GROUP_COORDINATOR, "changeConsumerGroupCoordinatorOp", group="groupId")
@dataclass(frozen=True, slots=True)
class ChangeCoordinator:
    """Its members do not reach the coordinator of this epoch: another one of those `alive` is it."""

    group: str
    epoch: int
    alive: tuple[str, ...] = ()


GroupCommand = JoinGroup | LeaveGroup | ChangeCoordinator


@layout(pb.ALTER_STREAM, "alterStreamOp", name="stream")
@dataclass(frozen=True, slots=True)
class AlterStream:
    """Settings of a stream are set; those of which the names are in `reset` are the brokers' again."""

    name: str
    config: StreamConfig
    reset: tuple[str, ...] = ()
    operation: Operation = UNASKED


@dataclass(frozen=True, slots=True)
class IsrChange:
    """The leader of a partition asks for something about one of its replicas."""

    stream: str
    partition: int
    replica: str
    leader: str
    leader_epoch: int
    epoch: int
    """The partition epoch that the leader knew: if the partition has changed since, the command is refused."""


@layout(pb.SHRINK_ISR, "shrinkISROp")
@dataclass(frozen=True, slots=True)
class ShrinkIsr(IsrChange):
    """The replica lags. If it is not in sync this refuses earlier requests to let it in."""

    lacks: bool = False
    """It has lost records that it had promised, so it is not eligible either."""


@layout(pb.EXPAND_ISR, "expandISROp")
@dataclass(frozen=True, slots=True)
class ExpandIsr(IsrChange):
    """The replica has caught up."""


@layout(pb.BROKER_DIED, "brokerOp")
@dataclass(frozen=True, slots=True)
class BrokerDied:
    """Each partition it led gets another leader among those `alive`, and it leaves every in-sync set that has another
    member."""

    broker: str
    alive: tuple[str, ...] = ()


@layout(pb.HAND_OVER, "brokerOp")
@dataclass(frozen=True, slots=True)
class HandOver:
    """A broker about to stop hands its leaderships over and leaves the in-sync sets, so that commits do not wait for
    it."""

    broker: str
    alive: tuple[str, ...] = ()


@layout(pb.DISK_LOST, "brokerOp")
@dataclass(frozen=True, slots=True)
class DiskLost:
    """A broker that lost its disk leaves all in-sync sets, and earlier requests to let it in are refused."""

    broker: str
    alive: tuple[str, ...] = ()


@layout(pb.CHANGE_LEADER, "changeLeaderOp")
@dataclass(frozen=True, slots=True)
class ChangeLeader:
    """A leader steps down, with everything that it promised: its log lost other records, which followers may have, so
    it must not write under its epoch; or one of those alive has more."""

    stream: str
    partition: int
    leader: str
    leader_epoch: int
    alive: tuple[str, ...] = ()


PartitionName = tuple[str, int]


@layout(pb.BROKER_STARTED, "brokerStartedOp")
@dataclass(frozen=True, slots=True)
class BrokerStarted:
    """A broker that just started leads only under new epochs, and leaves the in-sync sets of the partitions whose log
    is suspect, where they have another member. A change that its last boot asked for is refused."""

    broker: str
    all_suspect: bool
    suspect: tuple[PartitionName, ...] = ()
    alive: tuple[str, ...] = ()


@layout(pb.GIVE_WAY, "giveWayOp")
@dataclass(frozen=True, slots=True)
class GiveWay(IsrChange):
    """The leader hands leadership over to the replica, which has more records, and may lack some that it promised
    itself. Or to itself, under a new epoch, because it has lost records of this epoch that others may have."""


@layout(pb.DRAIN_BROKER, "adminOp")
@dataclass(frozen=True, slots=True)
class DrainBroker:
    """It leads nothing that another in-sync replica can lead, and stays a follower. Brokers to `avoid` get no
    leadership."""

    broker: str
    avoid: tuple[str, ...] = ()


@layout(pb.UNDRAIN_BROKER, "adminOp")
@dataclass(frozen=True, slots=True)
class UndrainBroker:
    """It may lead and get replicas again; a removal that has begun is cancelled."""

    broker: str


@dataclass(frozen=True, slots=True)
class At:
    """A replica of a partition: one that is there, or one to be."""

    stream: str
    partition: int
    replica: str


@layout(pb.BEGIN_REMOVAL, "adminOp", additions="replicas")
@dataclass(frozen=True, slots=True)
class BeginRemoval:
    """The broker drains, and others get replicas of what it holds before it goes."""

    broker: str
    additions: tuple[At, ...] = ()


@layout(pb.REMOVE_BROKER, "adminOp", elected="replicas")
@dataclass(frozen=True, slots=True)
class RemoveBroker:
    """It holds no replica any more. Where it was the last in-sync replica `elected` names the next leader, and messages
    that this one lacks are lost."""

    broker: str
    incarnation: str
    elected: tuple[At, ...] = ()


@layout(pb.ELECT_LEADER, "adminOp", at="replicas", isr="inSync")
@dataclass(frozen=True, slots=True)
class ElectLeader:
    """Unclean election: this replica leads, alone in sync; messages that it lacks are lost. `isr` and `eligible` are as
    the administrator saw them when accepting that."""

    at: At
    isr: tuple[str, ...]
    eligible: tuple[str, ...] = ()


@layout(pb.PUBLISH_ACTIVITY, "publishActivityOp", index="raftIndex")
@dataclass(frozen=True, slots=True)
class PublishActivity:
    """The events of the activity stream up to this index are published."""

    index: int


@layout(pb.INIT_PRODUCER, "initProducerOp")
@dataclass(frozen=True, slots=True)
class InitProducer:
    """A producer begins, under an epoch that is the index of this command. Without a name that is its id, too."""

    name: str = ""
    at: int = 0
    operation: Operation = UNASKED


AdminCommand = DrainBroker | UndrainBroker | BeginRemoval | RemoveBroker | ElectLeader
Command = (
    CreateStream
    | DeleteStream
    | PauseStream
    | ResumeStream
    | SetStreamReadonly
    | RaiseStarts
    | TellCleared
    | SetHold
    | RemoveHold
    | GroupCommand
    | AlterStream
    | ShrinkIsr
    | ExpandIsr
    | BrokerDied
    | HandOver
    | DiskLost
    | ChangeLeader
    | BrokerStarted
    | GiveWay
    | PublishActivity
    | InitProducer
    | AdminCommand
)


def operation_of(command: Command) -> Operation:
    """The operation that a client asked for, so that it is applied once."""
    return cast(Operation, getattr(command, "operation", UNASKED))


def with_alive(command: Command, alive: tuple[str, ...]) -> Command:
    """For the controller, which knows who is alive: every command that may elect another leader has this field."""
    named: Any = command
    return cast(Command, replace(named, alive=alive)) if hasattr(command, "alive") else command
