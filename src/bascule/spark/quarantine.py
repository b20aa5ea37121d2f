"""Messages that are damaged on the broker's disk, and that no replica has whole: a broker does not serve them.

What is noted is a file for each range of offsets, named by it: a task that is run again replaces it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from bascule.errors import CorruptError, InvalidArgument


def damage(stream: str, partition: int, offsets: range) -> str:
    what = f"offset {offsets.start}" if len(offsets) == 1 else f"offsets {offsets.start} to {offsets.stop - 1}"
    verb = "is" if len(offsets) == 1 else "are"
    return (
        f"partition {partition} of stream {stream}: {what} {verb} damaged on the broker's disk, and no replica that it "
        "can ask has a whole copy"
    )


class DamagedError(CorruptError):
    """Says which messages, and what to do."""

    def __init__(self, stream: str, partition: int, offsets: range) -> None:
        super().__init__(
            f"{damage(stream, partition, offsets)}. Start the broker that may have one, or set the option "
            '"quarantine" to a folder: it is noted there, and the query goes on without'
        )


@dataclass(frozen=True, slots=True)
class Noted:
    stream: str
    partition: int
    creation: int
    start: int
    end: int
    """Exclusive."""


def noted(folder: str) -> list[Noted]:
    """What tasks have noted there."""
    found = [json.loads(each.read_bytes()) for each in sorted(Path(folder).glob("*@*.json"))]
    return [Noted(*(each[name] for name in Noted.__slots__)) for each in found]


def note(folder: str, stream: str, partition: int, creation: int, offsets: range) -> None:
    """Before the rows after it are given."""
    path = Path(folder)
    name = f"{quote(stream, safe='')}@{creation}-{partition}-{offsets.start}-{offsets.stop}.json"
    found = {
        "stream": stream,
        "creation": creation,
        "partition": partition,
        "start": offsets.start,
        "end": offsets.stop,
        "reason": damage(stream, partition, offsets),
    }
    partial = path / f".{name}.{os.getpid()}"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with partial.open("w") as file:
            json.dump(found, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path / name)
    except OSError as error:
        raise InvalidArgument(
            f'the folder of the option "quarantine" cannot be written by an executor: {error}'
        ) from None
