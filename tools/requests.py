"""`make requests`: random valid and invalid requests to every method of a broker, under load.

One broker, or three, are written to and read all the time (ack ALL), while callers send random requests to every method
that the descriptors have. Exits with 1 if a broker ends, logs an error, or answers that it failed inside; if anything
holds its event loop for longer than 100 ms; if its memory, descriptors or tasks grow; or if an acked message of the
load is lost. The brokers' logs and data are then not removed.
"""

import argparse
import asyncio
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from bascule.client import Client
from bascule.errors import BasculeError
from bascule.testing.probe import call
from bascule.testing.processes import BrokerProcess
from bascule.wire.pb import admin_pb2 as admin
from tests.harness.cluster_load import STREAM, Brokers, Load, Report
from tools.fuzzing.chance import Chance
from tools.requesting.callers import Answers, Caller
from tools.requesting.methods import every_method
from tools.requesting.requests import MOST_PARTITIONS, OWN_STREAMS, STREAMS, Requests
from tools.requesting.watch import Watch, descriptors

NAMES = "abc"
CALLERS = 24
SETTINGS = {
    "cursors.stream.partitions": 2,
    "activity.stream.enabled": True,
    "groups.consumer.timeout": "2s",
    "groups.coordinator.timeout": "1s",
    "clustering.min.insync.replicas": 1,
}
SETTLE_S = 5.0
GROW_TIMEOUT_S = 120.0
SWEEP_EVERY_S = 5.0
SAY_EVERY_S = 30.0
MOST_OTHER_STREAMS = 10
"""Of names that came about by chance: more are deleted, so that what a broker has to know stays bounded."""

MOST_HELD_MS = 100.0
MOST_GROWTH_MIB = 8.0
MOST_GROWTH = 0.05
MOST_MORE_DESCRIPTORS = 12
MOST_MORE_TASKS = 12
RETAINED = Path("build") / "requests"
_ERROR = re.compile(r" (?:ERROR|CRITICAL) .*|^Traceback.*|^\w*(?:Error|Exception): .*", re.MULTILINE)
_EXPECTED = ("below min ISR", "events are missing in the activity stream")
"""Errors that requests may bring about: a stream that needs more replicas than it has; the activity stream read-only
for longer than its events are held."""
_NUMBERS = re.compile(r"\d+")


class Before(NamedTuple):
    """What a broker had before it was called."""

    files: Counter[str]
    tasks: int


class Run:
    """One cluster, called at random."""

    def __init__(self, folder: Path, brokers: int, seconds: float, seed: str) -> None:
        self.findings: list[str] = []
        self.answers = Answers()
        self._folder = folder
        self._names = NAMES[:brokers]
        self._seconds = seconds
        self._seed = seed
        self._watch = Watch(folder, self._names)
        self._began = self._ended = 0.0

    async def run(self) -> None:
        watch, names = self._watch, self._names
        with Brokers(self._folder, names, peers=len(names) > 1, config=SETTINGS, env=watch.environments) as brokers:
            os.nice(5)  # those that call, not the brokers
            pids = {name: broker.pid for name, broker in brokers.brokers.items()}
            async with Load(brokers) as load:
                await load.with_client(self._grow)
                await asyncio.sleep(SETTLE_S)
                watch.look(brokers.brokers)
                before = {name: Before(descriptors(brokers[name]), self._tasks(name)) for name in names}
                await self._call(brokers, load)
                await self._calm(load)
                self._check_use(brokers, before)
                self._check_load(await load.finish(Report("load")))
            self._check_processes(brokers, pids)
        self._check_loops()

    async def _grow(self, client: Client) -> None:
        """As many partitions as the requests may ever make: what a broker needs for them it has from now on."""
        for name in STREAMS:
            await client.create_stream(
                name, partitions=MOST_PARTITIONS, replication_factor=len(self._names), timeout=GROW_TIMEOUT_S
            )
        for name in STREAMS:
            await client.delete_stream(name, timeout=GROW_TIMEOUT_S)

    async def _call(self, brokers: Brokers, load: Load) -> None:
        self._began = time.monotonic()
        until_s = asyncio.get_running_loop().time() + self._seconds
        requests = Requests(Chance(f"{self._seed} requests"), self._names, STREAM)
        methods = every_method()
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(self._look(brokers, load)), group.create_task(self._sweep(load))]
            callers = [
                group.create_task(
                    Caller(
                        Chance(f"{self._seed} {number}"), brokers.addresses, methods, requests, self.answers
                    ).run(until_s)
                )
                for number in range(CALLERS)
            ]  # fmt: skip
            await asyncio.gather(*callers)
            for task in beside:
                task.cancel()
        self._ended = time.monotonic()

    async def _look(self, brokers: Brokers, load: Load) -> None:
        said_at = time.monotonic()
        while True:
            await asyncio.sleep(1.0)
            self._watch.look(brokers.brokers)
            if time.monotonic() - said_at >= SAY_EVERY_S:
                said_at = time.monotonic()
                held = self._watch.held(self._began)[:1]
                memory = ", ".join(f"{name} {use.rss[-1][1] >> 20} MiB" for name, use in self._watch.usage.items())
                print(
                    f"{said_at - self._began:.0f} s: calls={self.answers.calls} acked={len(load.acked)} {memory}; "
                    f"longest callback {held[0][0] if held else 0:.0f} ms",
                    flush=True,
                )

    async def _sweep(self, load: Load) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            try:
                await load.with_client(lambda client: self._delete_others(client, MOST_OTHER_STREAMS))
            except BasculeError as error:
                print(f"streams of other names could not be deleted: {error}", flush=True)

    async def _delete_others(self, client: Client, most: int, retained: tuple[str, ...] = STREAMS) -> None:
        found = (await client.fetch_metadata()).streams
        others = [name for name in found if name not in (*retained, *OWN_STREAMS, STREAM)]
        for name in others[most:]:
            await client.delete_stream(name)

    async def _calm(self, load: Load) -> None:
        """No stream but the load's, every broker takes part again, and nobody calls."""
        await load.with_client(lambda client: self._delete_others(client, 0, retained=()))
        for name in self._names:
            host, _, port = load.brokers.addresses[0].rpartition(":")
            request = admin.UndrainBrokerRequest(broker=name).SerializeToString()
            await asyncio.to_thread(call, host, int(port), "/bascule.v1.Admin/UndrainBroker", request)
        await asyncio.sleep(SETTLE_S)

    # --- what is found ---------------------------------------------------------------------------------------

    def _tasks(self, name: str) -> int:
        counts = self._watch.tasks(name)
        return counts[-1][1] if counts else 0

    def _check_use(self, brokers: Brokers, before: dict[str, Before]) -> None:
        self._watch.look(brokers.brokers)
        for name, use in self._watch.usage.items():
            middle, last = use.grown(self._began, self._ended)
            files, tasks = descriptors(brokers[name]), self._tasks(name)
            print(
                f"{name}: memory {middle:.0f} MiB in the middle, {last:.0f} MiB at the end, at most "
                f"{use.highest_mib:.0f} MiB; descriptors {before[name].files.total()} -> {files.total()}; "
                f"tasks {before[name].tasks} -> {tasks}"
            )
            if last > middle * (1 + MOST_GROWTH) + MOST_GROWTH_MIB:
                self.findings.append(f"the memory of {name} grows: {middle:.0f} MiB, then {last:.0f} MiB")
            if files.total() > before[name].files.total() + MOST_MORE_DESCRIPTORS:
                self.findings.append(f"{name} has more open: {files - before[name].files}")
            if tasks > before[name].tasks + MOST_MORE_TASKS:
                self.findings.append(f"{name} has more tasks: {before[name].tasks}, then {tasks}")

    def _check_load(self, report: Report) -> None:
        print(report)
        if not report.clean:
            self.findings.append(f"the load: {report}")

    def _check_processes(self, brokers: Brokers, pids: dict[str, int]) -> None:
        for name, broker in brokers.brokers.items():
            if not broker.running or broker.pid != pids[name]:
                self.findings.append(f"{name} has ended: {broker.log_tail()}")
            self.findings += [f"{name} logs {count} times:{line}" for line, count in errors_of(broker).items()]
        self.findings += self.answers.failed_inside()

    def _check_loops(self) -> None:
        held = self._watch.held(self._began)
        for took, name, what in held[:10]:
            print(f"the loop of {name} was held for {took:.0f} ms by {what}")
        self.findings += [
            f"the loop of {name} was held for {took:.0f} ms by {what}"
            for took, name, what in held
            if took > MOST_HELD_MS
        ]


def errors_of(broker: BrokerProcess) -> dict[str, int]:
    """The errors in its log, each once, and how often it is there."""
    lines = (_NUMBERS.sub("#", found.group()) for found in _ERROR.finditer(broker.logs()))
    return dict(Counter(line for line in lines if not any(text in line for text in _EXPECTED)))


def describe(answers: Answers) -> None:
    for method in every_method():
        statuses = answers.statuses.get(method.path, Counter())
        counts = ", ".join(f"{status} {count}" for status, count in statuses.most_common())
        print(f"{method.path}: {counts or 'never called'}")
    for (path, text), count in answers.internal.most_common(60):
        print(f"  {path}: {count} x {text}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.requests", description="Call every method at random.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--brokers", type=int, default=1, choices=(1, 3))
    parser.add_argument("--seed", default="", help="by default any")
    given = parser.parse_args()
    seed = given.seed or str(secrets.randbelow(1 << 32))
    folder = Path(tempfile.mkdtemp(prefix="requests-"))
    print(f"requests: brokers={given.brokers} seconds={given.seconds:.0f} seed={seed}", flush=True)
    run = Run(folder, given.brokers, given.seconds, seed)
    try:
        asyncio.run(run.run())
    except Exception as error:
        run.findings.append(f"the run ended with {error!r}")
    describe(run.answers)
    for finding in run.findings:
        print(f"FOUND {finding}")
    print(f"requests: calls={run.answers.calls} findings={len(run.findings)}", flush=True)
    if run.findings:
        RETAINED.mkdir(parents=True, exist_ok=True)
        retained = shutil.move(folder, RETAINED / f"{seed}")
        print(f"logs and data are in {retained}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
