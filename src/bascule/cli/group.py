"""`bascule group`: consumer groups, who reads what, how far they are behind, and where they go on.

What a group has processed is in cursors, which its members set: `__group:` and its id. They outlive the group, which is
gone when its last member is. A group of which only cursors are left is called empty, as Kafka calls it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from bascule import limits
from bascule.cli.cluster import JsonOption
from bascule.cli.connect import (
    PartitionOption,
    ServerOption,
    Servers,
    connected,
    missing_stream_explained,
    partitions_named,
)
from bascule.cli.output import say
from bascule.cli.positions import (
    UNKNOWN,
    DryRunOption,
    Lag,
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
from bascule.client import Client
from bascule.client.cursors import CURSORS, GROUP, NEVER_SET, Cursor
from bascule.errors import FailedPrecondition, NotFound
from bascule.wire.pb import admin_pb2 as pb

HINT = "`bascule stream list` shows those there are"
EPILOG = """\b
Examples:
  bascule group list
  bascule group describe billing
  bascule group reset billing --stream orders --to earliest --dry-run
"""
STABLE, EMPTY = "stable", "empty"


class Read(NamedTuple):
    """A partition that a group reads, or has read."""

    consumer: str
    """Empty if no member reads it now."""
    cursor: Cursor
    lag: Lag = UNKNOWN


@click.group(epilog=EPILOG)
def group() -> None:
    """Show consumer groups, their members and their lag; set them back or forth."""


# --- list ---------------------------------------------------------------------------------------------------------


@group.command("list", epilog="Example: bascule group list --all --json")
@click.option(
    "--all",
    "with_empty",
    is_flag=True,
    help="Also groups without members, of which cursors are stored. Reads all cursors: with many that takes long.",
)
@click.option("--no-lag", is_flag=True, help="Leave out the lag, which takes three requests per partition.")
@JsonOption
@ServerOption
def list_groups(with_empty: bool, no_lag: bool, as_json: bool, server: Servers) -> None:
    """List the consumer groups, with their lag: the messages of all their partitions, and the longest time of one."""

    async def ask() -> list[dict[str, Any]]:
        async with connected(server) as client:
            live = await client.admin.list_groups()
            rows = [_listed(each) for each in live]
            lags = {} if no_lag else {each.group: await _lags(client, each.group) for each in live}
            if with_empty:
                stored = await _stored(client)
                names = sorted(stored.keys() - {each.group for each in live})
                rows += [_listed(pb.GroupListing(group=name)) for name in names]
                lags |= {} if no_lag else {name: await lags_of(client, stored[name]) for name in names}
            for row in rows if not no_lag else ():
                row |= {"lag_messages": _sum(lags[row["group"]]), "lag_seconds": _longest(lags[row["group"]])}
            return sorted(rows, key=lambda row: str(row["group"]))

    rows = asyncio.run(ask())
    if as_json:
        print_json(rows)
    elif not rows:
        hint = "" if with_empty else "; --all shows those of which cursors are stored"
        click.echo(f"no consumer groups{hint}", err=True)
    else:
        print_table(
            ("group", "state", "members", "partitions", "coordinator", "epoch", *(() if no_lag else ("lag", "behind"))),
            [
                (*list(row.values())[:6], *(() if no_lag else (shown(row["lag_messages"]), behind(row["lag_seconds"]))))
                for row in rows
            ],
        )


def _listed(each: pb.GroupListing) -> dict[str, Any]:
    return {
        "group": each.group,
        "state": STABLE if each.members else EMPTY,
        "members": each.members,
        "partitions": each.partitions,
        "coordinator": each.coordinator,
        "epoch": each.epoch,
    }


async def _lags(client: Client, name: str) -> list[Lag]:
    described = await _described(client, name)
    return [] if described is None else [each.lag for each in await _reads(client, described, ())]


def _sum(lags: Sequence[Lag]) -> int | None:
    known = [lag.messages for lag in lags if lag.messages is not None]
    return sum(known) if known else None


def _longest(lags: Sequence[Lag]) -> int | None:
    return max((lag.seconds for lag in lags if lag.seconds is not None), default=None)


# --- describe -----------------------------------------------------------------------------------------------------


@group.command("describe", epilog="Example: bascule group describe billing --stream orders")
@click.argument("name", metavar="GROUP")
@click.option("--stream", "streams", multiple=True, help="Also all partitions of this stream. May be repeated.")
@JsonOption
@ServerOption
def describe(name: str, streams: tuple[str, ...], as_json: bool, server: Servers) -> None:
    """Show the members of GROUP, the partitions that they read, and the lag of each.

    The offset is that of the last message that was processed; the end is what the next new message gets. Of a group
    without members all cursors are read, which takes long if they are many: --stream makes that unnecessary.
    """

    async def ask() -> tuple[pb.DescribeGroupResponse, list[Read]]:
        async with connected(server) as client:
            described = await _described(client, name)
            if described is None and not streams:
                cursors = (await _stored(client)).get(name, [])
                if not cursors:
                    raise NotFound(f"no such group: {name}; `bascule group list --all` shows those there are")
                return pb.DescribeGroupResponse(group=name), await _with_lags(
                    client, [Read("", each) for each in cursors]
                )
            found = described or pb.DescribeGroupResponse(group=name)
            return found, await _reads(client, found, streams)

    with missing_stream_explained(HINT):
        found, reads = asyncio.run(ask())
    if as_json:
        print_json(_as_dict(found, reads))
        return
    state = STABLE if found.members else EMPTY
    click.echo(
        f"group {name}: {state}"
        + (f", coordinator {found.coordinator or '-'}, epoch {found.epoch}" if found.members else "")
    )
    if found.members:
        print_table(
            ("consumer", "partitions", "streams"),
            [
                (each.consumer, sum(len(given.partitions) for given in each.assignments), ",".join(each.streams))
                for each in found.members
            ],
        )
    if reads:
        print_table(
            ("stream", "partition", "consumer", "offset", "end", "lag", "behind"),
            [
                (
                    each.cursor.stream,
                    each.cursor.partition,
                    each.consumer,
                    shown(_offset(each.cursor)),
                    shown(each.lag.end),
                    shown(each.lag.messages),
                    behind(each.lag.seconds),
                )
                for each in reads
            ],
        )


def _offset(cursor: Cursor) -> int | None:
    return None if cursor.offset == NEVER_SET else cursor.offset


def _as_dict(found: pb.DescribeGroupResponse, reads: Sequence[Read]) -> dict[str, Any]:
    return {
        "group": found.group,
        "state": STABLE if found.members else EMPTY,
        "coordinator": found.coordinator,
        "epoch": found.epoch,
        "members": [
            {
                "consumer": each.consumer,
                "streams": list(each.streams),
                "assignments": {given.stream: list(given.partitions) for given in each.assignments},
            }
            for each in found.members
        ],
        "partitions": [
            {
                "stream": each.cursor.stream,
                "partition": each.cursor.partition,
                "consumer": each.consumer or None,
                "offset": _offset(each.cursor),
                "end": each.lag.end,
                "lag_messages": each.lag.messages,
                "lag_seconds": each.lag.seconds,
            }
            for each in reads
        ],
    }


async def _described(client: Client, name: str) -> pb.DescribeGroupResponse | None:
    try:
        return await client.admin.describe_group(name)
    except NotFound:
        return None


async def _stored(client: Client) -> dict[str, list[Cursor]]:
    """The cursors of all groups, by group."""
    found: dict[str, list[Cursor]] = {}
    for each in await client.list_cursors():
        if each.id.startswith(GROUP):
            found.setdefault(each.id.removeprefix(GROUP), []).append(each)
    return found


async def _reads(client: Client, found: pb.DescribeGroupResponse, streams: Sequence[str]) -> list[Read]:
    """What its members read, and the partitions of these streams."""
    readers = {
        (given.stream, number): member.consumer
        for member in found.members
        for given in member.assignments
        for number in given.partitions
    }
    for stream in streams:
        for number in await partitions_named(client, stream, None):
            readers.setdefault((stream, number), "")
    if CURSORS not in (await client.fetch_metadata([CURSORS])).streams:
        say("this cluster has no cursors (cursors.stream.partitions is 0): nobody knows how far its groups are")
        return [Read(readers[place], Cursor(GROUP + found.group, *place, NEVER_SET)) for place in sorted(readers)]
    room = asyncio.Semaphore(limits.CLI_LAGS_AT_ONCE)

    async def read(place: tuple[str, int]) -> Read:
        async with room:
            offset = await client.fetch_cursor(GROUP + found.group, *place)
        return Read(readers[place], Cursor(GROUP + found.group, *place, offset))

    return await _with_lags(client, await asyncio.gather(*map(read, sorted(readers))))


async def _with_lags(client: Client, reads: Sequence[Read]) -> list[Read]:
    lags = await lags_of(client, [each.cursor for each in reads])
    return [each._replace(lag=lag) for each, lag in zip(reads, lags, strict=True)]


# --- reset --------------------------------------------------------------------------------------------------------


@group.command(
    "reset", epilog="Example: bascule group reset billing --stream orders --to 2026-01-31T12:00:00 --dry-run"
)
@click.argument("name", metavar="GROUP")
@click.option("--stream", "streams", multiple=True, help="Whose position is set. May be repeated.")
@click.option("--all-streams", is_flag=True, help="All streams of which GROUP has cursors.")
@ToOption
@PartitionOption
@DryRunOption
@JsonOption
@ServerOption
def reset(
    name: str,
    streams: tuple[str, ...],
    all_streams: bool,
    target: str,
    partition: int | None,
    dry_run: bool,
    as_json: bool,
    server: Servers,
) -> None:
    """Set where the members of GROUP go on: with the first message, the next new one, or one at an offset or time.

    As with kafka-consumer-groups, that is refused while the group has members, and nothing overrules it: they would
    overwrite what is set, and read it only when they are given a partition. Stop them first; one that was killed is
    gone after groups.consumer.timeout. --dry-run says what would be set also while they run.
    """
    if bool(streams) == all_streams:
        raise click.UsageError("name streams with --stream, or use --all-streams")
    if partition is not None and len(set(streams)) != 1:
        raise click.UsageError("--partition is one of a single stream: name it with --stream")
    position = parse_target(target)

    async def ask() -> tuple[list[Reset], int]:
        async with connected(server) as client:
            members = await _count(client, name)
            if members and not dry_run:
                raise FailedPrecondition(
                    f"group {name} has {members} members, which would overwrite what is set here: stop them first; "
                    f"`bascule group describe {name}` names them"
                )
            chosen = await _streams_of(client, name) if all_streams else list(dict.fromkeys(streams))
            found = [
                each for stream in chosen for each in await resets_of(client, GROUP + name, stream, partition, position)
            ]
            if not dry_run:
                await set_to(client, found)
                members = await _count(client, name)
            return found, members

    with missing_stream_explained(HINT):
        resets, members = asyncio.run(ask())
    if as_json:
        print_json({"group": name, "done": not dry_run, "partitions": [each.as_dict() for each in resets]})
    else:
        say_resets(resets, f"group {name}", dry_run)
    if members and dry_run:
        say(f"it would be refused now: group {name} has {members} members")
    elif members:
        raise FailedPrecondition(
            f"group {name} has got {members} members meanwhile, which may have overwritten what was set: stop them, "
            "and reset it again"
        )


async def _count(client: Client, name: str) -> int:
    described = await _described(client, name)
    return 0 if described is None else len(described.members)


async def _streams_of(client: Client, name: str) -> list[str]:
    found = sorted({each.stream for each in (await _stored(client)).get(name, [])})
    if not found:
        raise NotFound(f"group {name} has no cursors: name its streams with --stream")
    return found
