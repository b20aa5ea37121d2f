"""Documents and docstrings name what exists: a method, attribute or module in backticks is in the code.

A reader who adds an authorization check looks for it where a document says; a name that is gone sends them to the wrong
place.
"""

import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.harness.definitions import SOURCE, members, names, trees
from tests.harness.documents import DOCUMENTS, name_of, prose
from tests.harness.paths import ROOT

_MEMBER = re.compile(r"`([A-Z]\w*[a-z]\w*)\.(\w+)(?:\([^`]*\))?`")
_IN_PACKAGE = re.compile(r"`(?:(?:core|log|net|node|wire)\.)(?:\w+\.)*(?!py`)\w+`")
_PRIVATE = re.compile(r"`[a-z]\w*\._\w+`")
SOURCES = [SOURCE / file for file in trees()]
PACKAGES = sorted({Path(file).parts[0] for file in trees()})


def dead_members(text: str) -> list[str]:
    """Each `Class.member` that no class of that name has."""
    return [f"{owner}.{member}" for owner, member in _MEMBER.findall(text) if member not in members(owner)]


def dead_in_modules(text: str) -> list[str]:
    """Each `package.module` that is not there, and each `module._name`, which is private, that is not in the module."""
    named = [found.strip("`") for found in [*_IN_PACKAGE.findall(text), *_PRIVATE.findall(text)]]
    return [name for name in named if any(part not in modules().get(of, ()) for of, part in pairwise(name.split(".")))]


@cache
def modules() -> dict[str, set[str]]:
    """By module, the names in it; by package, its modules and packages."""
    found: dict[str, set[str]] = {}
    for file, tree in trees().items():
        parts = [*Path(file).parts[:-1], Path(file).stem]
        found.setdefault(parts[-1], set()).update(names(tree))
        for package, part in pairwise(parts):
            found.setdefault(package, set()).add(part)
    return found


def dead(text: str) -> list[str]:
    return dead_members(text) + dead_in_modules(text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_what_a_document_names_exists(document: Path) -> None:
    assert dead(prose(document)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_what_docstrings_and_comments_name_exists(package: str) -> None:
    texts = {name_of(path): path.read_text() for path in SOURCES if path.relative_to(SOURCE).parts[0] == package}
    assert [f"{name}: {each}" for name, text in texts.items() for each in dead(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "a check belongs into `Gate.admits`",
        "see `Gone.by`: there is no such class",
        "`Replica.take_role(partition)` and `Replica.taken_role(partition)`",
        "`Executor.request`: an argument is no member",
        "`routes._flag`",
        "`node.administration`",
    ],
)
def test_a_dead_name_is_found(text: str) -> None:
    assert len(dead(text)) == 1


def test_a_name_that_is_there_is_found() -> None:
    """Inherited, of the protocol, of a module; and what looks like one and is something else is left alone."""
    assert dead("`Unavailable.status`, `FetchRequest.session`, `SubscribeRequest.reverse`") == []
    assert dead("`routes._flags`, `core.metadata.codec`, `log.tail`, `streams.sync`, `os.replace`") == []


def test_there_are_names_to_check() -> None:
    text = (ROOT / "docs" / "journey-of-a-message.md").read_text()
    assert len(_MEMBER.findall(text)) > 50
