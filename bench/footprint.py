"""`python -m bench.footprint`: what a broker costs that holds a log of 2 GB.

Fills one partition with plain NATS messages of 1 KiB and watches the broker's resident memory meanwhile; lets ten
subscribers read all of it at once; leaves it alone; stops it, kills it, and takes the time from the start of the
process until it serves. The page cache is the system's, not the broker's: it does not count as resident memory.
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click
from rich import box
from rich.console import Console
from rich.table import Table

from bascule.testing.processes import BrokerProcess, start_broker
from bench.measures import Field
from bench.servers import IN_MEMORY, Servers, file_system, machine

GB = 1_000_000_000
VALUE_BYTES = 1024
SUBSCRIBERS = 10
IDLE_S = 20.0
STARTS = 3
DRIVER_TIMEOUT = "10m"
STREAM = {"stream": "footprint", "subject": "footprint"}

MAX_RSS_MB = 120.0
MAX_IDLE_PERCENT = 1.0
MAX_START_S = 1.0


@dataclass(frozen=True)
class Row:
    what: str
    value: float
    unit: str
    bar: float

    @property
    def verdict(self) -> str:
        return "PASS" if self.value < self.bar else "MISS"


def memory_mb(pid: int, field: str) -> float:
    """`VmRSS`: resident now. `VmHWM`: the peak, as counted by the kernel."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"/proc/{pid}/status has no {field}")


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def running_seconds(pid: int) -> float:
    """Time on a processor, over all threads, to the nanosecond: an idle process uses less than a tick of the clock."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def publishing(field: Field, broker: BrokerProcess, count: int) -> Row:
    forget_peak(broker.pid)
    flags = {"nats": broker.nats_url, "size": VALUE_BYTES, "timeout": DRIVER_TIMEOUT}
    field.drive("plain", address=broker.address, count=count, **flags, **STREAM)
    return Row("resident memory while publishing, peak", memory_mb(broker.pid, "VmHWM"), "MB", MAX_RSS_MB)


def catching_up(field: Field, broker: BrokerProcess, count: int) -> Row:
    def read(_: int) -> None:
        flags = {"size": VALUE_BYTES, "timeout": DRIVER_TIMEOUT}
        field.drive("subscribe-raw", address=broker.address, count=count, **flags, **STREAM)

    forget_peak(broker.pid)
    with ThreadPoolExecutor(SUBSCRIBERS) as readers:
        list(readers.map(read, range(SUBSCRIBERS)))
    peak_mb = memory_mb(broker.pid, "VmHWM")
    return Row(f"resident memory while {SUBSCRIBERS} subscribers catch up, peak", peak_mb, "MB", MAX_RSS_MB)


def idling(broker: BrokerProcess) -> Row:
    before = running_seconds(broker.pid)
    time.sleep(IDLE_S)
    percent = (running_seconds(broker.pid) - before) / IDLE_S * 100
    return Row(f"idle for {IDLE_S:g} s, of one core", percent, "%", MAX_IDLE_PERCENT)


def starting(broker: BrokerProcess, what: str, end: Callable[[], object]) -> Row:
    """From the start of the process to the first answer, after it was ended this way."""
    seconds = []
    for _ in range(STARTS):
        end()
        begin = time.monotonic()
        broker.start().wait_ready()
        seconds.append(time.monotonic() - begin)
    return Row(f"start to serving after {what}", median(seconds), "s", MAX_START_S)


def killed_while_publishing(field: Field, broker: BrokerProcess) -> None:
    flags = {"nats": broker.nats_url, "size": VALUE_BYTES, "count": 1_000_000_000, "timeout": "1s"}

    def publish() -> None:
        try:
            field.drive("plain", address=broker.address, **flags, **STREAM)
        except RuntimeError:
            pass  # its broker was killed

    publisher = threading.Thread(target=publish)
    publisher.start()
    time.sleep(0.5)
    broker.kill9()
    publisher.join()


def measure(folder: Path, nbytes: int, say: Callable[[str], None]) -> list[Row]:
    count = nbytes // VALUE_BYTES
    with start_broker(folder) as broker:
        field = Field(Servers(folder), scale=1.0)
        field.drive("create", address=broker.address, **STREAM)
        say(f"publishing {nbytes / GB:g} GB")
        rows = [publishing(field, broker, count)]
        held = sum(file.stat().st_size for file in broker.data_dir.rglob("*.log"))
        if held < nbytes:
            raise RuntimeError(f"the log holds only {held} of {nbytes} bytes: {broker.log_tail()}")
        say(f"{SUBSCRIBERS} subscribers read it")
        rows.append(catching_up(field, broker, count))
        say("idle")
        rows.append(idling(broker))
        say("stopped and started")
        rows.append(starting(broker, "a clean stop", broker.terminate))
        say("killed and started")
        rows.append(starting(broker, "kill -9", lambda: killed_while_publishing(field, broker)))
        rows.append(Row("resident memory after that start, peak", memory_mb(broker.pid, "VmHWM"), "MB", MAX_RSS_MB))
    return rows


def show(rows: list[Row]) -> None:
    table = Table(title=machine(), box=box.SIMPLE)
    for name in ("what", "measured", "bar", ""):
        table.add_column(name, justify="left" if name in ("what", "") else "right")
    for row in rows:
        style = "green" if row.verdict == "PASS" else "red"
        measured, bar = f"{row.value:.2f} {row.unit}", f"< {row.bar:g} {row.unit}"
        table.add_row(row.what, measured, bar, f"[{style}]{row.verdict}[/]")
    Console().print(table)


@click.command()
@click.option("--gb", default=2.0, show_default=True, help="Size of the log.")
@click.option("--dir", "folder", default="/var/tmp", show_default=True, help="Where data goes: a real disk.")
@click.option("--json", "json_output", is_flag=True, help="Print JSON instead of a table.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a bar is missed.")
def main(gb: float, folder: str, json_output: bool, strict: bool) -> None:
    """Memory, idle CPU and start times of one broker with a large log. The data is removed afterwards."""
    kind = file_system(Path(folder))
    if kind in IN_MEMORY:
        raise click.UsageError(f"{folder} is on {kind}, which is no disk: say --dir with a folder on one")
    say = Console(stderr=True, highlight=False).print
    try:
        with tempfile.TemporaryDirectory(prefix="bascule-footprint-", dir=folder) as data:
            rows = measure(Path(data), int(gb * GB), say)
    except RuntimeError as failed:
        raise click.ClickException(str(failed)) from None
    if json_output:
        print(json.dumps([{**asdict(row), "verdict": row.verdict} for row in rows], indent=2))
    else:
        show(rows)
    if strict and any(row.verdict == "MISS" for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
