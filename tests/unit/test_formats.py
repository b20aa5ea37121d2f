"""What an earlier release left on three disks, and what its brokers said to each other, is read and written byte for
byte by this one (`tests/harness/recorded.py`).

The same history, on the same virtual clock, gives the same logs, indexes, epochs and promised ends, whatever is drawn.
Not so the metadata: tokens of operations, boots and incarnations are in it, by chance. What is stored of it is read
instead, and written again from what was read; and so is the file of a clean shutdown, which has a checksum of that.
How a follower that catches up divides its log into segments depends on how much it gets at once, so followers' records
are compared without that.
"""

import asyncio
import itertools
import re
import struct
from collections.abc import Callable
from functools import cache

import pytest
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from bascule.core.metadata import codec, commands
from bascule.core.metadata.state import Metadata
from bascule.log import cleanshutdown
from bascule.log.commandlog import CommandLog
from bascule.log.raftlog import RaftStorage
from bascule.node.partition import awaited
from bascule.testing.bus import MemoryNats
from bascule.testing.disk import MemoryDisk
from bascule.testing.loop import run
from bascule.wire import raft, raft_messages, repair, replication
from bascule.wire.envelope import MAGIC, MsgType, encode
from bascule.wire.raft_messages import EntryKind, Snapshot
from tests.harness.history import FIRST, LAST, NAMES, SMALL, History, Turmoil, message
from tests.harness.members import Member, isr, leader_of, until
from tests.harness.paths import VECTORS
from tests.harness.recorded import PROTOBUF, Recorded, Said, fields_of, plain, saves_on, shape, spoken

RECORDED = Recorded.load(VECTORS / "recorded.json.xz")
BY_CHANCE = ("raft/", cleanshutdown.FILE)
SINCE_THEN = (awaited.FILE,)
"""Files that the earlier release did not have. It leaves them alone."""
WRITTEN_ANEW = (".index", "promised-ends.cached")
"""Two files that say more since: how many records a segment has, and which logs had promised nothing. Neither is
needed: an index is made of its segment, and without cached ends the replicas compare their logs. What the earlier
release wrote is read, by the tests above."""
RAFT = {kind.__name__ for kind in raft_messages.Message.__subclasses__()}


# --- data folders ----------------------------------------------------------------------------------------------------


def files(disk: MemoryDisk, folder: str = "") -> dict[str, bytes]:
    return {path: disk.content(path) for path in disk.paths() if path.startswith(folder)}


def records(disk: MemoryDisk) -> dict[str, bytes]:
    """By partition, all its segments."""
    found: dict[str, bytes] = {}
    for path, data in files(disk, "streams/").items():
        if path.endswith(".log"):
            folder = path.rpartition("/")[0]
            found[folder] = found.get(folder, b"") + data
    return found


def epochs(disk: MemoryDisk, folder: str) -> list[tuple[int, int]]:
    """The leader epochs on record, each with its first offset."""
    return list(struct.iter_unpack("<QQ", disk.content(f"{folder}/epochs")[12:]))


async def opened() -> dict[str, Member]:
    """Brokers of this release on the recorded disks."""
    nats = MemoryNats()
    members = {name: Member(name, nats, seed=name == "a") for name in NAMES}
    for member in members.values():
        member.disk = RECORDED.disk(member.name)
        member.boots = 10  # tokens that were not drawn before
    await asyncio.gather(*(member.start() for member in members.values()))
    await until(lambda: len(isr(members)) == 3)
    return members


def values(numbers: range, subject: str) -> list[bytes]:
    return [message(number, subject).value for number in numbers]


def test_recorded_folders_are_opened_with_all_that_was_in_them() -> None:
    async def main() -> None:
        members = await opened()
        everything = values(range(FIRST.start, LAST.stop), "s")
        for member in members.values():
            assert member.fatal == ""
            assert await member.read("s", replica=True) == everything
            membership = member.broker.cluster.raft.membership
            assert (sorted(membership.voters), membership.learners) == (list(NAMES), ())
            assert list(member.broker.cluster.metadata.streams) == ["s", "t"]
        assert await leader_of(members, "t", 0).read("t", 0) == values(SMALL, "t")
        assert await leader_of(members, "t", 1).read("t", 1) == values(SMALL, "t.1")
        ack = await members["b"].publish("s", b"new")
        assert ack.offset == len(everything)

    run(main())


def test_recorded_logs_and_epochs_go_on_where_they_were() -> None:
    async def main() -> None:
        members = await opened()
        (before,) = {records(RECORDED.disk(name))["streams/s@7/0"] for name in "bc"}
        for name, member in members.items():
            stored = RECORDED.disk(name)
            replica = member.broker.replicas.find("s", 0)
            assert replica is not None
            assert records(member.disk)["streams/s@7/0"] == before
            known = epochs(stored, "streams/s@7/0")
            assert known
            assert replica.epochs.entries[: len(known)] == known
            assert files(member.disk, "quarantine/") == files(stored, "quarantine/"), "nothing was taken for damage"
        item = members["a"].broker.cluster.metadata.partition("s", 0)
        assert item is not None
        assert item.leader_epoch > epochs(RECORDED.disk("b"), "streams/s@7/0")[-1][0]

    run(main())


def _to_the_second(path: str) -> str:
    """What is quarantined is named by the moment, which depends on all that a broker does besides."""
    return re.sub(r"(/\d{8}T\d{6})\.\d{6}Z-", r"\1Z-", path)


@cache
def today(variant: int) -> tuple[dict[str, MemoryDisk], list[Said]]:
    """What this release writes and says in the same history."""
    history = History(variant)
    messages = spoken(history)
    return {name: member.disk for name, member in history.members.items()}, messages


@pytest.mark.parametrize("variant", [0, 1])
@pytest.mark.parametrize("name", list(NAMES))
def test_the_same_history_writes_the_same_files(name: str, variant: int) -> None:
    stored, written = RECORDED.disk(name), today(variant)[0][name]
    assert records(written) == records(stored)
    follower = name != "a"  # which led all the time
    kinds: tuple[str, ...] = (*BY_CHANCE, *((".log", ".index") if follower else ()))
    before, after = (
        {
            _to_the_second(path): data
            for path, data in files(disk).items()
            if not path.startswith((*kinds, *SINCE_THEN)) and not path.endswith(kinds)
        }
        for disk in (stored, written)
    )
    assert list(after) == list(before)
    other = [path for path in before if before[path] != after[path]]
    assert [path for path in other if not path.endswith(WRITTEN_ANEW)] == []
    assert {path for path in before if path.startswith("streams/")}, "epochs at least"


def test_a_clean_shutdown_is_read_and_written() -> None:
    async def main() -> None:
        stored = RECORDED.disk("a")
        left = await cleanshutdown.read(stored)
        assert left is not None
        assert left.everything
        assert list(left.ends) == ["raft", "streams/s@7/0"]
        assert left.ends["streams/s@7/0"].end == LAST.start
        again = MemoryDisk()
        await cleanshutdown.leave(again, left.everything, left.ends)
        assert again.content(cleanshutdown.FILE) == stored.content(cleanshutdown.FILE)
        other = await cleanshutdown.read(today(0)[0]["a"])
        assert other is not None
        assert other.ends["streams/s@7/0"] == left.ends["streams/s@7/0"]

    run(main())


# --- metadata --------------------------------------------------------------------------------------------------------


async def checkpoint(name: str) -> tuple[int, Snapshot]:
    """The number of the save that was the last in the checkpoint, and the snapshot of the metadata in it."""
    number, state, _ = await CommandLog(RECORDED.disk(name), "raft", "").open()
    assert state is not None
    snapshot = raft.decode_stored(state)[1]
    assert snapshot is not None
    return number, snapshot


@pytest.mark.parametrize("name", list(NAMES))
def test_what_raft_stored_is_read_and_written(name: str) -> None:
    saves = saves_on(RECORDED.disk(name))
    assert [plain(raft.decode_stored(data)) for _, data in saves] == RECORDED.saves[name]

    async def main() -> None:
        last, compacted = await checkpoint(name)
        again = MemoryDisk()
        storage = RaftStorage(again, "raft")
        await storage.open()
        for number, data in saves:
            hard_state, snapshot, entries = raft.decode_stored(data)
            assert raft.encode_stored(hard_state, snapshot, entries) == data
            await storage.save(hard_state, entries, snapshot)
            if number == last:
                await storage.compact(compacted)
        assert files(again, "raft/") == files(RECORDED.disk(name), "raft/")

    run(main())


@pytest.mark.parametrize("name", list(NAMES))
def test_recorded_commands_make_the_recorded_snapshot(name: str) -> None:
    _, snapshot = run(checkpoint(name))
    stored = [raft.decode_stored(data)[2] for _, data in saves_on(RECORDED.disk(name))]
    entries = {entry.index: entry for save in stored for entry in save}
    metadata = Metadata()
    for index, entry in sorted(entries.items()):
        if entry.kind is EntryKind.MEMBERSHIP:
            assert raft.encode_membership(raft.decode_membership(entry.data)) == entry.data
        elif entry.kind is EntryKind.COMMAND:
            command = codec.decode(entry.data)
            assert codec.encode(command) == entry.data
            if index <= snapshot.index:
                metadata.apply(index, command)
    assert metadata.snapshot() == snapshot.data
    assert Metadata.restore(snapshot.data).snapshot() == snapshot.data


SINCE = {
    commands.PauseStream,
    commands.ResumeStream,
    commands.RaiseStarts,
    commands.SetHold,
    commands.RemoveHold,
    commands.PublishActivity,
    commands.JoinGroup,
    commands.LeaveGroup,
    commands.ChangeCoordinator,
    commands.AlterStream,
    commands.InitProducer,
    commands.TellCleared,
}


def test_every_kind_of_command_is_read_and_written() -> None:
    kinds = {type(codec.decode(data)) for walk in RECORDED.commands for data in walk}
    assert set(commands.Command.__args__) - kinds == SINCE, "commands that came after the recording are named"
    for walk, state in zip(RECORDED.commands, RECORDED.states, strict=True):
        metadata = Metadata()
        for index, data in enumerate(walk, 1):
            command = codec.decode(data)
            assert codec.encode(command) == data
            metadata.apply(index, command)
        assert metadata.snapshot() == state
        assert Metadata.restore(state).snapshot() == state


# --- messages --------------------------------------------------------------------------------------------------------


def unknown(message: Message) -> bool:
    """Whether something in it has no name here; it would be passed on as it came."""
    if len(UnknownFieldSet(message)):
        return True
    nested = (value for field, value in message.ListFields() if field.message_type is not None)
    each = itertools.chain.from_iterable(
        [value] if isinstance(value, Message) else () if hasattr(value, "items") else value for value in nested
    )
    return any(unknown(value) for value in each)


def of_protobuf(said: Said) -> bytes:
    message = PROTOBUF[said.kind].FromString(said.content)
    assert not unknown(message)
    return message.SerializeToString()


def of_replication(said: Said) -> bytes:
    part = replication.decode_part(said.content)
    piece = bytes(part.piece)
    if part.parts == 1:
        assert b"".join(replication.encode_response(replication.decode_response(piece))) == piece
    sessions = (part.session, part.leader_session)
    (whole,) = replication.encode_parts(sessions, part.request_id, part.number, [piece], 1 << 30)
    return b"".join(whole) if part.parts == 1 else said.content


CODECS: dict[str, Callable[[Said], bytes]] = {
    "REPLICATION_REQUEST": lambda said: replication.encode_request(replication.decode_request(said.content)),
    "REPLICATION_RESPONSE": of_replication,
    "LEADER_EPOCH_OFFSET_REQUEST": lambda said: repair.encode_question(repair.decode_question(said.content)),
    "LEADER_EPOCH_OFFSET_RESPONSE": lambda said: repair.encode_answer(repair.decode_answer(said.content)),
    **dict.fromkeys(PROTOBUF, of_protobuf),
    **dict.fromkeys(RAFT, lambda said: raft.encode_message(raft.decode_message(said.content))),
}


def test_every_kind_of_message_was_recorded() -> None:
    unused = {"PARTITION_NOTIFICATION", "BATCH"}  # and what brokers do not say to each other
    types = {MsgType(said.payload[7]).name for said in RECORDED.messages if said.payload.startswith(MAGIC)}
    assert types == {kind.name for kind in MsgType} - unused
    assert {said.kind for said in RECORDED.messages} == set(CODECS)
    sorts = {word for said in RECORDED.messages if said.kind == "REPLICATION_RESPONSE" for word in shape(said)[1]}
    assert sorts == {"parts: 1", "parts: 2", *(kind.name for kind in replication.Kind)}


@pytest.mark.parametrize("kind", sorted(CODECS))
def test_recorded_messages_are_read_and_written(kind: str) -> None:
    for said, values in zip(RECORDED.messages, RECORDED.values, strict=True):
        if said.kind != kind:
            continue
        assert said.values == values
        content = CODECS[kind](said)
        if said.payload.startswith(MAGIC):
            checked = kind != "PUBLISH" and kind != "ACK"  # those are Liftbridge's
            content = encode(MsgType(said.payload[7]), content, crc=checked)
        assert content == said.payload


def test_a_record_in_several_messages_is_one_again() -> None:
    pieces: dict[tuple[bytes, int], list[bytes]] = {}
    for said in RECORDED.messages:
        if said.kind == "REPLICATION_RESPONSE" and (part := replication.decode_part(said.content)).parts > 1:
            known = pieces.setdefault((said.subject, part.number), [])
            assert part.part == len(known)
            known.append(bytes(part.piece))
    assert pieces
    for whole in map(b"".join, pieces.values()):
        assert b"".join(replication.encode_response(replication.decode_response(whole))) == whole


FIELDS_SINCE = {
    "SERVER_INFO_RESPONSE": {"knowsCleared"},
    "status PARTITION_STATUS_RESPONSE": {"carriedOut"},
    "admin PARTITION_STATUS_RESPONSE": {
        "positions.bytes",
        "positions.segments",
        "positions.firstTimestamp",
        "positions.lastTimestamp",
    },
}
"""They came after the recording."""


def test_brokers_still_say_all_that_they_said() -> None:
    """Each field of each kind that was ever set is set in the same histories today, and no other."""
    messages = [*today(0)[1], *spoken(Turmoil())]

    def said(kind: str, by: list[Said]) -> set[str]:
        known = PROTOBUF[kind]
        return {field for each in by if each.kind == kind for field in fields_of(known.FromString(each.content))}

    assert {kind: said(kind, messages) for kind in PROTOBUF} == {
        kind: said(kind, RECORDED.messages) | FIELDS_SINCE.get(kind, set()) for kind in PROTOBUF
    }
