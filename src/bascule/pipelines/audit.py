"""`audit`: whether a stream, a table or a copy of a log has every record once, in order and undamaged.

Retention and compaction remove records, too: what is below the start of a partition has expired, and below the
compacted end offsets may be missing. Everything else that is not there is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bascule import limits
from bascule.errors import ConfigError, InvalidArgument
from bascule.pipelines.auditing import logs, overlap, streams, tables
from bascule.pipelines.auditing.html import page
from bascule.pipelines.auditing.pieces import Damage, Finding, PartitionAudit, Piece, without
from bascule.pipelines.config import SOURCE_KEYS, SPARK_KEY, Config, Key, load, local_path
from bascule.pipelines.ledger import Ledger, Part
from bascule.pipelines.parquet import part_of
from bascule.spark.position import has_bulk_reads

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bascule.spark.planning import Bounds

NAME = "audit"
_SOURCE = ("servers", "streams", "streamPattern", "tlsCa", "tlsCert", "tlsKey")
KEYS = {
    **{name: SOURCE_KEYS[name] for name in _SOURCE},
    "servers": Key(
        SOURCE_KEYS["servers"].check,
        "Addresses of brokers, separated by commas. With streams alone these are audited; with table or log they say "
        "what must be there.",
    ),
    "table": Key(local_path, "An archive, or a copy of one, that is audited instead of a stream."),
    "log": Key(
        local_path,
        "A copy of a broker's data folder, or of one stream or partition in it, that is audited instead of a stream.",
    ),
    "report": Key(local_path, "The HTML page that is written. Default: none."),
    "spark": SPARK_KEY,
}
"""Every key with what it means: docs/pipelines.md shows them."""

OnProgress = Callable[[int, int], None]
"""Told how many pieces are done, and how many there are."""
Task = TypeVar("Task")
Seen = TypeVar("Seen")


@dataclass
class AuditReport:
    what: str
    partitions: list[PartitionAudit] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    time_ns: int = 0

    @property
    def records(self) -> int:
        return sum(each.seen.records for each in self.partitions)

    @property
    def bytes(self) -> int:
        return sum(each.seen.bytes for each in self.partitions)

    @property
    def notes(self) -> list[str]:
        """What is worth knowing, and no fault."""
        return [
            f"{each.stream}/{each.partition}: {note.what} ({note.where})"
            for each in self.partitions
            for note in each.seen.notes
        ]

    def as_dict(self) -> dict[str, Any]:
        partitions = [
            {
                "stream": each.stream,
                "partition": each.partition,
                "start": each.start,
                "end": each.end,
                "records": each.seen.records,
                "bytes": each.seen.bytes,
                "compacted": each.compacted,
                "times_backwards": each.seen.backwards,
                "findings": len(each.findings),
            }
            for each in self.partitions
        ]
        return {
            "pipeline": NAME,
            "what": self.what,
            "ok": not self.findings,
            "records": self.records,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "partitions": partitions,
            "findings": [asdict(each) for each in self.findings[: limits.AUDIT_FINDINGS]],
            "findings_in_all": len(self.findings),
            "notes": self.notes[: limits.AUDIT_FINDINGS],
        }


class Audit:
    def __init__(self, config: Config, spark: SparkSession, on_progress: OnProgress | None = None) -> None:
        self._config = config
        self._spark = spark
        self._told = on_progress

    def run(self) -> AuditReport:
        began = time.monotonic()
        if self._config.text("table"):
            report = self._table()
        elif self._config.text("log"):
            report = self._log()
        else:
            report = self._stream()
        report.findings += [finding for each in report.partitions for finding in each.findings]
        report.seconds, report.time_ns = time.monotonic() - began, time.time_ns()
        if self._config.text("report"):
            Path(self._config.text("report")).write_text(page(report.as_dict(), report.partitions, report.findings))
        return report

    def _stream(self) -> AuditReport:
        options = self._config.source_options()
        bounds = self._bounds()
        if not all(has_bulk_reads(each.creation) for each in bounds.values()):
            raise InvalidArgument(
                "an audit of a stream needs bulk reads, and these servers are not Bascule: archive the stream, and "
                "audit the table"
            )
        pieces = self._looked_at(streams.look, streams.wishes(options, bounds))
        report = AuditReport(f"stream {', '.join(sorted({name for name, _ in bounds}))}")
        for part, each in sorted(bounds.items()):
            # Compaction and retention go on between the question where they are and the reading.
            ends = (piece.compacted_end for piece in pieces if piece.part == part)
            compacted_end = max(each.compacted_end, *ends, 0)
            seen = _together(pieces, part, compacted_end)
            start = min(max(each.start, seen.start), each.end)
            audit = PartitionAudit(*part, start, each.end, compacted_end, seen)
            audit.judge()
            report.partitions.append(audit)
        return report

    def _table(self) -> AuditReport:
        ledger = Ledger(Path(self._config.text("table")).resolve())
        ledger.about()
        parts, sheets = tables.taken(ledger)
        pieces = self._looked_at(tables.look, sheets)
        report = AuditReport(f"table {self._config.text('table')}")
        unknown = sorted({piece.part for piece in pieces} - parts.keys())
        for part, taken in sorted(parts.items()):
            audit = PartitionAudit(
                *part,
                taken.start,
                taken.end,
                taken.compacted_end,
                _together(pieces, part, taken.compacted_end),
                damaged=taken.damaged,
                removed=taken.removed,
            )
            audit.judge()
            if audit.seen.records != taken.rows:
                audit.find("unexpected", None, None, f"{audit.seen.records} rows, and {taken.rows} were committed")
            report.partitions.append(audit)
        for sheet in sheets:
            if sheet.stored is None:
                part = part_of(Path(sheet.name))
                report.findings.append(Finding(*part, "unexpected", None, None, f"{sheet.name} was never committed"))
        report.findings += [Finding(*part, "unexpected", None, None, "was never archived") for part in unknown]
        if self._config.text("servers"):
            self._compare(report, parts, sheets)
        return report

    def _compare(self, report: AuditReport, parts: dict[Part, tables.Taken], sheets: Sequence[tables.Sheet]) -> None:
        """With what the brokers have."""
        bounds = self._bounds()
        same: list[overlap.Overlap] = []
        options = self._config.source_options()
        for each in report.partitions:
            now, taken = bounds.get((each.stream, each.partition)), parts[each.stream, each.partition]
            if now is None:
                continue
            if now.creation != taken.creation:
                each.find("unexpected", None, None, "the stream was deleted and made again since it was archived")
            elif now.end < taken.end:
                each.find("unexpected", now.end, taken.end - 1, f"the brokers have it up to {now.end} only")
            elif now.start > taken.end:
                each.find("missing", taken.end, now.start - 1, "removed from the stream before it was archived")
            else:
                same += overlap.overlaps(options, (each.stream, each.partition), taken, now, sheets)
        by_part = {(each.stream, each.partition): each for each in report.partitions}
        for lacking in self._looked_at(overlap.look, same):
            audit = by_part[lacking.part]
            for stretch in lacking.stretches:
                for rest in without(stretch, audit.damaged):
                    audit.find("missing", *rest, "the brokers have it, and the table does not")
            for unread in lacking.unread:
                audit.find("not read", unread.offset, unread.last, f"{unread.what}: {unread.where}")
        for part, now in sorted(bounds.items()):
            if part not in parts and now.end > now.start:
                where = f"{now.end - now.start} offsets, from {now.start} to {now.end}"
                note = Damage(where, "the brokers have this partition, and nothing of it is in the table")
                report.partitions.append(PartitionAudit(*part, 0, 0, 0, Piece(part, notes=[note])))

    def _log(self) -> AuditReport:
        folder = Path(self._config.text("log")).resolve()
        segments = logs.segments_in(folder)
        bounds = self._bounds() if self._config.text("servers") else {}
        ends = {part: each.compacted_end for part, each in bounds.items()}
        pieces = self._looked_at(logs.look, logs.with_compaction(segments, ends))
        report = AuditReport(f"log {self._config.text('log')}")
        for part in dict.fromkeys(each.part for each in segments):
            seen = _together(pieces, part, ends.get(part, 0))
            start = min(each.base for each in segments if each.part == part)
            end = max((run.last + 1 for run in seen.runs), default=start)
            if part in bounds:
                start, end = max(start, bounds[part].start), max(end, bounds[part].end)
            audit = PartitionAudit(*part, start, end, ends.get(part, 0), seen)
            audit.judge()
            report.partitions.append(audit)
        return report

    def _bounds(self) -> Bounds:
        from bascule.spark.planning import Planner

        return Planner(self._config.source_options()).bounds()

    def _looked_at(self, look: Callable[[Task], Seen], tasks: Sequence[Task]) -> list[Seen]:
        """By executors, a few at a time so that progress can be told."""
        context = self._spark.sparkContext
        step = max(4 * context.defaultParallelism, len(tasks) // 50)
        found: list[Seen] = []
        for first in range(0, len(tasks), step):
            some = tasks[first : first + step]
            found += context.parallelize(some, len(some)).map(look).collect()
            if self._told is not None:
                self._told(len(found), len(tasks))
        return found


def _together(pieces: Iterable[Piece], part: Part, compacted_end: int) -> Piece:
    whole = Piece(part)
    for piece in sorted((each for each in pieces if each.part == part), key=lambda each: each.order):
        whole.add_piece(piece, compacted_end)
    return whole


def configured(path: Path) -> Config:
    """ConfigError if a key or a value cannot be used. Spark is not needed."""
    config = load(path, NAME, KEYS)
    copies = [name for name in ("table", "log") if config.text(name)]
    named = bool(config.text("streams") or config.text("streamPattern"))
    if len(copies) > 1:
        raise ConfigError(f"{path}: give either table or log, and not both")
    if not copies and not (config.text("servers") and named):
        raise ConfigError(f"{path}: name what is audited: servers and streams, or table, or log")
    if config.text("servers"):
        config.source_options()
    elif named:
        raise ConfigError(f"{path}: streams are looked up at the brokers: the key servers is missing")
    return config
