"""`python -m bench.scale`: what a thousand partitions cost, on three brokers with three replicas each.

Makes a stream, writes one message with ack ALL into every partition so that each has its files, has fifty clients fetch
the metadata of all of them at once, leaves the cluster alone, stops one broker with SIGTERM, takes the time until it is
back in every in-sync set, and kills another one. Of three brokers the worst counts.

Meanwhile a meter inside each broker (`meter/sitecustomize.py`) notes what holds its event loop, in processor time: one
callback, which nothing can interrupt. Each phase has the longest.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from bascule.client import Client, Partition
from bascule.errors import BasculeError
from bench.footprint import Row, memory_mb, running_seconds, show
from bench.servers import IN_MEMORY, REPLICAS, BasculeCluster, Servers, file_system

STREAM = "scale"
IDLE_S = 20.0
SETTLE_S = 3.0
"""Background work after creating and writing is done by then."""
TIMEOUT_S = 120.0
POLL_S = 0.1
WRITERS = 50
LEAVER = "b"
VICTIM = "c"
FETCHERS = 50
METER = Path(__file__).parent / "meter"

MAX_CREATE_S = 20.0
MAX_IDLE_PERCENT = 3.0
MAX_RSS_MB = 250.0
DEFAULT_OPEN_FILES = 1024
MAX_DRAIN_S = 15.0
MAX_BACK_S = 30.0
MAX_KILLED_S = 15.0
MAX_HELD_MS = 20.0


class Meter:
    """What held the event loops of the brokers, phase by phase."""

    def __init__(self, folder: Path, brokers: str) -> None:
        self._files = {name: folder / f"loop-{name}" for name in brokers}
        self._began = time.monotonic()

    @property
    def env(self) -> dict[str, dict[str, str]]:
        return {
            name: {
                "PYTHONPATH": os.pathsep.join([str(METER), os.environ.get("PYTHONPATH", "")]),
                "BASCULE_LOOP_METER": str(file),
            }
            for name, file in self._files.items()
        }

    def begin(self) -> None:
        self._began = time.monotonic()

    def row(self, phase: str) -> Row:
        """The longest since `begin`; the next phase begins here."""
        longest, what = 0.0, "nothing over 5 ms"
        for file in self._files.values():
            for line in file.read_text().splitlines() if file.exists() else ():
                ended, took, collecting, name = line.split(" ", 3)
                if float(ended) >= self._began and float(took) > longest:
                    longest, what = float(took), name
                    if float(collecting) > longest / 2:
                        what = "garbage collection"
        self.begin()
        return Row(f"{phase}: loop held longest, by {what}", longest * 1000, "ms", MAX_HELD_MS)


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def open_files_limit(pid: int) -> int:
    for line in Path(f"/proc/{pid}/limits").read_text().splitlines():
        if line.startswith("Max open files"):
            return int(line.split()[3])
    raise RuntimeError(f"/proc/{pid}/limits says nothing about open files")


async def creating(client: Client, partitions: int) -> Row:
    began = time.monotonic()
    await client.create_stream(STREAM, partitions=partitions, replication_factor=REPLICAS, timeout=TIMEOUT_S)
    return Row(f"stream of {partitions} partitions, {REPLICAS} replicas, created", _since(began), "s", MAX_CREATE_S)


async def write_to_each(client: Client, partitions: int) -> None:
    async def write(first: int) -> None:
        for partition in range(first, partitions, WRITERS):
            await client.publish(STREAM, b"x", partition=partition, timeout=TIMEOUT_S)

    await asyncio.gather(*(write(first) for first in range(WRITERS)))


async def fetching(addresses: list[str], partitions: int) -> Row:
    """Every client does it when it starts, and all do it at once after a fail-over."""

    async def fetch(number: int) -> None:
        async with await Client.connect([addresses[number % len(addresses)]]) as client:
            for _ in range(3):
                metadata = await client.fetch_metadata(timeout=TIMEOUT_S)
                if len(metadata.streams[STREAM].partitions) != partitions:
                    raise RuntimeError("an answer lacks partitions")

    began = time.monotonic()
    await asyncio.gather(*(fetch(number) for number in range(FETCHERS)))
    return Row(f"{FETCHERS} clients fetched it three times each", _since(began), "s", MAX_CREATE_S)


async def killing(cluster: BasculeCluster, client: Client) -> Row:
    """kill -9 of one broker, to the moment from which others lead everything."""
    began = time.monotonic()
    cluster.brokers[VICTIM].kill9()
    while any(item.leader == VICTIM for item in await _partitions(client)):
        if _since(began) > TIMEOUT_S:
            raise RuntimeError(f"the killed broker still leads something after {TIMEOUT_S} s")
        await asyncio.sleep(POLL_S)
    return Row("a broker killed, others lead everything", _since(began), "s", MAX_KILLED_S)


async def idling(cluster: BasculeCluster) -> list[Row]:
    pids = [broker.pid for broker in cluster.brokers.values()]
    await asyncio.sleep(SETTLE_S)
    before = [running_seconds(pid) for pid in pids]
    await asyncio.sleep(IDLE_S)
    percents = [(running_seconds(pid) - then) / IDLE_S * 100 for pid, then in zip(pids, before, strict=True)]
    limit = min(open_files_limit(pid) for pid in pids)
    return [
        Row(f"idle for {IDLE_S:g} s, of one core", max(percents), "%", MAX_IDLE_PERCENT),
        Row("resident memory, peak", max(memory_mb(pid, "VmHWM") for pid in pids), "MB", MAX_RSS_MB),
        Row(f"open files (the limit here is {limit})", max(map(open_files, pids)), "", DEFAULT_OPEN_FILES),
    ]


async def draining(cluster: BasculeCluster, client: Client) -> Row:
    """SIGTERM to one broker: to its end, and to the moment from which others lead everything."""
    broker = cluster.brokers[LEAVER]
    began = time.monotonic()
    code = await asyncio.to_thread(broker.terminate, TIMEOUT_S)
    drained = Row("a broker stopped by SIGTERM, all handed over", _since(began), "s", MAX_DRAIN_S)
    if code != 0:
        raise RuntimeError(f"the stopped broker ended with {code}: {broker.log_tail()}")
    leaders = Counter(item.leader for item in await _partitions(client))
    if LEAVER in leaders:
        raise RuntimeError(f"the stopped broker still leads {leaders[LEAVER]} partitions")
    return drained


async def returning(cluster: BasculeCluster, client: Client) -> Row:
    broker = cluster.brokers[LEAVER]
    began = time.monotonic()
    broker.start()
    while not all(len(item.isr) == REPLICAS for item in await _partitions(client)):
        if _since(began) > TIMEOUT_S:
            raise RuntimeError(f"the stopped broker is not back in sync after {TIMEOUT_S} s: {broker.log_tail()}")
        await asyncio.sleep(POLL_S)
    return Row("started again, in every in-sync set", _since(began), "s", MAX_BACK_S)


async def _partitions(client: Client) -> list[Partition]:
    while True:
        try:
            metadata = await client.fetch_metadata([STREAM])
            return list(metadata.streams[STREAM].partitions.values())
        except BasculeError:
            await asyncio.sleep(POLL_S)


def _since(began: float) -> float:
    return time.monotonic() - began


async def measure(folder: Path, partitions: int, say: Callable[[str], None]) -> list[Row]:
    with Servers(folder) as servers:
        meter = Meter(folder, "abc")
        cluster = servers.bascule_cluster(meter.env)
        staying = [broker.address for name, broker in cluster.brokers.items() if name not in (LEAVER, VICTIM)]
        async with await Client.connect(staying) as client:
            say(f"creating {partitions} partitions")
            meter.begin()
            rows = [await creating(client, partitions), meter.row("creation")]
            say("writing into each")
            await write_to_each(client, partitions)
            rows.append(meter.row("first messages"))
            say(f"{FETCHERS} clients fetch the metadata")
            rows += [await fetching(cluster.addresses, partitions), meter.row("fetches")]
            say("idle")
            rows += [*await idling(cluster), meter.row("idle")]
            say("stopping one broker")
            rows += [await draining(cluster, client), meter.row("drain")]
            say("starting it again")
            rows += [await returning(cluster, client), meter.row("restart")]
            say("killing another one")
            rows += [await killing(cluster, client), meter.row("kill")]
    return rows


@click.command()
@click.option("--partitions", default=1000, show_default=True, help="Of the one stream.")
@click.option("--dir", "folder", default="/var/tmp", show_default=True, help="Where data goes: a real disk.")
@click.option("--json", "json_output", is_flag=True, help="Print JSON instead of a table.")
def main(partitions: int, folder: str, json_output: bool) -> None:
    """Many partitions on three brokers. Exits with 1 if a bar is missed. The data is removed afterwards."""
    kind = file_system(Path(folder))
    if kind in IN_MEMORY:
        raise click.UsageError(f"{folder} is on {kind}, which is no disk: say --dir with a folder on one")
    say = Console(stderr=True, highlight=False).print
    try:
        with tempfile.TemporaryDirectory(prefix="bascule-scale-", dir=folder) as data:
            rows = asyncio.run(measure(Path(data), partitions, say))
    except (RuntimeError, BasculeError) as failed:
        raise click.ClickException(str(failed)) from None
    if json_output:
        print(json.dumps([{**asdict(row), "verdict": row.verdict} for row in rows], indent=2))
    else:
        show(rows)
    if any(row.verdict == "MISS" for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
