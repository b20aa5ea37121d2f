"""The command `bascule`: a table of subcommands, each imported only when it is used.

So `bascule --help` and shell completion answer at once, whatever the subcommands need.
"""

import importlib
import io
import os
import sys

import click

from bascule import __version__
from bascule.cli.output import Reported

COMMANDS: dict[str, tuple[str, str]] = {
    "cluster": ("bascule.cli.cluster:cluster", "Look at the brokers; drain, remove, elect."),
    "cursor": ("bascule.cli.cursor:cursor", "List cursors with their lag, and reset them."),
    "export": ("bascule.cli.export:export", "Write a stream into Parquet files."),
    "group": ("bascule.cli.group:group", "Show consumer groups with members and lag, and reset them."),
    "pipeline": ("bascule.cli.pipeline:pipeline", "Archive, audit and query streams with Spark."),
    "pub": ("bascule.cli.pub:pub", "Publish messages, from arguments or stdin."),
    "server": ("bascule.cli.server:server", "Run a broker."),
    "stream": ("bascule.cli.stream:stream", "List, describe, create, alter, delete, pause and hold streams."),
    "sub": ("bascule.cli.sub:sub", "Print the messages of a stream."),
    "up": ("bascule.cli.up:up", "Run NATS and a broker, or a cluster, on this machine."),
    "version": ("bascule.cli.version:version", "Show the versions of Bascule and what it runs on."),
}
"""Name -> where the click command is, and its line in the help."""

EPILOG = """\b
Examples:
  bascule up
  bascule up --brokers 3
  bascule pub --create orders 'first order'
  bascule sub orders --follow
  bascule server --embedded-nats --raft-bootstrap-seed

\b
Completion for bash (for zsh put zsh_source), in your shell's start-up file:
  eval "$(_BASCULE_COMPLETE=bash_source bascule)"
"""


class LazyGroup(Reported):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.command(
    cls=LazyGroup,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-v", "--version", prog_name="bascule", message="%(prog)s %(version)s")
def cli() -> None:
    """Durable message streams over NATS that speak the Liftbridge protocol."""


def main() -> None:
    _open_standard_streams()
    code: int | str | None = 0
    try:
        cli.main(prog_name="bascule")
    except OSError as error:  # of a help text or a version, which click writes before a command runs
        code = _told(error)
    except SystemExit as end:
        code = end.code
    try:
        sys.stdout.flush()
    except OSError as error:  # told already, if the command has failed with it
        code = code or _told(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the exit flushes once more
    sys.exit(code)


def _told(error: OSError) -> int:
    click.echo(f"error: {error.strerror or error}", err=True)
    return 1


def _open_standard_streams() -> None:
    """Of a command that was started without one of them (`<&-`): it would have nothing to read from or write to, and
    the next file or socket would take its place."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    _write_whole()


def _write_whole() -> None:
    """With PYTHONUNBUFFERED, as containers often have it, a write to stdout is one call of the system, which may write
    a part: a full disk ends it, or Ctrl-Z. Nobody would notice that the rest is missing. Commands flush what is due."""
    out = sys.stdout
    if isinstance(getattr(out, "buffer", None), io.RawIOBase):
        sys.stdout = os.fdopen(out.fileno(), "w", encoding=out.encoding, errors=out.errors, closefd=False)


if __name__ == "__main__":
    main()
