"""Find a Java that Spark runs on. Importing this needs neither Spark nor Java."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from bascule.errors import StartError

MIN_JAVA = 17
JAVA_TIMEOUT_S = 20.0


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
    """The home folder of the first usable Java of JAVA_HOME and PATH; StartError says what to install."""
    environ = os.environ if environ is None else environ
    seen: list[str] = []
    for java in _candidates(environ):
        version = major_version(java)
        if version is not None and version >= MIN_JAVA:
            return java.resolve().parent.parent
        seen.append(f"{java} is {'no working Java' if version is None else f'Java {version}'}")
    raise StartError(
        f"Spark needs Java {MIN_JAVA} or newer, and {'; '.join(seen) or 'none was found'}: install one, for example "
        f"`apt install openjdk-{MIN_JAVA}-jre-headless`, or set JAVA_HOME"
    )
