"""`python -m bench.spark`: Spark on streams beside Spark on Parquet files and on Kafka, in interleaved rounds."""

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from bascule.errors import StartError
from bascule.testing.processes import start_broker
from bench.servers import IN_MEMORY, file_system
from bench.spark.measures import MEASURES, Bench, Sample, load_average, measures
from bench.spark.report import Report, Round, show

WARM_UPS = 1
ROWS = 2_000_000


@click.command()
@click.option("--rows", default=ROWS, show_default=True, help="How many records of 150 bytes.")
@click.option("--rounds", default=3, show_default=True, help="Rounds after one to warm up; the medians count.")
@click.option("--kafka/--no-kafka", default=True, help="Spark's Kafka source in the same run: its jars are fetched.")
@click.option("--only", default="", help="Measures to run, by words of their names, e.g. 'noop'.")
@click.option("--dir", "folder", default="/var/tmp", show_default=True, help="Where data goes: a real disk.")
@click.option("--json", "json_output", is_flag=True, help="Print JSON instead of tables.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a bar is missed.")
def main(rows: int, rounds: int, kafka: bool, only: str, folder: str, json_output: bool, strict: bool) -> None:
    """Spark reads a stream, archives it and writes one, beside what it does with Parquet files and Kafka."""
    kind = file_system(Path(folder))
    if kind in IN_MEMORY:
        raise click.UsageError(f"{folder} is on {kind}, which is no disk: say --dir with a folder on one")
    say = partial(Console(stderr=True, highlight=False).print, soft_wrap=True)
    try:
        with tempfile.TemporaryDirectory(prefix="bascule-spark-", dir=folder) as data:
            report = run(Path(data), rows, rounds, kafka, only, kind, say)
    except (RuntimeError, StartError) as failed:
        raise click.ClickException(str(failed)) from None
    if json_output:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        show(report)
    if strict and report.missed:
        sys.exit(1)


def run(folder: Path, rows: int, rounds: int, kafka: bool, only: str, kind: str, say: Callable[[str], None]) -> Report:
    names = [name for name in measures(kafka) if only.lower() in name.lower()]
    with start_broker(folder) as broker:
        bench = Bench(folder, broker, rows, kafka)
        try:
            bench.fill(say)
            taken = [_round(bench, names, number, say) for number in range(WARM_UPS + rounds)]
        finally:
            bench.close()
    return Report(rows, kind, load_average(), taken[WARM_UPS:])


def _round(bench: Bench, names: Sequence[str], number: int, say: Callable[[str], None]) -> Round:
    found: dict[str, Sample] = {}
    # Every other round runs backwards: what follows what should not matter.
    for name in names if number % 2 else reversed(names):
        found[name] = MEASURES[name](bench)
        what = f"round {number}" if number >= WARM_UPS else "warming up"
        say(f"{what}: {name} {json.dumps({key: round(value, 3) for key, value in asdict(found[name]).items()})}")
    return {name: found[name] for name in names}


if __name__ == "__main__":
    main()
