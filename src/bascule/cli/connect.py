"""How commands find a broker: `--server`, else the environment, else this machine."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import click

from bascule.cli.output import hint, one_line, say
from bascule.client import Client
from bascule.client.failures import OnWait
from bascule.errors import BasculeError, NotFound

DEFAULT_SERVER = "localhost:9292"
PATIENCE_S = 3.0
"""A broker that was started by the command before may take so long until it listens."""
SAY_WAITS_FROM_S = 1.0
"""After so long a command says what its request waits for; most requests are done sooner."""

ServerOption = click.option(
    "--server",
    "-s",
    envvar="BASCULE_SERVER",
    default=DEFAULT_SERVER,
    show_default=True,
    show_envvar=True,
    metavar="HOST:PORT",
    help="A broker of the cluster; several are separated by commas.",
)
PartitionOption = click.option("--partition", type=click.IntRange(min=0), help="[default: all]")


@asynccontextmanager
async def connected(server: str) -> AsyncIterator[Client]:
    client = await Client.connect(server, timeout=PATIENCE_S, on_wait=say_waits())
    try:
        yield client
    finally:
        await client.close()


def say_waits() -> OnWait:
    """No output would look like a hang: each reason is printed once, whatever numbers are in it."""
    said: set[str] = set()

    def on_wait(error: BasculeError, seconds: float) -> None:
        text = one_line(str(error))
        reason = re.sub(r"\d+", "", text)
        if seconds >= SAY_WAITS_FROM_S and reason not in said:
            said.add(reason)
            said_so = "" if text.startswith("waiting ") else "waiting: "
            say(f"{said_so}{text}{hint(text)}")

    return on_wait


@contextmanager
def missing_stream_explained(next_step: str) -> Iterator[None]:
    """The library's hint names a function; people at a prompt need a command."""
    try:
        yield
    except NotFound as error:
        what, _, _ = str(error).partition(". ")
        raise NotFound(f"{what}; {next_step}" if what.startswith("no such stream") else str(error)) from None


async def partitions_named(client: Client, stream: str, partition: int | None) -> list[int]:
    found = (await client.fetch_metadata([stream])).streams.get(stream)
    if found is None:
        raise NotFound(f"no such stream: {stream}. `create_stream` creates one")
    if partition is not None and partition not in found.partitions:
        raise NotFound(f"no such partition: {partition}. Stream {stream} has {len(found.partitions)}, counted from 0")
    return sorted(found.partitions) if partition is None else [partition]
