"""`bascule pub`: messages from the command line or from stdin, one per line, pipelined.

Without `--json` there is one line at the end; with it every confirmed message is one JSON object on stdout, in the
order of the input, as soon as its ack is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import nullcontext

import click
from click.core import ParameterSource

from bascule.cli.connect import Number, Seconds, ServerOption, Servers, connected, missing_stream_explained
from bascule.cli.input import Lines, Unreadable, progress
from bascule.cli.output import console, one_line, say
from bascule.client import AckPolicy, Client, Outgoing
from bascule.client.pipeline import OnAcks
from bascule.errors import AckTimeout, AlreadyExists, BasculeError, Unconfirmed

COMMANDLINE = ParameterSource.COMMANDLINE

EPILOG = """\b
Examples:
  bascule pub --create orders 'first order' 'second order'
  seq 100000 | bascule pub orders --retry 30
  bascule pub orders < orders.txt
  bascule pub orders --key alice --header source=web 'third order'
"""


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
    return name, os.fsencode(value)


@click.command(epilog=EPILOG)
@click.argument("stream")
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@click.option(
    "--create",
    is_flag=True,
    help="Create the stream first, on the NATS subject of its name, if there is none of this name.",
)
@click.option(
    "--replication-factor",
    type=Number(min=-1),
    default=1,
    show_default=True,
    help="Of a stream that --create creates: copies of it; -1 means one on every broker.",
)
@click.option("--key", "-k", help="Key of the messages; it chooses the partition.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option(
    "--partition", type=click.IntRange(min=0), help="Partition. [default: the key's; without a key, all in turn]"
)
@click.option(
    "--ack",
    type=click.Choice(["leader", "all", "none"]),
    default="all",
    show_default=True,
    help="Wait until the leader has it on disk, until all in-sync replicas do, or not at all.",
)
@click.option(
    "--retry",
    "retry_s",
    type=Seconds(min=0.0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="After a lost connection send again what is not confirmed, for so long. Bascule stores each message "
    "once, other servers may store some twice.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each ack as a line of JSON.")
@ServerOption
def pub(
    stream: str,
    messages: tuple[str, ...],
    create: bool,
    replication_factor: int,
    key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    ack: str,
    retry_s: float,
    as_json: bool,
    server: Servers,
) -> None:
    """Publish messages to STREAM: each MESSAGE, or each line of stdin (without LF or CR LF) if there is none."""
    copies = replication_factor if create else None
    if not create and click.get_current_context().get_parameter_source("replication_factor") is COMMANDLINE:
        raise click.UsageError(
            "--replication-factor is for a stream that --create creates: add --create, or leave it out"
        )
    if replication_factor == 0:
        raise click.UsageError("a stream needs a copy: --replication-factor 1 or more, or -1 for one on every broker")
    template = Outgoing(b"", os.fsencode(key) if key else None, dict(map(_header, headers)) or None)
    if not messages and sys.stdin.isatty():
        click.echo("Type messages, one per line; Ctrl-D ends.", err=True)
    with missing_stream_explained("`--create` creates it"):
        confirmed = Tally()
        try:
            sent = asyncio.run(
                _publish(server, stream, messages, template, copies, partition, ack, retry_s, as_json, confirmed)
            )
        except KeyboardInterrupt:
            click.echo(f"interrupted: {_outcome(stream, ack, confirmed)}", err=True)
            raise SystemExit(130) from None
        except (OSError, Unreadable) as error:  # stdin cannot be read, or nobody reads stdout
            if confirmed.began and not isinstance(error, AckTimeout):  # that one has its own numbers
                click.echo(f"stopped: {_outcome(stream, ack, confirmed)}", err=True)
            raise
    if ack == "none":
        click.echo(f"sent {sent} to {stream}; no acks were asked for, so nothing is confirmed", err=True)
    elif not as_json:
        click.echo(f"published {sent} to {stream}", err=True)


def _outcome(stream: str, ack: str, confirmed: Tally) -> str:
    said = "no acks were asked for" if ack == "none" else f"{confirmed.count} messages are confirmed"
    return f"{said}, what else was sent to {stream} may be stored or not"


class Tally:
    """Counts the confirmed messages, for the message of an interrupted command."""

    def __init__(self) -> None:
        self.count = 0
        self.began = False
        """It is connected, and publishes."""

    def before(self, show: OnAcks | None) -> OnAcks:
        def on_acks(acks: list[tuple[int, int, int]]) -> None:
            self.count += len(acks)
            if show is not None:
                show(acks)

        return on_acks


async def _publish(
    server: Servers,
    stream: str,
    messages: tuple[str, ...],
    template: Outgoing,
    copies: int | None,
    partition: int | None,
    ack: str,
    retry_s: float,
    as_json: bool,
    confirmed: Tally,
) -> int:
    lines = Lines()
    values: AsyncIterable[bytes] = _arguments(messages) if messages else lines
    plain = template == Outgoing(b"")
    async with connected(server) as client:
        if copies is not None:
            await _create(client, stream, copies)
        shows_progress = not messages and not as_json and console().is_terminal and not sys.stdin.isatty()
        confirmed.began = True
        with progress(lines) if shows_progress else nullcontext(None) as advance:
            return await client.publish_many(
                stream,
                values if plain else (template._replace(value=value) async for value in values),
                partition=partition,
                spread=True,
                ack=AckPolicy[ack.upper()],
                on_acks=confirmed.before(_printer(stream) if as_json else advance),
                retry_s=retry_s,
                on_retry=_say_retry,
            )


def _say_retry(count: int, error: BasculeError) -> None:
    reason = str(error).partition(": ")[0] if isinstance(error, Unconfirmed) else str(error)
    say(f"{one_line(reason)}; sending {count} again, some of which may be stored already")


async def _create(client: Client, stream: str, copies: int) -> None:
    """Of a stream that exists nothing else is checked: its settings may be other than a new one would get."""
    if stream in (await client.fetch_metadata([stream])).streams:
        return
    try:
        await client.create_stream(stream, replication_factor=copies)
    except AlreadyExists:
        pass


async def _arguments(messages: tuple[str, ...]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message.encode("utf-8", "surrogateescape")


def _printer(stream: str) -> OnAcks:
    """Acks of several partitions may overtake one another: print them in the order of the input."""
    early: dict[int, tuple[int, int]] = {}
    following = 0

    def show(acks: list[tuple[int, int, int]]) -> None:
        nonlocal following
        early.update((index, (partition, offset)) for index, offset, partition in acks)
        lines: list[str] = []
        while following in early:
            partition, offset = early.pop(following)
            ack = {"stream": stream, "partition": partition, "offset": offset, "index": following}
            lines.append(json.dumps(ack))
            following += 1
        if lines:
            click.echo("\n".join(lines))

    return show
