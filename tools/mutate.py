"""`make mutate`: whether the tests find planted bugs.

The catalogue (`tools/mutants/*.toml`) is a list of bugs, each a small patch with its finder: the simulator alone, or
tests by name. Every worker has a copy of the source tree; it applies one patch, runs the finder, and takes the patch
back. A mutant counts as found if the finder fails with the patch and passes without it. A patch that does not apply any
more, and one that nothing notices, count as missed. Exits with 1 if one is missed.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
CATALOGUE = ROOT / "tools" / "mutants"
COPIED = (
    "src",
    "tests",
    "tools",
    "bench",
    "docs",
    "pyproject.toml",
    "setup.py",
    "README.md",
    "CHANGELOG.md",
    "Makefile",
)
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
SIMULATE = "simulate"
FIRST_SEED = 5001
SEEDS = 200
DETAIL_CHARACTERS = 160
TEST_TIMEOUT_S = 300
ALL_TESTS_TIMEOUT_S = 1800
SIMULATE_TIMEOUT_S = 1800
_SEED = re.compile(r"^seed (\d+) violates the contract:\n  (.*)$", re.MULTILINE)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mutant:
    area: str
    name: str
    what: str
    file: str
    before: str
    after: str
    finder: str | list[str]
    brokers: int = 0
    faults: list[str] = field(default_factory=list)
    """Families of faults, for a simulation that is to have these and no others; none = as the seed says."""

    @property
    def simulated(self) -> bool:
        return self.finder == SIMULATE

    @property
    def tests(self) -> list[str]:
        return [] if isinstance(self.finder, str) else list(self.finder)

    @property
    def compiled(self) -> bool:
        return self.file.endswith((".pyx", ".pxi"))

    def patched(self, text: str) -> str | None:
        """The file with the bug in it; None if the patch does not apply."""
        if text.count(self.before) != 1 or self.before == self.after:
            return None
        return text.replace(self.before, self.after)

    @property
    def hints(self) -> list[str]:
        """Arguments of the simulator."""
        hints = ["--brokers", str(self.brokers)] if self.brokers else []
        return [*hints, "--faults", ",".join(self.faults)] if self.faults else hints


@dataclass(frozen=True, slots=True)
class Verdict:
    mutant: Mutant
    found_by: str
    """"" = missed."""
    detail: str
    seconds: float

    def __str__(self) -> str:
        outcome = f"found by {self.found_by}" if self.found_by else "MISSED"
        return f"{self.mutant.area}/{self.mutant.name}: {outcome} ({self.seconds:.0f} s) {self.detail}".rstrip()


def catalogue(folder: Path = CATALOGUE) -> list[Mutant]:
    """Those that tests find first, for they are cheap."""
    mutants = [
        Mutant(path.stem, **table)
        for path in sorted(folder.glob("*.toml"))
        for table in tomllib.loads(path.read_text())["mutant"]
    ]
    return sorted(mutants, key=lambda mutant: mutant.simulated)


def complaints(mutant: Mutant, root: Path = ROOT) -> Iterator[str]:
    """Why it cannot be planted, or not be found."""
    path = root / mutant.file
    if not path.is_file():
        yield f"there is no {mutant.file}"
    elif mutant.patched(path.read_text()) is None:
        yield f"`before` is in {mutant.file} {path.read_text().count(mutant.before)} times, or is the same as `after`"
    elif path.suffix == ".py":
        try:
            ast.parse(mutant.patched(path.read_text()) or "")
        except SyntaxError as error:
            yield f"what it makes of {mutant.file} is not Python: {error}"
    if not mutant.simulated and not mutant.tests:
        yield "it names no finder"
    for test in mutant.tests:
        file, _, name = test.partition("::")
        text = (root / file).read_text() if (root / file).is_file() else ""
        function = name.rpartition("::")[2].partition("[")[0]
        if not text or (function and f"def {function}(" not in text):
            yield f"there is no test {test}"


class Bench:
    """A copy of the tree to plant bugs in, one at a time."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=IGNORED)
            elif source.exists():
                shutil.copy2(source, folder / name)

    def plant(self, mutant: Mutant) -> str | None:
        """The file as it was; None if the patch does not apply."""
        path = self.root / mutant.file
        original = path.read_text() if path.is_file() else ""
        patched = mutant.patched(original)
        if patched is None:
            return None
        self._write(mutant, patched)
        return original

    def take_back(self, mutant: Mutant, original: str) -> None:
        self._write(mutant, original)

    def _write(self, mutant: Mutant, text: str) -> None:
        (self.root / mutant.file).write_text(text)
        if mutant.compiled:
            subprocess.run(
                [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
                cwd=self.root,
                check=True,
                timeout=600,
            )

    def run(self, *arguments: str, timeout_s: float) -> tuple[int | None, str]:
        """Exit status and output; None if it did not end in time."""
        paths = [str(self.root / "src"), str(self.root), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [sys.executable, *arguments],
                cwd=self.root,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, f"did not end within {timeout_s} s"
        return done.returncode, done.stdout

    def pytest(self, tests: list[str], timeout_s: float = TEST_TIMEOUT_S) -> tuple[int | None, str]:
        return self.run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests, timeout_s=timeout_s)

    def simulate(self, first_seed: int, seeds: int, hints: list[str]) -> tuple[int | None, str]:
        arguments = ("--first-seed", str(first_seed), "--seeds", str(seeds), *hints)
        return self.run("-m", "bascule.sim", *arguments, timeout_s=SIMULATE_TIMEOUT_S)


class Hunt:
    """One pass over the catalogue."""

    def __init__(self, mutants: list[Mutant], jobs: int, first_seed: int, seeds: int) -> None:
        self._mutants = mutants
        self._jobs = jobs
        self._first_seed = first_seed
        self._seeds = seeds
        self._benches: SimpleQueue[Bench] = SimpleQueue()

    def run(self) -> Iterator[Verdict]:
        with tempfile.TemporaryDirectory(prefix="bascule-mutate-") as folder:
            for number in range(self._jobs):
                self._benches.put(Bench(Path(folder) / str(number)))
            with ThreadPoolExecutor(self._jobs) as pool:
                yield from pool.map(self._hunt, self._mutants)

    def baseline(self) -> str:
        """Why the tests of the catalogue prove nothing: they fail without any mutant too. "" if they pass."""
        tests = list(dict.fromkeys(test for mutant in self._mutants for test in mutant.tests))
        if not tests:
            return ""
        with tempfile.TemporaryDirectory(prefix="bascule-mutate-") as folder:
            status, output = Bench(Path(folder) / "clean").pytest(tests, ALL_TESTS_TIMEOUT_S)
        return "" if status == 0 else output[-3000:]

    def _hunt(self, mutant: Mutant) -> Verdict:
        bench = self._benches.get()
        began = time.monotonic()
        try:
            found_by, detail = self._find(bench, mutant)
        finally:
            self._benches.put(bench)
        return Verdict(mutant, found_by, detail, time.monotonic() - began)

    def _find(self, bench: Bench, mutant: Mutant) -> tuple[str, str]:
        original = bench.plant(mutant)
        if original is None:
            return "", "; ".join(complaints(mutant, bench.root))
        try:
            found_by, detail = self._noticed(bench, mutant)
        finally:
            bench.take_back(mutant, original)
        if found_by.startswith("seed ") and bench.simulate(int(found_by.split()[1]), 1, mutant.hints)[0] != 0:
            return "", f"{found_by} fails without it too"
        return found_by, detail

    def _noticed(self, bench: Bench, mutant: Mutant) -> tuple[str, str]:
        if mutant.simulated:
            status, output = bench.simulate(self._first_seed, self._seeds, mutant.hints)
            if status == 1 and (match := _SEED.search(output)):
                return f"seed {match[1]}", match[2][:DETAIL_CHARACTERS]
            return "", f"by {self._seeds} seeds from {self._first_seed} on" if status == 0 else output[-300:]
        status, output = bench.pytest(mutant.tests)
        if status == 1 and (match := _FAILED.search(output)):
            return match[1], ""
        return "", "" if status == 0 else output[-300:]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutate", description=__doc__)
    parser.add_argument("--only", default="", help="mutants whose area/name contains this")
    parser.add_argument("--jobs", type=int, default=2, help="how many are tried at the same time")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="at most, for each mutant the simulator is to find")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    options = parser.parse_args()
    mutants = [mutant for mutant in catalogue() if options.only in f"{mutant.area}/{mutant.name}"]
    if not mutants:
        parser.error(f"no mutant has {options.only!r} in its name")
    hunt = Hunt(mutants, options.jobs, options.first_seed, options.seeds)
    if problem := hunt.baseline():
        print(f"the tests fail without any mutant:\n{problem}")
        return 1
    began = time.monotonic()
    verdicts: list[Verdict] = []
    for verdict in hunt.run():
        verdicts.append(verdict)
        print(verdict, flush=True)
    print(score(verdicts, time.monotonic() - began))
    return 0 if all(verdict.found_by for verdict in verdicts) else 1


def score(verdicts: list[Verdict], seconds: float) -> str:
    found = [verdict for verdict in verdicts if verdict.found_by]
    simulated = sum(verdict.mutant.simulated for verdict in found)
    return (
        f"mutants={len(verdicts)} found={len(found)} simulated={simulated} missed={len(verdicts) - len(found)} "
        f"minutes={seconds / 60:.1f}"
    )


if __name__ == "__main__":
    sys.exit(main())
