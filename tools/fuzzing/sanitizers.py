"""The compiled kernels built once more, with the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.fuzzing.twins import BUILD_VARIABLE

BUILD = Path("build") / "sanitized"
OBJECTS = Path("build") / "sanitized-objects"


class NoSanitizersError(Exception):
    """There are no sanitizers here; the text says why."""


def environment() -> dict[str, str]:
    """Build the kernels apart from the installed ones; what a process needs to run with them."""
    runtimes = ":".join(_runtime(name) for name in ("libasan.so", "libubsan.so"))
    return {
        BUILD_VARIABLE: str(_build().resolve()),
        "LD_PRELOAD": runtimes,
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
        "UBSAN_OPTIONS": "halt_on_error=1:abort_on_error=1:print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }


def _runtime(name: str) -> str:
    if shutil.which("gcc") is None:
        raise NoSanitizersError("gcc is missing")
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=False)
    path = Path(found.stdout.strip())
    if not path.is_absolute() or not path.exists():
        raise NoSanitizersError(f"gcc has no {name}")
    return str(path.resolve())


def _build() -> Path:
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(BUILD)]
    command += ["--build-temp", str(OBJECTS)]
    flags = {"BASCULE_SANITIZE": "1", "BASCULE_REQUIRE_KERNELS": "1"}
    built = subprocess.run(command, env=os.environ | flags, capture_output=True, text=True, check=False)
    modules = sorted(BUILD.glob("bascule/wire/_kernels*.so"))
    if built.returncode or not modules:
        last = (built.stderr.strip().splitlines() or ["no module was made"])[-1]
        raise NoSanitizersError(f"the kernels cannot be built with them: {last}")
    return modules[0]
