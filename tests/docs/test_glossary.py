"""The glossary names what exists, and words that were given up do not come back."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.definitions import SOURCE, defined, members, names, trees
from tests.harness.diagrams import rows
from tests.harness.paths import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
_CODE = re.compile(r"`([^`]+)`")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
MAX_OWN_TERMS = 10

RETIRED = {
    "buries": "fence",
    "bury": "fence",
    "burying": "fence",
    "circumstances": "cluster state",
    "deaf": "misses its own heartbeats",
    "distrust": "ignore, reject",
    "doubt": "suspect",
    "doubted": "suspect",
    "doubtful": "suspect",
    "doubts": "suspect",
    "enlist": "enqueue",
    "enlisted": "queued",
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
    "luck": "variant, draw",
    "misfortune": "fault",
    "mend": "repair, rejoin",
    "mending": "running",
    "owe": "pending",
    "owed": "pending",
    "payable": "sendable",
    "settled": "flushed, resolved, ready, made to last",
    "sound": "valid, undamaged, unchanged",
    "standing": "log end",
    "stranger": "unknown broker",
    "strangers": "unknown brokers",
    "taker": "receiver",
    "ties": "links",
    "unsettled": "unresolved",
    "unsure": "suspect (of a log), undecided",
    "vouch": "verify",
    "vouched": "verified",
    "weather": "network conditions",
}
"""By word, what it is called instead."""
RETIRED_IN_TEXT = {
    r"are good once": "say what the condition is",
    r"bur(?:y|ies|ied|ials?)": "fence",
    r"its own voice": "its own heartbeats",
    r"cuts? off": "truncate, partition",
    r"deaf": "cannot receive",
    r"doubt(?:s|ed)?|(?<!\")doubtful": "suspect",
    r"drains no more": "stops reading",
    r"heirs?": "eligible",
    r"inquir(?:y|ies|es?)": "query",
    r"life": "boot, incarnation",
    r"lives": "boots, is alive",
    r"look for a typing error": "check the spelling",
    r"misfortunes?": "fault",
    r"nobody's to go on from": "not led by anybody",
    r"settled": "flushed, resolved, made to last",
    r"strangers?": "unknown broker, unknown client",
    r"unsure": "suspect, undecided",
    r"vouch(?:es|ed|ing)?": "verify",
    r"(?<!chance\(\")weather": "network conditions",
    r"without a word": "without an error, without a log line",
    r"word of": "message from",
    r"words (?:from|of) (?:a|another|other|the) (?:brokers?|followers?|leaders?|peers?)": "message",
}
"""By pattern, what is said instead, in code, comments, docstrings, log lines and documents alike. Only words are listed
that have no other use in this tree."""
_RETIRED = re.compile(rf"(?<![a-z])(?:{'|'.join(RETIRED_IN_TEXT)})(?![a-z])", re.IGNORECASE)
_LINE_END = re.compile(r"\s*\n[ \t]*(?:# ?)?")
TEXTS = {
    "": ("*.md", "Makefile"),
    "bench": ("*.py", "*.go"),
    "docs": ("*.md",),
    "src": ("*.proto", "*.pxi", "*.py", "*.pyx"),
    "tests": ("*.py", "*.txt"),
    "tools": ("*.py", "*.toml"),
}
"""By folder, the files that people read."""


NAMED = {
    "bench": ("*.py",),
    "src": ("*.proto", "*.pxi", "*.py", "*.pyx"),
    "tests": ("*.py",),
    "tools": ("*.py",),
}
PUBLIC = ["src/bascule/wire/pb/admin.proto: kept"]
"""Fields of released messages keep their names."""
LOGGED_BY = ("count", "critical", "debug", "error", "exception", "info", "log", "warning")
"""The methods of loggers, and `CountedLog.count`."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_NOT_CODE = re.compile(r"""\"{3}.*?\"{3}|"[^"\n]*"|'[^'\n]*'|(?:#|//)[^\n]*""", re.DOTALL)


def texts() -> Iterator[Path]:
    for folder, kinds in TEXTS.items():
        for kind in kinds:
            found = (ROOT / folder).rglob(kind) if folder else ROOT.glob(kind)
            yield from (path for path in sorted(found) if "_pb2" not in path.name and path != Path(__file__))


def retired_in_text(text: str) -> list[str]:
    """Each with what stands around it, also where a line ends within a phrase."""
    joined = _LINE_END.sub(" ", text)
    return [joined[max(0, found.start() - 30) : found.end() + 30] for found in _RETIRED.finditer(joined)]


def retired_in(name: str) -> list[str]:
    return [part.lower() for part in _PART.findall(name) if part.lower() in RETIRED]


def names_in(path: Path) -> set[str]:
    """Those that a file gives, and its own; of kernels and of protocols every name in it."""
    text = path.read_text()
    if path.suffix == ".py":
        return {path.stem, *names(ast.parse(text))}
    return {path.stem, *_NAME.findall(_NOT_CODE.sub("", text))}


def logged(tree: ast.AST) -> Iterator[str]:
    """What log lines say, piece by piece."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LOGGED_BY
            and "log" in ast.unparse(node.func.value)
        ):
            inside = [each for argument in node.args for each in ast.walk(argument)]
            yield from (each.value for each in inside if isinstance(each, ast.Constant) and isinstance(each.value, str))


def test_retired_words_are_in_no_name() -> None:
    paths = [
        path
        for folder, kinds in NAMED.items()
        for kind in kinds
        for path in sorted((ROOT / folder).rglob(kind))
        if "_pb2" not in path.name
    ]
    found = {f"{path.relative_to(ROOT)}: {name}" for path in paths for name in names_in(path) if retired_in(name)}
    assert sorted(found) == sorted(PUBLIC)


def test_retired_words_are_in_no_log_line() -> None:
    found = {f"{file}: {text}" for file, tree in trees().items() for text in logged(tree) if retired_in(text)}
    assert sorted(found) == []


@pytest.mark.parametrize(
    ("suffix", "text", "found"),
    [
        (".py", "def f(kept: int) -> None:\n    other.owed = 1", {"kept", "owed"}),
        (".py", "print(answer.kept)  # kept", set()),
        (".pxi", "cdef Out kept  # owed\nraise ValueError('the heap')", {"kept"}),
        (".pyx", '"""The heap\nis kept."""\ncdef int garbage', {"garbage"}),
        (".proto", "repeated Ref kept = 2;  // owed", {"kept"}),
    ],
)
def test_a_retired_word_is_found_among_the_names_of_a_file(
    tmp_path: Path, suffix: str, text: str, found: set[str]
) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_text(text)
    assert {name for name in names_in(path) if retired_in(name)} == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("logger.warning('%s is settled', name)", ["settled"]),
        ("logger.info('it is ' + ('owed' if x else 'sent'))", ["owed"]),
        ("self._logger.error(f'the heap of {name}')", ["heap"]),
        ("self._log.count(f'{name} is kept')", ["kept"]),
        ("print('settled')", []),
        ("logger.debug('a password of ours, %s', 'heap' in settings.kept)", ["heap"]),
    ],
)
def test_a_retired_word_is_found_in_a_log_line(text: str, found: list[str]) -> None:
    assert [word for each in logged(ast.parse(text)) for word in retired_in(each)] == found


def test_retired_words_are_in_no_text() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {excerpt}" for path in texts() for excerpt in retired_in_text(path.read_text())
    }
    assert sorted(found) == []


@pytest.mark.parametrize(
    "text",
    [
        "# what it said in its last\n    # life counts for nothing",
        '_log.warning("%s is cut off from the cluster", name)',
        "def test_nobody_vouches_for_a_log() -> None:",
        "Records that the leader has lost\nwithout a word",
    ],
)
def test_a_retired_word_is_found_in_a_text(text: str) -> None:
    assert len(retired_in_text(text)) == 1


def test_other_words_are_left_alone() -> None:
    assert retired_in_text("lifecycle, relives, alive, whether, a password of ours") == []


@pytest.mark.parametrize(
    ("name", "found"),
    [("OwedAcks", ["owed"]), ("_vouched_for", ["vouched"]), ("heapq", []), ("password", []), ("LIFE_S", ["life"])],
)
def test_a_retired_word_is_found_in_a_name(name: str, found: list[str]) -> None:
    assert retired_in(name) == found


# --- the tables ----------------------------------------------------------------------------------------------------


def problem(code: str) -> str:
    if "/" in code:
        return "" if (SOURCE / code).exists() else f"{code} is not there"
    owner, _, member = code.rpartition(".")
    there = member in members(owner) if owner else member in defined() or _in_protocol(code)
    return "" if there else f"{code} is nowhere defined"


def _in_protocol(name: str) -> bool:
    return any(name in path.read_text() for path in SOURCE.rglob("*.proto"))


@pytest.mark.parametrize("heading", ["Ids and epochs", "Terms"])
def test_what_the_glossary_names_is_there(heading: str) -> None:
    table = list(rows(heading, GLOSSARY))
    assert len(table) > 5
    problems = [problem(code) for row in table for code in _CODE.findall(row[-1])]
    assert [each for each in problems if each] == []
    assert all(_CODE.findall(row[-1]) for row in table), "each says where"


def test_few_words_are_our_own_and_those_are_marked() -> None:
    own = [row[0] for row in rows("Terms", GLOSSARY) if row[2] == row[3] == "none"]
    assert 0 < len(own) <= MAX_OWN_TERMS
    assert own == [row[0] for row in rows("Terms", GLOSSARY) if row[0].endswith("*")]
    terms = [row[0] for row in rows("Terms", GLOSSARY)]
    assert len(set(terms)) == len(terms)
