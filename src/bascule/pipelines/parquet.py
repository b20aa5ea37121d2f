"""A table of Parquet files, by stream, partition and date: any reader of Parquet sees each row once, at any time.

Spark writes a batch into the staging folder. Its files are synced, their footers checked against the offsets that were
planned, and the entry of the ledger commits them. Only then they move into the table, under names that follow from the
batch: after a crash the move goes on where it stopped, and what was not committed is removed. Each attempt has a
folder of its own, because Spark outlives a driver that was killed, for a moment, and goes on writing.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from bascule.client.columns import COLUMNS
from bascule.errors import CorruptError, Internal
from bascule.pipelines.deltalog import PARTITIONED_BY, DeltaLog
from bascule.pipelines.durable import make_folder, sync_file, sync_folders
from bascule.pipelines.ledger import Batch, End, Ledger, Part, Range, StoredFile
from bascule.wire import kernels

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = ", ".join(f"`{name}` {column.spark}" for name, column in COLUMNS.items()) + ", `date` date"
"""Of the table. Given to Spark when it is read, for it would take a stream named 17 for a number."""
_WRITERS = "spark.sql.maxConcurrentOutputFileWriters"
_WRITERS_AT_ONCE = "32"
"""Files that a task has open, one for each date: with fewer, Spark would sort the rows first."""
_PIECE = 1 << 20
_OWN_FILES = "[0-9]*-[0-9]*.parquet"
"""As `_checked` names them."""


@dataclass(frozen=True, slots=True)
class Written:
    """A batch that is staged."""

    table: ParquetTable
    number: int
    staged: str
    ranges: tuple[Range, ...]
    files: tuple[StoredFile, ...]

    def commit(
        self,
        ends: Mapping[Part, End],
        compacted: Mapping[Part, int],
        damaged: Mapping[Part, Sequence[tuple[int, int]]],
    ) -> Batch:
        """The batch is in the table for good when this returns. `compacted`: up to where compaction had been when the
        rows were read; `damaged`: which offsets were left out for that."""
        ranges = tuple(
            replace(
                each,
                compacted_end=max(each.compacted_end, compacted.get(part, 0)),
                damaged=tuple(damaged.get(part, ())),
            )
            for each in self.ranges
            for part in [(each.stream, each.partition)]
        )
        batch = Batch(self.number, time.time_ns(), self.staged, ranges, self.files, dict(ends))
        self.table.commit(batch)
        return batch


class ParquetTable:
    def __init__(self, ledger: Ledger, delta: DeltaLog | None = None) -> None:
        """`delta`: the log of a Delta table, which is told of each batch."""
        self._ledger = ledger
        self._delta = delta

    def recover(self) -> None:
        """Finishes the batch that was committed last, and removes what was not committed."""
        last = self._ledger.last()
        if last is not None and self._staged(last.staged).is_dir():
            self._publish(last)
        elif self._delta is not None:
            self._delta.follow()
        self._ledger.clear_staging()

    @contextmanager
    def written(self, frame: DataFrame, number: int, planned: Sequence[Range]) -> Iterator[Written]:
        """The rows of a batch, on the disk and checked. They are in the table once they are committed, and gone after
        the block if they are not."""
        attempt = f"{number}-{uuid.uuid4().hex[:8]}"
        staged = self._staged(attempt)
        frame.sparkSession.conf.set(_WRITERS, _WRITERS_AT_ONCE)
        frame.write.mode("overwrite").partitionBy(*PARTITIONED_BY).parquet(str(staged))
        files, rows = self._checked(staged, number, planned)
        ranges = tuple(replace(each, rows=rows.get((each.stream, each.partition), 0)) for each in planned)
        for each in ranges:
            _check_rows(each)
        yield Written(self, number, attempt, ranges, files)
        self._ledger.clear_staging()

    def commit(self, batch: Batch) -> None:
        self._ledger.commit(batch)
        self._publish(batch)

    def _staged(self, attempt: str) -> Path:
        return self._ledger.staging / attempt

    def _checked(
        self, staged: Path, number: int, planned: Sequence[Range]
    ) -> tuple[tuple[StoredFile, ...], dict[Part, int]]:
        """The files that Spark wrote, synced, under the names that they get; and the rows of each partition."""
        within = {(each.stream, each.partition): each for each in planned}
        files: list[StoredFile] = []
        rows: dict[Part, int] = {}
        for index, path in enumerate(sorted(staged.rglob("*.parquet"))):
            folder = path.parent.relative_to(staged)
            name = folder / f"{number:010d}-{index:05d}.parquet"
            part = part_of(name)
            found = stored_file(path, str(name))
            there = within.get(part)
            if there is None or not there.start <= found.first <= found.last < there.end:
                raise Internal(
                    f"batch {number} of the archive has offsets {found.first} to {found.last} of {part[0]}/{part[1]}, "
                    "which were not planned: nothing was committed"
                )
            sync_file(path)
            files.append(found)
            rows[part] = rows.get(part, 0) + found.rows
            os.rename(path, staged / f"{index:05d}.parquet")
        sync_folders([staged, self._ledger.staging, self._ledger.folder])
        return tuple(files), rows

    def _publish(self, batch: Batch) -> None:
        """Each file of the batch from the staging folder into the table. May be done again."""
        staged = self._staged(batch.staged)
        folders: set[Path] = set()
        for index, file in enumerate(batch.files):
            source, target = staged / f"{index:05d}.parquet", self._ledger.table / file.path
            make_folder(target.parent)
            folders.add(target.parent)
            if source.exists():
                os.rename(source, target)
            elif not target.exists():
                raise CorruptError(f"{target} of the committed batch {batch.number} is gone: restore it from a copy")
        sync_folders(folders)
        if self._delta is not None:
            self._delta.follow()
        shutil.rmtree(staged, ignore_errors=True)


def _check_rows(read: Range) -> None:
    if read.rows > read.end - read.start:
        raise Internal(
            f"{read.rows} rows were read of {read.stream}/{read.partition} from {read.start} to {read.end}: some came "
            "twice, and nothing was committed"
        )


def part_of(path: Path) -> Part:
    """Stream and partition of a file, from the folders that it is in."""
    values = dict(folder.partition("=")[::2] for folder in path.parts if "=" in folder)
    return unquote(values["stream"]), int(values["partition"])


def stored_file(path: Path, name: str) -> StoredFile:
    """What a file holds, by its footer, and its checksum."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    first, last = _offsets(metadata)
    return StoredFile(name, metadata.num_rows, path.stat().st_size, first, last, checksum_of(path))


def checksum_of(path: Path) -> int:
    """CRC-32C of the whole file."""
    checksum = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            checksum = kernels.crc32c(piece, checksum)
    return checksum


def _offsets(metadata: Any) -> tuple[int, int]:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    column = metadata.schema.names.index("offset")
    ranges = [group.column(column).statistics for group in groups]
    return min(each.min for each in ranges), max(each.max for each in ranges)


def literal(path: Path) -> str:
    """For a reader of Spark, to which a path with brackets and the like is a pattern."""
    return re.sub(r"[][{}*?\\]", r"\\\g<0>", str(path))


def read_table(spark: SparkSession, table: Path, columns: Iterable[str] = ()) -> DataFrame:
    """The files of the archive: what others write into a table of Delta has rows that are there already."""
    frame = spark.read.schema(SCHEMA).option("pathGlobFilter", _OWN_FILES).parquet(literal(table))
    return frame.select(*columns) if columns else frame
