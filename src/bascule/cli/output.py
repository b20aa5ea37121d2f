"""Messages for people go to stderr, so that stdout has only data.

An expected failure is one line, `error: ...`, and exit code 1, never a traceback. `reported` turns any
BasculeError or OSError of the lower layers into that; wrong usage of a command is click's own, with exit code 2.
"""

from __future__ import annotations

import errno
import functools
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import click

from bascule.errors import BasculeError

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger(__name__)

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells have it."""

HINTS = {
    "no known metadata leader": ": a majority of the voters is away; `bascule cluster status` shows which to start",
    "context deadline exceeded": ": there was no answer in time; `bascule cluster status` may show why",
    "Stream is reserved": ": the cluster keeps streams of its own under this name; choose another name",
}
"""Texts of the Go server, which clients get, and the hint that the command line adds to each."""
TOO_MANY_REPLICAS = "Invalid replicationFactor "
EXPECTS_TLS = "does the server expect TLS"
"""In the client's error for a connection without TLS that was lost at once."""
NO_ACK = "no ack within "
"""The beginning of the client's error for publishes without an ack."""


def hint(text: str) -> str:
    if text.startswith(TOO_MANY_REPLICAS):
        return ": so many brokers are in the cluster, each holds one replica; start more, or ask for fewer replicas"
    if text.startswith(NO_ACK):
        return ". `bascule cluster status` shows whether the partition has a leader and enough replicas in sync"
    if EXPECTS_TLS in text:
        return ". To connect over TLS give --tls-ca or --tls"
    return HINTS.get(text, "")


@functools.cache
def console() -> Console:
    """The console for tables, progress and hints; made on first use, since rich takes a while to import."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


class _Terminal:
    has_bar = False
    """A progress bar is on it: lines that do not go through its console would be torn apart by it."""


@contextmanager
def showing_progress() -> Iterator[None]:
    _Terminal.has_bar = True
    try:
        yield
    finally:
        _Terminal.has_bar = False


def say(text: str) -> None:
    """A line for people, on stderr; above the progress bar if there is one."""
    if _Terminal.has_bar:
        console().print(text, markup=False, soft_wrap=True)
    else:
        click.echo(text, err=True)


_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def harmless(data: bytes) -> str:
    """As text without what a terminal would obey: escape sequences, and bytes that are no UTF-8, are shown with
    backslashes. Tabs and line ends stay."""
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", data.decode("utf-8", "backslashreplace"))


def harmless_json(text: str) -> str:
    """`json.dumps` escapes only a part of what terminals obey. The value stays the same."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    return " ".join(text.split())


class CommandFailed(click.ClickException):
    """Shown as one line."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        label = click.style("error:", fg="red", bold=True)
        click.echo(f"{label} {one_line(self.message)}", file=file, err=file is None)


class Reported(click.Group):
    """Commands whose errors are told in one line, however the group is run."""

    def invoke(self, ctx: click.Context) -> Any:
        with reported():
            return super().invoke(ctx)


@contextmanager
def reported() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        raise SystemExit(INTERRUPTED) from None
    except UnicodeEncodeError as error:  # of an argument, in which Python has put surrogates for other bytes
        text = harmless(error.object.encode("utf-8", "surrogateescape"))
        raise CommandFailed(f"{text!r} is not valid UTF-8, which names have to be") from error
    except BasculeError as error:
        text = str(error) or type(error).__name__
        raise CommandFailed(text + hint(text)) from error
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of stdout has gone: click ends quietly
            raise
        logger.debug("the system refused something", exc_info=True)
        about = f"{error.filename}: " if error.filename else ""
        raise CommandFailed(f"{about}{error.strerror or error}") from error
