"""`bascule sub`: the messages of a stream on stdout, to the current end or for ever.

"The current end" is the high watermark of each partition's leader when the command starts. What is stored up to it is
printed first, by time over all partitions and in order within each; then, with `--follow`, what arrives. A value is
printed as it is, except that a terminal gets no escape sequences; with `--json` every message is one object, its value
as text if it is UTF-8 and in base64 otherwise.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime

import click

from bascule import limits
from bascule.cli.connect import Number, ServerOption, Servers, connected, missing_stream_explained
from bascule.cli.merge import arriving, by_time
from bascule.cli.output import INTERRUPTED, harmless, harmless_json, one_line, say
from bascule.client import Client, Message, Partition, StartAt
from bascule.client.subscription import OnLost
from bascule.errors import BasculeError, FailedPrecondition, InvalidArgument, NotFound

EPILOG = """\b
Examples:
  bascule sub orders
  bascule sub --last 10 orders
  bascule sub orders --follow --from new --json
  bascule sub orders --from 2026-01-31T12:00:00
  bascule sub orders --partition 0 --partition 2
  bascule sub orders --replica b
"""


STOP_BEFORE_START = "Stop offset is before start offset"

_WORDS: dict[str, StartAt] = {"earliest": "earliest", "latest": "latest", "new": "new"}

Write = Callable[[list[Message]], None]


def parse_start(text: str, option: str = "--from") -> StartAt:
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
            param_hint=option,
        ) from None


@click.command(epilog=EPILOG)
@click.argument("stream")
@click.option("--last", type=Number(min=1), metavar="N", help="Begin with the last N messages.")
@click.option("--follow", "-f", is_flag=True, help="Wait for new messages until interrupted.")
@click.option(
    "--from",
    "start",
    metavar="POSITION",
    help="earliest, latest, new, an offset, or a time (ISO 8601; local unless it names a zone). [default: earliest]",
)
@click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="May be repeated. [default: all]"
)
@click.option("--replica", default="", metavar="BROKER", help="Read from this broker's replicas, not from the leaders.")
@click.option("--json", "as_json", is_flag=True, help="Print each message as a line of JSON.")
@click.option("--raw", is_flag=True, help="Print values only, exactly as they are, on a terminal too.")
@ServerOption
def sub(
    stream: str,
    last: int | None,
    follow: bool,
    start: str | None,
    partitions: tuple[int, ...],
    replica: str,
    as_json: bool,
    raw: bool,
    server: Servers,
) -> None:
    """Print the messages of STREAM, oldest first.

    If several partitions are read, each line begins with the number of the partition and a tab, unless --raw is given.
    """
    if last is not None and start is not None:
        raise click.UsageError("--last and --from both say where to begin: give one of them")
    if as_json and raw:
        raise click.UsageError("--json and --raw both say how to print: give one of them")
    wanted = Wanted(stream, partitions, parse_start(start or "earliest"), last, follow, replica)
    with missing_stream_explained(f"`bascule pub --create {stream} hello` makes one"):
        try:
            asyncio.run(_read(server, wanted, as_json, raw))
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None
        except ReaderGone:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the exit flushes stdout once more


class ReaderGone(Exception):
    """Whoever reads our stdout has enough, as `head` has: that is no failure."""


@dataclass(frozen=True)
class Wanted:
    stream: str
    partitions: tuple[int, ...]
    """Empty for all."""
    start: StartAt
    last: int | None
    follow: bool
    replica: str


# --- reading ------------------------------------------------------------------------------------------------------


async def _read(server: Servers, wanted: Wanted, as_json: bool, raw: bool) -> None:
    async with connected(server) as client:
        there = await _partitions(client, wanted.stream)
        chosen = list(dict.fromkeys(wanted.partitions)) or sorted(there)
        _check(wanted.stream, chosen, sorted(there))
        chosen = _not_paused(wanted.stream, chosen, there)
        ends = await asyncio.gather(*(client.fetch_partition_metadata(wanted.stream, number) for number in chosen))
        reading = Reading(client, wanted, {each.id: each.high_watermark for each in ends}, Losses())
        write = _guarded(_write_json if as_json else _values_writer(raw, numbered=len(chosen) > 1))
        printed = 0
        async with aclosing(reading.stored()) as batches:
            async for batch in batches:
                printed += len(batch)
                write(batch)
        if wanted.follow:
            async with aclosing(reading.new()) as batches:
                async for batch in batches:
                    write(batch)
            say(f"{wanted.stream} is read-only, and this was its end: nothing more comes")
        elif not printed:
            _say_nothing_there(wanted.stream, reading.newest, len(there))


async def _partitions(client: Client, stream: str) -> dict[int, Partition]:
    found = (await client.fetch_metadata([stream])).streams.get(stream)
    if found is None:
        raise NotFound(f"no such stream: {stream}. `create_stream` creates one")
    return found.partitions


def _not_paused(stream: str, chosen: Sequence[int], there: Mapping[int, Partition]) -> list[int]:
    paused = [number for number in chosen if there[number].paused]
    if len(paused) == len(chosen):
        raise FailedPrecondition(f"{stream} is paused, and cannot be read: `bascule stream resume {stream}` resumes it")
    if paused:
        say(
            f"partition {', '.join(map(str, paused))} of {stream} is paused and left out: "
            f"`bascule stream resume {stream}` resumes it"
        )
    return [number for number in chosen if number not in paused]


def _check(stream: str, chosen: Sequence[int], there: Sequence[int]) -> None:
    for number in chosen:
        if number not in there:
            raise NotFound(f"no such partition: {number}. Stream {stream} has {len(there)}, counted from 0")
    if len(chosen) > limits.CLI_READ_PARTITIONS:
        raise InvalidArgument(
            f"{stream} has {len(chosen)} partitions, and {limits.CLI_READ_PARTITIONS} can be read at once: choose some "
            "with --partition"
        )


@dataclass(frozen=True)
class Reading:
    client: Client
    wanted: Wanted
    newest: dict[int, int]
    """Of each partition that is read: the newest offset when the command started, -1 if it is empty."""
    losses: Losses

    def _start_in(self, partition: int) -> StartAt:
        last = self.wanted.last
        return self.wanted.start if last is None else max(0, self.newest[partition] + 1 - last)

    async def stored(self) -> AsyncGenerator[list[Message], None]:
        """Up to the newest messages, by time."""
        filled = [number for number, newest in self.newest.items() if not _is_past(self._start_in(number), newest)]
        batches = by_time([self._stored_in(number) for number in filled])
        if self.wanted.last is None:
            async with aclosing(batches):
                async for batch in batches:
                    yield batch
            return
        # The last ones of each partition are read, and the last ones of these are wanted.
        newest: deque[Message] = deque(maxlen=self.wanted.last)
        async with aclosing(batches):
            async for batch in batches:
                newest.extend(batch)
        yield list(newest)

    async def _stored_in(self, partition: int) -> AsyncGenerator[list[Message], None]:
        start = self._start_in(partition)
        try:
            async for batch in self._subscribed(partition, start, self.newest[partition]):
                yield batch
        except InvalidArgument as error:
            # Only the broker knows the offset of a time, and whether it is past the end.
            if not isinstance(start, datetime) or not str(error).startswith(STOP_BEFORE_START):
                raise

    async def new(self) -> AsyncGenerator[list[Message], None]:
        """After the newest messages, as they arrive."""
        start = self.wanted.start
        begins = {
            number: max(newest + 1, start if isinstance(start, int) else 0) for number, newest in self.newest.items()
        }
        each = [self._new_in(number, begin) for number, begin in begins.items()]
        async with aclosing(arriving(each)) as batches:
            async for batch in batches:
                yield batch

    async def _new_in(self, partition: int, begin: int) -> AsyncGenerator[list[Message], None]:
        try:
            async for batch in self._subscribed(partition, begin, None):
                yield batch
        except InvalidArgument as error:
            if not str(error).startswith(STOP_BEFORE_START):  # so it is read-only: it stops before the next message
                raise

    async def _subscribed(
        self, partition: int, start: StartAt, stop: int | None
    ) -> AsyncGenerator[list[Message], None]:
        wanted, on_lost = self.wanted, self.losses.of(partition)
        async with self.client.subscribe(
            wanted.stream, partition, start=start, stop=stop, replica=wanted.replica, on_lost=on_lost
        ) as subscription:
            async for batch in subscription.batches():
                yield batch


def _is_past(position: StartAt, newest: int) -> bool:
    return newest < 0 or position == "new" or (isinstance(position, int) and position > newest)


@dataclass
class Losses:
    """Says once that connections are lost, of however many partitions, and once that all of them are back."""

    lost: set[int] = field(default_factory=set)

    def of(self, partition: int) -> OnLost:
        def on_lost(error: BasculeError | None) -> None:
            before = bool(self.lost)
            if error is None:
                self.lost.discard(partition)
                if before and not self.lost:
                    say("connected again: nothing was left out")
                return
            self.lost.add(partition)
            if not before:
                say(f"{one_line(str(error))}: looking for the broker that leads now, to go on where this stopped")

        return on_lost


def _say_nothing_there(stream: str, newest: dict[int, int], partitions: int) -> None:
    """No output would look like a failure, and the messages may be in another partition."""
    several = len(newest) > 1
    where = f"stream {stream}"
    if not several and partitions > 1:
        where = f"partition {next(iter(newest))} of {partitions} of {where}"
    ends = ", ".join(map(str, newest.values()))
    offsets = f"the newest offsets of its partitions are {ends}" if several else f"its newest offset is {ends}"
    state = "is empty" if max(newest.values()) < 0 else f"has nothing there yet ({offsets})"
    say(f"{where} {state}; --follow waits for messages")


# --- printing -----------------------------------------------------------------------------------------------------


def _guarded(write: Write) -> Write:
    def guarded(batch: list[Message]) -> None:
        try:
            write(batch)
        except BrokenPipeError:
            raise ReaderGone from None

    return guarded


def _values_writer(raw: bool, numbered: bool) -> Write:
    out = sys.stdout.buffer
    shielded = sys.stdout.isatty() and not raw

    def line(message: Message) -> bytes:
        value = harmless(message.value).encode() if shielded else message.value
        return b"%d\t%b\n" % (message.partition, value) if numbered and not raw else value + b"\n"

    def write(batch: list[Message]) -> None:
        out.write(b"".join(map(line, batch)))
        out.flush()

    return write


def _write_json(batch: list[Message]) -> None:
    """In UTF-8, as JSON is, whatever the terminal has."""
    out = sys.stdout.buffer
    lines = (harmless_json(json.dumps(as_object(message), ensure_ascii=False)) for message in batch)
    out.write(b"".join(line.encode() + b"\n" for line in lines))
    out.flush()


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
        "headers": {name: _header(value) for name, value in message.headers.items()},
    }


def _text_or_base64(name: str, data: bytes) -> dict[str, str]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def _header(value: bytes) -> str:
    """Headers hold bytes, and nearly always text; what is not is shown with backslashes."""
    return value.decode("utf-8", "backslashreplace")
