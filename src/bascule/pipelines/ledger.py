"""What an archive has taken, beside the table that it made: a file for each committed batch.

    <table>/_bascule/table.json            what the table is, and its id
    <table>/_bascule/lock                  held by the one pipeline that writes
    <table>/_bascule/batches/<number>.json which offsets a batch has, and its files
    <table>/_bascule/staging/              what is not committed

A batch is committed when its entry is on the disk: the state of the archive is with the table, so no checkpoint can
disagree with it, and a copy of the table says what must be in it. Each entry has the ends of all partitions, so only
the last one is needed to go on. Readers of tables leave folders alone whose names begin with an underscore.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from bascule.errors import CorruptError, FailedPrecondition, InvalidArgument
from bascule.pipelines.durable import make_folder, replace_file

FOLDER = "_bascule"
PARQUET, DELTA = FORMATS = ("parquet", "delta")
VERSION = 1
Part = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets from `start` to `end`, exclusive, of one partition."""

    stream: str
    partition: int
    creation: int
    start: int
    end: int
    rows: int
    """So many of these offsets had a record."""
    compacted_end: int
    """Of the partition: below it offsets may be missing."""
    damaged: tuple[tuple[int, int], ...] = ()
    """Offsets, from one to another, exclusive, whose records were damaged on the broker's disk, and left out."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    path: str
    """Below the table."""
    rows: int
    bytes: int
    first: int
    last: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class End:
    creation: int
    """The number of the stream: another one for a stream of the same name that was made again."""
    offset: int
    """The next one to archive."""


@dataclass(frozen=True, slots=True)
class Batch:
    number: int
    time_ns: int
    staged: str
    """The folder in staging/ that its files were written into."""
    ranges: tuple[Range, ...]
    files: tuple[StoredFile, ...]
    ends: dict[Part, End]

    def encode(self) -> bytes:
        ends = [
            {"stream": stream, "partition": partition, **asdict(end)}
            for (stream, partition), end in sorted(self.ends.items())
        ]
        fields = {
            "version": VERSION,
            "batch": self.number,
            "time_ns": self.time_ns,
            "staged": self.staged,
            "ranges": [_without_empty(asdict(each)) for each in self.ranges],
            "files": [asdict(each) for each in self.files],
            "ends": ends,
        }
        return json.dumps(fields, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> Batch:
        fields = json.loads(data)
        if fields["version"] != VERSION:
            raise ValueError(f"version {fields['version']}")
        ends = {(each["stream"], each["partition"]): End(each["creation"], each["offset"]) for each in fields["ends"]}
        return cls(
            fields["batch"],
            fields["time_ns"],
            fields["staged"],
            tuple(
                Range(**{**each, "damaged": tuple(map(tuple, each.get("damaged", ())))}) for each in fields["ranges"]
            ),
            tuple(StoredFile(**each) for each in fields["files"]),
            ends,
        )


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    """Without damage, as it always is but for once: an entry is what it was before there was the field."""
    return {name: value for name, value in fields.items() if name != "damaged" or value}


def offsets_json(offsets: Mapping[Part, int]) -> str:
    """As the source takes them."""
    found: dict[str, dict[str, int]] = {}
    for (stream, partition), offset in offsets.items():
        found.setdefault(stream, {})[str(partition)] = offset
    return json.dumps(found)


class Ledger:
    """Read by anyone; written by who has `lock`ed it."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self.folder = table / FOLDER
        self._batches = self.folder / "batches"
        self._lock: IO[bytes] | None = None

    @property
    def staging(self) -> Path:
        return self.folder / "staging"

    @property
    def is_there(self) -> bool:
        return (self.folder / "table.json").exists()

    def about(self) -> dict[str, str]:
        """Id and format of the table. FailedPrecondition if there is no archive."""
        try:
            found = json.loads((self.folder / "table.json").read_bytes())
            return {"id": str(found["id"]), "format": str(found["format"])}
        except FileNotFoundError:
            raise FailedPrecondition(
                f"{self.table} is no archive: it has no {FOLDER}/table.json. `bascule pipeline archive` makes one"
            ) from None
        except (ValueError, KeyError) as error:
            raise CorruptError(f"{self.folder / 'table.json'} is damaged: {error!r}") from None

    def create(self, form: str) -> None:
        """Or see that it is there, in this format. One of Parquet becomes one of Delta, which has more."""
        if self.is_there:
            about = self.about()
            if (there := about["format"]) == form:
                return
            if (there, form) != (PARQUET, DELTA):
                raise InvalidArgument(f"{self.table} is an archive in the format {there}, not {form}: keep its format")
            self._describe(about["id"], form)
            return
        if self.table.is_dir() and any(each.name != FOLDER for each in self.table.iterdir()):
            raise InvalidArgument(
                f"{self.table} has files, and is no archive: name a folder for the table that is empty or not there"
            )
        make_folder(self._batches)
        self._describe(uuid.uuid4().hex[:8], form)

    def _describe(self, name: str, form: str) -> None:
        about = {"version": VERSION, "id": name, "format": form}
        replace_file(self.folder / "table.json", json.dumps(about).encode())

    def lock(self) -> None:
        """Until `unlock`, or the end of this process, however it ends."""
        make_folder(self.folder)
        file = (self.folder / "lock").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise FailedPrecondition(
                f"another pipeline writes {self.table}: wait until it has ended, or give this one a table of its own"
            ) from None
        self._lock = file

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # --- batches ------------------------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        names = os.listdir(self._batches) if self._batches.is_dir() else []
        return sorted(int(name.removesuffix(".json")) for name in names if name.endswith(".json"))

    def read(self, number: int) -> Batch:
        path = self._entry(number)
        try:
            return Batch.decode(path.read_bytes())
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(f"{path} is damaged: {error!r}. Restore it from a copy of the table") from None

    def last(self) -> Batch | None:
        numbers = self.numbers()
        return self.read(numbers[-1]) if numbers else None

    def published_ends(self) -> dict[Part, End]:
        """Up to where all files are in the table: those of the last batch may be on their way, or wait for a run."""
        numbers = self.numbers()
        for number in numbers[:-3:-1]:
            batch = self.read(number)
            if not (self.staging / batch.staged).exists():
                return batch.ends
        return {}

    def batches(self) -> Iterator[Batch]:
        return map(self.read, self.numbers())

    def commit(self, batch: Batch) -> None:
        """Everything that the entry names is on the disk by now."""
        assert self._lock is not None, "only the pipeline that locked the table writes it"
        assert not self._entry(batch.number).exists(), "a batch is committed once"
        replace_file(self._entry(batch.number), batch.encode())

    def clear_staging(self) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)

    def _entry(self, number: int) -> Path:
        return self._batches / f"{number:020d}.json"
