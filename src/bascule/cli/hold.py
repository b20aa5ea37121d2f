"""`bascule stream hold`: holds of a stream set, raised, listed and removed."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from bascule.cli.cluster import JsonOption
from bascule.cli.connect import (
    Number,
    PartitionOption,
    ServerOption,
    Servers,
    connected,
    missing_stream_explained,
    partitions_named,
)
from bascule.cli.tables import age, print_json, print_table, size
from bascule.errors import InvalidArgument, NotFound
from bascule.wire.pb import admin_pb2 as pb

HINT = "`bascule stream list` shows those there are"
EPILOG = """\b
Examples:
  bascule stream hold set orders archive
  bascule stream hold set orders archive --partition 0 --offset 5000
  bascule stream hold list orders
  bascule stream hold remove orders archive
"""


@click.group(epilog=EPILOG)
def hold() -> None:
    """Keep messages from being removed by retention until they are archived elsewhere."""


@hold.command("set", epilog="Example: bascule stream hold set orders archive --partition 0 --offset 5000")
@click.argument("stream")
@click.argument("name")
@PartitionOption
@click.option("--offset", type=Number(min=0, bits=64), help="[default: where the partition begins now]")
@JsonOption
@ServerOption
def set_hold(stream: str, name: str, partition: int | None, offset: int | None, as_json: bool, server: Servers) -> None:
    """Let nothing at or above an offset of STREAM be removed, or raise the hold of this NAME to it.

    Raising a hold states that all below it is archived: retention may remove that. A hold is never lowered.
    """

    async def ask() -> list[dict[str, Any]]:
        async with connected(server) as client:
            numbers = await partitions_named(client, stream, partition)
            if offset is not None and len(numbers) > 1:
                raise InvalidArgument(
                    f"{stream} has {len(numbers)} partitions, and an offset is one of a single partition: name it with "
                    "--partition"
                )
            return [
                {"partition": each, "name": name, "offset": await client.admin.set_hold(stream, each, name, offset)}
                for each in numbers
            ]

    with missing_stream_explained(HINT):
        done = asyncio.run(ask())
    if as_json:
        print_json(done)
        return
    for each in done:
        click.echo(f"hold {name} keeps {stream}/{each['partition']} from offset {each['offset']} on")


@hold.command("list", epilog="Example: bascule stream hold list orders --json")
@click.argument("stream")
@JsonOption
@ServerOption
def list_holds(stream: str, as_json: bool, server: Servers) -> None:
    """List the holds of STREAM, with the messages and bytes that each keeps at or above it."""

    async def ask() -> pb.DescribeStreamResponse:
        async with connected(server) as client:
            return await client.admin.describe_stream(stream)

    with missing_stream_explained(HINT):
        answer = asyncio.run(ask())
    rows = holds_of(answer)
    if as_json:
        print_json(rows)
    elif rows:
        print_holds(rows)
    else:
        click.echo(f"{stream} has no holds; `bascule stream hold set {stream} NAME` sets one", err=True)


def holds_of(answer: pb.DescribeStreamResponse) -> list[dict[str, Any]]:
    return [
        {
            "partition": item.partition,
            "name": each.name,
            "offset": each.offset,
            "set_timestamp": each.setTimestamp,
            "age_seconds": max(0, answer.timestamp - each.setTimestamp) // 1_000_000_000,
            "held_messages": each.heldMessages,
            "held_bytes": each.heldBytes,
        }
        for item in answer.partitions
        for each in item.holds
    ]


def print_holds(rows: list[dict[str, Any]]) -> None:
    print_table(
        ("hold", "partition", "offset", "age", "messages", "bytes"),
        [
            (
                row["name"],
                row["partition"],
                row["offset"],
                age(row["age_seconds"]),
                row["held_messages"],
                size(row["held_bytes"]),
            )
            for row in rows
        ],
    )


@hold.command("remove", epilog="Example: bascule stream hold remove orders archive")
@click.argument("stream")
@click.argument("name")
@PartitionOption
@JsonOption
@ServerOption
def remove(stream: str, name: str, partition: int | None, as_json: bool, server: Servers) -> None:
    """Remove the hold of this NAME from STREAM: retention may then remove what it kept."""

    async def ask() -> list[int]:
        async with connected(server) as client:
            described = await client.admin.describe_stream(stream)
            there = [item.partition for item in described.partitions if name in {each.name for each in item.holds}]
            chosen = [each for each in there if partition in (None, each)]
            if not chosen:
                where = stream if partition is None else f"{stream}/{partition}"
                raise NotFound(
                    f"{where} has no hold {name!r}; `bascule stream hold list {stream}` shows those there are"
                )
            for each in chosen:
                await client.admin.remove_hold(stream, each, name)
            return chosen

    with missing_stream_explained(HINT):
        removed = asyncio.run(ask())
    if as_json:
        print_json({"removed": name, "partitions": removed})
    else:
        click.echo(f"removed hold {name} from {', '.join(f'{stream}/{each}' for each in removed)}")
