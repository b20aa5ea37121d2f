"""Fuzzing of one target: inputs that are made, or mutated from interesting ones, checked one by one.

Every case has a number. The number and the input are all that a replay needs: what a check chooses comes from the
number alone.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tools.fuzzing.chance import Chance, bent
from tools.fuzzing.coverage import Trace
from tools.fuzzing.target import FindingError, Target

FOLDER = Path("build") / "fuzz"
TRACED_ONE_IN = 16
CORPUS_ENTRIES = 1_000
CORPUS_ENTRY_BYTES = 100_000
MAX_FINDINGS = 3
"""Findings of one target and hunt: after so many the target is not run any more."""

Note = Callable[[Target, int, bytes], None]


class Case(NamedTuple):
    number: int
    data: bytes


class Hunt:
    def __init__(self, target: Target, seed: str) -> None:
        self.target = target
        self.executions = 0
        self.findings = 0
        self.corpus: list[bytes] = []
        self._features: set[object] = set()
        self._chance = Chance(f"{seed} {target.name}")

    @property
    def over(self) -> bool:
        return self.findings >= MAX_FINDINGS

    def case(self) -> Case:
        number = self._chance.getrandbits(48)
        chance = Chance(f"make {number}")
        target = self.target
        if self.corpus and chance.one_in(2):
            data = bent(chance, chance.choice(self.corpus), target.words, chance.choice(self.corpus))
        else:
            data = target.make(chance)
            if target.bend and chance.one_in(3):
                data = bent(chance, data, target.words)
        return Case(number, data)

    def step(self, note: Note) -> str | None:
        """One case. What was found, ready to be printed; else None."""
        case = self.case()
        note(self.target, case.number, case.data)
        self.executions += 1
        try:
            if self.executions % TRACED_ONE_IN == 1 and self.target.bend:
                self._traced(case)
            else:
                check(self.target, case)
        except Exception as error:
            self.findings += 1
            return report(self.target.name, case, described(error))
        return None

    def _traced(self, case: Case) -> None:
        with Trace() as trace:
            check(self.target, case)
        features = trace.features()
        if not features <= self._features and len(case.data) <= CORPUS_ENTRY_BYTES:
            self._features |= features
            if len(self.corpus) < CORPUS_ENTRIES:
                self.corpus.append(case.data)
            else:
                self.corpus[self._chance.randrange(CORPUS_ENTRIES)] = case.data


def check(target: Target, case: Case) -> None:
    target.check(case.data, Chance(f"check {case.number}"))


def described(error: Exception) -> str:
    """The text of a finding; any other error with its traceback."""
    if isinstance(error, FindingError):
        return str(error)
    return "".join(traceback.format_exception(error, limit=-4)).rstrip()


def report(name: str, case: Case, what: str, sanitized: bool = False) -> str:
    """Store the input, and return the report with the command that replays it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / f"{name}-{case.number}.input"
    path.write_bytes(case.data)
    option = " --sanitized" if sanitized else ""
    command = f"{_python()} -m tools.fuzz{option} --target {name} --seed {case.number} --input {path}"
    return f"FOUND target={name} seed={case.number} bytes={len(case.data)}\n  {what}\n  replay: {command}"


def _python() -> str:
    """This interpreter, as short as it is called from here."""
    local = Path(".venv") / "bin" / "python"
    return str(local) if local.exists() else "python"
