"""`make faults`: real brokers under every fault, many times.

Three brokers on one NATS server, written to all the time by two kinds of publishers with ack ALL, and read. Each run
reports what was acked and what can be read afterwards, and how long writes stalled in each of its rounds. Exits with 1
if anything acked is lost, stored twice, out of order or withdrawn, or if the cluster does not recover; the brokers'
logs and data are then not removed.
"""

import argparse
import asyncio
import functools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.harness import away_scenarios
from tests.harness import cluster_scenarios as scenarios
from tests.harness.cluster_load import Brokers, Report

Scenario = Callable[[Path, int, scenarios.OnRound], Coroutine[Any, Any, Report]]

SCENARIOS: dict[str, tuple[Scenario, int]] = {
    "kill_leaders": (scenarios.kill_leaders, 30),
    "kill_controllers": (scenarios.kill_controllers, 10),
    "kill_all": (scenarios.kill_all, 10),
    "pause_leaders": (functools.partial(scenarios.pause_leaders, long_too=True), 6),
    "cut_off": (scenarios.cut_off, 9),
    "restart_nats": (scenarios.restart_nats, 5),
    "wipe_each": (scenarios.wipe_each, 6),
    "wiped_founders": (scenarios.wiped_founders, 8),
    "recreate_while_down": (scenarios.recreate_while_down, 5),
    "rolling_restart": (scenarios.rolling_restart, 5),
    "away": (away_scenarios.away, 6),
    "damaged_tail": (away_scenarios.damaged_tail, 6),
}
RETAINED = Path("build") / "faults"


@dataclass(frozen=True)
class Run:
    scenario: str
    report: Report
    seconds: float


def run(name: str, rounds: int, on_round: scenarios.OnRound) -> Run:
    scenario, _ = SCENARIOS[name]
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"bascule-faults-{name}-"))
    report = Report(name)
    try:
        report = asyncio.run(scenario(folder, rounds, on_round))
    except Exception as error:  # a cluster that does not come back is a finding like any other
        report.failure = f"{type(error).__name__}: {error}"
    if report.clean:
        shutil.rmtree(folder)
    else:
        retained = RETAINED / f"{name}-{time.strftime('%H%M%S')}"
        retained.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder, retained)
        report.failure = f"{report.failure or 'see the numbers'}; logs and data are in {retained}"
    return Run(name, report, time.monotonic() - began)


def table(runs: list[Run]) -> Table:
    made = Table(box=box.SIMPLE, title="three brokers, ack ALL")
    columns = ["run", "rounds", "controller", "acked", "read", "lost", "twice", "out of order", "withdrawn"]
    for column in [*columns, "stood still, median", "worst", "seconds", ""]:
        made.add_column(column, justify="left" if column in ("run", "") else "right")
    for item in runs:
        made.add_row(item.scenario, *_cells(item.report), f"{item.seconds:.0f}", _verdict(item.report.clean))
    reports = [item.report for item in runs]
    total = Report("all", stalls_s=[stall for report in reports for stall in report.stalls_s])
    for name in ("controllers", "acked", "read", "lost", "duplicated", "disordered", "withdrawn"):
        setattr(total, name, sum(getattr(report, name) for report in reports))
    clean = all(report.clean for report in reports)
    made.add_section()
    made.add_row("all", *_cells(total), f"{sum(item.seconds for item in runs):.0f}", _verdict(clean))
    return made


def _cells(report: Report) -> list[str]:
    counts = [len(report.stalls_s), report.controllers, report.acked, report.read]
    wrong = [report.lost, report.duplicated, report.disordered, report.withdrawn]
    stalls = report.stalls_s or [0.0]
    return [*(str(count) for count in counts + wrong), f"{statistics.median(stalls):.2f} s", f"{max(stalls):.2f} s"]


def _verdict(clean: bool) -> str:
    return "[green]PASS[/]" if clean else "[red]FAIL[/]"


def as_json(runs: list[Run]) -> str:
    rows = []
    for item in runs:
        row = {key: value for key, value in asdict(item.report).items() if key not in ("name", "on_round")}
        rows.append({"scenario": item.scenario, **row, "seconds": round(item.seconds, 1), "clean": item.report.clean})
    return json.dumps(rows, indent=2)


def main() -> int:
    parser = argparse.ArgumentParser(description="Three real brokers under faults; 1 if anything acked is lost.")
    parser.add_argument("--only", default="", help=f"runs whose name contains this: {', '.join(SCENARIOS)}")
    parser.add_argument("--rounds", type=int, default=0, help="instead of the usual number")
    parser.add_argument("--other", type=Path, help="the `bascule` of another version, for every second broker")
    parser.add_argument("--json", action="store_true", help="JSON on stdout instead of a table")
    arguments = parser.parse_args()
    chosen = {name: arguments.rounds or usual for name, (_, usual) in SCENARIOS.items() if arguments.only in name}
    if not chosen:
        parser.error(f"no run has {arguments.only!r} in its name; there are {', '.join(SCENARIOS)}")
    if arguments.other and not os.access(arguments.other, os.X_OK):
        parser.error(f"{arguments.other} cannot be run: name the bascule program of another version")
    Brokers.other_version = arguments.other
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    runs: list[Run] = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=sum(chosen.values()))
        for name, rounds in chosen.items():
            progress.update(bar, description=name)
            runs.append(run(name, rounds, lambda stall_s: progress.advance(bar)))
            console.print(f"{runs[-1].report} seconds={runs[-1].seconds:.0f}", soft_wrap=True)
    if arguments.json:
        print(as_json(runs))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(table(runs))
    return 0 if all(item.report.clean for item in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
