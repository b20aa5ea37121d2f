"""The shape of the source: imports point down only and form no cycle, protocol logic does no I/O, files and
functions stay small."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import bascule

SOURCE = Path(bascule.__file__).parent
ARCHITECTURE = SOURCE.parents[1] / "docs" / "architecture.md"
IMPORTS_BEGIN = "<!-- imports: written by `pytest tests/unit/test_layers.py --rewrite` -->"
IMPORTS_END = "<!-- end of imports -->"
FILES = sorted(path for path in SOURCE.rglob("*.py") if not path.name.endswith("_pb2.py"))
CALLS_WITHOUT_IO = ("core", "wire")
IO_MODULES = {"asyncio", "time", "socket", "os", "threading", "random"}
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 80

LEVELS = {
    **dict.fromkeys(("", "types", "errors", "limits", "ports"), 0),
    "wire": 1,
    **dict.fromkeys(("log", "net", "core"), 2),
    **dict.fromkeys(("node", "client"), 3),
    **dict.fromkeys(("spark", "console", "sim", "testing"), 4),
    "pipelines": 5,
    "cli": 6,
}
FORBIDDEN = {
    "log": {"net", "core"},
    "net": {"log", "core"},
    "core": {"log", "net"},
    "node": {"client"},
    "client": {"node", "core", "log"},
    "spark": {"node", "core", "log", "console", "sim", "testing"},
    "pipelines": {"node", "core", "log", "net", "console", "sim", "testing"},
    "sim": {"spark", "pipelines"},
    "testing": {"spark", "pipelines"},
}
NODE_ORDER = (
    "process",
    "api",
    "controller",
    "groups",
    "partition",
    "replication",
    "membership",
    "calls",
    "runtime",
    "config",
)
"""The packages of node/, from the top down: each may import those below it. No file stands beside them."""
WIRED = ("core", "wire", "log", "net", "node", "client")
"""Where every part is given what it needs when it is made."""
GIVEN_AT_START = {
    # Two parts that need each other: the second is given to the first when both are there and work begins. There is no
    # default: what is called before fails. docs/architecture.md says of each why.
    ("node/membership/peers.py", "_on_peer"),
    ("node/membership/peers.py", "_on_unknown_broker"),
    ("node/membership/raft.py", "_on_role"),
}


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def part_of(path: Path) -> str:
    """The package, or the module at the root; the root's own __init__ is the empty name."""
    first = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imported(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Modules, and full names out of them, imported anywhere in the file, also in functions and under TYPE_CHECKING."""
    package = ["bascule", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module, [f"{module}.{alias.name}" for alias in node.names]


def imports_of(path: Path) -> list[str]:
    return [name for module, names in imported(path) for name in (module, *names)]


def import_graph(paths: list[Path]) -> dict[str, list[str]]:
    """By file, the files of Bascule it imports anywhere: at its head, inside functions, under TYPE_CHECKING."""
    modules = {".".join(("bascule", *path.relative_to(SOURCE).with_suffix("").parts)): path for path in paths}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    graph: dict[str, list[str]] = {}
    for path in paths:
        # `from package import module` is about that module, `from package import name` about the package's own file.
        used = [name if name in modules else module for module, names in imported(path) for name in names or [module]]
        found = {name_of(modules[name]): None for name in used if name in modules}
        found.pop(name_of(path), None)
        graph[name_of(path)] = list(found)
    return graph


def cycles(graph: dict[str, list[str]]) -> set[tuple[str, ...]]:
    """The sets of files that reach each other (strongly connected components of more than one file)."""
    reached = {file: reach(graph, file) for file in graph}
    sets = {tuple(sorted(other for other in there if file in reached[other])) for file, there in reached.items()}
    return {each for each in sets if each}


def reach(graph: dict[str, list[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for file in graph[waiting.pop()]:
            if file not in found:
                found.add(file)
                waiting.append(file)
    return found


def callback_types(trees: list[ast.Module]) -> tuple[set[str], set[str]]:
    """Names that stand for a Callable, and the protocols."""
    callbacks, protocols = {"Callable"}, set()
    for node in (node for tree in trees for node in tree.body):
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Callable["):
            callbacks |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases):
            protocols.add(node.name)
    return callbacks, protocols


def loose_wiring(tree: ast.Module, callbacks: set[str], protocols: set[str]) -> Iterator[tuple[str, bool]]:
    """Callbacks, and parts behind a protocol, that are set from outside or later, and whether a default hides that
    nobody did it: attributes, fields of a class, and arguments of a constructor."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and named(each, callbacks)]
            names = [ast.unparse(each.target) for each in fields if each.value is not None]
            yield from ((name, True) for name in names if not name.startswith("_"))
        elif isinstance(node, ast.FunctionDef) and node.name == "__init__":
            given = node.args
            arguments = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
            positional = zip((*given.posonlyargs, *given.args)[::-1], given.defaults[::-1], strict=False)
            for argument, default in (*positional, *zip(given.kwonlyargs, given.kw_defaults, strict=True)):
                if isinstance(default, ast.Lambda):
                    yield argument.arg, True
            yield from slots(node, callbacks, protocols, arguments)


def slots(
    function: ast.FunctionDef, callbacks: set[str], protocols: set[str], arguments: set[str]
) -> Iterator[tuple[str, bool]]:
    for node in ast.walk(function):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Attribute):
            continue
        if node.value is None:
            if named(node, callbacks | protocols):
                yield node.target.attr, False
        elif named(node, callbacks):
            # A list of callbacks is a slot if others may add to it; what a call returns was made here.
            hidden = isinstance(node.value, ast.Dict | ast.List) and node.target.attr.startswith("_")
            if not (hidden or isinstance(node.value, ast.Call) or ast.unparse(node.value) in arguments):
                yield node.target.attr, True


def named(node: ast.AnnAssign, types: set[str]) -> bool:
    return any(isinstance(each, ast.Name) and each.id in types for each in ast.walk(node.annotation))


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
        found += [f"{name_of(path)} does I/O: imports {module}" for module in sorted(roots & IO_MODULES)]
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


def upward_in_node(graph: dict[str, list[str]]) -> list[str]:
    """Imports in node/ that do not point down, and files that are in none of its packages."""
    found = []
    places = {package: place for place, package in enumerate(NODE_ORDER)}
    files = [file for file in graph if file.startswith("node/") and file != "node/__init__.py"]
    for file in files:
        own = places.get(file.split("/")[1])
        if own is None:
            found.append(f"{file} is in no package of node/")
            continue
        used = [other for other in graph[file] if other.startswith("node/")]
        found += [f"{file} imports upwards: {other}" for other in used if places.get(other.split("/")[1], -1) < own]
    return found


def test_imports_between_the_packages_of_node_point_down() -> None:
    assert upward_in_node(import_graph(FILES)) == []


@pytest.mark.parametrize(
    ("path", "text", "caught"),
    [
        ("node/partition/a.py", "from bascule.node.replication.b import x\n", False),
        ("node/partition/a.py", "from bascule.node.partition.b import x\n", False),
        ("node/partition/a.py", "def f():\n    from bascule.node.api import b\n", True),
        ("node/membership/a.py", "if TYPE_CHECKING:\n    from bascule.node.partition.b import x\n", True),
        ("node/config/a.py", "from ..runtime import b\n", True),
        ("node/a.py", "", True),
        ("node/novel/a.py", "", True),
    ],
)
def test_the_check_of_the_packages_sees_hidden_imports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str, text: str, caught: bool
) -> None:
    monkeypatch.setattr(f"{__name__}.SOURCE", tmp_path)
    others = {f"node/{package}/b.py": "" for package in NODE_ORDER}
    for name, content in {**others, path: text}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert bool(upward_in_node(import_graph(sorted(tmp_path.rglob("*.py"))))) is caught


# --- the graph, in the documents -----------------------------------------------------------------------------------


def package_of(file: str) -> str:
    """Of node/ the packages inside it; what stands at the root is one."""
    parts = file.split("/")
    return "root" if len(parts) == 1 else "/".join(parts[:2]) if parts[0] == "node" and len(parts) > 2 else parts[0]


def package_graph(graph: dict[str, list[str]]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {package_of(file): set() for file in graph}
    for file, used in graph.items():
        found[package_of(file)] |= {package_of(other) for other in used} - {package_of(file)}
    return {package: sorted(used) for package, used in sorted(found.items())}


def drawn(packages: dict[str, list[str]]) -> str:
    """A flowchart. What is imported by way of another package too has no arrow of its own."""
    reached = {package: reach(packages, package) for package in packages}
    lines = ["```mermaid", "flowchart TD"]
    for package, used in packages.items():
        for other in used:
            if not any(other in reached[between] for between in used if between != other):
                lines.append(f"    {package.replace('/', '_')}[{package}] --> {other.replace('/', '_')}[{other}]")
    return "\n".join([*lines, "```"])


def table(graph: dict[str, list[str]]) -> str:
    """Of each file in node/: the files of node/ it imports, by package, and the packages outside."""
    lines = ["| file | imports in `node/` | and of |", "|---|---|---|"]
    for package in NODE_ORDER:
        for file in sorted(file for file in graph if file.startswith(f"node/{package}/") and "__init__" not in file):
            inside: dict[str, list[str]] = {}
            for other in sorted(graph[file]):
                if other.startswith("node/"):
                    inside.setdefault(other.split("/")[1], []).append(Path(other).stem)
            used = [f"{name}: {', '.join(inside[name])}" for name in NODE_ORDER if name in inside]
            outside = sorted({package_of(other) for other in graph[file] if not other.startswith("node/")} - {"root"})
            lines.append(f"| `{file}` | {'; '.join(used)} | {', '.join(outside)} |")
    return "\n".join(lines)


def test_the_documents_show_which_package_and_which_file_imports_what(request: pytest.FixtureRequest) -> None:
    """`pytest --rewrite` writes it anew."""
    graph = import_graph(FILES)
    packages = package_graph(graph)
    assert cycles(packages) == set()
    head, begin, rest = ARCHITECTURE.read_text().partition(IMPORTS_BEGIN)
    shown, end, tail = rest.partition(IMPORTS_END)
    assert begin, f"{ARCHITECTURE} has no {IMPORTS_BEGIN}"
    assert end, f"{ARCHITECTURE} has no {IMPORTS_END}"
    is_so = f"\n\n{drawn(packages)}\n\n{table(graph)}\n\n"
    if request.config.getoption("--rewrite"):
        ARCHITECTURE.write_text(head + begin + is_so + end + tail)
    else:
        assert shown == is_so, "pytest tests/unit/test_layers.py --rewrite brings docs/architecture.md up to date"


def test_no_files_import_each_other_hidden_or_not() -> None:
    assert cycles(import_graph(FILES)) == set(), "give one of them a protocol of what it needs of the other"


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({"node/a.py": "import bascule.node.b\n", "node/b.py": ""}, set()),
        ({"node/a.py": "from bascule.node import b\n", "node/b.py": "from bascule.node.a import x\n"}, {"node/a.py"}),
        ({"node/a.py": "from . import b\n", "node/b.py": "def f():\n    from bascule.node import a\n"}, {"node/a.py"}),
        (
            {
                "node/a.py": "from bascule.node.b import x\n",
                "node/b.py": "import bascule.log.c\n",
                "log/c.py": "if TYPE_CHECKING:\n    from bascule.node.a import y\n",
            },
            {"node/a.py"},
        ),
        ({"node/a.py": "from bascule.log import x\n", "log/__init__.py": "import bascule.node.a\n"}, {"node/a.py"}),
    ],
)
def test_the_check_for_cycles_sees_hidden_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, texts: dict[str, str], found: set[str]
) -> None:
    monkeypatch.setattr(f"{__name__}.SOURCE", tmp_path)
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    graph = import_graph(sorted(tmp_path.rglob("*.py")))
    assert {file for cycle in cycles(graph) for file in cycle if file in found} == found
    assert bool(cycles(graph)) is bool(found)


def test_every_part_is_given_what_it_needs_when_it_is_made() -> None:
    paths = [path for path in FILES if part_of(path) in WIRED]
    trees = {name_of(path): ast.parse(path.read_text()) for path in paths}
    types = callback_types(list(trees.values()))
    found = [(name, *each) for name, tree in trees.items() for each in loose_wiring(tree, *types)]
    hidden = [(name, what) for name, what, default in found if default]
    assert hidden == [], "a constructor argument, without a default that does nothing"
    assert {(name, what) for name, what, default in found if not default} == GIVEN_AT_START


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("class A:\n  def __init__(self):\n    self.on_x: Callable[[], None] = lambda: None\n", [("on_x", True)]),
        ("class A:\n  def __init__(self):\n    self.on_x: Told | None = None\n", [("on_x", True)]),
        ("class A:\n  def __init__(self):\n    self.on_x: list[Callable[[], None]] = []\n", [("on_x", True)]),
        ("class A:\n  def __init__(self):\n    self._on_x: Callable[[], None] = lambda: None\n", [("_on_x", True)]),
        ("class A:\n  def __init__(self):\n    self._on_x: Callable[[], None]\n", [("_on_x", False)]),
        ("class A:\n  def __init__(self, on_x: Told = lambda: None):\n    self._on_x = on_x\n", [("on_x", True)]),
        ("class A:\n  def __init__(self):\n    self._owner: Listener\n", [("_owner", False)]),
        ("class A:\n  def __init__(self, on_x: Told):\n    self._on_x = on_x\n", []),
        ("class A:\n  def __init__(self):\n    self._members: Callable[[], list[str]] = list\n", [("_members", True)]),
        ("class A:\n  def __init__(self, on_x: Told):\n    self._on_x: Told = on_x\n", []),
        ("class A:\n  on_x: Told = nobody\n", [("on_x", True)]),
        ("class A:\n  on_x: Told\n", []),
        ("class A:\n  def __init__(self):\n    self.count: int = 0\n", []),
    ],
)
def test_the_check_for_wiring_sees_slots_and_defaults(text: str, found: list[tuple[str, bool]]) -> None:
    assert list(loose_wiring(ast.parse(text), {"Callable", "Told"}, {"Listener"})) == found


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
        ("wire/kernels.py", "import os\n", True),
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
        ("spark/x.py", "from bascule.pipelines import archive\n", True),
        ("pipelines/x.py", "from bascule.spark import session\n", False),
        ("pipelines/x.py", "from bascule.node.process import server\n", True),
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


def swallowed(tree: ast.Module) -> Iterator[int]:
    """Lines of handlers that catch a failed assertion and neither raise nor say what was raised."""
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.Try)):
        for handler in node.handlers:
            caught = ast.unparse(handler.type) if handler.type is not None else "BaseException"
            if caught not in ("Exception", "BaseException", "AssertionError"):
                continue
            if any(known(earlier, "AssertionError") for earlier in node.handlers if earlier.lineno < handler.lineno):
                continue
            if not any(said(each) for each in ast.walk(handler)):
                yield handler.lineno


def known(handler: ast.ExceptHandler, name: str) -> bool:
    return handler.type is not None and ast.unparse(handler.type) == name


def said(node: ast.AST) -> bool:
    """Raises, logs with the traceback, or hands the error on to what does."""
    if isinstance(node, ast.Raise):
        return True
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).split(".")[-1]
    return name in ("exception", "fail", "assertion_failed", "_end", "note_failure") or any(
        each.arg == "exc_info" for each in node.keywords
    )


PASSED_ON = {
    # The error is kept and raised, or given to who waits for it.
    "log/threads.py",
    "log/filecopy.py",
    "node/runtime/jobs.py",
}


def test_no_handler_swallows_a_failed_assertion() -> None:
    """The simulator counts what is logged with its traceback, or reaches the event loop, as a violation."""
    rooms = ("core", "wire", "log", "net", "node")
    found = {
        f"{name_of(path)}:{line}"
        for path in FILES
        if part_of(path) in rooms and name_of(path) not in PASSED_ON
        for line in swallowed(ast.parse(path.read_text()))
    }
    assert found == set()


def test_a_handler_that_swallows_is_found() -> None:
    quiet = "try:\n    work()\nexcept Exception as error:\n    print(error)"
    loud = "try:\n    work()\nexcept Exception as error:\n    logger.exception('x')"
    narrow = "try:\n    work()\nexcept AssertionError:\n    raise\nexcept Exception:\n    pass"
    assert [list(swallowed(ast.parse(text))) for text in (quiet, loud, narrow)] == [[3], [], []]
