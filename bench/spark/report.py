"""The rows of a run, and what they are held against."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.bars import verdict
from bench.report import commit
from bench.servers import machine
from bench.spark.measures import Sample

Round = Mapping[str, Sample]
WIDTH = 120


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


@dataclass(frozen=True)
class Bar:
    """Its value is the median over the rounds: what slowed one of them down slowed both sides."""

    text: str
    measures: tuple[str, ...]
    value: Callable[[Round], float]
    unit: str = "x"
    least: float | None = None
    most: float | None = None

    @property
    def bound(self) -> str:
        if self.least is not None:
            return f">= {number(self.least)} {self.unit}"
        return "" if self.most is None else f"<= {number(self.most)} {self.unit}"


def _cpu(ours: str, theirs: str, most: float) -> Bar:
    def value(samples: Round) -> float:
        return samples[ours].spark_us / samples[theirs].spark_us

    return Bar(f"processor time of Spark a row, {ours} / {theirs}", (ours, theirs), value, most=most)


def _time(ours: str, theirs: str, most: float) -> Bar:
    def value(samples: Round) -> float:
        return samples[theirs].rate / samples[ours].rate

    return Bar(f"time, {ours} / {theirs}", (ours, theirs), value, most=most)


def _rate(name: str, least: float) -> Bar:
    return Bar(f"rows a second, {name}", (name,), lambda samples: samples[name].rate, "rows/s", least=least)


def _faster(ours: str, theirs: str, least: float) -> Bar:
    def value(samples: Round) -> float:
        return samples[ours].rate / samples[theirs].rate

    return Bar(f"rows a second, {ours} / {theirs}", (ours, theirs), value, least=least)


BARS = (
    _cpu("stream to noop", "Parquet to noop", 1.6),
    _rate("stream to noop", 1_000_000),
    _faster("stream to noop", "Kafka to noop", 2.0),
    _time("stream to Parquet archive", "Parquet to Parquet", 1.5),
    _rate("Parquet to stream", 150_000),
)


@dataclass(frozen=True)
class Finding:
    text: str
    value: float
    unit: str
    bound: str
    verdict: str


@dataclass(frozen=True)
class Report:
    rows: int
    file_system: str
    load: float
    """The load average at the end: of two busy tasks it is 2 to 4."""
    rounds: Sequence[Round]
    date: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d"))

    @property
    def findings(self) -> list[Finding]:
        found = []
        for bar in BARS:
            if all(name in self.rounds[0] for name in bar.measures):
                value = median(bar.value(samples) for samples in self.rounds)
                found.append(Finding(bar.text, value, bar.unit, bar.bound, verdict(value, bar.least, bar.most)))
        return found

    @property
    def missed(self) -> list[Finding]:
        return [each for each in self.findings if each.verdict == "MISS"]

    @property
    def medians(self) -> dict[str, Sample]:
        return {name: middle([samples[name] for samples in self.rounds]) for name in self.rounds[0]}

    def as_dict(self) -> dict[str, Any]:
        return {
            "date": self.date,
            "commit": commit(),
            "machine": machine(),
            "file_system": self.file_system,
            "load_average": self.load,
            "rows": self.rows,
            "kafka": any("Kafka" in name for name in self.rounds[0]),
            "medians": {name: asdict(each) for name, each in self.medians.items()},
            "rounds": [{name: asdict(each) for name, each in samples.items()} for samples in self.rounds],
            "findings": [asdict(each) for each in self.findings],
        }


def middle(samples: Sequence[Sample]) -> Sample:
    columns = [asdict(each) for each in samples]
    return Sample(**{name: median(column[name] for column in columns) for name in columns[0]})


def show(report: Report) -> None:
    """As tables of Markdown, which can be read and copied."""
    console = Console(width=max(WIDTH, Console().width))
    console.print(
        f"{report.rows:,} rows; {machine()}; {report.file_system}; load average {report.load:.0f}; median of "
        f"{len(report.rounds)} rounds; commit {commit()}"
    )
    if not any("Kafka" in name for name in report.rounds[0]):
        console.print("Kafka was not measured.")
    rates = [
        (name, f"{each.rate:,.0f}", f"{each.spark_us:.2f}", f"{each.server_us:.2f}")
        for name, each in report.medians.items()
    ]
    console.print(_table(("measure", "rows/s", "Spark CPU us a row", "broker CPU us a row"), rates))
    compared = [(each.text, f"{number(each.value)} {each.unit}", each.bound, each.verdict) for each in report.findings]
    console.print(_table(("compared", "value", "bar", ""), compared))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    colours = {"PASS": "green", "MISS": "red"}
    table = Table(box=box.MARKDOWN)
    for column, head in enumerate(heads):
        table.add_column(head, justify="left" if column == 0 else "right")
    for row in rows:
        table.add_row(*row, style=colours.get(row[-1], ""))
    return table
