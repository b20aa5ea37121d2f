"""The glossary names what exists, and words that were given up do not come back."""

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


def test_retired_words_are_in_no_name() -> None:
    found = {f"{file}: {name}" for file, tree in trees().items() for name in names(tree) if retired_in(name)}
    found |= {file for file in trees() if retired_in(Path(file).stem)}
    assert sorted(found) == []


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


def test_few_words_are_our_own() -> None:
    own = [row[0] for row in rows("Terms", GLOSSARY) if row[0].endswith("*")]
    assert 0 < len(own) <= MAX_OWN_TERMS
    terms = [row[0] for row in rows("Terms", GLOSSARY)]
    assert len(set(terms)) == len(terms)
