"""`bascule up`: everything a single machine needs: a NATS server and a broker, or with `--brokers` a cluster of them.

It listens on loopback only and stores its data in the user's own folder. Other settings come from a file or
the environment, as for `bascule server`; what is given here wins.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bascule import limits
from bascule.cli.connect import Seconds
from bascule.cli.logs import set_up
from bascule.cli.output import CommandFailed
from bascule.cli.server import announce
from bascule.cli.shape import check_shape
from bascule.node.config import load
from bascule.wire.nats import DEFAULT_PORT

if TYPE_CHECKING:
    from bascule.cli.local import LocalCluster
    from bascule.node.process.server import RunningInfo

LOOPBACK = "127.0.0.1"
LAST_PORT = 65_535

EPILOG = """\b
Examples:
  bascule up
  bascule up --data-dir ./data --port 9393 --nats-port 4333
  bascule up --brokers 3 --data-dir ./cluster
"""


@click.command(epilog=EPILOG)
@click.option("--data-dir", "-d", type=click.Path(), help="Folder of the data. [default: in your home folder]")
@click.option(
    "--brokers",
    type=click.IntRange(1, limits.LOCAL_BROKERS),
    default=1,
    show_default=True,
    help="Run a cluster of this many, each a process with a folder of its own and the next port.",
)
@click.option("--port", "-p", type=click.IntRange(0, LAST_PORT), default=9292, show_default=True, help="For clients.")
@click.option("--nats-port", type=click.IntRange(1, LAST_PORT), help="For NATS clients. [default: 4222]")
@click.option("--config", "-c", type=click.Path(), metavar="FILE", help="Further settings, in YAML.")
@click.option(
    "--restart-after",
    type=Seconds(min=0.0),
    default=limits.LOCAL_RESTART_S,
    show_default=True,
    metavar="SECONDS",
    help="With --brokers: when a broker that was killed or stopped is started again.",
)
@click.option("--verbose", is_flag=True, help="Log everything, not only what is wrong.")
@click.option("--json", "as_json", is_flag=True, help="Print the addresses as one JSON object.")
def up(
    data_dir: str | None,
    brokers: int,
    port: int,
    nats_port: int | None,
    config: str | None,
    restart_after: float,
    verbose: bool,
    as_json: bool,
) -> None:
    """Run NATS and a broker, or a cluster, here until Ctrl-C. The data stays."""
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
    if brokers > 1:
        if port + brokers - 1 > LAST_PORT:
            raise CommandFailed(f"{brokers} brokers need the ports from {port} on, and {LAST_PORT} is the last one")
        settings = load(config, os.environ, overrides)
        set_up(settings.logging)
        folder = Path(settings.data_dir if data_dir else f"{settings.data_dir}-cluster")
        check_shape(folder, brokers)
        sys.exit(asyncio.run(_run_cluster(folder, brokers, port, nats_port, config, restart_after, verbose, as_json)))
    with ExitStack() as stack:
        if nats_port is not None:
            overrides["nats.embedded.config"] = stack.enter_context(_nats_config(nats_port))
        settings = load(config, os.environ, overrides)
        set_up(settings.logging)
        settings.check_files()
        check_shape(Path(settings.data_dir), 1)
        announce(settings)
        from bascule.node.process.server import run

        # It runs in a terminal: where that is closed nobody would see that NATS and the broker are still there.
        sys.exit(asyncio.run(run(settings, ready=_print_json if as_json else _greet, ends_on_hangup=True)))


@contextmanager
def _nats_config(port: int) -> Iterator[str]:
    """The file exists as long as the server runs: NATS reads it again at a reload."""
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


# --- a cluster ------------------------------------------------------------------------------------------------------


async def _run_cluster(
    folder: Path,
    brokers: int,
    port: int,
    nats_port: int | None,
    config: str | None,
    restart_after: float,
    verbose: bool,
    as_json: bool,
) -> int:
    from bascule.cli.local import LocalCluster

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    cluster = LocalCluster(
        folder,
        brokers,
        ports=lambda number: port + number if port else _free_port(),
        nats_port=DEFAULT_PORT if nats_port is None else nats_port,
        config=config,
        environment={"LIFTBRIDGE_LOGGING_LEVEL": "debug"} if verbose else None,
        restart_after_s=restart_after,
        say=lambda text: click.echo(text, err=True),
    )
    starting = asyncio.create_task(cluster.start())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)  # ends what it had started
        return 0
    starting.result()
    try:
        _print_cluster_json(cluster) if as_json else _greet_cluster(cluster)
        await stopped
        click.echo("stopping the brokers", err=True)
    finally:
        await cluster.stop()
    return 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _print_cluster_json(cluster: LocalCluster) -> None:
    brokers = [
        {"id": each.id, "address": each.address, "pid": each.pid, "data_dir": str(each.folder), "log": str(each.log)}
        for each in cluster.brokers
    ]
    click.echo(json.dumps({"brokers": brokers, "nats_url": cluster.nats_url, "data_dir": str(cluster.folder)}))
    sys.stdout.flush()


def _greet_cluster(cluster: LocalCluster) -> None:
    copies = min(3, len(cluster.brokers))
    first = cluster.brokers[0]
    running = click.style(f"Bascule is running: {len(cluster.brokers)} brokers.", bold=True)
    lines = [f"{running} Data and logs in {cluster.folder}"]
    lines += [f"  broker {each.id}  {each.address}  process {each.pid}" for each in cluster.brokers]
    lines += [
        f"  NATS      {cluster.nats_url}",
        "Try in another terminal:",
        f"  export BASCULE_SERVER={cluster.servers}",
        f"  bascule stream create orders --replication-factor {copies} --min-isr {max(1, copies - 1)}",
        "  seq 100000 | bascule pub orders",
        "  bascule stream info orders           # who leads, who is in sync",
        f"  kill -9 {first.pid:<28} # broker {first.id}, without warning",
        "  bascule cluster status --watch       # another leads, the killed one comes back and catches up",
        "  bascule sub orders | wc -l           # nothing is missing",
        "Ctrl-C stops all of it; the data stays.",
    ]
    click.echo("\n".join(lines), err=True)
