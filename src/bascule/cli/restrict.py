"""`bascule stream pause`, `resume` and `readonly`: what may be done with a stream, or with some of its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import click

from bascule.cli.cluster import JsonOption
from bascule.cli.connect import ServerOption, Servers, connected, missing_stream_explained
from bascule.cli.tables import print_json
from bascule.client import Client, Stream
from bascule.errors import NotFound

HINT = "`bascule stream list` shows those there are"

PartitionsOption = click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="May be repeated. [default: all]"
)


@click.command(epilog="Example: bascule stream pause orders --partition 2")
@click.argument("name", metavar="STREAM")
@PartitionsOption
@click.option("--resume-all", is_flag=True, help="The first partition that is resumed resumes all of them.")
@JsonOption
@ServerOption
def pause(name: str, partitions: tuple[int, ...], resume_all: bool, as_json: bool, server: Servers) -> None:
    """Pause STREAM: its partitions take no messages, are not read, and hold no files open.

    A publish by a client resumes its partition; messages that come over NATS are ignored meanwhile.
    """
    _do(server, name, partitions, lambda client: client.pause_stream(name, partitions, resume_all=resume_all))
    _say(name, partitions, "paused", as_json, f"; `bascule stream resume {name}` resumes it, and so does a publish")


@click.command(epilog="Example: bascule stream resume orders")
@click.argument("name", metavar="STREAM")
@PartitionsOption
@JsonOption
@ServerOption
def resume(name: str, partitions: tuple[int, ...], as_json: bool, server: Servers) -> None:
    """Resume the partitions of STREAM that are paused."""
    _do(server, name, partitions, lambda client: client.admin.resume_stream(name, partitions))
    _say(name, partitions, "resumed", as_json)


@click.command(epilog="Example: bascule stream readonly orders; bascule stream readonly orders --off")
@click.argument("name", metavar="STREAM")
@PartitionsOption
@click.option("--off", is_flag=True, help="Let it be written again.")
@JsonOption
@ServerOption
def readonly(name: str, partitions: tuple[int, ...], off: bool, as_json: bool, server: Servers) -> None:
    """Refuse what is published to STREAM; it can still be read, to its end."""
    _do(server, name, partitions, lambda client: client.set_stream_readonly(name, not off, partitions))
    _say(name, partitions, "writable" if off else "readonly", as_json)


def _do(server: Servers, name: str, partitions: Sequence[int], change: Callable[[Client], Awaitable[None]]) -> None:
    async def ask() -> None:
        async with connected(server) as client:
            _check((await client.fetch_metadata([name])).streams.get(name), name, partitions)
            await change(client)

    with missing_stream_explained(HINT):
        asyncio.run(ask())


def _check(found: Stream | None, name: str, partitions: Sequence[int]) -> None:
    """The protocol's own refusals name neither."""
    if found is None:
        raise NotFound(f"no such stream: {name}. `create_stream` creates one")
    for number in partitions:
        if number not in found.partitions:
            raise NotFound(f"no such partition: {number}. Stream {name} has {len(found.partitions)}, counted from 0")


def _say(name: str, partitions: Sequence[int], state: str, as_json: bool, more: str = "") -> None:
    if as_json:
        print_json({state: name, "partitions": list(partitions)})
        return
    which = f"partition {', '.join(map(str, partitions))} of {name}" if partitions else name
    click.echo(f"{which} is {state}{more}")
