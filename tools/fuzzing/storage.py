"""Targets: recovery from damaged files at the start of a broker.

An input is two folders: the files as they were written (`was/`) and as they are found (`is/`). Recovery never fails
on bytes, keeps only records that were written (those inside values are not the log's), keeps every one before the first
damage, and changes nothing the second time. A checkpoint is one that was written, or none. The command log gives
commands that were written, in order and without a gap, or raises that it is corrupt.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Coroutine
from functools import cache

from bascule.errors import CorruptError
from bascule.log.checkpoint import read_checkpoint, write_checkpoint
from bascule.log.commandlog import CommandLog
from bascule.testing.disk import MemoryDisk
from bascule.testing.logs import Bench, open_bench
from bascule.testing.records import encode, split
from bascule.wire import _pure
from tools.fuzzing.chance import Chance, bent
from tools.fuzzing.target import Target, require

Files = dict[str, bytes]
WORDS = (b"\x82\x7d\x0c", bytes(5), bytes(512), b"BSCC", b"BSCP", b"BSCINDX2", b"\x00\x00\x00\x00\x20\x08\x00")
COMMANDS = "metadata"
CHECKPOINT = "node/checkpoint"


# --- files as one input -----------------------------------------------------------------------------------


def pack_files(files: Files) -> bytes:
    return b"".join(
        struct.pack("<HI", len(name), len(content)) + name.encode() + content for name, content in files.items()
    )


def unpack_files(data: bytes) -> tuple[Files, Files]:
    """The files as they were, and as they are."""
    folders: dict[str, Files] = {"was": {}, "is": {}}
    position = 0
    while position < len(data):
        name_length, length = struct.unpack_from("<HI", data, position)
        start = position + 6 + name_length
        folder, _, name = data[position + 6 : start].decode().partition("/")
        folders[folder][name] = data[start : start + length]
        position = start + length
    return folders["was"], folders["is"]


def spoiled(chance: Chance, files: Files) -> bytes:
    """Files, one or two of them damaged."""
    found = dict(files)
    for _ in range(chance.choice((0, 1, 1, 1, 1, 2))):
        name = chance.choice(list(files))
        if chance.one_in(12):
            found.pop(name, None)
        elif name in found:
            other = files[chance.choice(list(files))]
            found[name] = _spoiled(chance, found[name], other)
    was = {f"was/{name}": content for name, content in files.items()}
    return pack_files(was | {f"is/{name}": content for name, content in found.items()})


def _spoiled(chance: Chance, content: bytes, other: bytes) -> bytes:
    """Damage as by disks: a torn end, zeros, a lost or repeated stretch; or any other."""
    kind = chance.randrange(6)
    at = chance.randint(0, len(content))
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + bytes(len(content) - at)
    if kind == 2:
        return content + bytes(chance.choice((1, 5, 4_096))) + (other if chance.one_in(3) else b"")
    if kind == 3:
        length = chance.choice((1, 40, 512))
        return content[:at] + bytes(length) + content[at + length :]
    return bent(chance, content, WORDS, other)


def disk_of(files: Files) -> MemoryDisk:
    disk = MemoryDisk()
    for name, content in files.items():
        disk.put(name, content)
    return disk


def files_of(disk: MemoryDisk) -> Files:
    return {path: disk.content(path) for path in disk.paths()}


def run(work: Coroutine[object, object, None]) -> None:
    logging.disable(logging.CRITICAL)
    try:
        asyncio.run(work)
    finally:
        logging.disable(logging.NOTSET)


# --- the log ----------------------------------------------------------------------------------------------


@cache
def written_log(number: int) -> Files:
    """One of a few logs: some segments, sealed and not, values of several sizes, gaps between offsets."""
    chance, disk = Chance(f"log {number}"), MemoryDisk()

    async def work() -> None:
        bench = await open_bench(disk, chance.choice((300, 2_000, 20_000)))
        for _ in range(chance.randint(1, 8)):
            bodies = [_body(chance) for _ in range(chance.randint(1, 4))]
            await bench.store(bodies, bench.log.end + chance.choice((0, 0, 0, 5)))
        await bench.close()

    run(work())
    return files_of(disk)


def _body(chance: Chance) -> bytes:
    """A value; some hold a record of another log."""
    if chance.one_in(5):
        return chance.blob(20) + encode([b"not of this log"], chance.choice((3, 40, 1_000)), 50)[0] + chance.blob(20)
    return chance.randbytes(chance.choice((0, 1, 30, 400)))


async def retained(bench: Bench) -> list[bytes]:
    """Every record a reader of the log gets."""
    bench.log.set_visible_end(bench.log.promised_end)
    reader, found = bench.log.reader(0), list[bytes]()
    while (records := await reader.read(1 << 20)) is not None:
        found += split(records)
    return found


def check_recovery(data: bytes, chance: Chance) -> None:
    was, found = unpack_files(data)

    async def work() -> None:
        disk = disk_of(found)
        bench = await open_bench(disk)
        records = await retained(bench)
        written = {record for name, content in was.items() if name.endswith(".log") for record in split(content)}
        invented = [record for record in records if record not in written]
        require(all(looks_own(found, record) for record in invented), "recovery invented a record")
        offsets = [offset for offset, _ in await bench.read_all()]
        require(offsets == sorted(set(offsets)), "the offsets do not grow")
        require(bench.log.end > max(offsets, default=-1), "the log ends before its last record")
        survivors = untouched(was, found)
        require(not survivors - set(records), "recovery lost a record that was not damaged")
        await bench.store([b"one more"])
        require((await bench.read_all())[-1][1] == b"one more", "what is appended after recovery is not read")
        await bench.close()
        before = [content for content in files_of(disk).items() if not content[0].startswith("quarantine/")]
        again = await open_bench(disk)
        require((await retained(again))[:-1] == records, "the second recovery reads something else")
        await again.close()
        after = [content for content in files_of(disk).items() if not content[0].startswith("quarantine/")]
        require(len(after) >= len(before), "the second recovery removed a file")

    run(work())


def looks_own(found: Files, record: bytes) -> bool:
    """A record inside a value, with damage around it: there is a trailer before it, or the end of the file or a valid
    record after it. It cannot be distinguished from a record of the log (see `bascule.log.chunk`)."""
    for content in found.values():
        end = -1
        while (at := content.find(record, end + 1)) >= 0:
            end = at + len(record)
            if content[max(at - 15, 0) : at].startswith(b"\x82\x7d\x0c"):
                return True
            if end == len(content) or _pure.scan_records(content, end, len(content), 0)[1]:
                return True
    return False


def untouched(was: Files, found: Files) -> set[bytes]:
    """Records that stand before the first change of their file, if no file with other bases came or went."""
    if list(was) != list(found):
        return set()
    records: set[bytes] = set()
    for name, content in was.items():
        if name.endswith(".log"):
            now, position = found[name], 0
            for record in split(content):
                if now[position : position + len(record)] != record:
                    break
                records.add(record)
                position += len(record)
    return records


# --- small files ------------------------------------------------------------------------------------------


@cache
def written_checkpoint(number: int) -> Files:
    chance, disk = Chance(f"checkpoint {number}"), MemoryDisk()

    async def work() -> None:
        for _ in range(chance.randint(1, 3)):
            await write_checkpoint(disk, CHECKPOINT, chance.blob(60))

    run(work())
    return files_of(disk)


def check_checkpoint(data: bytes, chance: Chance) -> None:
    was, found = unpack_files(data)

    async def work() -> None:
        disk = disk_of(found)
        content = await read_checkpoint(disk, CHECKPOINT)
        generations = [content[12:] for content in was.values()]
        require(content is None or content in generations, "a checkpoint nobody wrote")
        intact = [name for name in was if found.get(name) == was[name]]
        require(content is not None or not intact, "a whole generation is there, and none is found")
        await write_checkpoint(disk, CHECKPOINT, b"new")
        require(await read_checkpoint(disk, CHECKPOINT) == b"new", "a checkpoint cannot be written over a bad one")

    run(work())


@cache
def written_commands(number: int) -> tuple[Files, dict[int, bytes]]:
    """A command log's files; and every command, by its index."""
    chance, disk = Chance(f"commands {number}"), MemoryDisk()
    commands: dict[int, bytes] = {}

    async def work() -> None:
        log = CommandLog(disk, COMMANDS)
        await log.open()
        for index in range(1, chance.randint(2, 14)):
            commands[index] = b"%d:" % index + chance.blob(30)
            await log.append(index, commands[index])
            if chance.one_in(4):
                await log.snapshot(index, b"state %d" % index)

    run(work())
    return files_of(disk), commands


def check_commands(data: bytes, chance: Chance) -> None:
    was, found = unpack_files(data)
    commands = written_commands(int(was.pop("number")))[1]
    found.pop("number", None)

    async def work() -> None:
        disk = disk_of(found)
        log = CommandLog(disk, COMMANDS)
        try:
            index, state, since = await log.open()
        except CorruptError:
            require(found != was, "an undamaged command log counts as corrupt")
            return
        require(state == (b"state %d" % index if index else None), "a snapshot nobody wrote")
        expected = [(number, commands.get(number)) for number in range(index + 1, index + 1 + len(since))]
        require(since == expected, "commands nobody wrote, or not in order")
        last = index + len(since)
        require(found != was or last == len(commands), "an undamaged command log lost commands")
        await log.append(last + 1, b"next")
        again = await CommandLog(disk, COMMANDS).open()
        require(again == (index, state, [*since, (last + 1, b"next")]), "opened again it says something else")

    run(work())


def _log_input(chance: Chance) -> bytes:
    return spoiled(chance, written_log(chance.randrange(24)))


def _checkpoint_input(chance: Chance) -> bytes:
    return spoiled(chance, written_checkpoint(chance.randrange(12)))


def _commands_input(chance: Chance) -> bytes:
    number = chance.randrange(24)
    return spoiled(chance, written_commands(number)[0]) + pack_files({"was/number": b"%d" % number})


TARGETS = (
    Target("log_recovery", _log_input, check_recovery, bend=False),
    Target("checkpoint", _checkpoint_input, check_checkpoint, bend=False),
    Target("command_log", _commands_input, check_commands, bend=False),
)
