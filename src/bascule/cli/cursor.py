"""`bascule cursor`: cursors listed with their lag, and reset."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from bascule.cli.cluster import JsonOption
from bascule.cli.connect import PartitionOption, ServerOption, Servers, connected, missing_stream_explained
from bascule.cli.positions import (
    DryRunOption,
    Reset,
    ToOption,
    behind,
    lags_of,
    parse_target,
    resets_of,
    say_resets,
    set_to,
    shown,
)
from bascule.cli.tables import print_json, print_table

HINT = "`bascule stream list` shows those there are"
EPILOG = """\b
Examples:
  bascule cursor list
  bascule cursor list --stream orders --json
  bascule cursor reset orders billing --to 2026-01-31T12:00:00 --dry-run
"""


@click.group(epilog=EPILOG)
def cursor() -> None:
    """Show how far the clients of a stream are behind, and set them back or forth."""


@cursor.command("list", epilog="Example: bascule cursor list --stream orders")
@click.option("--stream", help="Only cursors of this stream.")
@JsonOption
@ServerOption
def list_cursors(stream: str | None, as_json: bool, server: Servers) -> None:
    """List the cursors of the cluster, with their lag in messages and in time.

    A cursor is the offset of the last message that was processed. Its lag is how many messages come after it, and how
    long ago the first of these was stored. All cursors that were ever set are read, which takes long if they are many.
    """

    async def ask() -> list[dict[str, Any]]:
        async with connected(server) as client:
            found = [each for each in await client.list_cursors() if stream in (None, each.stream)]
            lags = await lags_of(client, found)
        return [
            {
                "cursor": each.id,
                "stream": each.stream,
                "partition": each.partition,
                "offset": each.offset,
                "lag_messages": lag.messages,
                "lag_seconds": lag.seconds,
            }
            for each, lag in zip(found, lags, strict=True)
        ]

    rows = asyncio.run(ask())
    if as_json:
        print_json(rows)
    elif not rows:
        click.echo("no cursors", err=True)
    else:
        print_table(
            ("cursor", "stream", "partition", "offset", "lag", "behind"),
            [(*list(row.values())[:4], shown(row["lag_messages"]), behind(row["lag_seconds"])) for row in rows],
        )


@cursor.command("reset", epilog="Example: bascule cursor reset orders billing --to earliest --dry-run")
@click.argument("stream")
@click.argument("name", metavar="CURSOR")
@ToOption
@PartitionOption
@DryRunOption
@JsonOption
@ServerOption
def reset(
    stream: str, name: str, target: str, partition: int | None, dry_run: bool, as_json: bool, server: Servers
) -> None:
    """Set CURSOR of STREAM so that the next message is the first one, the next new one, or one at an offset or time.

    The clients that use it must not run: they would overwrite it, and read it only when they start. -1 is a cursor that
    was never set: with it clients begin where they do without one. `bascule group reset` is for consumer groups.
    """
    position = parse_target(target)

    async def ask() -> list[Reset]:
        async with connected(server) as client:
            found = await resets_of(client, name, stream, partition, position)
            if not dry_run:
                await set_to(client, found)
            return found

    with missing_stream_explained(HINT):
        resets = asyncio.run(ask())
    if as_json:
        print_json(
            {"cursor": name, "stream": stream, "done": not dry_run, "partitions": [_row(each) for each in resets]}
        )
    else:
        say_resets(resets, f"cursor {name}", dry_run)


def _row(reset: Reset) -> dict[str, Any]:
    return {"partition": reset.cursor.partition, "before": reset.cursor.offset, "after": reset.after}
