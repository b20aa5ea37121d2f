"""What the source defines: every name that it gives, and the members of every class, those of its bases included."""

import ast
from collections.abc import Iterator
from functools import cache

from tests.harness.paths import ROOT

SOURCE = ROOT / "src" / "bascule"


@cache
def trees() -> dict[str, ast.Module]:
    """By path, every file that people wrote."""
    files = [path for path in sorted(SOURCE.rglob("*.py")) if not path.name.endswith("_pb2.py")]
    return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in files}


def names(tree: ast.AST) -> Iterator[str]:
    """Those that a file or a class gives: to functions, classes, arguments, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


@cache
def defined() -> set[str]:
    return {name for tree in trees().values() for name in names(tree)}


@cache
def _classes() -> dict[str, list[ast.ClassDef]]:
    """By name; messages of the protocol too. Two files may each have a class of the same name."""
    found: dict[str, list[ast.ClassDef]] = {}
    generated = [ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*_pb2.pyi"))]
    for tree in [*trees().values(), *generated]:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


@cache
def members(owner: str) -> frozenset[str]:
    """The methods and attributes of the classes of this name, and of their bases; without the names that exist only
    while a method runs. Empty if there is no such class."""
    found: set[str] = set()
    for node in _classes().get(owner, ()):
        for item in node.body:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(item.name)
                found |= set(_attributes(item))
            else:
                found |= set(names(item))
        for base in node.bases:
            last = base.value if isinstance(base, ast.Subscript) else base
            name = last.attr if isinstance(last, ast.Attribute) else last.id if isinstance(last, ast.Name) else ""
            if name == "NamedTuple":
                found.add("_make")
            elif name != owner:
                found |= members(name)
    return frozenset(found)


def _attributes(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Those of itself that a method sets."""
    for node in ast.walk(method):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=attribute, ctx=ast.Store()):
                yield attribute
