"""What a user's type checker sees: every public name has its type, and mistakes are found before a program runs."""

import re
import subprocess
import sys
from pathlib import Path

from bascule import client
from tests.harness.paths import ROOT

PROGRAM = ROOT / "tests" / "harness" / "typed_program.py"
MISTAKES = """
from bascule.client import Client


async def main(client: Client) -> None:
    await client.publish("orders", "text")
    await client.publish("orders", b"value", partition="1")
    async for message in client.subscribe("orders", start="somewhere"):
        message.offset.decode()
    client.consumer("orders", group="g", stop="latest")
"""


def mypy(program: Path) -> str:
    """In a project that has no settings of its own."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        f"--cache-dir={program.parent}",
        program.name,
    ]
    done = subprocess.run(command, cwd=program.parent, capture_output=True, text=True, timeout=300, check=False)
    assert done.stderr == ""
    return done.stdout


def test_a_program_that_names_everything_is_well_typed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.read_text())
    assert mypy(program).startswith("Success")


def test_the_program_names_everything() -> None:
    text = PROGRAM.read_text()
    assert [name for name in client.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_mistakes_are_found(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(MISTAKES)
    found = mypy(program)
    lines = [int(line) for line in re.findall(r"^program\.py:(\d+): error", found, re.MULTILINE)]
    assert sorted(set(lines)) == [6, 7, 8, 9, 10], found
