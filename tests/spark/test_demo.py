"""`make demo` says what it does, ends with equal numbers, and says in one line when it cannot run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = [sys.executable, "-m", "bascule.cli.demo"]


@pytest.mark.spark
@pytest.mark.slow
def test_the_demo_ends_with_equal_numbers() -> None:
    done = subprocess.run(DEMO, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    last = done.stdout.splitlines()[-1]
    assert last.startswith("demo ok: ")
    numbers = dict(re.findall(r"(\w+) (\d+)", last.removeprefix("demo ok: "), re.ASCII))
    assert list(numbers) == ["published", "read", "spark", "archived", "aggregated", "audited"]
    assert len(set(numbers.values())) == 1
    assert int(numbers["published"]) > 0


def test_without_java_the_demo_says_in_one_line_what_to_install(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": str(tmp_path)}
    env.pop("JAVA_HOME", None)
    done = subprocess.run(DEMO, capture_output=True, text=True, timeout=60, env=env, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "needs Java 17" in done.stderr
    assert "install" in done.stderr
