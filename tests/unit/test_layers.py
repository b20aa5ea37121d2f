"""The shape of the source: imports point down only, protocol logic does no I/O, files and functions stay small."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import bascule

SOURCE = Path(bascule.__file__).parent
FILES = sorted(path for path in SOURCE.rglob("*.py") if not path.name.endswith("_pb2.py"))
CALLS_WITHOUT_IO = ("core", "wire")
IO_MODULES = {"asyncio", "time", "socket", "os", "threading", "random"}
IO_EXCEPTIONS = {("wire/kernels.py", "os")}  # reads the variable that chooses the twin, once, at import
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80

LEVELS = {
    **dict.fromkeys(("", "types", "errors", "limits", "ports"), 0),
    "wire": 1,
    **dict.fromkeys(("log", "net", "core"), 2),
    **dict.fromkeys(("node", "client"), 3),
    **dict.fromkeys(("spark", "console", "sim", "testing"), 4),
    "cli": 5,
}
FORBIDDEN = {
    "log": {"net", "core"},
    "net": {"log", "core"},
    "core": {"log", "net"},
    "node": {"client"},
    "client": {"node", "core", "log"},
    "spark": {"node", "core", "log", "console", "sim", "testing"},
    "sim": {"spark"},
    "testing": {"spark"},
}


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def part_of(path: Path) -> str:
    """The package, or the module at the root; the root's own __init__ is the empty name."""
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imported(tree: ast.AST, package: list[str]) -> Iterator[str]:
    """Full names of everything imported anywhere in the file, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def imports_of(path: Path) -> list[str]:
    package = ["bascule", *path.relative_to(SOURCE).parts[:-1]]
    return list(imported(ast.parse(path.read_text()), package))


def own_parts(path: Path) -> set[str]:
    """The parts of Bascule it imports. `from bascule import x` names x; a name of the root module itself is ''."""
    parts = set()
    for name in imports_of(path):
        words = name.split(".")
        if words[0] == "bascule" and len(words) > 1:
            parts.add(words[1] if words[1] in LEVELS else "")
    return parts


def violations(path: Path) -> list[str]:
    part = part_of(path)
    if part not in LEVELS:
        return [f"{name_of(path)}: the part {part!r} has no place in the layers"]
    found = []
    for other in sorted(own_parts(path) - {part}):
        if LEVELS[other] > LEVELS[part]:
            found.append(f"{name_of(path)} imports upwards: {other}")
        if other in FORBIDDEN.get(part, ()):
            found.append(f"{name_of(path)} may not know {other}")
    if part in CALLS_WITHOUT_IO:
        roots = {name.split(".")[0] for name in imports_of(path)}
        found += [
            f"{name_of(path)} does I/O: imports {module}"
            for module in sorted(roots & IO_MODULES)
            if (name_of(path), module) not in IO_EXCEPTIONS
        ]
    return found


def long_functions(path: Path) -> list[str]:
    return [
        f"{name_of(path)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]


def test_imports_point_down_and_protocol_logic_does_no_io() -> None:
    assert [line for path in FILES for line in violations(path)] == []


def test_no_source_file_is_too_long() -> None:
    kernels = [path for suffix in ("*.pyx", "*.pxi") for path in SOURCE.rglob(suffix)]
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in [*FILES, *sorted(kernels)]}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_no_function_is_too_long() -> None:
    assert [line for path in FILES for line in long_functions(path)] == []


@pytest.mark.parametrize(
    ("path", "text", "caught"),
    [
        ("wire/x.py", "import os\n", True),
        ("wire/kernels.py", "import os\n", False),
        ("wire/kernels.py", "import time\n", True),
        ("core/raft/x.py", "def f():\n    from asyncio import sleep\n", True),
        ("core/x.py", "from bascule.log import segment\n", True),
        ("log/x.py", "from ..net import nats\n", True),
        ("log/x.py", "import asyncio\nfrom bascule.wire import record\n", False),
        ("wire/x.py", "from bascule import log\n", True),
        ("wire/x.py", "from bascule import __version__\n", False),
        ("client/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import bascule.node.config\n", True),
        ("client/x.py", "import bascule.net.grpc\n", False),
        ("spark/x.py", "from bascule.client import stream\n", False),
        ("spark/x.py", "from bascule.log import reader\n", True),
        ("node/x.py", "from bascule.cli import output\n", True),
        ("errors.py", "from bascule.wire import record\n", True),
        ("novel/x.py", "", True),
    ],
)
def test_the_check_itself_catches_what_it_should(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str, text: str, caught: bool
) -> None:
    monkeypatch.setattr(f"{__name__}.SOURCE", tmp_path)
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text)
    assert bool(violations(tmp_path / path)) is caught


def test_the_check_for_long_functions_catches_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(f"{__name__}.SOURCE", tmp_path)
    for lines, count in ((79, 0), (80, 1)):
        (tmp_path / "x.py").write_text("async def f():\n" + "    pass\n" * lines)
        assert len(long_functions(tmp_path / "x.py")) == count
