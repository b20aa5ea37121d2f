"""The commands that change the cluster's metadata. A command says everything its outcome depends on (chosen
replicas, the creation time), so that applying it is deterministic on every broker and at every replay.

A command is declared here, once: its fields, and where they stand in a message (`layout`). Its bytes follow from that
(`codec`), and `state` says what it does. A command that is not among `Command` is one that nobody can propose.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast

from bascule.core.metadata.operations import UNASKED, Operation
from bascule.core.metadata.streams import Stream
from bascule.wire.pb import internal_pb2 as pb

T = TypeVar("T")


class Layout(NamedTuple):
    """Where a command stands in a message."""

    op: pb.Op
    body: str
    """The part of the message that has its fields, under their own names in protobuf's spelling."""
    renamed: dict[str, str]
    """But for these."""


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


@layout(pb.SET_STREAM_READONLY, "setStreamReadonlyOp", name="stream")
@dataclass(frozen=True, slots=True)
class SetStreamReadonly:
    name: str
    partitions: tuple[int, ...]
    readonly: bool


@dataclass(frozen=True, slots=True)
class IsrChange:
    """The leader of a partition asks for something about one of its replicas."""

    stream: str
    partition: int
    replica: str
    leader: str
    leader_epoch: int
    epoch: int
    """Of the partition as the leader knew it: a change that comes late, after another one, is not made."""


@layout(pb.SHRINK_ISR, "shrinkISROp")
@dataclass(frozen=True, slots=True)
class ShrinkIsr(IsrChange):
    """The replica no longer keeps up. Of one that is not in sync: that it shall not be, whatever was asked before."""

    lacks: bool = False
    """It has lost something that it had promised, so that it is not eligible either."""


@layout(pb.EXPAND_ISR, "expandISROp")
@dataclass(frozen=True, slots=True)
class ExpandIsr(IsrChange):
    """The replica has caught up."""


@layout(pb.BROKER_DIED, "brokerOp")
@dataclass(frozen=True, slots=True)
class BrokerDied:
    """Everything it led gets another leader among those `alive`, and it leaves every in-sync set that has another
    member."""

    broker: str
    alive: tuple[str, ...] = ()


@layout(pb.HAND_OVER, "brokerOp")
@dataclass(frozen=True, slots=True)
class HandOver:
    """A broker about to stop gives its leaderships away and leaves the in-sync sets: nobody is to wait for it."""

    broker: str
    alive: tuple[str, ...] = ()


@layout(pb.DISK_LOST, "brokerOp")
@dataclass(frozen=True, slots=True)
class DiskLost:
    """A broker that lost its disk is in sync with nothing, whatever it was before, or was about to be."""

    broker: str
    alive: tuple[str, ...] = ()


@layout(pb.CHANGE_LEADER, "changeLeaderOp")
@dataclass(frozen=True, slots=True)
class ChangeLeader:
    """A leader that cannot go on under its epoch, because its log lost what others may have, steps down."""

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
    """The leader lets the replica lead: one that has more, or one whose disk works. Or itself, under a new epoch, for
    it has forgotten records of this one that others may have."""


@layout(pb.DRAIN_BROKER, "adminOp")
@dataclass(frozen=True, slots=True)
class DrainBroker:
    """It leads nothing that another in sync can lead, and stays a follower. Brokers to `avoid` get nothing."""

    broker: str
    avoid: tuple[str, ...] = ()


@layout(pb.UNDRAIN_BROKER, "adminOp")
@dataclass(frozen=True, slots=True)
class UndrainBroker:
    """It may lead and hold as any other again; a removal that has begun is called off."""

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
    """It holds nothing any more. Where it was the last in sync `elected` names who leads instead, and what that one
    lacks is lost."""

    broker: str
    incarnation: str
    elected: tuple[At, ...] = ()


@layout(pb.ELECT_LEADER, "adminOp", at="replicas", isr="inSync")
@dataclass(frozen=True, slots=True)
class ElectLeader:
    """A replica that may lack something leads from here on, alone in sync: what it lacks is lost. `isr` and `eligible`
    are as the administrator saw them when accepting that."""

    at: At
    isr: tuple[str, ...]
    eligible: tuple[str, ...] = ()


AdminCommand = DrainBroker | UndrainBroker | BeginRemoval | RemoveBroker | ElectLeader
Command = (
    CreateStream
    | DeleteStream
    | SetStreamReadonly
    | ShrinkIsr
    | ExpandIsr
    | BrokerDied
    | HandOver
    | DiskLost
    | ChangeLeader
    | BrokerStarted
    | GiveWay
    | AdminCommand
)


def operation_of(command: Command) -> Operation:
    """Which change somebody asked for it is, so that it is made once."""
    return cast(Operation, getattr(command, "operation", UNASKED))


def with_alive(command: Command, alive: tuple[str, ...]) -> Command:
    """For the controller, which knows who is: any command that may have to name another leader has a field for it."""
    named: Any = command
    return cast(Command, replace(named, alive=alive)) if hasattr(command, "alive") else command
