"""What a run found: as tables on the terminal, as JSON, and as docs/benchmarks.md."""

import datetime
import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from bench.bars import BARS, Bar, Round, verdict
from bench.measures import ROOT, Sample

SUBPROCESS_TIMEOUT_S = 30


@dataclass(frozen=True)
class Finding:
    """One row against its bar, wherever it was measured."""

    text: str
    value: float
    unit: str
    bound: str
    verdict: str


@dataclass(frozen=True)
class Report:
    machine: str
    file_system: str
    rounds: Sequence[Round]
    findings: list[Finding]
    date: str = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"))

    @property
    def medians(self) -> dict[str, Sample]:
        """Each measure's median, number by number."""
        names = list(self.rounds[0]) if self.rounds else []
        return {name: middle([samples[name] for samples in self.rounds]) for name in names}

    @property
    def missed(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict == "MISS"]


def middle(samples: Sequence[Sample]) -> Sample:
    columns = [asdict(sample) for sample in samples]
    return Sample(**{name: median(column[name] for column in columns) for name in columns[0]})


def findings(rounds: Sequence[Round], groups: str) -> list[Finding]:
    return [_finding(bar, rounds) for bar in BARS if bar.group in groups]


def _finding(bar: Bar, rounds: Sequence[Round]) -> Finding:
    value = bar.over(rounds)
    return Finding(bar.text, value, bar.unit, bar.bound, verdict(value, bar.least, bar.most))


def commit() -> str:
    """The commit this ran on, with a mark when files had been changed."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SUBPROCESS_TIMEOUT_S,
        check=False,
    )
    return described.stdout.strip() or "unknown"


RATES = ("measure", "messages/s", "driver cores", "driver CPU us", "server CPU us", "with NATS us")
COMPARED = ("compared", "value", "bar", "")


def rate_rows(report: Report) -> list[tuple[str, ...]]:
    return [
        (
            name,
            f"{s.rate:,.0f}",
            f"{s.driver_us * s.rate / 1e6:.2f}",
            f"{s.driver_us:.2f}",
            f"{s.broker_us:.2f}",
            f"{s.server_us:.2f}",
        )
        for name, s in report.medians.items()
        if s.rate
    ]


def finding_rows(report: Report) -> list[tuple[str, ...]]:
    return [(f.text, f"{f.value:.2f} {f.unit}", f.bound, f.verdict) for f in report.findings]


def show(report: Report, console: Console) -> None:
    console.print(f"{report.machine}; {report.file_system}; median of {len(report.rounds)} rounds")
    for heads, rows in ((RATES, rate_rows(report)), (COMPARED, finding_rows(report))):
        if rows:
            console.print(_table(heads, rows))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    colours = {"PASS": "green", "MISS": "red"}
    table = Table(box=box.SIMPLE)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row, style=colours.get(row[-1], ""))
    return table


def as_json(report: Report) -> str:
    return json.dumps(
        {
            "date": report.date,
            "commit": commit(),
            "machine": report.machine,
            "file_system": report.file_system,
            "medians": {name: asdict(sample) for name, sample in report.medians.items()},
            "rounds": [{name: asdict(sample) for name, sample in samples.items()} for samples in report.rounds],
            "findings": [asdict(finding) for finding in report.findings],
        },
        indent=2,
    )


PAGE = """\
# Benchmarks

`make bench` measures Bascule and NATS JetStream in one run, with one driver (`bench/driver`, Go), in interleaved
rounds on one machine; the tables show medians. What counts is the ratio: absolute rates are those of this machine.

- Measured {date} at commit {commit}.
- {machine}; data on {file_system}; {rounds} rounds.
- One partition, values of 128 bytes, 1 000 messages in flight, both servers with their default settings unless the
  row says otherwise. Bascule with `group` has every acknowledged message synced to disk; JetStream by default syncs
  every two minutes, and with `sync_interval: always` before each ack.
- "JetStream async" is the official Go client's PublishAsync, what programs use. Part of its cost is that client: the
  row "lean client" publishes to JetStream with the same minimal client that Bascule's envelopes are published with.
- Consuming: "ordered consumer" with the client's defaults; "tuned" asks for 5 000 messages ahead, the fastest found.
- Processor times are per message. "with NATS" adds the NATS server a broker needs; JetStream is one itself. "driver
  cores" is how busy the driver was: near 1 on Subscribe, where decoding in one goroutine is the limit.
- 100 partitions: a publisher with a connection of its own for each. The bar compares publishers like the one of the
  one-partition row, 1 000 messages in flight each; the other row shares 1 000 between all of them, 10 each.
- Three brokers: one NATS server, three replicas, at least two in sync, and an ack only when every replica in sync has
  the message on its disk. Against it three JetStream servers with a file stream of three replicas, published to at
  the server that leads it. Processor times are those of all servers together.
- A new leader: kill -9 of the leader under light load, four times a round, until a message sent after it is acked by
  all replicas; the worst of all counts. The killed broker is back in sync before the next one is killed.
- Programs in Python: "driver CPU" is that of the program. nats-py publishes to JetStream, whose acks come before the
  disk has the message, and with "sync always" after that, as Bascule's do; it reads by pulling 1 000 at a time.
  gufo_liftbridge reads from and writes to Bascule. A program that awaits each ack sleeps in between, and pays for that.

## Rates

{rates}

## Against the bars

Ratios are computed in each round; the median of them is shown. Rows without a bar are for information.

{compared}
"""


def write_page(report: Report, path: Path) -> None:
    path.write_text(
        PAGE.format(
            date=report.date,
            commit=commit(),
            machine=report.machine,
            file_system=report.file_system,
            rounds=len(report.rounds),
            rates=_markdown(RATES, rate_rows(report)),
            compared=_markdown(COMPARED, finding_rows(report)),
        )
    )


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
