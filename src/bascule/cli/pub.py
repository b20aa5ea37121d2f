"""`bascule pub`: messages from the command line or from stdin, one per line, pipelined.

Without `--json` there is one line at the end; with it every confirmed message is one JSON object on stdout, in the
order of the input, as soon as its ack is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, nullcontext

import click
from click.core import ParameterSource

from bascule import limits
from bascule.cli.connect import ServerOption, connected, missing_stream_explained
from bascule.cli.output import console, one_line
from bascule.client import AckPolicy, Client, Outgoing
from bascule.client.pipeline import OnAcks
from bascule.errors import AlreadyExists, BasculeError, InvalidArgument, Unconfirmed

COMMANDLINE = ParameterSource.COMMANDLINE

EPILOG = """\b
Examples:
  bascule pub --create orders 'first order' 'second order'
  seq 100000 | bascule pub orders --retry 30
  bascule pub orders --key alice --header source=web 'third order'
"""


def _header(text: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--header")
    return name, value.encode()


@click.command(epilog=EPILOG)
@click.argument("stream")
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@click.option("--create", is_flag=True, help="Create the stream first, on the NATS subject of its name, if missing.")
@click.option(
    "--replication-factor",
    type=click.IntRange(min=-1),
    default=1,
    show_default=True,
    help="With --create: copies of the stream; -1 means one on every broker.",
)
@click.option("--key", "-k", help="Key of the messages; it chooses the partition.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option("--partition", type=click.IntRange(min=0), help="Partition, instead of the key's. [default: 0]")
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
    type=click.FloatRange(min=0.0),
    default=0.0,
    show_default=True,
    metavar="SECONDS",
    help="After a lost connection send again what is not confirmed, for so long; some of it may be stored twice.",
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
    server: str,
) -> None:
    """Publish messages to STREAM: each MESSAGE, or each line of stdin (without LF or CR LF) if there is none."""
    copies = replication_factor if create else None
    if not create and click.get_current_context().get_parameter_source("replication_factor") is COMMANDLINE:
        raise click.UsageError(
            "--replication-factor is for a stream that --create creates: add --create, or leave it out"
        )
    if replication_factor == 0:
        raise click.UsageError("a stream needs a copy: --replication-factor 1 or more, or -1 for one on every broker")
    template = Outgoing(b"", key.encode() if key else None, dict(map(_header, headers)) or None)
    if not messages and sys.stdin.isatty():
        click.echo("Type messages, one per line; Ctrl-D ends.", err=True)
    with missing_stream_explained("`--create` creates it"):
        confirmed = Tally()
        try:
            sent = asyncio.run(
                _publish(server, stream, messages, template, copies, partition, ack, retry_s, as_json, confirmed)
            )
        except KeyboardInterrupt:
            said = "no acks were asked for" if ack == "none" else f"{confirmed.count} messages are confirmed"
            click.echo(f"interrupted: {said}, what else was sent to {stream} may be stored or not", err=True)
            raise SystemExit(130) from None
    if ack == "none":
        click.echo(f"sent {sent} to {stream}; no acks were asked for, so nothing is confirmed", err=True)
    elif not as_json:
        click.echo(f"published {sent} to {stream}", err=True)


class Tally:
    """Counts the confirmed messages, for the message of an interrupted command."""

    def __init__(self) -> None:
        self.count = 0

    def before(self, show: OnAcks | None) -> OnAcks:
        def on_acks(acks: list[tuple[int, int]]) -> None:
            self.count += len(acks)
            if show is not None:
                show(acks)

        return on_acks


async def _publish(
    server: str,
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
    values = _arguments(messages) if messages else _lines()
    plain = template == Outgoing(b"")
    async with connected(server) as client:
        if copies is not None:
            await _create(client, stream, copies)
        shows_progress = not messages and not as_json and console().is_terminal and not sys.stdin.isatty()
        with _progress() if shows_progress else nullcontext(None) as advance:
            return await client.publish_many(
                stream,
                values if plain else (template._replace(value=value) async for value in values),
                partition=partition,
                ack=AckPolicy[ack.upper()],
                on_acks=confirmed.before(_printer(stream) if as_json else advance),
                retry_s=retry_s,
                on_retry=_say_retry,
            )


def _say_retry(count: int, error: BasculeError) -> None:
    reason = str(error).partition(": ")[0] if isinstance(error, Unconfirmed) else str(error)
    click.echo(f"{one_line(reason)}; sending {count} again, some of which may be stored already", err=True)


async def _create(client: Client, stream: str, copies: int) -> None:
    try:
        await client.create_stream(stream, replication_factor=copies)
    except AlreadyExists:
        pass


async def _arguments(messages: tuple[str, ...]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message.encode("utf-8", "surrogateescape")


async def _lines() -> AsyncIterator[bytes]:
    """Lines of stdin without their ends."""
    rest = b""
    async for data in _stdin():
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        if len(rest) > limits.GRPC_MAX_MESSAGE_BYTES:
            raise InvalidArgument("a line of stdin is longer than a message may be: is it text?")
        for line in lines:
            yield line.removesuffix(b"\r")
    if rest:
        yield rest


async def _stdin() -> AsyncIterator[bytes]:
    """Input as it arrives. Read in a daemon thread: a terminal without input must not delay the exit."""
    loop, source = asyncio.get_running_loop(), sys.stdin.fileno()
    arrived: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)

    def pump() -> None:
        data = b"more"
        while data:
            data = os.read(source, limits.CLIENT_PUBLISH_BATCH_BYTES)
            try:
                asyncio.run_coroutine_threadsafe(arrived.put(data), loop).result()
            except (RuntimeError, CancelledError):
                return  # the loop has ended before the input did

    threading.Thread(target=pump, name="stdin", daemon=True).start()
    while data := await arrived.get():
        yield data


@contextmanager
def _progress() -> Iterator[OnAcks]:
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    count = TextColumn("published {task.completed:,.0f}")
    with Progress(SpinnerColumn(), count, TimeElapsedColumn(), console=console(), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda acks: progress.advance(task, len(acks))


def _printer(stream: str) -> OnAcks:
    """Acks of several partitions may overtake one another: print them in the order of the input."""
    early: dict[int, int] = {}
    following = 0

    def show(acks: list[tuple[int, int]]) -> None:
        nonlocal following
        early.update(acks)
        lines: list[str] = []
        while following in early:
            lines.append(json.dumps({"stream": stream, "index": following, "offset": early.pop(following)}))
            following += 1
        if lines:
            click.echo("\n".join(lines))

    return show
