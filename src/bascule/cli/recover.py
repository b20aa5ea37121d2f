"""`bascule cluster recover`: a new cluster from the data folder of one broker, which must not be running."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from bascule.cli.tables import print_json
from bascule.errors import StartError

if TYPE_CHECKING:
    from bascule.node.process.recover import Recovery

SHOWN = 20
"""Partitions of a kind that are listed for people; JSON has them all."""
_KEYS = {"out_of_sync": "doubtful"}
"""By field, its key in JSON where that is another one: scripts read it."""


@click.command(
    short_help="Begin a new cluster from one broker's folder; the others are lost.",
    epilog="Example: bascule cluster recover --data-dir /var/lib/bascule",
)
@click.option("--data-dir", "-d", type=click.Path(), required=True, help="Folder of the broker that is left.")
@click.option("--accept-loss", is_flag=True, help="Do it. Without this the command only says what would be lost.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def recover(data_dir: str, accept_loss: bool, as_json: bool) -> None:
    """Begin a new cluster with what one broker has on its disk, if a majority of the voters is lost for good.

    The broker must be stopped. What only the other brokers had is lost: streams and changes that this one had not
    received, partitions it does not hold, messages it had not fetched. If a majority can be started again, do that
    instead: nothing is lost then. Brokers of the old cluster are refused from now on; with empty data folders they
    join.
    """
    found = asyncio.run(_recover(data_dir, accept_loss))
    if as_json:
        fields = {_KEYS.get(name, name): value for name, value in asdict(found).items()}
        print_json({**fields, "done": accept_loss})
        return
    for line in _lines(found):
        click.echo(line)
    if accept_loss:
        click.echo(f"done: broker {found.broker_id} forms the cluster {found.cluster} from its next start on")
        click.echo("start it, then empty the data folders of the other brokers and start those: they join", err=True)
    else:
        click.echo("nothing was done; to accept this, run it again with --accept-loss", err=True)


async def _recover(data_dir: str, accept_loss: bool) -> Recovery:
    from bascule.log.disk import FileDisk
    from bascule.node.process.recover import recover
    from bascule.node.process.system import SystemRandom

    if not os.path.isdir(os.path.join(data_dir, "raft")):
        raise StartError(f"{data_dir} is not the data folder of a broker: there is nothing to recover")
    disk = FileDisk(data_dir)
    try:
        disk.lock()
        return await recover(disk, SystemRandom(), accept_loss=accept_loss)
    finally:
        disk.close()


def _lines(found: Recovery) -> list[str]:
    others = ", ".join(found.others) or "none"
    lines = [
        f"broker {found.broker_id} of cluster {found.old_cluster}; disks that count as lost: {others}",
        f"every change of the metadata after index {found.index} is lost, if there was one",
        f"partitions this broker was in sync with, as far as it knows, and which it leads: {len(found.whole)}",
    ]
    if found.missing:
        lines.insert(
            2,
            f"its metadata log is damaged: the last {found.missing} saves that it had confirmed are missing, so "
            f"streams and changes may be lost that it knew of; if there is a copy of its folder raft, restore that",
        )
    if found.out_of_sync:
        lines.append(
            f"partitions it holds and was not in sync with, so that acked messages may be missing: "
            f"{_listed(found.out_of_sync)}; nobody leads them until "
            f"`bascule cluster elect STREAM PARTITION --accept-loss`"
        )
    if found.gone:
        lines.append(f"partitions it does not hold, which are lost: {_listed(found.gone)}")
    return lines


def _listed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
