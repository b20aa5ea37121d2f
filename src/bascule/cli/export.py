"""`bascule export`: a stream as Parquet files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

import click

from bascule.cli.cluster import JsonOption
from bascule.cli.connect import ServerOption, Servers, connected, missing_stream_explained
from bascule.cli.output import CommandFailed, console, showing_progress
from bascule.cli.tables import print_json
from bascule.client import ExportReport

HINT = "`bascule stream list` shows those there are"


@click.command(epilog="Example: bascule export orders ./orders --columns offset,timestamp,key,value")
@click.argument("stream")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="May be repeated. [default: all]"
)
@click.option("--columns", default="", metavar="NAME,...", help="[default: all; docs/spark.md lists them]")
@click.option(
    "--skip-damaged", is_flag=True, help="Leave out messages that are damaged on the broker's disk, which are an error."
)
@JsonOption
@ServerOption
def export(
    stream: str,
    folder: Path,
    partitions: tuple[int, ...],
    columns: str,
    skip_damaged: bool,
    as_json: bool,
    server: Servers,
) -> None:
    """Write what STREAM holds into Parquet files in FOLDER.

    Run it again, also after it was interrupted, and it goes on where it stopped: each message is in one file. Needs
    pyarrow.
    """

    async def run() -> ExportReport:
        async with connected(server) as client:
            with _bar() if console().is_terminal and not as_json else nullcontext(lambda report: None) as show:
                return await client.export_parquet(
                    stream,
                    folder,
                    partitions=partitions or "all",
                    columns=[name.strip() for name in columns.split(",")] if columns else None,
                    skip_damaged=skip_damaged,
                    on_progress=show,
                )

    with missing_stream_explained(HINT):
        try:
            report = asyncio.run(run())
        except ImportError as error:
            raise CommandFailed(str(error)) from error
    if as_json:
        print_json(asdict(report) | {"messages_per_second": _rate(report)})
        return
    click.echo(
        f"{report.messages} messages of {stream} in {len(report.files)} files in {folder}: "
        f"{report.file_bytes / 1e6:.1f} MB, {report.seconds:.1f} s, {_rate(report)} messages/s"
    )
    for partition, stretches in report.damaged.items():
        listed = ", ".join(f"{first} to {last}" for first, last in stretches)
        click.echo(
            f"Left out, for they are damaged on the broker's disk: offsets {listed} of partition {partition}", err=True
        )


def _rate(report: ExportReport) -> int:
    return round(report.messages / report.seconds) if report.seconds else 0


@contextmanager
def _bar() -> Iterator[Callable[[ExportReport], None]]:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.completed:,} messages, {task.fields[rate]:,}/s")
    with (
        showing_progress(),
        Progress(BarColumn(), TaskProgressColumn(), text, TimeRemainingColumn(), console=console()) as bar,
    ):
        task = bar.add_task("", total=None, rate=0)

        def show(report: ExportReport) -> None:
            total = report.messages + report.remaining
            bar.update(task, completed=report.messages, total=total, rate=_rate(report))

        yield show
