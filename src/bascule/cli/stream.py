"""`bascule stream`: streams listed, described, created and deleted; paused and held."""

from __future__ import annotations

import asyncio

import click

from bascule.cli.alter import alter, settings_given, settings_of, shown
from bascule.cli.cluster import JsonOption
from bascule.cli.connect import Number, ServerOption, Servers, connected, missing_stream_explained
from bascule.cli.deleterecords import delete_records
from bascule.cli.hold import hold, holds_of, print_holds
from bascule.cli.restrict import pause, readonly, resume
from bascule.cli.tables import as_dict, moment, print_json, print_table, size
from bascule.client import Metadata
from bascule.errors import InvalidArgument, NotFound
from bascule.wire.pb import admin_pb2 as pb

HINT = "`bascule stream list` shows those there are"

EPILOG = """\b
Examples:
  bascule stream create orders --partitions 3 --replication-factor 3
  bascule stream list
  bascule stream info orders
  bascule stream alter orders retention.max.age=24h
  bascule stream pause orders
  bascule stream hold set orders archive
"""


@click.group(epilog=EPILOG)
def stream() -> None:
    """List, describe, create and delete streams; pause them, set them read-only, hold what must not expire."""


stream.add_command(alter)
stream.add_command(hold)
stream.add_command(pause)
stream.add_command(resume)
stream.add_command(readonly)
stream.add_command(delete_records)


@stream.command("list", epilog="Example: bascule stream list --json")
@JsonOption
@ServerOption
def list_streams(as_json: bool, server: Servers) -> None:
    """List the streams of the cluster."""

    async def ask() -> Metadata:
        async with connected(server) as client:
            return await client.fetch_metadata()

    streams = [found for _, found in sorted(asyncio.run(ask()).streams.items())]
    rows = [
        {
            "name": each.name,
            "subject": each.subject,
            "partitions": len(each.partitions),
            "replication_factor": max((len(item.replicas) for item in each.partitions.values()), default=0),
            "under_replicated": sum(len(item.isr) < len(item.replicas) for item in each.partitions.values()),
            "paused": sum(item.paused for item in each.partitions.values()),
            "readonly": sum(item.readonly for item in each.partitions.values()),
        }
        for each in streams
    ]
    if as_json:
        print_json(rows)
    elif rows:
        heads = ("stream", "subject", "partitions", "replicas", "under-replicated", "paused", "readonly")
        print_table(heads, [tuple(row.values()) for row in rows])
    else:
        click.echo("no streams; `bascule stream create NAME` creates one", err=True)


@stream.command(epilog="Example: bascule stream info orders")
@click.argument("name", metavar="STREAM")
@JsonOption
@ServerOption
def info(name: str, as_json: bool, server: Servers) -> None:
    """Show the partitions of STREAM, as their leaders know them: where they begin and end, their size and times.

    Ends are exclusive: a log with offsets 0 to 9 ends at 10. --json has the same of every replica.
    """

    async def ask() -> pb.DescribeStreamResponse:
        async with connected(server) as client:
            return await client.admin.describe_stream(name)

    with missing_stream_explained(HINT):
        answer = asyncio.run(ask())
    if as_json:
        print_json(as_dict(answer))
        return
    click.echo(f"stream {answer.name} on subject {answer.subject}, min ISR {answer.minIsr}")
    own = {name: value for name, value in settings_of(answer.settings).items() if name != "min.isr"}
    if own:
        click.echo(f"settings: {', '.join(shown(own))}")
    print_table(
        ("partition", "leader", "replicas", "in sync", "eligible", *LEADERS, "state"),
        [
            (
                item.partition,
                item.leader,
                ",".join(each.broker for each in item.replicas),
                ",".join(each.broker for each in item.replicas if each.inSync),
                ",".join(each.broker for each in item.replicas if each.eligible),
                *_leaders(item),
                ", ".join(_state(item) if answer.current else ["not known: no controller answers"]),
            )
            for item in answer.partitions
        ],
    )
    if rows := holds_of(answer):
        print_holds(rows)
    relaxed = {each.broker: each.sync for item in answer.partitions for each in item.replicas if each.sync != "group"}
    for broker, mode in sorted(relaxed.items()):
        if mode:
            click.echo(f"relaxed sync on {broker} ({mode}): a power loss there may take acked messages")


LEADERS = ("start", "hw end", "end", "bytes", "segments", "first", "last")


def _leaders(item: pb.PartitionDescription) -> tuple[object, ...]:
    """What the leader knows; unknown if it does not answer."""
    for each in item.replicas:
        if each.broker == item.leader and each.answered:
            begin = max(item.start, each.start)
            times = moment(each.firstTimestamp), moment(each.lastTimestamp)
            return begin, each.highWatermarkEnd, each.end, size(each.bytes), each.segments, *times
    return (item.start, *"??????")


def _state(item: pb.PartitionDescription) -> list[str]:
    waits = f"{item.leader} waits for {', '.join(item.waitsFor)}: see `bascule cluster status`"
    states = [waits] if item.waitsFor else [] if item.online else ["no live leader"]
    states += ["under-replicated"] if item.underReplicated else []
    states += ["below min ISR"] if item.belowMinIsr else []
    states += ["readonly"] if item.readonly else []
    states += ["paused"] if item.paused else []
    states += [f"unclean election at epoch {item.uncleanEpoch}"] if item.uncleanEpoch else []
    return states or ["ok"]


@stream.command(
    epilog="""\b
Examples:
  bascule stream create orders --partitions 3 --replication-factor 3
  bascule stream create clicks retention.max.age=24h segment.max.age=1h"""
)
@click.argument("name", metavar="STREAM")
@click.argument("given", nargs=-1, metavar="[SETTING=VALUE]...")
@click.option("--subject", help="The NATS subject it stores. [default: its name]")
@click.option("--partitions", type=Number(min=1), default=1, show_default=True)
@click.option(
    "--replication-factor",
    type=Number(min=-1),
    default=1,
    show_default=True,
    help="Copies of each partition; -1 means one on every broker.",
)
@click.option("--min-isr", type=Number(min=1), help="In-sync replicas a commit needs. [default: the broker's]")
@JsonOption
@ServerOption
def create(
    name: str,
    given: tuple[str, ...],
    subject: str | None,
    partitions: int,
    replication_factor: int,
    min_isr: int | None,
    as_json: bool,
    server: Servers,
) -> None:
    """Create STREAM.

    Settings of its own are named as in the brokers' configuration, without `streams.`: retention.max.age=24h,
    retention.max.bytes=1073741824. It has the brokers' values of the others. `bascule stream alter` changes them.
    """
    settings = settings_given(given)
    if min_isr is None:
        min_isr = settings.get("min_isr")
    elif "min_isr" in settings:
        raise click.UsageError("give --min-isr or min.isr=, not both")
    else:
        settings["min_isr"] = min_isr
    if replication_factor == 0:
        raise InvalidArgument("a stream needs a copy: --replication-factor 1 or more, or -1 for one on every broker")

    if min_isr is not None and 0 < replication_factor < min_isr:
        raise InvalidArgument(
            f"--min-isr {min_isr} of {replication_factor} replicas can never be met, so nothing would be committed: "
            f"--replication-factor {min_isr} or more, or a smaller --min-isr"
        )

    async def ask() -> None:
        async with connected(server) as client:
            await client.create_stream(name, subject, partitions, replication_factor, **settings)
            if min_isr is None:
                return
            made = (await client.fetch_metadata([name])).streams.get(name)
            fewest = min((len(item.replicas) for item in made.partitions.values()), default=0) if made else min_isr
            if fewest < min_isr:  # with -1 only the cluster knows how many there are
                click.echo(
                    f"{name} has {fewest} replicas, and --min-isr {min_isr} can never be met: nothing will be "
                    "committed; delete it, and create it again when there are more brokers or with a smaller --min-isr",
                    err=True,
                )

    asyncio.run(ask())
    if as_json:
        print_json({"created": name})
    else:
        click.echo(f"created {name}")


@stream.command(epilog="Example: bascule stream delete orders --yes")
@click.argument("name", metavar="STREAM")
@click.option("--yes", is_flag=True, help="Do not ask.")
@JsonOption
@ServerOption
def delete(name: str, yes: bool, as_json: bool, server: Servers) -> None:
    """Delete STREAM and every message in it."""
    if not yes:
        click.confirm(f"delete {name} and every message in it?", abort=True, err=True)

    async def ask() -> None:
        async with connected(server) as client:
            await client.delete_stream(name)

    try:
        asyncio.run(ask())
    except NotFound:
        raise NotFound(f"no such stream: {name}; {HINT}") from None
    if as_json:
        print_json({"deleted": name})
    else:
        click.echo(f"deleted {name}")
