"""The commands that change the cluster's metadata. A command says everything its outcome depends on (chosen
replicas, the creation time), so that applying it is deterministic on every broker and at every replay.
"""

from dataclasses import dataclass

from bascule.core.metadata.streams import Stream
from bascule.errors import CorruptError
from bascule.wire.pb import internal_pb2 as pb


@dataclass(frozen=True, slots=True)
class CreateStream:
    stream: Stream


@dataclass(frozen=True, slots=True)
class DeleteStream:
    name: str


@dataclass(frozen=True, slots=True)
class SetStreamReadonly:
    name: str
    partitions: tuple[int, ...]
    readonly: bool


Command = CreateStream | DeleteStream | SetStreamReadonly


def encode(command: Command) -> bytes:
    log = pb.RaftLog()
    match command:
        case CreateStream(stream):
            log.op = pb.CREATE_STREAM
            log.createStreamOp.stream.CopyFrom(stream.to_wire())
        case DeleteStream(name):
            log.op = pb.DELETE_STREAM
            log.deleteStreamOp.stream = name
        case SetStreamReadonly(name, partitions, readonly):
            log.op = pb.SET_STREAM_READONLY
            log.setStreamReadonlyOp.stream = name
            log.setStreamReadonlyOp.partitions.extend(partitions)
            log.setStreamReadonlyOp.readonly = readonly
    return log.SerializeToString(deterministic=True)


def decode(data: bytes) -> Command:
    try:
        log = pb.RaftLog.FromString(data)
    except Exception as error:
        raise CorruptError(f"a metadata command cannot be decoded: {error}") from error
    match log.op:
        case pb.CREATE_STREAM:
            return CreateStream(Stream.from_wire(log.createStreamOp.stream))
        case pb.DELETE_STREAM:
            return DeleteStream(log.deleteStreamOp.stream)
        case pb.SET_STREAM_READONLY:
            op = log.setStreamReadonlyOp
            return SetStreamReadonly(op.stream, tuple(op.partitions), op.readonly)
        case _:
            raise CorruptError(f"metadata command {log.op} is not known here: was the data written by a newer version?")
