"""What a release left on its disks and said between its brokers, in one file: `tests/vectors/recorded.json.xz`.

`python -m tests.harness.recorded FILE` records the histories (`tests.harness.history`) with the code of the tree it
runs in. The file that is there was made once, and is made anew only for a release that changes a format on purpose.
"""

import json
import lzma
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from bascule.core.metadata.codec import encode
from bascule.log.commandlog import CommandLog
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire import raft
from bascule.wire import raft_messages as rm
from bascule.wire.envelope import MAGIC, MsgType
from bascule.wire.nats import NatsMessage
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.repair import decode_answer, decode_question
from bascule.wire.replication import decode_part, decode_request, decode_response
from tests.harness.history import History, Spoken, Turmoil
from tests.harness.metadata_walks import Walk

RETAINED = 12
"""Messages of one kind, with the same fields, that are worth keeping."""
WALKS, STEPS = 4, 80
PROTOBUF: dict[str, type[Message]] = {
    "PUBLISH": api.Message,
    "ACK": api.Ack,
    "RAFT_JOIN_REQUEST": pb.RaftJoinRequest,
    "RAFT_JOIN_RESPONSE": pb.RaftJoinResponse,
    "bootstrap": pb.Bootstrap,
    "PROPAGATED_REQUEST": pb.PropagatedRequest,
    "PROPAGATED_RESPONSE": pb.PropagatedResponse,
    "SERVER_INFO_REQUEST": pb.ServerInfoRequest,
    "SERVER_INFO_RESPONSE": pb.ServerInfoResponse,
    "status PARTITION_STATUS_REQUEST": pb.PartitionStatusRequest,
    "status PARTITION_STATUS_RESPONSE": pb.PartitionStatusResponse,
    "admin PARTITION_STATUS_REQUEST": pb.PositionsRequest,
    "admin PARTITION_STATUS_RESPONSE": pb.PositionsResponse,
}
"""By kind; all other kinds are fixed-width, or Raft's."""
FIXED: dict[str, Callable[[bytes], Any]] = {
    "REPLICATION_REQUEST": decode_request,
    "REPLICATION_RESPONSE": decode_part,
    "LEADER_EPOCH_OFFSET_REQUEST": decode_question,
    "LEADER_EPOCH_OFFSET_RESPONSE": decode_answer,
}


@dataclass(frozen=True, slots=True)
class Said:
    kind: str
    """The name of a Raft message, or the type in the envelope, told apart where one type means two things."""
    subject: bytes
    payload: bytes

    @property
    def content(self) -> bytes:
        """Without the envelope."""
        return self.payload[self.payload[5] :] if self.payload.startswith(MAGIC) else self.payload

    @property
    def values(self) -> Any:
        """What a fixed-width message says; None of others."""
        if not self.payload.startswith(MAGIC):
            return plain(raft.decode_message(self.payload))
        decode = FIXED.get(self.kind)
        return None if decode is None else plain(decode(self.content))


def plain(value: Any) -> Any:
    """As JSON has it: the values without the names of the fields."""
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if is_dataclass(value):
        return [plain(getattr(value, field.name)) for field in fields(value)]
    return [plain(each) for each in value] if isinstance(value, tuple | list) else value


def kinds_of(messages: Iterable[NatsMessage]) -> Iterator[Said]:
    asked: dict[bytes, str] = {}
    for message in messages:
        words = message.subject.split(b".")
        if not message.payload.startswith(MAGIC):
            yield Said(type(raft.decode_message(message.payload)).__name__, message.subject, message.payload)
            continue
        kind = MsgType(message.payload[7]).name
        if kind == "RAFT_JOIN_REQUEST" and b"bootstrap" in words:
            kind = "bootstrap"
        elif kind == "PARTITION_STATUS_REQUEST":
            where = "status" if b"status" in words else "admin"
            kind, asked[message.reply] = f"{where} {kind}", where
        elif kind == "PARTITION_STATUS_RESPONSE":
            kind = f"{asked[message.subject]} {kind}"
        yield Said(kind, message.subject, message.payload)


def fields_of(message: Message, prefix: str = "") -> Iterator[str]:
    """Those that are set, with those of messages in them: `error.code`."""
    for descriptor, value in message.ListFields():
        yield prefix + descriptor.name
        entry = descriptor.message_type
        if entry is not None and not entry.GetOptions().map_entry:
            for each in [value] if isinstance(value, Message) else value:
                yield from fields_of(each, f"{prefix}{descriptor.name}.")


def shape(said: Said) -> tuple[str, tuple[str, ...]]:
    """The kind, and what is said in it: fields that are set, and what fixed-width messages have of several sorts."""
    if said.kind in PROTOBUF:
        return said.kind, tuple(dict.fromkeys(fields_of(PROTOBUF[said.kind].FromString(said.content))))
    if said.kind == "REPLICATION_REQUEST":
        request = decode_request(said.content)
        return said.kind, (f"full: {request.full}", *sorted({f"failing: {each.failing}" for each in request.positions}))
    if said.kind == "REPLICATION_RESPONSE":
        part = decode_part(said.content)
        answers = decode_response(part.piece) if part.parts == 1 else []
        return said.kind, (f"parts: {part.parts}", *sorted({each.kind.name for each in answers}))
    if said.payload.startswith(MAGIC):
        return said.kind, ()
    message = raft.decode_message(said.payload)
    return said.kind, tuple(field.name for field in fields(message) if getattr(message, field.name))


def thinned(messages: Iterable[Said]) -> Iterator[Said]:
    """Some of each shape."""
    counts: dict[tuple[str, tuple[str, ...]], int] = {}
    for said in messages:
        key = shape(said)
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= RETAINED:
            yield said


@dataclass(frozen=True, slots=True)
class Recorded:
    disks: dict[str, tuple[int, dict[str, bytes]]]
    """By broker: how often its power was lost, and its files."""
    messages: list[Said]
    values: list[Any]
    """What each of them says, as far as it is fixed-width."""
    saves: dict[str, list[Any]]
    """By broker, what Raft stored: the values of each save."""
    commands: list[list[bytes]]
    """Of the metadata, in walks."""
    states: list[bytes]
    """A snapshot of the metadata after each of them."""

    def disk(self, name: str) -> MemoryDisk:
        lost, files = self.disks[name]
        disk = MemoryDisk()
        for _ in range(lost):
            disk.crash()
        for path, data in files.items():
            disk.put(path, data)
        return disk

    def store(self, path: Path) -> None:
        content = {
            "disks": {
                name: {"lost": lost, "files": {path: data.hex() for path, data in files.items()}}
                for name, (lost, files) in self.disks.items()
            },
            "messages": [[said.kind, said.subject.decode(), said.payload.hex()] for said in self.messages],
            "values": self.values,
            "saves": self.saves,
            "commands": [[command.hex() for command in walk] for walk in self.commands],
            "states": [state.hex() for state in self.states],
        }
        path.write_bytes(lzma.compress(json.dumps(content).encode(), preset=9))

    @classmethod
    def load(cls, path: Path) -> "Recorded":
        content = json.loads(lzma.decompress(path.read_bytes()))
        return cls(
            {
                name: (disk["lost"], {path: bytes.fromhex(data) for path, data in disk["files"].items()})
                for name, disk in content["disks"].items()
            },
            [Said(kind, subject.encode(), bytes.fromhex(data)) for kind, subject, data in content["messages"]],
            content["values"],
            content["saves"],
            [[bytes.fromhex(command) for command in walk] for walk in content["commands"]],
            [bytes.fromhex(state) for state in content["states"]],
        )


def spoken(history: History | Turmoil) -> list[Said]:
    said = Spoken()

    async def main() -> None:
        with said.on(history.nats):
            await history.run()

    run(main())
    return list(kinds_of(said.messages))


def made_up() -> list[Said]:
    """A snapshot of the metadata in several messages would need thousands of streams."""
    reply = raft.encode_message(rm.SnapshotReply("a", "b", 7, 1 << 40, 3 << 20, "an incarnation"))
    return [Said("SnapshotReply", b"raft.metadata.b", reply)]


def saves_on(disk: MemoryDisk) -> list[tuple[int, bytes]]:
    """Every save of Raft since the first one, with its number."""

    async def read() -> list[tuple[int, bytes]]:
        bare = disk.copy()
        for path in bare.paths():
            if path.startswith("raft/") and path.endswith(".snapshot"):
                await bare.remove(path)
        return (await CommandLog(bare, "raft", "").open())[2]

    return run(read())


def walked(seed: int) -> tuple[list[bytes], bytes]:
    walk = Walk(seed)
    commands: list[bytes] = []
    given = (command for command in iter(walk.command, 0) if command is not None)
    for index, command in enumerate(islice(given, STEPS), 1):
        commands.append(encode(command))
        walk.metadata.apply(index, command)
    return commands, walk.metadata.snapshot()


def record() -> Recorded:
    history = History()
    messages = [*spoken(history), *spoken(Turmoil()), *made_up()]
    members = history.members
    disks = {
        name: (int(member.disk.os_boot.split()[-1]), {path: member.disk.content(path) for path in member.disk.paths()})
        for name, member in members.items()
    }
    walks = [walked(seed) for seed in range(WALKS)]
    said = list(thinned(messages))
    values = [each.values for each in said]
    stored = {name: [plain(raft.decode_stored(data)) for _, data in saves_on(m.disk)] for name, m in members.items()}
    return Recorded(disks, said, values, stored, [walk for walk, _ in walks], [state for _, state in walks])


if __name__ == "__main__":
    record().store(Path(sys.argv[1]))
