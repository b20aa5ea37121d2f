"""The diagrams of docs/architecture.md, as a test reads them: what is drawn under which heading.

A line `a --> b: cause (in words)` is the edge (a, cause, b); words in brackets or bars are for people. A line
`a->>b: Name (in words)` of a sequence diagram is a step; branches of a `par` happen in any order.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.harness.paths import ROOT

ARCHITECTURE = ROOT / "docs" / "architecture.md"

Edge = tuple[str, str, str]
"""From, cause, to."""

_EDGE = re.compile(r"^\s*(\S+) -->(?:\|[^|]*\|)? ([^\s:]+)(?:: ([^(]+?)(?: \(.*\))?)?\s*$")
_STEP = re.compile(r"^\s*(\w+)->>(\w+): (\w+)")
_KINDS = ("stateDiagram-v2", "flowchart LR", "sequenceDiagram")


def section(heading: str, document: Path = ARCHITECTURE) -> str:
    """The text below one heading, up to the next."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", document.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"{document.name} has no heading {heading!r}"
    return found[1]


def headings_with_diagrams() -> list[str]:
    parts = re.split(r"^#+ (.+)$", ARCHITECTURE.read_text(), flags=re.MULTILINE)
    return [heading for heading, text in zip(parts[1::2], parts[2::2], strict=True) if "```mermaid" in text]


def lines_of(heading: str, number: int = 0) -> list[str]:
    """Of the first or another diagram under a heading, without its first line, which says what kind it is."""
    blocks = re.findall(r"^```mermaid\n(.*?)^```$", section(heading), re.MULTILINE | re.DOTALL)
    kind, *lines = blocks[number].splitlines()
    assert kind in _KINDS, kind
    assert not [line for line in lines if set(line) & set(";#") or line.count(":") > 1], "Mermaid would stumble"
    return [line for line in lines if line.strip()]


def edges(heading: str, number: int = 0) -> list[Edge]:
    """Every line of a state diagram or flowchart must be an edge: what a test does not read may be wrong."""
    found = []
    for line in lines_of(heading, number):
        match = _EDGE.match(line)
        assert match, f"not an edge: {line}"
        found.append((match[1], match[3] or "", match[2]))
    assert len(set(found)) == len(found), f"{heading}: something is drawn twice"
    return found


@dataclass(frozen=True)
class Step:
    source: str
    target: str
    name: str
    branch: tuple[int, int]
    """Which `par`, and which part of it; (n, -1) outside of one."""


def steps(heading: str) -> list[Step]:
    found, block, part = [], 0, -1
    for line in lines_of(heading):
        word = line.split()[0]
        if word == "par":
            block, part = block + 1, 0
        elif word == "and":
            part += 1
        elif word == "end":
            block, part = block + 1, -1
        elif word != "participant":
            match = _STEP.match(line)
            assert match, f"not a step: {line}"
            found.append(Step(match[1], match[2], match[3], (block, part)))
    return found


def rows(heading: str, document: Path = ARCHITECTURE) -> list[list[str]]:
    """The cells of the table under a heading, without its head, code marks taken off."""
    lines = [line for line in section(heading, document).splitlines() if line.startswith("|")]
    assert len(lines) > 2, f"no table under {heading!r}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
