"""Machines driven by text: commands, and below each what it should give.

A scenario is a text file of blocks: comment lines (`# ...`), one command or several, `----`, the expected output, a
blank line. `pytest --rewrite` writes the outputs anew; read the difference before you commit it.
"""

from collections.abc import Callable


class CommandRunner:
    """Commands are the methods named `do_...`; each adds to `output`."""

    def __init__(self) -> None:
        self.output: list[str] = []

    def close(self) -> None:
        """The scenario is over."""

    def run(self, line: str) -> str:
        name, *words = line.split()
        command: Callable[..., None] = getattr(self, "do_" + name.replace("-", "_"))
        self.output = []
        command(*words)
        return "\n".join(self.output) or "ok"


def replay(scenario: CommandRunner, text: str) -> str:
    """The same scenario, with what its commands give now."""
    try:
        return "\n\n".join(_again(scenario, block) for block in text.strip().split("\n\n")) + "\n"
    finally:
        scenario.close()


def _again(scenario: CommandRunner, block: str) -> str:
    lines = block.split("\n")
    comments = [line for line in lines if line.startswith("#")]
    commands = [line for line in lines[: (lines.index("----") if "----" in lines else len(lines))] if line[0] != "#"]
    output = [scenario.run(command) for command in commands]
    return "\n".join([*comments, *commands, *(["----", *output] if commands else [])])
