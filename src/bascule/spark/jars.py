"""Jars for Spark that pip does not bring, from Maven Central into a cache folder, each verified by its checksum.

Only names and checksums are written down; nothing is fetched before somebody asks for it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bascule import limits
from bascule.errors import StartError

MAVEN = "https://repo1.maven.org/maven2"
FETCH_TIMEOUT_S = 60.0


class Jar(NamedTuple):
    path: str
    """In the repository."""
    sha256: str

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


Fetch = Callable[[str], bytes]


def listed(text: str) -> list[Jar]:
    """A path and a checksum a line; `#` begins a remark."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return [Jar(*words) for words in lines if words]


def cache_folder(environ: Mapping[str, str] | None = None) -> Path:
    environ = os.environ if environ is None else environ
    if environ.get("BASCULE_JARS"):
        return Path(environ["BASCULE_JARS"])
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bascule" / "jars"


def download(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S) as answer:
        data: bytes = answer.read(limits.JAR_MAX_BYTES + 1)
    return data


def fetched(jars: Iterable[Jar], folder: Path | None = None, fetch: Fetch = download) -> list[Path]:
    """Where they are on this machine. StartError if one cannot be had."""
    folder = cache_folder() if folder is None else folder
    return [_one(jar, folder, fetch) for jar in jars]


def cached(jars: Sequence[Jar], folder: Path | None = None) -> list[Path]:
    """Where they are on this machine, if all of them are; else none."""
    folder = cache_folder() if folder is None else folder
    return [folder / each.name for each in jars] if all(_is_there(each, folder) for each in jars) else []


def _is_there(jar: Jar, folder: Path) -> bool:
    try:
        return _sha256((folder / jar.name).read_bytes()) == jar.sha256
    except OSError:
        return False


def _one(jar: Jar, folder: Path, fetch: Fetch) -> Path:
    path = folder / jar.name
    if _is_there(jar, folder):
        return path
    url = f"{MAVEN}/{jar.path}"
    try:
        data = fetch(url)
    except OSError as error:  # also what HTTP answers
        raise StartError(
            f"{jar.name} is not in {folder} and cannot be fetched from {url}: {error}. Put it there by hand, or set "
            "BASCULE_JARS to a folder that has it"
        ) from None
    if _sha256(data) != jar.sha256:
        raise StartError(f"{url} is not the file it was: its SHA-256 is {_sha256(data)}, and not {jar.sha256}")
    folder.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f"{jar.name}.")
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)
    return path


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
