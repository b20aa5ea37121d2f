"""`bascule sub`: messages of one partition on stdout, to the current end or for ever.

"The current end" is the leader's high watermark when the command starts. A value is printed as
it is; with `--json` every message is one object, its value as text if it is UTF-8 and in base64 otherwise.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Callable
from datetime import datetime

import click

from bascule.cli.connect import ServerOption, connected, missing_stream_explained
from bascule.client import Client, Message, StartAt
from bascule.errors import InvalidArgument

EPILOG = """\b
Examples:
  bascule sub orders
  bascule sub --last 10 orders
  bascule sub orders --follow --from new --json
  bascule sub orders --from 2026-01-31T12:00:00
  bascule sub orders --replica b
"""


STOP_BEFORE_START = "Stop offset is before start offset"

_WORDS: dict[str, StartAt] = {"earliest": "earliest", "latest": "latest", "new": "new"}


def parse_start(text: str) -> StartAt:
    """`earliest`, `latest`, `new`, an offset, or a time in ISO 8601."""
    if text in _WORDS:
        return _WORDS[text]
    if text.isdecimal():
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither earliest, latest, new, an offset nor a time like 2026-01-31T12:00:00",
            param_hint="--from",
        ) from None


@click.command(epilog=EPILOG)
@click.argument("stream")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Begin with the last N messages.")
@click.option("--follow", "-f", is_flag=True, help="Wait for new messages until interrupted.")
@click.option(
    "--from",
    "start",
    metavar="POSITION",
    help="earliest, latest, new, an offset, or a time (ISO 8601; local unless it names a zone). [default: earliest]",
)
@click.option("--partition", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--replica", default="", metavar="BROKER", help="Read from this broker's replica, not from the leader.")
@click.option("--json", "as_json", is_flag=True, help="Print each message as a line of JSON.")
@ServerOption
def sub(
    stream: str,
    last: int | None,
    follow: bool,
    start: str | None,
    partition: int,
    replica: str,
    as_json: bool,
    server: str,
) -> None:
    """Print the messages of STREAM, oldest first."""
    if last is not None and start is not None:
        raise click.UsageError("--last and --from both say where to begin: give one of them")
    position = parse_start(start or "earliest")
    write = _write_json if as_json else _write_values
    with missing_stream_explained(f"`bascule pub --create {stream} hello` makes one"):
        try:
            asyncio.run(_read(server, stream, partition, position, last, follow, replica, write))
        except KeyboardInterrupt:
            raise SystemExit(130) from None


async def _read(
    server: str,
    stream: str,
    partition: int,
    position: StartAt,
    last: int | None,
    follow: bool,
    replica: str,
    write: Callable[[list[Message]], None],
) -> None:
    async with connected(server) as client:
        newest = (await client.fetch_partition_metadata(stream, partition)).high_watermark
        if last is not None:
            position = max(0, newest + 1 - last)
        if not follow and _is_past(position, newest):
            await _say_nothing_there(client, stream, partition, newest)
            return
        stop = None if follow else newest
        try:
            async with client.subscribe(stream, partition, start=position, stop=stop, replica=replica) as subscription:
                async for batch in subscription.batches():
                    if last is not None:
                        batch = [message for message in batch if message.offset >= newest + 1 - last]
                    write(batch)
        except InvalidArgument as error:
            # Only the broker knows the offset of a time, and whether it is past the end.
            if not isinstance(position, datetime) or not str(error).startswith(STOP_BEFORE_START):
                raise
            await _say_nothing_there(client, stream, partition, newest)


def _is_past(position: StartAt, newest: int) -> bool:
    return newest < 0 or position == "new" or (isinstance(position, int) and position > newest)


async def _say_nothing_there(client: Client, stream: str, partition: int, newest: int) -> None:
    """No output would look like a failure, and the messages may be in another partition."""
    partitions = len((await client.fetch_metadata([stream])).streams[stream].partitions)
    where = f"partition {partition} of {partitions} of stream {stream}" if partitions > 1 else f"stream {stream}"
    state = "is empty" if newest < 0 else f"has nothing there yet (its newest offset is {newest})"
    click.echo(f"{where} {state}; --follow waits for messages", err=True)


def _write_values(batch: list[Message]) -> None:
    out = sys.stdout.buffer
    out.write(b"".join(message.value + b"\n" for message in batch))
    out.flush()


def _write_json(batch: list[Message]) -> None:
    click.echo("\n".join(json.dumps(as_object(message), ensure_ascii=False) for message in batch))


def as_object(message: Message) -> dict[str, object]:
    return {
        "stream": message.stream,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        "time": message.time.isoformat(),
        "subject": message.subject,
        **({"reply": message.reply} if message.reply else {}),
        **(_text_or_base64("key", message.key) if message.key else {}),
        **_text_or_base64("value", message.value),
        "headers": {
            name: _header(value) for name, value in message.headers.items() if name not in ("subject", "reply")
        },
    }


def _text_or_base64(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _header(value: bytes) -> str:
    """Headers hold bytes, and nearly always text; what is not is shown with backslashes."""
    return value.decode("utf-8", "backslashreplace")
