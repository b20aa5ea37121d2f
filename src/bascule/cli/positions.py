"""How far the readers of a stream are behind, and where they are set to: for `bascule cursor` and `bascule group`.

A cursor is the offset of the last message that was processed. Its lag is how many messages come after it, and how long
ago the first of these was stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from bascule import limits
from bascule.cli.connect import partitions_named
from bascule.cli.sub import STOP_BEFORE_START, parse_start
from bascule.cli.tables import age
from bascule.client import Client, StartAt
from bascule.client.cursors import BEFORE_THE_FIRST, GROUP, NEVER_SET, Cursor
from bascule.errors import BasculeError, CorruptError, FailedPrecondition, InvalidArgument

LAG_TIMEOUT_S = 2.0
"""For a partition that nobody leads, or that is paused, the lag is not known."""

ToOption = click.option(
    "--to", "target", required=True, metavar="POSITION", help="earliest, latest, an offset, or a time (ISO 8601)."
)
DryRunOption = click.option("--dry-run", is_flag=True, help="Only say what would be set.")


class Lag(NamedTuple):
    """None where it is not known."""

    end: int | None = None
    """The offset that the next message gets."""
    messages: int | None = None
    seconds: int | None = None


UNKNOWN = Lag()


async def lags_of(client: Client, cursors: Sequence[Cursor]) -> list[Lag]:
    room = asyncio.Semaphore(limits.CLI_LAGS_AT_ONCE)

    async def one(cursor: Cursor) -> Lag:
        async with room:
            return await lag_of(client, cursor)

    return list(await asyncio.gather(*map(one, cursors)))


async def lag_of(client: Client, cursor: Cursor) -> Lag:
    """Unknown if the partition is not there, or not readable. That of a cursor that was never set is not known either:
    where its clients begin is theirs to say."""
    stream, partition = cursor.stream, cursor.partition
    try:
        newest = (await client.fetch_partition_metadata(stream, partition, timeout=LAG_TIMEOUT_S)).high_watermark
        end = newest + 1
        if cursor.offset == NEVER_SET:
            return Lag(end)
        if newest < 0 or cursor.offset >= newest:
            return Lag(end, 0, 0)
        async with asyncio.timeout(LAG_TIMEOUT_S):
            first = await _first(client, stream, partition, max(0, cursor.offset + 1), newest)
    except (BasculeError, TimeoutError):
        return UNKNOWN
    if first is None:
        return Lag(end, 0, 0)
    offset, timestamp = first
    return Lag(end, end - offset, max(0, time.time_ns() - timestamp) // 1_000_000_000)


async def _first(client: Client, stream: str, partition: int, start: StartAt, newest: int) -> tuple[int, int] | None:
    """Offset and time of the first message from there on; None if there is none, or none any more."""
    try:
        async with client.subscribe(stream, partition, start=start, stop=newest) as subscription:
            async for batch in subscription.batches():
                return batch[0].offset, batch[0].timestamp
    except InvalidArgument as error:
        if not str(error).startswith(STOP_BEFORE_START):
            raise
    return None


def shown(number: int | None) -> str:
    return "-" if number is None else str(number)


def behind(seconds: int | None) -> str:
    return "-" if seconds is None else age(seconds)


# --- setting ------------------------------------------------------------------------------------------------------


class Reset(NamedTuple):
    cursor: Cursor
    """As it is before."""
    after: int

    def as_dict(self) -> dict[str, Any]:
        _, stream, partition, before = self.cursor
        return {"stream": stream, "partition": partition, "before": before, "after": self.after}


def parse_target(text: str) -> StartAt:
    return parse_start(text, "--to")


async def resets_of(client: Client, id: str, stream: str, partition: int | None, position: StartAt) -> list[Reset]:
    """What setting this cursor to that position means, in one partition of the stream or in all. Nothing is set."""
    found = []
    for number in await partitions_named(client, stream, partition):
        try:
            before = await client.fetch_cursor(id, stream, number)
        except CorruptError:
            before = NEVER_SET  # nobody knows what it was, and to set it is the way out
        after = await _last_before(client, id, stream, number, position)
        found.append(Reset(Cursor(id, stream, number, before), after))
    return found


async def _last_before(client: Client, id: str, stream: str, partition: int, position: StartAt) -> int:
    """The value of a cursor whose next message is the first one at that position."""
    newest = (await client.fetch_partition_metadata(stream, partition)).high_watermark
    if position in ("latest", "new"):
        following = newest + 1
    elif isinstance(position, int):
        if position > newest + 1:
            raise FailedPrecondition(f"{stream}/{partition} ends at offset {newest + 1}, and {position} is past it")
        following = position
    else:
        first = await _first(client, stream, partition, position, newest) if newest >= 0 else None
        following = newest + 1 if first is None else first[0]
    if following == 0 and id.startswith(GROUP):
        return BEFORE_THE_FIRST  # the members of a group take NEVER_SET for a choice of their own
    return following - 1


async def set_to(client: Client, resets: Sequence[Reset]) -> None:
    for cursor, after in resets:
        await client.set_cursor(cursor.id, cursor.stream, cursor.partition, after)


def say_resets(resets: Sequence[Reset], what: str, dry_run: bool) -> None:
    for cursor, after in resets:
        does = "would go" if dry_run else "went"
        click.echo(f"{what} of {cursor.stream}/{cursor.partition} {does} from {cursor.offset} to {after}")
