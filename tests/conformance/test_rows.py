"""Every row of the protocol has a test here, every test names its rows, and every deviation is on record.

`rows.txt` is the list. The numbers are those of the facts about Liftbridge that Bascule is built to: 1 the gRPC API,
2 envelopes and acks, 3 behaviours, 4 settings, 7 the tests of the Go server, 10 what clients rely on, 11 its defects.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.harness.paths import ROOT

HERE = Path(__file__).parent
COMPATIBILITY = (ROOT / "docs" / "compatibility.md").read_text()
_ROW = re.compile(r"(\d+(\.\d+)*): \S|\d+\.\d+ [A-Z]|11\.\d+$")


def cases() -> Iterator[ast.FunctionDef]:
    for path in HERE.glob("test_*.py"):
        if path.name != Path(__file__).name:
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    yield node


def rows_of(test: ast.FunctionDef) -> set[str]:
    """Those in its docstring, and in the ids of its parameters."""
    texts = [ast.get_docstring(test) or ""]
    for decorator in test.decorator_list:
        texts += [
            str(node.value.value)
            for node in ast.walk(decorator)
            if isinstance(node, ast.keyword) and node.arg == "id" and isinstance(node.value, ast.Constant)
        ]
    parts = [part.strip().removesuffix(".") for text in texts for part in " ".join(text.split()).split("; ")]
    return {part for part in parts if _ROW.match(part)}


def listed() -> dict[str, str]:
    """Each row, and why it has no test here if it has none."""
    lines = (line for line in (HERE / "rows.txt").read_text().splitlines() if line)
    pairs = [line.partition(" -- ")[::2] for line in lines]
    assert len({row for row, _ in pairs}) == len(pairs)
    return dict(pairs)


def test_every_row_has_a_test_or_a_reason() -> None:
    named = set().union(*map(rows_of, cases()))
    assert named == {row for row, reason in listed().items() if not reason}


def test_every_test_names_its_row() -> None:
    assert [test.name for test in cases() if not rows_of(test)] == []


def test_every_defect_of_the_go_server_is_dealt_with() -> None:
    numbers = {row.split(".")[1].partition(":")[0].partition(" ")[0] for row in listed() if row.startswith("11.")}
    assert numbers == {str(number) for number in range(1, 27)}


def test_reasons_name_tests_that_exist() -> None:
    paths = [path for reason in listed().values() for path in re.findall(r"tests/[\w/.]+", reason)]
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_deviation_is_in_the_documents() -> None:
    rows = [line.split(" | ")[0].removeprefix("| ") for line in COMPATIBILITY.splitlines() if line.startswith("| ")]
    marks = [
        str(node.args[0].value)
        for test in cases()
        for node in test.decorator_list
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "pytest.mark.differs"
        and isinstance(node.args[0], ast.Constant)
    ]
    assert len(marks) > 15
    assert [mark for mark in marks if mark not in rows] == []
