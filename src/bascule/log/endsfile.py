"""The bytes of the file of promised ends: batches of entries, each batch with its CRC; later entries win.

An incomplete batch at the very end was being written at a crash. A bad batch before others is damage: the others are
read, and the file does not count as complete.
"""

import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from bascule.wire import kernels

_BATCH = struct.Struct("<4sII")  # magic, length, CRC of what follows
_MAGIC = b"BSPE"
_ENTRY = struct.Struct("<BBIqq")  # kind, flags, number of the log, promised end, exposed end
_SUSPECT, _STALE = 1, 2  # flags
_NAME = struct.Struct("<H")
_BEGIN, _LOG, _SET, _DROP = 1, 2, 3, 4
"""The first entry of a file, with its generation and whether it is complete; a log with its folder; a log by number; a
log was deleted."""


class Stored(NamedTuple):
    """One log, as the file has it."""

    number: int
    promised: int
    exposed: int
    suspect: bool
    stale: bool


@dataclass(slots=True)
class Contents:
    """What a file says, by the folders of the logs."""

    logs: dict[str, Stored] = field(default_factory=dict)
    generation: int = 0
    next_number: int = 1
    complete: bool = False
    """Nothing that had been on record is missing."""
    whole: bool = False
    """The file is as it was written, to its last byte."""


def encode_begin(complete: bool, generation: int) -> bytes:
    return _ENTRY.pack(_BEGIN, not complete, generation, 0, 0)


def encode_log(stored: Stored, folder: str | None) -> bytes:
    """With its folder the first time it is in a file; by its number alone after that."""
    flags = _SUSPECT * stored.suspect | _STALE * stored.stale
    entry = _ENTRY.pack(_SET if folder is None else _LOG, flags, stored.number, stored.promised, stored.exposed)
    if folder is None:
        return entry
    name = folder.encode()
    return entry + _NAME.pack(len(name)) + name


def encode_drop(number: int) -> bytes:
    return _ENTRY.pack(_DROP, 0, number, 0, 0)


def encode_batch(entries: list[bytes]) -> bytes:
    body = b"".join(entries)
    return _BATCH.pack(_MAGIC, len(body), kernels.crc32c(body)) + body


def whole_batches_end(content: bytes) -> int:
    """Where the whole batches at the beginning end."""
    position = 0
    while (found := _batch_at(content, position)) is not None:
        position = found[1]
    return position


def decode(content: bytes) -> Contents:
    found, names, position = Contents(whole=bool(content)), dict[int, str](), 0
    while (batch := _batch_at(content, position)) is not None or position < len(content):
        if batch is None:
            position = _next_batch(content, position)
            found.complete, found.whole = found.complete and position == len(content), False
            continue
        start, position = batch
        _take_batch(found, content, start, position, names)
    found.next_number = max(names, default=0) + 1
    return found


def _take_batch(found: Contents, content: bytes, position: int, end: int, names: dict[int, str]) -> None:
    while position < end:
        kind, flags, number, promised, exposed = _ENTRY.unpack_from(content, position)
        position += _ENTRY.size
        if kind == _LOG:
            (length,) = _NAME.unpack_from(content, position)
            names[number] = content[position + _NAME.size : position + _NAME.size + length].decode()
            position += _NAME.size + length
        if kind == _BEGIN:
            found.complete, found.generation = found.complete or not flags, number
        elif kind == _DROP:
            found.logs.pop(names.pop(number, ""), None)
        elif number in names:
            stored = Stored(number, promised, exposed, bool(flags & _SUSPECT), bool(flags & _STALE))
            found.logs[names[number]] = stored


def _batch_at(content: bytes, position: int) -> tuple[int, int] | None:
    """Where the whole batch that begins here has its entries, and ends."""
    start = position + _BATCH.size
    if start > len(content):
        return None
    magic, length, crc = _BATCH.unpack_from(content, position)
    if magic != _MAGIC or not length or crc != kernels.crc32c(content[start : start + length]):
        return None
    return (start, start + length) if start + length <= len(content) else None


def _next_batch(content: bytes, position: int) -> int:
    """Where the next whole batch begins; the end if there is none."""
    while (position := content.find(_MAGIC, position + 1)) >= 0:
        if _batch_at(content, position) is not None:
            return position
    return len(content)
