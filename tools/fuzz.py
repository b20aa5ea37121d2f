"""Fuzzing of everything that parses: `make fuzz`, or `python -m tools.fuzz --seconds 60`.

Two workers run side by side. `plain` hunts on every target with the installed kernels; `sanitized` hunts on the
targets that are kernels alone, with kernels built with the address and undefined-behaviour sanitizers. A difference
between the twins, an answer the protobuf library would not give, an error that must not come out, a crash or a hang
is a finding: it is printed with a command that replays it, its input is kept under build/fuzz/, and the end is 1.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tools.fuzzing.box import Box
from tools.fuzzing.hunt import FOLDER, Case, Hunt, check, described, report
from tools.fuzzing.sanitizers import NoSanitizersError, environment
from tools.fuzzing.targets import TARGETS

SLICE_S = 0.1
PROGRESS_S = 5.0
HANG_S = 60.0
MAX_STARTS = 4
"""Of one worker: each crash costs one."""


# --- the work ---------------------------------------------------------------------------------------------


def selected(names: list[str], kernels_only: bool) -> list[str]:
    return [name for name in names or TARGETS if TARGETS[name].kernels_only or not kernels_only]


def hunt_for(names: list[str], seed: str, seconds: float, box: Box) -> None:
    """Take turns on the targets until the time is up."""
    hunts = [Hunt(TARGETS[name], seed) for name in names]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not all(hunt.over for hunt in hunts):
        for hunt in hunts:
            end = min(time.monotonic() + SLICE_S, deadline)
            while time.monotonic() < end and not hunt.over:
                found = hunt.step(box.note)
                if found is not None:
                    box.found()
                    print(found, flush=True)


def count_on(names: list[str], seed: str, executions: int) -> tuple[int, list[str]]:
    """So many cases on each target: the same ones for the same seed. Gives executions and findings."""
    total, findings = 0, list[str]()
    for name in names:
        hunt = Hunt(TARGETS[name], seed)
        while hunt.executions < executions and not hunt.over:
            found = hunt.step(lambda *_: None)
            findings += [found] if found is not None else []
        total += hunt.executions
    return total, findings


def replay(name: str, number: int, path: Path) -> int:
    """One case again, in this process: 1 if it is still found."""
    case = Case(number, path.read_bytes())
    try:
        check(TARGETS[name], case)
    except Exception as error:
        print(f"FOUND target={name} seed={number} bytes={len(case.data)}\n  {described(error)}")
        return 1
    print(f"fuzz: target={name} seed={number}: nothing found")
    return 0


# --- the workers ------------------------------------------------------------------------------------------


@dataclass
class Worker:
    name: str
    options: list[str]
    environment: dict[str, str]
    seed: str
    deadline: float
    starts: int = 0
    executions: int = 0
    findings: int = 0
    moved_at: float = 0.0
    moved_to: int = -1
    """How many executions it had at `moved_at`."""
    process: subprocess.Popen[bytes] | None = None
    log: IO[bytes] | None = field(default=None, repr=False)

    @property
    def box_path(self) -> Path:
        return FOLDER / f"{self.name}.box"

    @property
    def log_path(self) -> Path:
        return FOLDER / f"{self.name}-{self.starts}.log"

    def start(self) -> None:
        seconds = self.deadline - time.monotonic()
        command = [sys.executable, "-m", "tools.fuzz", "--worker", str(self.box_path), "--seconds", f"{seconds:.1f}"]
        with Box(self.box_path, create=True):
            pass
        seed = f"{self.seed}.{self.starts}" if self.starts else self.seed
        self.starts += 1
        self.log = self.log_path.open("wb")
        environment = os.environ | self.environment
        self.process = subprocess.Popen([*command, "--run", seed, *self.options], env=environment, stderr=self.log)
        self.moved_at = time.monotonic()

    def counts(self) -> tuple[int, int]:
        """Of all its starts."""
        if self.process is None:
            return self.executions, self.findings
        with Box(self.box_path) as box:
            executions, findings = box.counts()
        return self.executions + executions, self.findings + findings

    def look(self) -> bool:
        """Whether it still runs. A crash or a hang is a finding; the worker is then started again with another seed."""
        if self.process is None:
            return False
        before = self.executions
        status = self.process.poll()
        if status is None and not self._hangs():
            return True
        if status is None:
            self.process.kill()
        self.process.wait()
        if self.log is not None:
            self.log.close()
        self.executions, self.findings = self.counts()
        self.process = None
        if status != 0:
            self._report_crash(status, self.executions > before)
            if self.starts < MAX_STARTS and self.deadline - time.monotonic() > 1:
                self.start()
                return True
        return False

    def _hangs(self) -> bool:
        now, executions = time.monotonic(), self.counts()[0]
        if executions != self.moved_to:
            self.moved_to, self.moved_at = executions, now
        return now - self.moved_at > HANG_S

    def _report_crash(self, status: int | None, began: bool) -> None:
        self.findings += 1
        said = self.log_path.read_text(errors="replace").strip().splitlines()
        what = f"hangs for {HANG_S:.0f} s" if status is None else f"the worker {self.name} died with status {status}"
        telling = [line for line in said if "ERROR:" in line or "SUMMARY:" in line or "runtime error" in line]
        what = "\n  ".join([what, *(telling[:4] or said[-6:]), f"its output: {self.log_path}"])
        if not began:
            print(f"FOUND before the first case: {what}", flush=True)
            return
        with Box(self.box_path) as box:
            name, case = box.last()
        print(report(name, case, what, sanitized=bool(self.environment)), flush=True)


def supervise(names: list[str], seconds: float, seed: str) -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    chosen = [option for name in names for option in ("--target", name)]
    print(f"fuzz: seed={seed}", flush=True)
    sanitized: dict[str, str] = {}
    if selected(names, kernels_only=True):
        try:
            sanitized = environment()
        except NoSanitizersError as error:
            print(f"fuzz: no sanitizers here ({error}); going on without", flush=True)
    began = time.monotonic()
    workers = [Worker("plain", chosen, {}, seed, began + seconds)]
    if sanitized:
        workers.append(Worker("sanitized", [*chosen, "--kernels-only"], sanitized, f"{seed}s", began + seconds))
    try:
        for worker in workers:
            worker.start()
        _watch(workers, began)
    finally:
        for worker in workers:
            if worker.process is not None:
                worker.process.kill()
                worker.process.wait()
    executions, findings = _totals(workers)
    count = len(selected(names, kernels_only=False))
    took = time.monotonic() - began
    print(f"fuzz: targets={count} executions={executions} seconds={took:.0f} findings={findings}", flush=True)
    return 1 if findings else 0


def _watch(workers: list[Worker], began: float) -> None:
    reported_at = began
    running = workers
    while running:
        time.sleep(0.2)
        running = [worker for worker in running if worker.look()]
        if time.monotonic() - reported_at >= PROGRESS_S:
            reported_at = time.monotonic()
            executions, findings = _totals(workers)
            print(f"fuzz: {reported_at - began:.0f} s, executions={executions} findings={findings}", flush=True)


def _totals(workers: list[Worker]) -> tuple[int, int]:
    counts = [worker.counts() for worker in workers]
    return sum(one for one, _ in counts), sum(one for _, one in counts)


# --- the command ------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description="Fuzz everything that parses.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", default="", help="of the run, or with --input of the case; by default any")
    parser.add_argument("--target", action="append", default=[], choices=sorted(TARGETS), help="only this one")
    parser.add_argument("--input", type=Path, help="replay this input on the target, with the case's seed")
    parser.add_argument("--sanitized", action="store_true", help="replay with the sanitizers")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--run", default="", help=argparse.SUPPRESS)
    parser.add_argument("--kernels-only", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        os.nice(5)
        with Box(given.worker) as box:
            hunt_for(selected(given.target, given.kernels_only), given.run, given.seconds, box)
        return 0
    if given.input is None:
        return supervise(given.target, given.seconds, given.seed or str(secrets.randbelow(1 << 32)))
    if len(given.target) != 1 or not given.seed.isdigit():
        parser.error("--input needs one --target and the --seed of its case")
    if given.sanitized:
        command = [sys.executable, *sys.orig_argv[1:]]
        command.remove("--sanitized")
        return subprocess.run(command, env=os.environ | environment(), check=False).returncode
    return replay(given.target[0], int(given.seed), given.input)


if __name__ == "__main__":
    sys.exit(main())
