"""How commands find a broker: `--server`, else the environment, else this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import click

from bascule.client import Client
from bascule.errors import NotFound

DEFAULT_SERVER = "localhost:9292"
PATIENCE_S = 3.0
"""A broker that was started in the line before may take that long until it listens."""

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


@asynccontextmanager
async def connected(server: str) -> AsyncIterator[Client]:
    client = await Client.connect(server, timeout=PATIENCE_S)
    try:
        yield client
    finally:
        await client.close()


@contextmanager
def missing_stream_explained(hint: str) -> Iterator[None]:
    """The library's hint names a function; people at a prompt need a command."""
    try:
        yield
    except NotFound as error:
        what, _, _ = str(error).partition(". ")
        raise NotFound(f"{what}: {hint}" if what.startswith("no such stream") else str(error)) from None
