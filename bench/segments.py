"""`python -m bench.segments`: what it costs that a partition has ten thousand segments.

The same messages are stored twice: in ten segments, and one in each. Both are started and looked up by time in turns.
Then nine thousand of the segments are deleted while a publisher goes on, and its acks are compared with those before.
"""

import asyncio
import json
import math
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import click
from rich import box
from rich.console import Console
from rich.table import Table

from bascule.client import Client
from bascule.testing.processes import BrokerProcess, start_broker
from bench.footprint import memory_mb
from bench.servers import IN_MEMORY, file_system, machine

STREAM, BESIDE = "segments", "beside"
SEGMENTS, FEW, DELETED = 10_000, 10, 9_000
VALUE = b"x" * 256
RECORD_BYTES = 330
"""About: of such a value as it is stored."""
ROUNDS = 3
LOOKUPS = 200
BEFORE_S = 10.0
RATE = 100.0
"""Publishes a second beside the deletion."""

NOT_MERGED_MS = 24 * 3600 * 1000
"""The cleaner's interval: it would merge them."""

MAX_START_S = 2.0
MAX_MEMORY_MB = 10.0
MAX_LOOKUP = MAX_P99 = 2.0


@dataclass(frozen=True)
class Row:
    what: str
    few: float
    many: float
    unit: str
    value: float
    bar: float
    bar_unit: str

    @property
    def verdict(self) -> str:
        return "PASS" if self.value <= self.bar else "MISS"


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


# --- the data --------------------------------------------------------------------------------------------------------


async def fill(address: str, segments: int, count: int) -> None:
    nbytes = 1 if segments == count else count * RECORD_BYTES // segments
    async with await Client.connect(address) as client:
        await client.create_stream(STREAM, STREAM, segment_max_bytes=nbytes, cleaner_interval_ms=NOT_MERGED_MS)
        await client.create_stream(BESIDE, BESIDE)
        for _ in range(count):  # each waits for its ack, so that each is a batch of its own
            await client.publish(STREAM, VALUE)


def filled(folder: Path, segments: int, count: int) -> Path:
    """A data folder, closed in good order."""
    with start_broker(folder) as broker:
        asyncio.run(fill(broker.address, segments, count))
        broker.terminate()
        data = folder / "filled"
        shutil.copytree(broker.data_dir, data)
    there = len(list(data.rglob(f"{STREAM}*/0/*.log")))
    if not 0.9 * segments <= there <= 1.2 * segments + 1:
        raise RuntimeError(f"{there} segments were made, and {segments} were wanted")
    return data


# --- what is measured ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    start_s: float
    rss_mb: float
    lookup_ms: float


async def looked_up(address: str, count: int, seed: int) -> float:
    """The median time from a request for a message by its time to that message, in ms."""
    chance = random.Random(seed)
    async with await Client.connect(address) as client:
        times = []
        for offset in (0, count - 1):
            async for message in client.subscribe(STREAM, start=offset, stop=offset):
                times.append(message.timestamp / 1e9)
        taken = []
        for _ in range(LOOKUPS):
            wanted = datetime.fromtimestamp(chance.uniform(times[0], times[1]), UTC)
            began = time.perf_counter()
            async for _message in client.subscribe(STREAM, start=wanted):
                break
            taken.append((time.perf_counter() - began) * 1000)
    return median(taken)


def opened(folder: Path, data: Path, count: int, seed: int) -> Measured:
    with start_broker(folder) as broker:
        broker.terminate()
        shutil.rmtree(broker.data_dir)
        shutil.copytree(data, broker.data_dir)
        began = time.monotonic()
        broker.start().wait_ready()
        start_s = time.monotonic() - began
        time.sleep(3.0)
        rss_mb = memory_mb(broker.pid, "VmRSS")
        lookup_ms = asyncio.run(looked_up(broker.address, count, seed))
        broker.terminate()
    return Measured(start_s, rss_mb, lookup_ms)


async def publish_for(client: Client, stream: str, goes_on: Callable[[], bool]) -> list[float]:
    """The times of acks of one publish after the other, at a steady rate, in ms. A late one delays those after it, so
    each is counted from when it was due."""
    taken = []
    due = time.perf_counter()
    while goes_on():
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await client.publish(stream, VALUE)
        taken.append((time.perf_counter() - due) * 1000)
        due += 1 / RATE
    return taken


async def deleted_beside(broker: BrokerProcess, stream: str) -> tuple[list[float], list[float], float]:
    """Acks before and during the deletion, and how long it took."""
    folder = next(broker.data_dir.rglob(f"{STREAM}*/0"))
    last = max(name for name in folder.glob("*.log") if int(name.stem) < DELETED)
    """The oldest go first. To list ten thousand names again and again would take the time that is measured here."""

    async with await Client.connect(broker.address) as client, await Client.connect(broker.address) as admin:
        until = time.perf_counter() + BEFORE_S
        before = await publish_for(client, stream, lambda: time.perf_counter() < until)
        began = time.perf_counter()
        deleting = asyncio.get_running_loop().create_task(admin.admin.delete_records(STREAM, 0, DELETED))
        over = asyncio.Event()

        async def watch() -> None:
            await deleting
            while last.exists():
                await asyncio.sleep(0.1)
            over.set()

        watching = asyncio.get_running_loop().create_task(watch())
        during = await publish_for(client, stream, lambda: not over.is_set())
        await watching
        return before, during, time.perf_counter() - began


def deletion(folder: Path, data: Path, stream: str) -> tuple[float, float, float]:
    """p99 before and during, in ms, and how long it took."""
    with start_broker(folder) as broker:
        broker.terminate()
        shutil.rmtree(broker.data_dir)
        shutil.copytree(data, broker.data_dir)
        broker.start().wait_ready()
        time.sleep(3.0)
        before, during, seconds = asyncio.run(deleted_beside(broker, stream))
        broker.terminate()
    return percentile(before, 0.99), percentile(during, 0.99), seconds


def measure(folder: Path, say: Callable[[str], None]) -> list[Row]:
    say(f"{SEGMENTS} messages, in {FEW} segments and in {SEGMENTS}")
    few = filled(folder / "few", FEW, SEGMENTS)
    many = filled(folder / "many", SEGMENTS, SEGMENTS)
    seen: dict[Path, list[Measured]] = {few: [], many: []}
    for number in range(ROUNDS):
        for data, found in seen.items():
            say(f"round {number + 1}: started and looked up, {'few' if data is few else 'many'} segments")
            found.append(opened(folder / f"{data.parent.name}{number}", data, SEGMENTS, number))

    def both(field: str) -> tuple[float, float]:
        one, other = (median(getattr(each, field) for each in seen[data]) for data in (few, many))
        return one, other

    start, memory, lookup = both("start_s"), both("rss_mb"), both("lookup_ms")
    rows = [
        Row("start to serving", *start, "s", start[1] - start[0], MAX_START_S, "s more"),
        Row("resident memory after the start", *memory, "MB", memory[1] - memory[0], MAX_MEMORY_MB, "MB more"),
        Row("a message found by its time, p50", *lookup, "ms", lookup[1] / lookup[0], MAX_LOOKUP, "x"),
    ]
    for stream, where in ((STREAM, "the same partition"), (BESIDE, "another stream")):
        deletions = []
        for number in range(ROUNDS):
            say(f"round {number + 1}: {DELETED} segments are deleted beside publishes to {where}")
            deletions.append(deletion(folder / f"deletion-{stream}{number}", many, stream))
        before, during, took = (median(each[part] for each in deletions) for part in range(3))
        what = f"ack of a publish to {where}, p99: before and while {DELETED} segments go, in {took:.1f} s"
        rows.append(Row(what, before, during, "ms", during / before, MAX_P99, "x"))
    return rows


def show(rows: list[Row]) -> None:
    table = Table(title=machine(), box=box.SIMPLE)
    for name in ("what", f"{FEW} segments, or before", f"{SEGMENTS} segments, or during", "compared", "bar", ""):
        table.add_column(name, justify="left" if name in ("what", "") else "right")
    for row in rows:
        style = "green" if row.verdict == "PASS" else "red"
        table.add_row(
            row.what,
            f"{row.few:.2f} {row.unit}",
            f"{row.many:.2f} {row.unit}",
            f"{row.value:.2f} {row.bar_unit}",
            f"<= {row.bar:g} {row.bar_unit}",
            f"[{style}]{row.verdict}[/]",
        )
    Console(width=200).print(table)


@click.command()
@click.option("--dir", "folder", default="/var/tmp", show_default=True, help="Where data goes: a real disk.")
@click.option("--json", "json_output", is_flag=True, help="Print JSON instead of a table.")
@click.option("--strict", is_flag=True, help="Exit with 1 if a bar is missed.")
def main(folder: str, json_output: bool, strict: bool) -> None:
    """A partition of ten thousand segments beside one of ten. The data is removed afterwards."""
    kind = file_system(Path(folder))
    if kind in IN_MEMORY:
        raise click.UsageError(f"{folder} is on {kind}, which is no disk: say --dir with a folder on one")
    say = Console(stderr=True, highlight=False).print
    try:
        with tempfile.TemporaryDirectory(prefix="bascule-segments-", dir=folder) as data:
            rows = measure(Path(data), say)
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
