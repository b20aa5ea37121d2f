"""`bascule cursor`: cursors listed with their lag, and reset."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import Any

import click

from bascule import limits
from bascule.cli.cluster import JsonOption
from bascule.cli.connect import ServerOption, connected, missing_stream_explained
from bascule.cli.sub import STOP_BEFORE_START, parse_start
from bascule.cli.tables import age, print_json, print_table
from bascule.client import Client, StartAt
from bascule.client.cursors import Cursor
from bascule.errors import BasculeError, FailedPrecondition, InvalidArgument

HINT = "`bascule stream list` shows those there are"
EPILOG = """\b
Examples:
  bascule cursor list
  bascule cursor list --stream orders --json
  bascule cursor reset orders billing --to 2026-01-31T12:00:00 --dry-run
"""
NO_LAG: tuple[int | None, int | None] = (None, None)


@click.group(epilog=EPILOG)
def cursor() -> None:
    """Show how far the clients of a stream are behind, and set them back or forth."""


@cursor.command("list", epilog="Example: bascule cursor list --stream orders")
@click.option("--stream", help="Only cursors of this stream.")
@JsonOption
@ServerOption
def list_cursors(stream: str | None, as_json: bool, server: str) -> None:
    """List the cursors of the cluster, with their lag in messages and in time.

    A cursor is the offset of the last message that was processed. Its lag is how many messages come after it, and how
    long ago the first of these was stored. All cursors that were ever set are read, which takes long if they are many.
    """

    async def ask() -> list[dict[str, Any]]:
        async with connected(server) as client:
            found = [each for each in await client.list_cursors() if stream in (None, each.stream)]
            room = asyncio.Semaphore(limits.CLI_LAGS_AT_ONCE)

            async def row(each: Cursor) -> dict[str, Any]:
                async with room:
                    messages, seconds = await _lag(client, each)
                return {
                    "cursor": each.id,
                    "stream": each.stream,
                    "partition": each.partition,
                    "offset": each.offset,
                    "lag_messages": messages,
                    "lag_seconds": seconds,
                }

            return list(await asyncio.gather(*map(row, found)))

    rows = asyncio.run(ask())
    if as_json:
        print_json(rows)
    elif not rows:
        click.echo("no cursors", err=True)
    else:
        print_table(
            ("cursor", "stream", "partition", "offset", "lag", "behind"),
            [(*list(row.values())[:4], _shown(row["lag_messages"]), _behind(row["lag_seconds"])) for row in rows],
        )


def _shown(count: int | None) -> str:
    return "?" if count is None else str(count)


def _behind(seconds: int | None) -> str:
    return "?" if seconds is None else age(seconds)


async def _lag(client: Client, each: Cursor) -> tuple[int | None, int | None]:
    """Messages after the cursor, and the age of the first of them; None if the stream is not there, or not readable."""
    try:
        newest = (await client.fetch_partition_metadata(each.stream, each.partition, timeout=2.0)).high_watermark
        if each.offset >= newest:
            return 0, 0
        first = await _first(client, each.stream, each.partition, each.offset + 1, newest)
    except BasculeError:
        return NO_LAG
    if first is None:
        return 0, 0
    offset, timestamp = first
    return newest + 1 - offset, max(0, time.time_ns() - timestamp) // 1_000_000_000


async def _first(client: Client, stream: str, partition: int, start: StartAt, newest: int) -> tuple[int, int] | None:
    """Offset and time of the first message from there on."""
    try:
        async with client.subscribe(stream, partition, start=start, stop=newest) as subscription:
            async for batch in subscription.batches():
                return batch[0].offset, batch[0].timestamp
    except InvalidArgument as error:
        if not isinstance(start, datetime) or not str(error).startswith(STOP_BEFORE_START):
            raise
    return None


@cursor.command("reset", epilog="Example: bascule cursor reset orders billing --to earliest --dry-run")
@click.argument("stream")
@click.argument("name", metavar="CURSOR")
@click.option(
    "--to", "target", required=True, metavar="POSITION", help="earliest, latest, an offset, or a time (ISO 8601)."
)
@click.option("--partition", type=click.IntRange(min=0), help="[default: all]")
@click.option("--dry-run", is_flag=True, help="Only say what would be set.")
@JsonOption
@ServerOption
def reset(
    stream: str, name: str, target: str, partition: int | None, dry_run: bool, as_json: bool, server: str
) -> None:
    """Set CURSOR of STREAM so that the next message is the first one, the next new one, or one at an offset or time.

    The clients that use it must not run: they would overwrite it, and read it only when they start.
    """
    position = parse_start(target)

    async def ask() -> list[dict[str, Any]]:
        async with connected(server) as client:
            numbers = await client.partitions_of(stream)
            chosen = numbers if partition is None else [partition]
            rows = []
            for number in chosen:
                before = await client.fetch_cursor(name, stream, number)
                after = await _target(client, stream, number, position)
                rows.append({"partition": number, "before": before, "after": after})
            for row in rows if not dry_run else ():
                await client.set_cursor(name, stream, row["partition"], row["after"])
            return rows

    with missing_stream_explained(HINT):
        rows = asyncio.run(ask())
    if as_json:
        print_json({"cursor": name, "stream": stream, "done": not dry_run, "partitions": rows})
        return
    for row in rows:
        does = "would go" if dry_run else "went"
        click.echo(f"cursor {name} of {stream}/{row['partition']} {does} from {row['before']} to {row['after']}")


async def _target(client: Client, stream: str, partition: int, position: StartAt) -> int:
    """The offset of the last message before that position."""
    newest = (await client.fetch_partition_metadata(stream, partition)).high_watermark
    if position in ("latest", "new"):
        return newest
    if isinstance(position, int):
        if position > newest + 1:
            raise FailedPrecondition(f"{stream}/{partition} ends at offset {newest + 1}, and {position} is past it")
        return position - 1
    first = await _first(client, stream, partition, position, newest) if newest >= 0 else None
    return newest if first is None else first[0] - 1
