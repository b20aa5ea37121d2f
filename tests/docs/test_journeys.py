"""The journeys of docs/journey-of-a-message.md lead through the code as it is: each step names a function that exists,
each hop is in the text of the file it starts from, and the table at the end counts them.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest

from tests.harness.diagrams import rows
from tests.harness.paths import ROOT

SOURCE = ROOT / "src" / "bascule"
DOCUMENT = ROOT / "docs" / "journey-of-a-message.md"
_JOURNEY = re.compile(r"<!-- journey: (.+?) -->\n(.*?)(?=\n## |\n<!-- journey|\Z)", re.DOTALL)
_NUMBERED = re.compile(r"^\d+\. .*$", re.MULTILINE)
_STEP = re.compile(
    r"^(?P<number>\d+)\. `(?P<file>[\w/]+\.py)`: `(?P<function>[\w.]+)`(?: ← (?P<caller>\d+))?"
    r"(?: \((?P<way>[a-z-]+): (?P<word>[^)]+)\))? - (?P<text>\S.*)$"
)
WAYS = ("call", "task", "timer", "queue", "future", "return", "message", "late-bound")
NAMED_BY_ITS_CALLER = ("", "call", "task", "timer")


@dataclass(frozen=True)
class Step:
    number: int
    file: str
    function: str
    caller: int
    way: str
    word: str

    @property
    def name(self) -> str:
        return self.function.rpartition(".")[2]


def parsed(lines: list[str]) -> Iterator[Step]:
    for line in lines:
        match = _STEP.match(line)
        assert match is not None, f"not a step: {line}"
        number = int(match["number"])
        caller = int(match["caller"] or number - 1)
        yield Step(
            number, match["file"], match["function"], caller, match["way"] or "", (match["word"] or "").strip("`")
        )


def journeys(text: str) -> dict[str, list[Step]]:
    return {name: list(parsed(_NUMBERED.findall(body))) for name, body in _JOURNEY.findall(text)}


JOURNEYS = journeys(DOCUMENT.read_text())


@cache
def text_of(file: str) -> str:
    return (SOURCE / file).read_text()


@cache
def functions_of(file: str) -> set[str]:
    """Functions by their names, methods with those of their classes; of a file of names the names."""
    found = set()
    tree = ast.parse(text_of(file))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, _FUNCTIONS)}
        elif isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Name) and each.id == "__all__" for each in node.targets
        ):
            found |= set(ast.literal_eval(node.value))
    return found | {each.name for each in tree.body if isinstance(each, _FUNCTIONS)}


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def mentions(file: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text_of(file)) is not None


def problem(step: Step, before: dict[int, Step]) -> str:
    """What is wrong with a step; empty if nothing is."""
    if not (SOURCE / step.file).exists():
        return f"{step.file} is not there"
    if step.function not in functions_of(step.file):
        return f"{step.file} has no {step.function}"
    if step.way and step.way not in WAYS:
        return f"{step.way} is no way from one function to another"
    if step.number == 1:
        return ""
    if step.caller not in before:
        return f"no step {step.caller} before it"
    caller = before[step.caller]
    if step.way in NAMED_BY_ITS_CALLER:
        return "" if mentions(caller.file, step.name) else f"{caller.file} does not mention {step.name}"
    if step.way == "message":
        return ""
    if step.way == "return":
        return "" if mentions(step.file, caller.name) else f"{step.file} does not mention {caller.name}"
    named = mentions(caller.file, step.word) or mentions(step.file, step.word)
    return "" if named else f"neither {caller.file} nor {step.file} mentions {step.word}"


@pytest.mark.parametrize("journey", JOURNEYS)
def test_every_step_is_a_function_that_the_one_before_it_leads_to(journey: str) -> None:
    before: dict[int, Step] = {}
    found = []
    for step in JOURNEYS[journey]:
        assert step.number == len(before) + 1, "steps are numbered from one"
        if why := problem(step, before):
            found.append(f"{step.number}: {why}")
        before[step.number] = step
    assert found == []


def test_there_are_four_journeys_and_the_table_counts_them() -> None:
    assert list(JOURNEYS) == ["message", "CreateStream", "fail-over", "Subscribe"]
    counted = {
        row[0]: tuple(int(cell.split("→")[1]) for cell in row[1:5]) for row in rows("What the journeys cost", DOCUMENT)
    }
    assert counted == {
        name: (
            len(steps) - 1,
            len({step.file for step in steps}),
            sum(step.way == "late-bound" for step in steps),
            sum(step.way == "late-bound" and not by_address(step) for step in steps),
        )
        for name, steps in JOURNEYS.items()
    }


def by_address(step: Step) -> bool:
    """A message on NATS finds its function by its subject, a gRPC call by its path."""
    return step.word in ("subscribe", "fetch_responses", "fetch_requests", "subjects.raft", "methods")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("2. `log/gone.py`: `f` - it is gone", "log/gone.py is not there"),
        ("2. `log/sync.py`: `SyncScheduler.gone` - it is gone", "log/sync.py has no SyncScheduler.gone"),
        ("2. `net/http2.py`: `Http2Protocol.grant` - of somebody else", "log/appender.py does not mention grant"),
        ("2. `log/sync.py`: `SyncScheduler.enlist` ← 7 - of nobody", "no step 7 before it"),
        (
            "2. `log/sync.py`: `SyncScheduler.enlist` (magic: `x`) - it appears",
            "magic is no way from one function to another",
        ),
        ("2. `log/sync.py`: `SyncScheduler.enlist` - the log takes part in the next round", ""),
    ],
)
def test_a_wrong_step_is_found(line: str, why: str) -> None:
    first, second = parsed(["1. `log/appender.py`: `Appender.append` - the beginning", line])
    assert problem(second, {1: first}) == why
