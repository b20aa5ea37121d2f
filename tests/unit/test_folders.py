"""Tests stand alone: what several of them need is in `tests/harness`. `tests/unit` has the folders of the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.paths import ROOT

TESTS = ROOT / "tests"
HARNESS = "tests.harness"
FOLDERS = sorted(path.parent for path in (TESTS / "unit").rglob("__init__.py"))


def imported(text: str) -> Iterator[str]:
    """The modules of the suite that a file imports, at any depth of it: `tests.harness.members`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = "." * node.level + (node.module or "")
            names = [f"{package}.{alias.name}" if package == "tests" else package for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.startswith((".", "tests.")) or name == "tests")


def foreign_imports(text: str) -> list[str]:
    return [name for name in imported(text) if name != HARNESS and not name.startswith(f"{HARNESS}.")]


def test_nothing_is_imported_from_a_test() -> None:
    files = [path for folder in ("tests", "tools", "bench") for path in (ROOT / folder).rglob("*.py")]
    assert len(files) > 200
    found = {str(path.relative_to(ROOT)): names for path in files if (names := foreign_imports(path.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "from tests.unit.node.test_a import b",
        "from tests.unit import test_a",
        "from tests import unit",
        "import tests.unit.test_a",
        "from .test_a import b",
        "from . import test_a",
        "def test() -> None:\n    from tests.faults.load import Load",
    ],
)
def test_an_import_from_a_test_is_noticed(line: str) -> None:
    assert foreign_imports(line)
    assert (
        foreign_imports("from tests.harness.members import Member\nfrom tests.harness import led\nimport random") == []
    )


def test_the_harness_has_no_tests() -> None:
    found = [
        f"{path.name}: {node.name}"
        for path in sorted((TESTS / "harness").glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]
    assert found == []
    assert list((TESTS / "harness").glob("test_*.py")) == []


def test_unit_tests_are_in_the_folders_of_the_source() -> None:
    """Those of src/bascule, and `tools` and `bench` of the top of the repository."""
    tops = (ROOT / "src" / "bascule", ROOT)
    below = [folder.relative_to(TESTS / "unit") for folder in FOLDERS]
    assert [folder for folder in below if not any((top / folder).is_dir() for top in tops)] == []
    holding = {path.parent for path in (TESTS / "unit").rglob("test_*.py")}
    assert holding <= set(FOLDERS), "each folder is a package, so that two may have files of the same name"


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder != TESTS / "unit"], ids=lambda f: f.name)
def test_no_folder_is_empty(folder: Path) -> None:
    assert list(folder.rglob("test_*.py"))
