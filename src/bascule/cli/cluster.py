"""`bascule cluster`: the brokers of a cluster, looked at and administered through its controller.

Results go to stdout, progress to stderr. Every command may be run again: it goes on where the last one stopped.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable

import click

from bascule import limits
from bascule.cli.connect import Number, Seconds, ServerOption, Servers, connected
from bascule.cli.output import CommandFailed, one_line
from bascule.cli.recover import recover
from bascule.cli.tables import print_json, print_table
from bascule.errors import BasculeError
from bascule.wire.pb import admin_pb2 as pb

WATCH_S = 1.0
SHOWN = 20
"""Partitions of a kind that are listed for people; JSON has them all."""

JsonOption = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
TimeoutOption = click.option(
    "--timeout",
    type=Seconds(min=1.0),
    default=limits.CLIENT_ADMIN_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until it is done.",
)

EPILOG = """\b
Examples:
  bascule cluster status
  bascule cluster drain b --stop
  bascule cluster remove b
"""


@click.group(epilog=EPILOG)
def cluster() -> None:
    """Look at the brokers of a cluster; drain one, remove one, elect a leader that is not in sync, recover."""


cluster.add_command(recover)


def names(refs: Iterable[pb.PartitionRef]) -> str:
    listed = [f"{ref.stream}/{ref.partition} ({ref.reason})" for ref in refs]
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more


# --- status -----------------------------------------------------------------------------------------------------


@cluster.command(
    short_help="Members, controller, partitions in trouble.", epilog="Example: bascule cluster status --json"
)
@click.option("--watch", "-w", is_flag=True, help="Show it again every second until interrupted.")
@JsonOption
@ServerOption
def status(watch: bool, as_json: bool, server: Servers) -> None:
    """Show the members, the controller, and the partitions that are not as they should be."""

    async def ask() -> pb.ClusterStatusResponse:
        async with connected(server) as client:
            return await client.admin.cluster_status()

    if not watch:
        _show(asyncio.run(ask()), as_json)
        return
    try:
        while True:
            began = time.monotonic()
            try:
                answer = asyncio.run(ask())
            except BasculeError as error:  # the one that answers may be the one that was killed
                click.echo(f"error: {one_line(str(error))}", err=True)
            else:
                if sys.stdout.isatty():
                    click.clear()
                _show(answer, as_json)
                sys.stdout.flush()
            time.sleep(max(0.0, began + WATCH_S - time.monotonic()))
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _show(answer: pb.ClusterStatusResponse, as_json: bool) -> None:
    if as_json:
        print_json(answer)
        return
    if not answer.current:
        click.echo(f"no controller confirms this: it is the last state that {answer.broker} knows", err=True)
    print_table(
        ("broker", "address", "role", "state", "partitions", "leads"),
        [
            (each.id, f"{each.host}:{each.port}" if each.port else "", _role(each), _state(each), *_counts(each))
            for each in answer.members
        ],
    )
    click.echo(f"controller: {answer.controller or 'none known'}")
    click.echo(f"partitions: {answer.partitions}")
    for what, count, refs in (
        ("under-replicated", answer.underReplicatedCount, answer.underReplicated),
        ("without a live leader", answer.offlineCount, answer.offline),
        ("below min ISR", answer.belowMinIsrCount, answer.belowMinIsr),
    ):
        click.echo(f"{what}: {count}")
        for ref in refs[:SHOWN]:
            click.echo(f"  {ref.stream}/{ref.partition}: {ref.reason}")
        if count > SHOWN:
            click.echo(f"  and {count - SHOWN} more; --json names up to {limits.ADMIN_NAMED_PARTITIONS}")


def _role(member: pb.Member) -> str:
    role = "voter" if member.voter else "learner"
    return f"{role}, controller" if member.controller else role


def _state(member: pb.Member) -> str:
    """The most important state first. A learner that has sent no heartbeat yet is joining."""
    joins = not member.alive and not member.voter and not member.port
    states = ["alive" if member.alive else "joining" if joins else "away"]
    states += ["stopping"] if member.leaving else []
    states += ["removing"] if member.removing else ["draining"] if member.draining else []
    return ", ".join(states)


def _counts(member: pb.Member) -> tuple[int, int]:
    return member.partitions, member.leaderships


# --- draining ---------------------------------------------------------------------------------------------------


@cluster.command(short_help="Hand over what a broker leads.", epilog="Example: bascule cluster drain b --stop")
@click.argument("broker")
@click.option("--stop", is_flag=True, help="Stop the broker once it leads nothing.")
@TimeoutOption
@JsonOption
@ServerOption
def drain(broker: str, stop: bool, timeout: float, as_json: bool, server: Servers) -> None:
    """Hand over what BROKER leads, and give it nothing new, until it is undrained.

    It stays in the cluster as a follower, also over a restart. It goes on leading partitions of which it has the only
    in-sync copy, and the answer names them; --stop does not stop it then.
    """

    async def ask() -> pb.DrainBrokerResponse:
        async with connected(server) as client:
            return await client.admin.drain_broker(broker, stop=stop, timeout=timeout)

    answer = asyncio.run(ask())
    if as_json:
        print_json(answer)
    if not answer.done:
        raise CommandFailed(
            f"{broker} is being drained, but not done within {timeout:g} s: run the same command again to go on"
        )
    if stop and not answer.stopping:
        raise CommandFailed(_not_stopped(broker, answer))
    if as_json:
        return
    if answer.kept:
        click.echo(f"{broker} is drained, but still leads what no other broker can: {names(answer.kept)}")
    else:
        click.echo(f"{broker} leads nothing any more" + (" and stops" if stop else ""))
    then = "it stays drained when it is started again: " if stop else ""
    click.echo(f"{then}`bascule cluster undrain {broker}` lets it lead again", err=True)


def _not_stopped(broker: str, answer: pb.DrainBrokerResponse) -> str:
    undo = f"`bascule cluster undrain {broker}` cancels the drain"
    if not answer.kept:
        return f"{broker} is drained, but does not answer, so it was not stopped: stop its process (SIGTERM). {undo}"
    return (
        f"{broker} is drained, but was not stopped: it has the only in-sync copy of {names(answer.kept)}, which nobody "
        "could read or write without it. Start the brokers of the other replicas and run this again; a stream with one "
        f"replica is moved by `bascule cluster remove {broker}`, which takes {broker} out for good. {undo}"
    )


@cluster.command(short_help="Let a drained broker lead again.", epilog="Example: bascule cluster undrain b")
@click.argument("broker")
@JsonOption
@ServerOption
def undrain(broker: str, as_json: bool, server: Servers) -> None:
    """Let BROKER lead and hold replicas again; a removal that has begun is cancelled."""

    async def ask() -> None:
        async with connected(server) as client:
            await client.admin.undrain_broker(broker)

    asyncio.run(ask())
    if as_json:
        print_json({"done": True})
    else:
        click.echo(f"{broker} may lead again")


# --- removing ---------------------------------------------------------------------------------------------------


@cluster.command(short_help="Take a broker out for good.", epilog="Example: bascule cluster remove b")
@click.argument("broker")
@click.option("--force", is_flag=True, help="Even if the only in-sync copy of a partition is lost with it.")
@TimeoutOption
@JsonOption
@ServerOption
def remove(broker: str, force: bool, timeout: float, as_json: bool, server: Servers) -> None:
    """Take BROKER out of the cluster for good: others get its replicas first.

    It must be dead, or drained. It is never removed while it has the only in-sync copy of something, unless by force;
    the refusal names what would be lost.
    """
    said: set[str] = set()

    def on_waiting(answer: pb.RemoveBrokerResponse) -> None:
        text = f"waiting: {names(answer.waiting)}" if answer.waiting else "waiting for the cluster"
        if text not in said and not as_json:
            said.add(text)
            click.echo(text, err=True)

    async def ask() -> pb.RemoveBrokerResponse:
        async with connected(server) as client:
            return await client.admin.remove_broker(broker, force=force, timeout=timeout, on_waiting=on_waiting)

    answer = asyncio.run(ask())
    if as_json:
        print_json(answer)
    if not answer.done:
        waiting = f" (waiting for {names(answer.waiting)})" if answer.waiting else ""
        raise CommandFailed(
            f"{broker} is not removed after {timeout:g} s{waiting}: run the same command again to go on, or "
            f"`bascule cluster undrain {broker}` to cancel it"
        )
    if not as_json:
        if answer.lost:
            click.echo(f"given up: {names(answer.lost)}")
        click.echo(f"{broker} is removed")


# --- electing ---------------------------------------------------------------------------------------------------


@cluster.command(short_help="Let a replica lead that is not in sync.", epilog="Example: bascule cluster elect orders 0")
@click.argument("stream")
@click.argument("partition", type=Number(min=0))
@click.option(
    "--replica", default="", metavar="BROKER", help="Who is to lead. [default: the live replica with the longest log]"
)
@click.option("--accept-loss", is_flag=True, help="Do it. Without this the command only says what would be lost.")
@click.option("--in-sync", default="", metavar="BROKERS", help="Only if these are still in sync, as shown before.")
@click.option("--eligible", default="", metavar="BROKERS", help="With --in-sync: and only if these are still eligible.")
@JsonOption
@ServerOption
def elect(
    stream: str,
    partition: int,
    replica: str,
    accept_loss: bool,
    in_sync: str,
    eligible: str,
    as_json: bool,
    server: Servers,
) -> None:
    """Let a replica lead PARTITION of STREAM although it may lack messages: no live replica is known to have them all.

    Messages that were acked may be lost. Start a replica that is in sync or eligible again instead, if you can.
    """

    async def ask() -> pb.ElectLeaderResponse:
        async with connected(server) as client:
            return await client.admin.elect_leader(
                stream,
                partition,
                replica=replica,
                accept_loss=accept_loss,
                in_sync=_names(in_sync),
                eligible=_names(eligible),
            )

    answer = asyncio.run(ask())
    if as_json:
        print_json(answer)
        return
    if answer.done:
        click.echo(f"elected {answer.leader} for {stream}/{partition}, epoch {answer.epoch}: {answer.statement}")
        return
    click.echo(answer.statement)
    click.echo(f"nothing was done; to accept this: {_accepting(stream, partition, answer)}", err=True)


def _accepting(stream: str, partition: int, answer: pb.ElectLeaderResponse) -> str:
    """The command that does what the answer says, if ISR and eligible replicas are still the same."""
    command = ["bascule", "cluster", "elect", stream, str(partition), "--replica", answer.leader]
    command += ["--in-sync", ",".join(answer.inSync)] if answer.inSync else []
    command += ["--eligible", ",".join(answer.eligible)] if answer.eligible else []
    return " ".join([*command, "--accept-loss"])


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]
