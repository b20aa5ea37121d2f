"""Streams as Parquet files: an export that can be interrupted at any point, and goes on.

A file has messages of one partition, in order, and its name says with which offset it begins. It is written under a
temporary name and synced; the checkpoint beside the files notes that it is about to be renamed, and how far each
partition is then; it is renamed; and the checkpoint says so. Whoever runs the same export again goes on there, and
appends files with what has come since. If the program ends in between, the next run sees whether the file is there: it
counts, or is written again. So each message is in one file, also when retention has removed what such a file begins
with. One export at a time may use a folder: it holds a lock.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from bascule import limits
from bascule.client.arrow import ArrowRead, ArrowStart, chosen_columns, needs_pyarrow
from bascule.client.cluster import Cluster
from bascule.client.consumer import Partitions
from bascule.client.failures import Deadline
from bascule.errors import CorruptError, FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

CHECKPOINT = "export.json"
_LOCK = ".export.lock"
_PARTIAL = ".partial"


@dataclass(slots=True)
class ExportReport:
    """What an export has done."""

    stream: str
    folder: str
    messages: int = 0
    file_bytes: int = 0
    seconds: float = 0.0
    files: list[str] = field(default_factory=list)
    position: dict[str, dict[int, int]] = field(default_factory=dict)
    """By stream and partition, the offset with which the next run begins; as that of a consumer."""
    remaining: int = 0
    """Offsets that are yet to be read: 0 at the end."""
    damaged: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By partition, the first and the last offset of what is in no file, for it is damaged on the broker's disk."""


OnProgress = Callable[[ExportReport], None]


class Folder:
    """Where an export writes."""

    def __init__(self, path: Path, stream: str, creation: int, columns: Sequence[str]) -> None:
        self.path = path
        self._stream = stream
        self._creation = creation
        self._columns = list(columns)
        self.next: dict[int, int] = {}

    def load(self) -> None:
        """How far earlier runs are. An error if they exported something else."""
        checkpoint = self.path / CHECKPOINT
        if not checkpoint.exists():
            return
        try:
            known = json.loads(checkpoint.read_text())
            stream, creation, columns = known["stream"], known["creation"], known["columns"]
            self.next = {int(number): int(offset) for number, offset in known["next"].items()}
            renamed = known.get("renamed", {})
            if renamed and (self.path / renamed["file"]).exists():
                self.next |= {int(number): int(offset) for number, offset in renamed["next"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidArgument(f"{checkpoint} is no checkpoint of an export: {error!r}") from None
        if stream != self._stream:
            raise InvalidArgument(f"{self.path} has an export of stream {stream}: give another folder")
        if columns != self._columns:
            raise InvalidArgument(f"{self.path} has an export with the columns {', '.join(columns)}: give the same")
        if creation != self._creation:
            raise FailedPrecondition(
                f"stream {stream} was made again since it was exported to {self.path}: give another folder"
            )

    def save(self, renamed: dict[str, Any] | None = None) -> None:
        """`renamed`: the file that is about to be, with the checkpoint that holds then."""
        known = {
            "stream": self._stream,
            "creation": self._creation,
            "columns": self._columns,
            "next": {str(number): offset for number, offset in sorted(self.next.items())},
        }
        if renamed is not None:
            known["renamed"] = renamed
        temporary = self.path / f"{CHECKPOINT}{_PARTIAL}"
        with temporary.open("w") as file:
            json.dump(known, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        self._publish(temporary, self.path / CHECKPOINT)

    def name(self, partition: int, first: int) -> str:
        return f"{quote(self._stream, safe='')}-{partition:05d}-{first:020d}.parquet"

    def publish(self, name: str, position: dict[int, int]) -> int:
        """From its temporary name to its own; its size. Partitions are as far as `position` says then."""
        temporary = self.path / f"{name}{_PARTIAL}"
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self.save({"file": name, "next": {str(number): offset for number, offset in sorted(position.items())}})
        self._publish(temporary, self.path / name)
        return (self.path / name).stat().st_size

    def _publish(self, temporary: Path, final: Path) -> None:
        os.replace(temporary, final)
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Also removes what an interrupted run left under temporary names."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / _LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FailedPrecondition(f"another export is writing to {self.path}: wait for its end") from None
            for left in self.path.glob(f"*{_PARTIAL}"):
                left.unlink()
            yield


class _File:
    """One Parquet file, of one partition."""

    def __init__(self, folder: Folder, partition: int, first: int, schema: pa.Schema) -> None:
        import pyarrow.parquet as pq

        self.name = folder.name(partition, first)
        self.partition = partition
        self.bytes = 0
        self._folder = folder
        self._writer: Any = pq.ParquetWriter(folder.path / f"{self.name}{_PARTIAL}", schema, compression="zstd")

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self.bytes += batch.nbytes

    def finish(self, position: dict[int, int]) -> int:
        self._writer.close()
        return self._folder.publish(self.name, position)

    def drop(self) -> None:
        self._writer.close()
        (self._folder.path / f"{self.name}{_PARTIAL}").unlink(missing_ok=True)


async def export_parquet(
    cluster: Cluster,
    stream: str,
    folder: Path,
    partitions: Partitions,
    columns: Sequence[str] | None,
    start: ArrowStart,
    max_file_bytes: int,
    skip_damaged: bool,
    on_progress: OnProgress | None,
) -> ExportReport:
    needs_pyarrow()
    if max_file_bytes <= 0:
        raise InvalidArgument(f"max_file_bytes={max_file_bytes}: it is 1 or more")
    cluster.forget(stream)  # it may have been made again since
    known = await cluster.stream(stream, Deadline(limits.CLIENT_TIMEOUT_S))
    into = Folder(folder, stream, known.creation_timestamp, chosen_columns(columns))
    with into.locked():
        into.load()
        at: ArrowStart = start if not into.next else {stream: into.next}
        read = ArrowRead(cluster, stream, partitions, columns, at, limits.CLIENT_ARROW_BYTES)
        return await _Export(into, read, stream, max_file_bytes, skip_damaged, on_progress).run()


class _Export:
    def __init__(
        self,
        folder: Folder,
        read: ArrowRead,
        stream: str,
        max_file_bytes: int,
        skip_damaged: bool,
        on_progress: OnProgress | None,
    ) -> None:
        self._folder = folder
        self._read = read
        self._stream = stream
        self._max_file_bytes = max_file_bytes
        self._skip_damaged = skip_damaged
        self._on_progress = on_progress
        self._report = ExportReport(stream, str(folder.path))
        self._file: _File | None = None
        self._began = time.monotonic()

    async def run(self) -> ExportReport:
        before: dict[int, int] = {}
        try:
            async with aclosing(self._read) as batches:
                while (batch := await self._next_batch()) is not None:
                    await _in_thread(self._write, batch, batches.partition, before)
                    before = batches.position[self._stream]
                    self._progress()
            await _in_thread(self._finish, self._read.position[self._stream])
            self._progress()
            return self._report
        finally:
            if self._file is not None:
                self._file.drop()

    async def _next_batch(self) -> pa.RecordBatch | None:
        """None at the end."""
        while True:
            known = {number: len(stretches) for number, stretches in self._read.damaged.items()}
            try:
                return await anext(self._read, None)
            except CorruptError as error:
                damaged = self._read.damaged
                if not self._skip_damaged or known == {number: len(each) for number, each in damaged.items()}:
                    raise
                logger.warning("the export goes on without what is damaged: %s", error)
                self._report.damaged = {
                    number: [(each.start, each.stop - 1) for each in stretches] for number, stretches in damaged.items()
                }

    def _write(self, batch: pa.RecordBatch, partition: int, before: dict[int, int]) -> None:
        if self._file is not None and (self._file.partition != partition or self._file.bytes >= self._max_file_bytes):
            self._finish(before)
        if self._file is None:
            first = before.get(partition, self._folder.next.get(partition, 0))
            self._file = _File(self._folder, partition, first, batch.schema)
        self._file.write(batch)
        self._report.messages += batch.num_rows

    def _finish(self, position: dict[int, int]) -> None:
        if self._file is not None:
            self._report.file_bytes += self._file.finish(position)
            self._report.files.append(self._file.name)
            self._file = None
        self._folder.next |= position
        self._folder.save()
        self._report.position = {self._stream: dict(sorted(self._folder.next.items()))}

    def _progress(self) -> None:
        self._report.seconds = time.monotonic() - self._began
        self._report.remaining = self._read.remaining
        if self._on_progress is not None:
            self._on_progress(self._report)


async def _in_thread(work: Callable[..., None], *arguments: object) -> None:
    """Who is cancelled waits for its end: nobody else may touch the file before that."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
