"""The documents, and their text without what they quote."""

import re
from pathlib import Path

from tests.harness.paths import ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def prose(document: Path) -> str:
    return FENCE.sub("", document.read_text())
