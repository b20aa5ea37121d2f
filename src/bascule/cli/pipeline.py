"""`bascule pipeline`: streams into tables and back, checked and queried, on Spark."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bascule.cli.output import Reported, console, harmless_json, say, showing_progress
from bascule.cli.tables import print_json, print_table, size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bascule.pipelines.archive import ArchiveReport
    from bascule.pipelines.audit import AuditReport
    from bascule.pipelines.config import Config
    from bascule.pipelines.flow import Flow, OnProgress

LOG_TAIL_BYTES = 4000
FINDINGS = 30
"""Shown in a terminal."""
EPILOG = """\b
Examples:
  bascule pipeline archive --config archive.yaml
  bascule pipeline ship bascule.zip  # for the executors of a cluster
  spark-submit --master spark://host:7077 "$(bascule pipeline script)" archive --config archive.yaml
"""

ConfigOption = click.option(
    "--config",
    "-c",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="A YAML file; docs/pipelines.md lists its keys.",
)
JsonOption = click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")


@click.group(cls=Reported, epilog=EPILOG)
def pipeline() -> None:
    """Archive, audit and query streams with Spark. Each pipeline may be interrupted and run again."""


@pipeline.command("script")
def script() -> None:
    """Print the program to give to spark-submit."""
    click.echo(__file__)


@pipeline.command("ship", epilog="Example: bascule pipeline ship bascule.zip")
@click.argument("file", type=click.Path(dir_okay=False, writable=True, path_type=Path))
def ship(file: Path) -> None:
    """Write what the executors of a cluster need into one zip, for the option --archives of spark-submit."""
    from bascule.spark.ship import pack

    files = pack(file)
    say(f"{file}: {files} files, {size(file.stat().st_size)}; executors need it unpacked, and pyarrow beside it")


@pipeline.command("archive", epilog="Example: bascule pipeline archive --config archive.yaml")
@ConfigOption
@JsonOption
def archive(path: Path, as_json: bool) -> None:
    """Archive streams into a table of Parquet files, each message once.

    The hold of the archive goes up behind it, so retention removes only what is archived.
    """
    from bascule.pipelines.archive import Archive, configured

    config = configured(path)
    with spark_of("archive", config) as spark, progress("archive", "messages") as on_progress:
        running = Archive(config, spark, on_progress)
        with stopped_by_signals(running.stopping.set):
            report = running.run()
    if as_json:
        print_json(report.as_dict())
    else:
        print_archived(report)


def print_archived(report: ArchiveReport) -> None:
    rate = f", {report.rows / report.seconds:,.0f} rows/s" if report.rows and report.seconds else ""
    click.echo(
        f"{report.table}: {report.rows} rows, {size(report.bytes)} in {report.batches} batches, "
        f"{report.seconds:.1f} s{rate}"
    )
    if report.partitions:
        print_table(
            ("stream", "partition", "from", "to", "rows", "hold"),
            [
                (each.stream, each.partition, each.start, each.end, each.rows, "-" if each.hold is None else each.hold)
                for each in report.partitions.values()
            ],
        )
    if report.missing:
        say(f"{report.missing} offsets have no record: `bascule pipeline audit` says which")


@pipeline.command("audit", epilog="Example: bascule pipeline audit --config audit.yaml")
@ConfigOption
@JsonOption
def audit(path: Path, as_json: bool) -> None:
    """See whether a stream, an archive or a copy of a log has every record once, in order and undamaged.

    It ends with 1 if something is wrong. What retention and compaction removed is not.
    """
    from bascule.pipelines.audit import Audit, configured

    config = configured(path)
    with spark_of("audit", config) as spark, progress("audit", "pieces") as on_progress:
        report = Audit(config, spark, on_progress).run()
    if as_json:
        print_json(report.as_dict())
    else:
        print_audited(report)
    if report.findings:
        raise SystemExit(1)


def print_audited(report: AuditReport) -> None:
    from bascule.pipelines.auditing.html import stretch

    verdict = f"{len(report.findings)} findings" if report.findings else "sound"
    click.echo(f"{report.what}: {verdict}; {report.records} records, {size(report.bytes)}, {report.seconds:.1f} s")
    print_table(
        ("stream", "partition", "start", "end", "records", "compacted", "findings"),
        [
            (each.stream, each.partition, each.start, each.end, each.seen.records, each.compacted, len(each.findings))
            for each in report.partitions
        ],
    )
    for note in report.notes[:FINDINGS]:
        say(note)
    if report.findings:
        click.echo()
        rows = [(f"{each.stream}/{each.partition}", each.kind, stretch(each), each.what) for each in report.findings]
        print_table(("partition", "what", "offsets", "how it was seen"), rows[:FINDINGS])
        if len(rows) > FINDINGS:
            click.echo(f"and {len(rows) - FINDINGS} more: `--json`, or the key report, has them")


@pipeline.command(
    "query", epilog="Example: bascule pipeline query --config query.yaml --sql 'select count(*) from orders'"
)
@ConfigOption
@click.option("--sql", default="", help="The query. [default: the key sql]")
@JsonOption
def query(path: Path, sql: str, as_json: bool) -> None:
    """SQL over an archive and the stream behind it, as one table.

    The view `messages` has all rows, and each stream is a view of its name.
    """
    from bascule.pipelines.query import Query, configured

    config, wanted = configured(path, sql)
    with spark_of("query", config) as spark:
        answer = Query(config, spark).run(wanted)
    if as_json:
        for row in answer.rows:
            click.echo(harmless_json(json.dumps(dict(zip(answer.columns, map(shown, row), strict=True)))))
    else:
        print_table(answer.columns, [[shown(cell) for cell in row] for row in answer.rows])


@pipeline.command("aggregate", epilog="Example: bascule pipeline aggregate --config totals.yaml")
@ConfigOption
@JsonOption
def aggregate(path: Path, as_json: bool) -> None:
    """Count and sum windows of time of streams, into a table and into a stream.

    A window is written once, when the watermark has passed its end.
    """
    from bascule.pipelines.aggregate import aggregate, configured

    run_flow("aggregate", configured(path), aggregate, as_json)


@pipeline.command("dead-letter", epilog="Example: bascule pipeline dead-letter --config orders.yaml")
@ConfigOption
@JsonOption
def dead_letter(path: Path, as_json: bool) -> None:
    """Parse the values of a stream, and write those that fail to a stream of their own.

    Their headers have the reason, and where they come from.
    """
    from bascule.pipelines.deadletter import configured, dead_letter

    run_flow("dead-letter", configured(path), dead_letter, as_json)


MakeFlow = Callable[["Config", "SparkSession", "OnProgress"], "Flow"]


def run_flow(name: str, config: Config, make: MakeFlow, as_json: bool) -> None:
    with spark_of(name, config) as spark, progress(name, "messages") as on_progress:
        flow = make(config, spark, on_progress)
        with stopped_by_signals(flow.stopping.set):
            report = flow.run()
    if as_json:
        print_json(report.as_dict())
    else:
        to = " and ".join(report.to)
        click.echo(f"{to}: {report.written} rows of {report.read} messages, in {report.batches} batches")
        if report.unparsed:
            say(f"{report.unparsed} messages were left out: they are no JSON of the schema, or have no time")


@pipeline.command("restore", epilog="Example: bascule pipeline restore --config restore.yaml")
@ConfigOption
@JsonOption
def restore(path: Path, as_json: bool) -> None:
    """Write an archive back into a stream, each message once.

    Their headers have the offset and the time that they had. It may be run again.
    """
    from bascule.pipelines.restore import Restore, configured

    config = configured(path)
    with spark_of("restore", config) as spark, progress("restore", "messages") as on_progress:
        report = Restore(config, spark, on_progress).run()
    if as_json:
        print_json(report.as_dict())
    else:
        known = f", {report.known} of which an earlier run had restored" if report.known else ""
        click.echo(f"{report.stream} to {report.to}: {report.rows} messages in {report.batches} batches{known}")


def shown(cell: object) -> object:
    """As JSON has it; bytes as text."""
    if isinstance(cell, bytes | bytearray):
        return bytes(cell).decode("utf-8", "backslashreplace")
    if isinstance(cell, dict):
        return {str(name): shown(each) for name, each in cell.items()}
    if isinstance(cell, list | tuple):
        return [shown(each) for each in cell]
    return cell if cell is None or isinstance(cell, str | int | float | bool) else str(cell)


# --- how all of them run --------------------------------------------------------------------------------------------


@contextmanager
def spark_of(name: str, config: Config) -> Iterator[SparkSession]:
    """A session for this pipeline. What Java has to say goes into a file, and to stderr only if something failed."""
    from bascule.pipelines.running import PipelineFailed, is_submitted, spark_session, told_plainly

    with tempfile.TemporaryFile() as log:
        try:
            with told_plainly():
                with quiet(log.fileno(), not is_submitted()):
                    opened = spark_session(name, config.by_name("spark"))
                    spark = opened.__enter__()
                try:
                    yield spark
                finally:
                    opened.__exit__(None, None, None)
        except PipelineFailed:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            sys.stderr.buffer.write(log.read())
            raise


@contextmanager
def quiet(descriptor: int, wanted: bool) -> Iterator[None]:
    """Java inherits stderr when it starts, and keeps it."""
    if not wanted:
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


@contextmanager
def progress(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar with the rate, what is left and how long that takes; nothing where stderr is no terminal."""
    if not console().is_terminal:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} {task.fields[unit]}, {task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with showing_progress(), Progress(*columns, console=console(), transient=True) as bar:
        task = bar.add_task(what, total=0, unit=unit, rate="starting")

        def on_progress(done: int, total: int) -> None:
            speed = bar.tasks[0].speed
            rate = f"lag {total - done:,}" if speed is None else f"{speed:,.0f}/s, lag {total - done:,}"
            bar.update(task, completed=done, total=total, rate=rate)

        yield on_progress


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM lets the batch that is under way end; the second one interrupts it."""

    def on_signal(number: int, frame: object) -> None:
        say("stopping after this batch; once more interrupts it")
        stop()
        restore()

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        restore()


if __name__ == "__main__":  # what spark-submit runs
    pipeline(prog_name="bascule pipeline")
