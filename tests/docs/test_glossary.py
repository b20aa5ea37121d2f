"""The glossary names what exists, and words that were given up do not come back."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.harness.diagrams import rows
from tests.harness.paths import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
SOURCE = ROOT / "src" / "bascule"
_CODE = re.compile(r"`([^`]+)`")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
MAX_OWN_TERMS = 10

RETIRED = {
    "buries": "fence",
    "bury": "fence",
    "burying": "fence",
    "deaf": "misses its own heartbeats",
    "doubt": "suspect",
    "doubted": "suspect",
    "doubtful": "suspect",
    "doubts": "suspect",
    "garbage": "malformed",
    "glance": "file check",
    "heap": "allocator",
    "heirs": "eligible",
    "inquiries": "queries",
    "inquiry": "query",
    "kept": "buffered, retained, stored",
    "life": "boot, incarnation",
    "lifemark": "clean shutdown",
    "lives": "boots",
    "misfortune": "fault",
    "owed": "pending",
    "settled": "flushed, resolved, ready",
    "standing": "log end",
    "stranger": "unknown broker",
    "strangers": "unknown brokers",
    "unsettled": "unresolved",
    "unsure": "suspect (of a log), undecided",
    "vouch": "verify",
    "vouched": "verified",
    "weather": "network conditions",
}
"""By word, what it is called instead."""
RETIRED_PHRASES = (
    "are good once",
    "buries",
    "drains no more",
    "its own voice",
    "look for a typing error",
    "nobody vouches",
    "nobody's to go on from",
)


@cache
def trees() -> dict[str, ast.Module]:
    files = [path for path in sorted(SOURCE.rglob("*.py")) if not path.name.endswith("_pb2.py")]
    return {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in files}


def names(tree: ast.Module) -> Iterator[str]:
    """Those that a file gives: to functions, classes, arguments, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def said(tree: ast.Module) -> Iterator[str]:
    """What a file says to people: every text that is not a comment or a docstring, and has a blank in it."""
    silent = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in silent
            and " " in node.value
        ):
            yield node.value


def retired_in(name: str) -> list[str]:
    return [part.lower() for part in _PART.findall(name) if part.lower() in RETIRED]


def test_retired_words_are_in_no_name() -> None:
    found = {f"{file}: {name}" for file, tree in trees().items() for name in names(tree) if retired_in(name)}
    found |= {file for file in trees() if retired_in(Path(file).stem)}
    assert sorted(found) == []


def test_retired_words_are_in_no_text_for_people() -> None:
    found = [
        f"{file}: {text}"
        for file, tree in trees().items()
        for text in said(tree)
        if any(phrase in text.lower() for phrase in RETIRED_PHRASES)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "found"),
    [("OwedAcks", ["owed"]), ("_vouched_for", ["vouched"]), ("heapq", []), ("password", []), ("LIFE_S", ["life"])],
)
def test_a_retired_word_is_found_in_a_name(name: str, found: list[str]) -> None:
    assert retired_in(name) == found


# --- the tables ----------------------------------------------------------------------------------------------------


@cache
def defined() -> dict[str, set[str]]:
    """By class, its attributes and methods; by "", everything that is defined anywhere."""
    found: dict[str, set[str]] = {"": set()}
    for tree in trees().values():
        found[""] |= set(names(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, set()).update(names(ast.Module(node.body, [])))
    return found


def problem(code: str) -> str:
    if "/" in code:
        return "" if (SOURCE / code).exists() else f"{code} is not there"
    owner, _, member = code.rpartition(".")
    return (
        "" if member in defined().get(owner, ()) or (not owner and _in_protocol(code)) else f"{code} is nowhere defined"
    )


def _in_protocol(name: str) -> bool:
    return any(name in path.read_text() for path in SOURCE.rglob("*.proto"))


@pytest.mark.parametrize("heading", ["Ids and epochs", "Terms"])
def test_what_the_glossary_names_is_there(heading: str) -> None:
    table = list(rows(heading, GLOSSARY))
    assert len(table) > 5
    problems = [problem(code) for row in table for code in _CODE.findall(row[-1])]
    assert [each for each in problems if each] == []
    assert all(_CODE.findall(row[-1]) for row in table), "each says where"


def test_few_words_are_our_own() -> None:
    own = [row[0] for row in rows("Terms", GLOSSARY) if row[0].endswith("*")]
    assert 0 < len(own) <= MAX_OWN_TERMS
    terms = [row[0] for row in rows("Terms", GLOSSARY)]
    assert len(set(terms)) == len(terms)
