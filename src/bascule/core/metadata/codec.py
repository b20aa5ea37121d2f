"""The bytes of the metadata commands: one codec for all of them, which follows their declarations.

It writes into a RaftLog, which is an entry of the metadata's log, and into a PropagatedRequest, by which a broker asks
the controller for a command as it is. Both have an operation, and one part for each group of commands. How a field is
written depends on its type alone (`_KINDS`).
"""

from collections.abc import Callable, Generator
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, cast, get_type_hints

from bascule.core.metadata.commands import LAYOUTS, At, ClearedEnd, Command, NewStart, PartitionName
from bascule.core.metadata.operations import Operation
from bascule.core.metadata.streams import Stream, StreamConfig, camel, finish
from bascule.errors import CorruptError
from bascule.wire.pb import internal_pb2 as pb

Message = pb.RaftLog | pb.PropagatedRequest


class Kind(Protocol):
    """How a field of some type is written into the part of a message, and read from it."""

    def write(self, part: Any, name: str, value: Any) -> None: ...

    def read(self, part: Any, name: str) -> Any: ...


class Scalar:
    def write(self, part: Any, name: str, value: Any) -> None:
        setattr(part, name, value)

    def read(self, part: Any, name: str) -> Any:
        return getattr(part, name)


class Scalars:
    def write(self, part: Any, name: str, value: Any) -> None:
        getattr(part, name).extend(value)

    def read(self, part: Any, name: str) -> Any:
        return tuple(getattr(part, name))


class Values:
    """Small values of several fields, each a message of its own."""

    def __init__(self, names: tuple[str, ...], take_apart: Callable[[Any], tuple[Any, ...]], make: Any) -> None:
        self._names = names
        self._take_apart = take_apart
        self._make = make
        self._read = attrgetter(*names)

    def write(self, part: Any, name: str, value: Any) -> None:
        add = getattr(part, name).add
        for each in value:
            add(**dict(zip(self._names, self._take_apart(each), strict=True)))

    def read(self, part: Any, name: str) -> Any:
        return tuple([self._make(self._read(each)) for each in getattr(part, name)])


class Value:
    """One of those, where the message has room for several."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def write(self, part: Any, name: str, value: Any) -> None:
        self._values.write(part, name, (value,))

    def read(self, part: Any, name: str) -> Any:
        found = self._values.read(part, name)
        if len(found) != 1:
            raise CorruptError(f"a metadata command has {len(found)} {name} and not one")
        return found[0]


class Streams:
    """A stream as it is created. It may be large: `encoding` and `decoding` write and read it in slices."""

    def write(self, part: Any, name: str, value: pb.Stream) -> None:
        getattr(part, name).CopyFrom(value)

    def read(self, part: Any, name: str) -> Any:
        return getattr(part, name)


class Operations:
    def write(self, part: Any, name: str, value: Operation) -> None:
        getattr(part, name).CopyFrom(value.to_wire())

    def read(self, part: Any, name: str) -> Any:
        return Operation.from_wire(getattr(part, name))


class Configs:
    def write(self, part: Any, name: str, value: StreamConfig) -> None:
        getattr(part, name).CopyFrom(value.to_wire())

    def read(self, part: Any, name: str) -> Any:
        return StreamConfig.from_wire(getattr(part, name))


_AT = Values(("stream", "partition", "replica"), attrgetter("stream", "partition", "replica"), lambda at: At(*at))
_STREAM, _OPERATION = Streams(), Operations()
_KINDS: dict[Any, Kind] = {
    str: Scalar(),
    int: Scalar(),
    bool: Scalar(),
    tuple[str, ...]: Scalars(),
    tuple[int, ...]: Scalars(),
    tuple[PartitionName, ...]: Values(("stream", "partition"), tuple, tuple),
    tuple[At, ...]: _AT,
    tuple[NewStart, ...]: Values(
        ("stream", "creationIndex", "partition", "leaderEpoch", "start"), tuple, lambda start: NewStart(*start)
    ),
    tuple[ClearedEnd, ...]: Values(
        ("stream", "creationIndex", "partition", "epoch", "since", "end"), tuple, lambda end: ClearedEnd(*end)
    ),
    At: Value(_AT),
    Stream: _STREAM,
    StreamConfig: Configs(),
    Operation: _OPERATION,
}


class Field(NamedTuple):
    name: str
    wire_name: str
    kind: Kind


class Format(NamedTuple):
    """A command's declaration, worked out."""

    command: Callable[..., Any]
    op: pb.Op
    body: str
    fields: tuple[Field, ...]


def _format(command: Any) -> Format:
    declared, hints = LAYOUTS[command], get_type_hints(command)
    found = [
        Field(each.name, declared.renamed.get(each.name, camel(each.name)), _KINDS[hints[each.name]])
        for each in fields(command)
    ]
    return Format(command, declared.op, declared.body, tuple(found))


_FORMATS = {command: _format(command) for command in LAYOUTS}
_BY_OP = {each.op: each for each in _FORMATS.values()}
assert len(_BY_OP) == len(_FORMATS), "two commands have the same operation"


def encode(command: Command) -> bytes:
    return finish(encoding(command))


def encoding(command: Command) -> Generator[None, None, bytes]:
    """In slices."""
    log = pb.RaftLog()
    yield from _writing(log, command)
    return log.SerializeToString(deterministic=True)


def decode(data: bytes) -> Command:
    return finish(decoding(data))


def decoding(data: bytes) -> Generator[None, None, Command]:
    """In slices."""
    try:
        log = pb.RaftLog.FromString(data)
    except Exception as error:
        raise CorruptError(f"a metadata command cannot be decoded: {error}") from error
    return (yield from _reading(log))


def asking(command: Command) -> pb.PropagatedRequest:
    """A request for this command, to the controller."""
    request = pb.PropagatedRequest()
    finish(_writing(request, command))
    return request


def asked(request: pb.PropagatedRequest) -> Command:
    """The command that is asked for. CorruptError if it is none."""
    return finish(_reading(request))


def _writing(message: Message, command: Command) -> Generator[None, None, None]:
    form = _FORMATS[type(command)]
    message.op = form.op
    body = getattr(message, form.body)
    body.SetInParent()
    for name, wire_name, kind in form.fields:
        value = getattr(command, name)
        if kind is _STREAM:
            value = yield from value.writing()
        kind.write(message if kind is _OPERATION else body, wire_name, value)


def _reading(message: Message) -> Generator[None, None, Command]:
    form = _BY_OP.get(message.op)
    if form is None:
        raise CorruptError(f"metadata command {message.op} is not known here: was the data written by a newer version?")
    body = getattr(message, form.body)
    values = []
    for _, wire_name, kind in form.fields:
        value = kind.read(message if kind is _OPERATION else body, wire_name)
        if kind is _STREAM:
            value = yield from Stream.reading(value)
        values.append(value)
    return cast(Command, form.command(*values))
