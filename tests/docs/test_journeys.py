"""The journeys of docs/journey-of-a-message.md lead through the code as it is: each step names a function that exists,
each hop is in the text of the file it starts from, and the tables count them.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness.paths import ROOT

SOURCE = ROOT / "src" / "bascule"
DOCUMENT = ROOT / "docs" / "journey-of-a-message.md"
DECISION = ROOT / "docs" / "decisions" / "hops.md"
_JOURNEY = re.compile(r"<!-- journey: (.+?) -->\n(.*?)(?=\n## |\n<!-- journey|\Z)", re.DOTALL)
_NUMBERED = re.compile(r"^\d+\. .*$", re.MULTILINE)
_STEP = re.compile(
    r"^(?P<number>\d+)\. `(?P<file>[\w/]+\.py)`: `(?P<function>[\w.]+)`(?: ← (?P<caller>\d+))?"
    r"(?: \((?P<way>[a-z-]+): (?P<word>[^)]+)\))? - (?P<text>\S.*)$"
)
WAYS = ("call", "task", "timer", "queue", "future", "return", "message", "late-bound", "handed-over")
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


def leads_to(caller: Step, name: str) -> bool:
    """Whether the function mentions it, or another one of its file does that it mentions."""
    texts, seen = [body_of(caller.file, caller.function)], {caller.function}
    for text in texts:
        if re.search(rf"\b{re.escape(name)}\b", text):
            return True
        for each in functions_of(caller.file) - seen:
            if re.search(rf"\b{re.escape(each.rpartition('.')[2])}\b", text):
                seen.add(each)
                texts.append(body_of(caller.file, each))
    return False


@cache
def body_of(file: str, function: str) -> str:
    """The text of a function; of a kernel, which is in another file, that of the file that names it."""
    owner, _, name = function.rpartition(".")
    body: list[ast.stmt] = ast.parse(text_of(file)).body
    if owner:
        body = [each for node in body if isinstance(node, ast.ClassDef) and node.name == owner for each in node.body]
    found = [each for each in body if isinstance(each, _FUNCTIONS) and each.name == name]
    return ast.get_source_segment(text_of(file), found[0]) or "" if found else text_of(file)


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
        named = leads_to(caller, step.name) if step.way in ("", "call") else mentions(caller.file, step.name)
        return "" if named else f"{caller.function} in {caller.file} does not mention {step.name}"
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


def test_there_are_five_journeys() -> None:
    assert list(JOURNEYS) == ["message", "Publish", "CreateStream", "fail-over", "Subscribe"]


# --- the tables ----------------------------------------------------------------------------------------------------


class Count(NamedTuple):
    hops: int
    files: int
    late_bound: int
    one_by_one: int
    """Late-bound, and functions that are handed over as values."""


def counted(steps: list[Step]) -> Count:
    """A hop leads from one step to the next."""
    ways = [step.way for step in steps]
    late_bound = ways.count("late-bound")
    return Count(len(steps) - 1, len({step.file for step in steps}), late_bound, late_bound + ways.count("handed-over"))


def table(document: Path) -> dict[str, list[list[str]]]:
    """By journey, each count before and now."""
    found = re.findall(r"^\| ([\w-]+) \| (.+ → .+) \|$", document.read_text(), re.MULTILINE)
    return {name: [cell.split(" → ") for cell in cells.split(" | ")] for name, cells in found}


@pytest.mark.parametrize("document", [DOCUMENT, DECISION], ids=lambda path: path.name)
def test_the_tables_count_the_hops(document: Path) -> None:
    shown = {name: [int(now) for _, now in cells] for name, cells in table(document).items()}
    assert shown == {name: list(counted(steps)) for name, steps in JOURNEYS.items()}


def test_both_tables_are_the_same() -> None:
    assert table(DOCUMENT) == table(DECISION)


def test_late_bound_hops_are_at_most_half_of_those_before() -> None:
    walked = {name: cells for name, cells in table(DECISION).items() if name != "Publish"}
    halved = {name: [2 * int(now) <= int(before) for before, now in cells[2:]] for name, cells in walked.items()}
    all_of_them = [True, True]
    assert halved == {**dict.fromkeys(walked, all_of_them), "Subscribe": [True, False]}, "docs/decisions/hops.md"


def test_hops_are_counted() -> None:
    lines = [
        "1. `a.py`: `f` - the beginning",
        "2. `b.py`: `g` (late-bound: `x`) - by a subject",
        "3. `b.py`: `h` ← 1 (handed-over: `h`) - as a value",
        "4. `b.py`: `i` (task: one) - a task",
    ]
    assert counted(list(parsed(lines))) == Count(hops=3, files=2, late_bound=1, one_by_one=2)


# --- what the checks find ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("2. `log/gone.py`: `f` - it is gone", "log/gone.py is not there"),
        ("2. `log/sync.py`: `SyncScheduler.gone` - it is gone", "log/sync.py has no SyncScheduler.gone"),
        (
            "2. `net/http2.py`: `Http2Protocol.grant` - of somebody else",
            "Appender.append in log/appender.py does not mention grant",
        ),
        ("2. `log/sync.py`: `SyncScheduler.enqueue` ← 7 - of nobody", "no step 7 before it"),
        (
            "2. `log/sync.py`: `SyncScheduler.enqueue` (magic: `x`) - it appears",
            "magic is no way from one function to another",
        ),
        (
            "2. `log/appender.py`: `Appender._start_fresh` - only another function of that file leads there",
            "Appender.append in log/appender.py does not mention _start_fresh",
        ),
        ("2. `log/appender.py`: `Appender._queue` - reserves room", ""),
    ],
)
def test_a_wrong_step_is_found(line: str, why: str) -> None:
    first, second = parsed(["1. `log/appender.py`: `Appender.append` - the beginning", line])
    assert problem(second, {1: first}) == why
