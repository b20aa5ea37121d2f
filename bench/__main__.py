"""`python -m bench`: run the measures in interleaved rounds and hold them against the bars."""

import importlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bascule.wire import _pure
from bench import kernels
from bench.bars import BARS, Round, verdict
from bench.measures import MEASURES, ROOT, Field, Measure, Sample
from bench.report import Finding, Report, as_json, findings, show, write_page
from bench.servers import IN_MEMORY, Servers, file_system, machine

GROUPS = """\b
Groups:
  a  acked envelopes over NATS      e  100 partitions
  b  acked PublishAsync over gRPC   f  latency of acks
  c  plain NATS messages            g  kernels against their pure twins
  d  catch-up Subscribe             h  three brokers: ack ALL, and fail-over
  i  programs with our Python client, nats-py, gufo_liftbridge
"""
WARM_UP_SCALE = 0.05
MIN_WIDTH = 110


@click.command(epilog=GROUPS)
@click.option("--rounds", default=5, show_default=True, help="Rounds; the medians count.")
@click.option("--only", default="a,b,c,d,e,f,g,h,i", help="Groups to run, e.g. a,d.")
@click.option("--scale", default=1.0, show_default=True, help="Fraction of the usual number of messages.")
@click.option("--dir", "folder", default="/var/tmp", show_default=True, help="Where data goes: a real disk.")
@click.option("--json", "json_output", is_flag=True, help="Print JSON instead of tables.")
@click.option("--write", is_flag=True, help="Write docs/benchmarks.md.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a bar is missed.")
def main(rounds: int, only: str, scale: float, folder: str, json_output: bool, write: bool, strict: bool) -> None:
    """Measure Bascule beside NATS JetStream, and the kernels beside their pure twins."""
    groups = only.replace(",", "").replace(" ", "")
    kind = file_system(Path(folder))
    if kind in IN_MEMORY:
        raise click.UsageError(f"{folder} is on {kind}, which is no disk: say --dir with a folder on one")
    chosen = needed(groups)
    try:
        samples = run(chosen, rounds, scale, Path(folder)) if chosen else []
    except RuntimeError as failed:
        raise click.ClickException(str(failed)) from None
    found = [*findings(samples, groups), *(kernel_findings() if "g" in groups else [])]
    report = Report(machine=machine(), file_system=kind, rounds=samples, findings=found)
    if json_output:
        print(as_json(report))
    else:
        console = Console()
        show(report, Console(width=max(console.width, MIN_WIDTH)))
    if write:
        write_page(report, ROOT / "docs" / "benchmarks.md")
    if strict and report.missed:
        sys.exit(1)


def needed(groups: str) -> list[Measure]:
    """The measures the chosen groups' bars look at, in their usual order."""
    names = {name for bar in BARS if bar.group in groups for name in bar.measures}
    return [measure for name, measure in MEASURES.items() if name in names]


def run(measures: Sequence[Measure], rounds: int, scale: float, folder: Path) -> list[Round]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="bascule-bench-", dir=folder) as data,
        Servers(Path(data)) as servers,
        Progress(*columns, console=Console(stderr=True), transient=True) as progress,
    ):
        task = progress.add_task("warming up", total=len(measures) * (rounds + 1))
        field = Field(servers, scale * WARM_UP_SCALE)

        def one(measure: Measure, stage: str) -> Sample:
            progress.update(task, description=f"{stage}: {measure.name}")
            sample = measure.run(field)
            progress.advance(task)
            return sample

        for measure in measures:
            one(measure, "warming up")
        field = Field(servers, scale)
        result: list[Round] = []
        for number in range(rounds):
            # Every other round runs backwards: what follows what should not matter.
            order = measures if number % 2 == 0 else list(reversed(measures))
            taken = {measure.name: one(measure, f"round {number + 1}") for measure in order}
            result.append({measure.name: taken[measure.name] for measure in measures})
        return result


def kernel_findings() -> list[Finding]:
    """How many times faster each compiled kernel is than its pure twin."""
    try:
        compiled = importlib.import_module("bascule.wire._kernels")
    except ImportError:
        raise click.ClickException("the compiled kernels are not built: run `make setup` with a C compiler") from None
    found = []
    for case in kernels.cases():
        fast, slow = kernels.measure(case, (compiled, _pure))
        least = kernels.BARS.get(case.name)
        bound = "" if least is None else f">= {least:g} x"
        found.append(Finding(f"kernel {case.name}", slow / fast, "x", bound, verdict(slow / fast, least, None)))
    return found


if __name__ == "__main__":
    main()
