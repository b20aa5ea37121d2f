"""Builds the Go programs that stand in for foreign clients in tests and benchmarks.

`go build` itself knows what has changed, so it runs every time. Modules come from go.mod and go.sum as committed; the
first build downloads them.
"""

import shutil
import subprocess
from pathlib import Path

BUILD_TIMEOUT_S = 600


class GoMissingError(RuntimeError):
    """There is no Go tool chain on this machine."""


def go_tool() -> str:
    """Where `go` is. Raises GoMissingError with what to do."""
    found = shutil.which("go")
    if found is None:
        raise GoMissingError("no `go` on the PATH: install Go 1.26 or newer to run what drives Go clients")
    return found


def build_go(source: Path, program: Path) -> Path:
    """The main package in `source`, built as `program`. Raises RuntimeError with the compiler's output."""
    command = [go_tool(), "build", "-o", str(program.absolute()), "."]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    if built.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} in {source} failed:\n{built.stderr}")
    return program
