"""The commands that change the cluster's metadata. A command says everything its outcome depends on (chosen
replicas, the creation time), so that applying it is deterministic on every broker and at every replay.
"""

from collections.abc import Generator
from dataclasses import dataclass

from bascule.core.metadata.operations import UNASKED, Operation
from bascule.core.metadata.streams import Stream, finish
from bascule.errors import CorruptError
from bascule.wire.pb import internal_pb2 as pb


@dataclass(frozen=True, slots=True)
class CreateStream:
    stream: Stream
    operation: Operation = UNASKED


@dataclass(frozen=True, slots=True)
class DeleteStream:
    name: str
    operation: Operation = UNASKED


@dataclass(frozen=True, slots=True)
class SetStreamReadonly:
    name: str
    partitions: tuple[int, ...]
    readonly: bool


@dataclass(frozen=True, slots=True)
class ShrinkIsr:
    """The leader of a partition says that a replica no longer keeps up. Of one that is not in sync: that it shall not
    be, whatever was asked before."""

    stream: str
    partition: int
    replica: str
    leader: str
    leader_epoch: int
    epoch: int
    """Of the partition as the leader knew it: a change that comes late, after another one, is not made."""
    lacks: bool = False
    """It has lost something that it had promised, so that it is not eligible either."""


@dataclass(frozen=True, slots=True)
class ExpandIsr:
    """The leader of a partition says that a replica has caught up."""

    stream: str
    partition: int
    replica: str
    leader: str
    leader_epoch: int
    epoch: int


@dataclass(frozen=True, slots=True)
class BrokerDied:
    """Everything it led gets another leader among those `alive`, and it leaves every in-sync set that has another
    member."""

    broker: str
    alive: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HandOver:
    """A broker about to stop gives its leaderships away and leaves the in-sync sets: nobody is to wait for it."""

    broker: str
    alive: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DiskLost:
    """A broker that lost its disk is in sync with nothing, whatever it was before, or was about to be."""

    broker: str
    alive: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangeLeader:
    """A leader that cannot go on under its epoch, because its log lost what others may have, steps down."""

    stream: str
    partition: int
    leader: str
    leader_epoch: int
    alive: tuple[str, ...] = ()


PartitionName = tuple[str, int]


@dataclass(frozen=True, slots=True)
class BeginLife:
    """A broker that just started leads only under new epochs, and leaves the in-sync sets of the partitions whose log
    it doubts, as far as they have another member. What was asked for its last life comes too late."""

    broker: str
    doubts_all: bool
    doubtful: tuple[PartitionName, ...] = ()
    alive: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GiveWay:
    """A leader lets another replica lead: one that has more, or one whose disk works. Or itself, under a new epoch, for
    it has forgotten records of this one that others may have."""

    stream: str
    partition: int
    replica: str
    leader: str
    leader_epoch: int
    epoch: int


@dataclass(frozen=True, slots=True)
class DrainBroker:
    """It leads nothing that another in sync can lead, and stays a follower. Brokers to `avoid` get nothing."""

    broker: str
    avoid: tuple[str, ...] = ()


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


@dataclass(frozen=True, slots=True)
class BeginRemoval:
    """The broker drains, and others get replicas of what it holds before it goes."""

    broker: str
    additions: tuple[At, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoveBroker:
    """It holds nothing any more. Where it was the last in sync `elected` names who leads instead, and what that one
    lacks is lost."""

    broker: str
    incarnation: str
    elected: tuple[At, ...] = ()


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
    | BeginLife
    | GiveWay
    | AdminCommand
)


def operation_of(command: Command) -> Operation:
    match command:
        case CreateStream(_, operation) | DeleteStream(_, operation):
            return operation
        case _:
            return UNASKED


def encode(command: Command) -> bytes:
    return finish(encoding(command))


def encoding(command: Command) -> Generator[None, None, bytes]:
    """In slices."""
    created = (yield from command.stream.writing()) if isinstance(command, CreateStream) else pb.Stream()
    return _encode(command, created)


def _encode(command: Command, created: pb.Stream) -> bytes:
    log = pb.RaftLog()
    match command:
        case CreateStream(_, operation):
            log.op = pb.CREATE_STREAM
            log.createStreamOp.stream.CopyFrom(created)
            log.operation.CopyFrom(operation.to_wire())
        case DeleteStream(name, operation):
            log.op = pb.DELETE_STREAM
            log.deleteStreamOp.stream = name
            log.operation.CopyFrom(operation.to_wire())
        case SetStreamReadonly(name, partitions, readonly):
            log.op = pb.SET_STREAM_READONLY
            log.setStreamReadonlyOp.stream = name
            log.setStreamReadonlyOp.partitions.extend(partitions)
            log.setStreamReadonlyOp.readonly = readonly
        case ShrinkIsr():
            log.op = pb.SHRINK_ISR
            _encode_isr(log.shrinkISROp, command)
            log.shrinkISROp.lacks = command.lacks
        case ExpandIsr():
            log.op = pb.EXPAND_ISR
            _encode_isr(log.expandISROp, command)
        case BrokerDied(broker, alive):
            log.op = pb.BROKER_DIED
            log.brokerOp.CopyFrom(pb.BrokerOp(broker=broker, alive=alive))
        case HandOver(broker, alive):
            log.op = pb.HAND_OVER
            log.brokerOp.CopyFrom(pb.BrokerOp(broker=broker, alive=alive))
        case DiskLost(broker, alive):
            log.op = pb.DISK_LOST
            log.brokerOp.CopyFrom(pb.BrokerOp(broker=broker, alive=alive))
        case ChangeLeader(stream, partition, leader, epoch, alive):
            log.op = pb.CHANGE_LEADER
            log.changeLeaderOp.CopyFrom(
                pb.ChangeLeaderOp(stream=stream, partition=partition, leader=leader, leaderEpoch=epoch, alive=alive)
            )
        case BeginLife():
            log.op = pb.BEGIN_LIFE
            log.beginLifeOp.CopyFrom(life_to_wire(command))
        case GiveWay():
            log.op = pb.GIVE_WAY
            _encode_isr(log.giveWayOp, command)
        case _:
            _encode_admin(log, command)
    return log.SerializeToString(deterministic=True)


def life_to_wire(command: BeginLife) -> pb.BeginLifeOp:
    return pb.BeginLifeOp(
        broker=command.broker,
        doubtsAll=command.doubts_all,
        doubtful=[pb.PartitionName(stream=stream, partition=partition) for stream, partition in command.doubtful],
        alive=command.alive,
    )


def life_from_wire(op: pb.BeginLifeOp) -> BeginLife:
    doubtful = tuple((item.stream, item.partition) for item in op.doubtful)
    return BeginLife(op.broker, op.doubtsAll, doubtful, tuple(op.alive))


def _encode_isr(op: pb.IsrOp, command: ShrinkIsr | ExpandIsr | GiveWay) -> None:
    op.stream = command.stream
    op.partition = command.partition
    op.replica = command.replica
    op.leader = command.leader
    op.leaderEpoch = command.leader_epoch
    op.epoch = command.epoch


def _encode_admin(log: pb.RaftLog, command: AdminCommand) -> None:
    op = log.adminOp
    match command:
        case DrainBroker(broker, avoid):
            log.op, op.broker = pb.DRAIN_BROKER, broker
            op.avoid.extend(avoid)
        case UndrainBroker(broker):
            log.op, op.broker = pb.UNDRAIN_BROKER, broker
        case BeginRemoval(broker, additions):
            log.op, op.broker = pb.BEGIN_REMOVAL, broker
            op.replicas.extend(map(_replica_op, additions))
        case RemoveBroker(broker, incarnation, elected):
            log.op, op.broker, op.incarnation = pb.REMOVE_BROKER, broker, incarnation
            op.replicas.extend(map(_replica_op, elected))
        case ElectLeader(at, isr, eligible):
            log.op = pb.ELECT_LEADER
            op.inSync.extend(isr)
            op.eligible.extend(eligible)
            op.replicas.append(_replica_op(at))


def _replica_op(at: At) -> pb.ReplicaOp:
    return pb.ReplicaOp(stream=at.stream, partition=at.partition, replica=at.replica)


def _decode_admin(op: int, admin: pb.AdminOp) -> AdminCommand:
    named = tuple(At(each.stream, each.partition, each.replica) for each in admin.replicas)
    match op:
        case pb.DRAIN_BROKER:
            return DrainBroker(admin.broker, tuple(admin.avoid))
        case pb.UNDRAIN_BROKER:
            return UndrainBroker(admin.broker)
        case pb.BEGIN_REMOVAL:
            return BeginRemoval(admin.broker, named)
        case pb.REMOVE_BROKER:
            return RemoveBroker(admin.broker, admin.incarnation, named)
        case pb.ELECT_LEADER if len(named) == 1:
            return ElectLeader(named[0], tuple(admin.inSync), tuple(admin.eligible))
        case _:
            raise CorruptError(f"metadata command {op} is not known here: was the data written by a newer version?")


def decode(data: bytes) -> Command:
    return finish(decoding(data))


def decoding(data: bytes) -> Generator[None, None, Command]:
    """In slices."""
    try:
        log = pb.RaftLog.FromString(data)
    except Exception as error:
        raise CorruptError(f"a metadata command cannot be decoded: {error}") from error
    if log.op == pb.CREATE_STREAM:
        stream = yield from Stream.reading(log.createStreamOp.stream)
        return CreateStream(stream, Operation.from_wire(log.operation))
    return _decode(log)


def _decode(log: pb.RaftLog) -> Command:
    match log.op:
        case pb.DELETE_STREAM:
            return DeleteStream(log.deleteStreamOp.stream, Operation.from_wire(log.operation))
        case pb.SET_STREAM_READONLY:
            op = log.setStreamReadonlyOp
            return SetStreamReadonly(op.stream, tuple(op.partitions), op.readonly)
        case pb.SHRINK_ISR:
            isr = log.shrinkISROp
            return ShrinkIsr(isr.stream, isr.partition, isr.replica, isr.leader, isr.leaderEpoch, isr.epoch, isr.lacks)
        case pb.EXPAND_ISR:
            isr = log.expandISROp
            return ExpandIsr(isr.stream, isr.partition, isr.replica, isr.leader, isr.leaderEpoch, isr.epoch)
        case pb.BROKER_DIED:
            return BrokerDied(log.brokerOp.broker, tuple(log.brokerOp.alive))
        case pb.HAND_OVER:
            return HandOver(log.brokerOp.broker, tuple(log.brokerOp.alive))
        case pb.DISK_LOST:
            return DiskLost(log.brokerOp.broker, tuple(log.brokerOp.alive))
        case pb.CHANGE_LEADER:
            down = log.changeLeaderOp
            return ChangeLeader(down.stream, down.partition, down.leader, down.leaderEpoch, tuple(down.alive))
        case pb.BEGIN_LIFE:
            return life_from_wire(log.beginLifeOp)
        case pb.GIVE_WAY:
            way = log.giveWayOp
            return GiveWay(way.stream, way.partition, way.replica, way.leader, way.leaderEpoch, way.epoch)
        case _:
            return _decode_admin(log.op, log.adminOp)
