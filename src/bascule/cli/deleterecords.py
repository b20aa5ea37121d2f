"""`bascule stream delete-records`: the front of a partition is removed."""

from __future__ import annotations

import asyncio

import click

from bascule.cli.cluster import JsonOption
from bascule.cli.connect import Number, ServerOption, Servers, connected, missing_stream_explained
from bascule.cli.tables import print_json
from bascule.wire.pb import admin_pb2 as pb

HINT = "`bascule stream list` shows those there are"


@click.command(
    "delete-records", epilog="Example: bascule stream delete-records orders --partition 0 --before 5000 --dry-run"
)
@click.argument("name", metavar="STREAM")
@click.option("--partition", type=Number(min=0), required=True)
@click.option("--before", type=Number(min=0, bits=64), help="The first offset that stays.")
@click.option(
    "--expired", is_flag=True, help="Instead: what the stream's limits let go, without waiting for the cleaner."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@JsonOption
@ServerOption
def delete_records(
    name: str, partition: int, before: int | None, expired: bool, dry_run: bool, as_json: bool, server: Servers
) -> None:
    """Delete the messages of a partition of STREAM below an offset, on every replica, for good.

    Nothing above the high watermark and nothing that a hold keeps is deleted: the command is refused then.
    """
    if (before is None) == (not expired):
        raise click.UsageError("give either --before OFFSET or --expired")

    async def ask() -> pb.DeleteRecordsResponse:
        async with connected(server) as client:
            return await client.admin.delete_records(name, partition, before, dry_run=dry_run)

    with missing_stream_explained(HINT):
        answer = asyncio.run(ask())
    count = answer.start - answer.previousStart
    if as_json:
        print_json(
            {
                "partition": partition,
                "start": answer.start,
                "previous_start": answer.previousStart,
                "deleted": count,
                "dry_run": dry_run,
            }
        )
    elif not count:
        click.echo(f"{name}/{partition} begins at offset {answer.start}: there is nothing to delete")
    else:
        done = "would delete" if dry_run else "deleted"
        click.echo(
            f"{done} offsets {answer.previousStart} to {answer.start - 1} of {name}/{partition}: it "
            f"{'would begin' if dry_run else 'begins'} at {answer.start}"
        )
