"""How commands reach a broker: `--server`, else the environment, else this machine; over TLS if an option says so."""

from __future__ import annotations

import functools
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from bascule.cli.output import hint, one_line, say
from bascule.client import Client
from bascule.client.failures import OnWait
from bascule.errors import BasculeError, NotFound
from bascule.net.tls import Names, client_context

Result = TypeVar("Result")

DEFAULT_SERVER = "localhost:9292"
MOST_SECONDS = 1e9
"""31 years."""
PATIENCE_S = 3.0
"""A broker that was started by the command before may take so long until it listens."""
SAY_WAITS_FROM_S = 1.0
"""After so long a command says what its request waits for; most requests are done sooner."""

_TLS_NAMES = Names("--tls-cert", "--tls-key", "--tls-ca")
_OPTIONS = (
    click.option(
        "--server",
        "-s",
        envvar="BASCULE_SERVER",
        default=DEFAULT_SERVER,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT",
        help="A broker of the cluster; several are separated by commas.",
    ),
    click.option(
        "--tls",
        is_flag=True,
        envvar="BASCULE_TLS",
        show_envvar=True,
        help="Use TLS, and trust the authorities that this machine trusts. Implied by the next three.",
    ),
    click.option(
        "--tls-ca",
        envvar="BASCULE_TLS_CA",
        show_envvar=True,
        metavar="FILE",
        help="Use TLS, and trust the authorities in this file (PEM).",
    ),
    click.option(
        "--tls-cert",
        envvar="BASCULE_TLS_CERT",
        show_envvar=True,
        metavar="FILE",
        help="Certificate of this client (PEM), for brokers that ask for one; needs --tls-key.",
    ),
    click.option(
        "--tls-key",
        envvar="BASCULE_TLS_KEY",
        show_envvar=True,
        metavar="FILE",
        help="Private key of that certificate (PEM, not encrypted).",
    ),
)


@dataclass(frozen=True)
class Servers:
    """Which brokers a command connects to, and how."""

    addresses: str
    tls: ssl.SSLContext | None


def ServerOption(command: Callable[..., Result]) -> Callable[..., Result]:  # noqa: N802 - a decorator, as click's are
    """`--server` and the options of TLS, which the command gets as one value: `server`."""

    @functools.wraps(command)
    def with_servers(
        *given: Any, server: str, tls: bool, tls_ca: str | None, tls_cert: str | None, tls_key: str | None, **more: Any
    ) -> Result:
        wanted = tls or tls_ca or tls_cert or tls_key
        context = (
            client_context(tls_ca or None, tls_cert or None, tls_key or None, names=_TLS_NAMES) if wanted else None
        )
        return command(*given, server=Servers(server, context), **more)

    for option in reversed(_OPTIONS):
        option(with_servers)
    return with_servers


class Number(click.IntRange):
    """A whole number that fits into a request."""

    def __init__(self, min: int, bits: int = 32) -> None:
        super().__init__(min=min)
        self._most = (1 << (bits - 1)) - 1

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number: int = super().convert(value, param, ctx)
        if number > self._most:
            self.fail(f"{number} is too large: it is at most {self._most}", param, ctx)
        return number


class Seconds(click.FloatRange):
    """A time that ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not seconds <= MOST_SECONDS:
            self.fail(f"{value} is no time in seconds, or too long: it is at most {MOST_SECONDS:.0f}", param, ctx)
        return seconds


PartitionOption = click.option("--partition", type=click.IntRange(min=0), help="[default: all]")


@asynccontextmanager
async def connected(server: Servers) -> AsyncIterator[Client]:
    client = await Client.connect(server.addresses, tls=server.tls, timeout=PATIENCE_S, on_wait=say_waits())
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
