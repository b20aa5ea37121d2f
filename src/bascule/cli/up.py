"""`bascule up`: everything a single machine needs, in one process group: a NATS server and a broker.

It listens on loopback only and keeps its data in the user's own folder. Other settings come from a file or
the environment, as for `bascule server`; what is given here wins.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import click

from bascule.cli.logs import set_up
from bascule.cli.server import announce
from bascule.node.config import load

if TYPE_CHECKING:
    from bascule.node.server import RunningInfo

LOOPBACK = "127.0.0.1"

EPILOG = """\b
Examples:
  bascule up
  bascule up --data-dir ./data --port 9393 --nats-port 4333
"""


@click.command(epilog=EPILOG)
@click.option("--data-dir", "-d", type=click.Path(), help="Folder of the data. [default: in your home folder]")
@click.option("--port", "-p", type=click.IntRange(0, 65_535), default=9292, show_default=True, help="For clients.")
@click.option("--nats-port", type=click.IntRange(1, 65_535), help="For NATS clients. [default: 4222]")
@click.option("--config", "-c", type=click.Path(), metavar="FILE", help="Further settings, in YAML.")
@click.option("--verbose", is_flag=True, help="Log everything, not only what is wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one JSON object.")
def up(
    data_dir: str | None, port: int, nats_port: int | None, config: str | None, verbose: bool, as_json: bool
) -> None:
    """Run NATS and a broker here until Ctrl-C. The data stays."""
    overrides: dict[str, object] = {
        "listen": f"{LOOPBACK}:{port}",
        "host": LOOPBACK,
        "port": port,
        "nats.embedded": True,
        "clustering.raft.bootstrap.seed": True,
        "logging.level": "info" if verbose else "warn",
    }
    if data_dir is not None:
        overrides["data.dir"] = os.path.abspath(data_dir)
    with ExitStack() as stack:
        if nats_port is not None:
            overrides["nats.embedded.config"] = stack.enter_context(_nats_config(nats_port))
        settings = load(config, os.environ, overrides)
        set_up(settings.logging)
        settings.check_files()
        announce(settings)
        from bascule.node.server import run

        sys.exit(asyncio.run(run(settings, ready=_print_json if as_json else _greet)))


@contextmanager
def _nats_config(port: int) -> Iterator[str]:
    """There for as long as the server runs: NATS reads its file again when asked to reload."""
    with tempfile.NamedTemporaryFile("w", prefix="bascule-nats-", suffix=".conf") as file:
        file.write(f"host: {LOOPBACK}\nport: {port}\n")
        file.flush()
        yield file.name


def _print_json(info: RunningInfo) -> None:
    address = f"{info.host}:{info.port}"
    click.echo(json.dumps({"address": address, "nats_url": info.nats_url, "data_dir": info.data_dir}))
    sys.stdout.flush()


def _greet(info: RunningInfo) -> None:
    address = f"{info.host}:{info.port}"
    server = "" if info.port == 9292 else f" --server {address}"
    lines = [
        f"{click.style('Bascule is running.', bold=True)} Data in {info.data_dir}",
        f"  Liftbridge clients  {address}",
        f"  NATS clients        {info.nats_url}",
        "Try in another terminal:",
        f"  bascule pub{server} --create hello 'first message'",
        f"  bascule sub{server} hello",
        "Ctrl-C stops it; the data stays.",
    ]
    click.echo("\n".join(lines), err=True)
