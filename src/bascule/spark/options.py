"""The options of `format("liftbridge")` for reading, checked before anything is read.

A name that is unknown or a value that cannot be used is an error that names the option, and what would be right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from bascule.errors import InvalidArgument
from bascule.spark.optionvalues import TLS_OPTIONS, Tls, count_of, flag_of, known_options, list_of, required, tls_of

OPTIONS: dict[str, str] = {
    "servers": "Addresses of brokers, separated by commas; one is enough. Required.",
    "streams": "Names of streams, separated by commas. This or streamPattern is required.",
    "streamPattern": "A regular expression: all streams whose whole name matches, but for __cursors and spark-writes. "
    "Looked up at the start, and for each micro-batch again.",
    "startingOffsets": 'Where a query begins: "earliest", "latest", or JSON such as {"orders": {"0": 17, "1": -2}}, '
    "where -2 is the earliest and -1 the latest; partitions that are not named begin at the earliest. Default: "
    "earliest for a batch, latest for a stream. A stream that continues from a checkpoint ignores it.",
    "endingOffsets": "Where a batch ends, as startingOffsets, exclusive. Default: latest.",
    "startingTimestamp": "Instead of startingOffsets: the first message at or after that time, as 2026-01-31T12:00:00Z "
    "or in milliseconds since 1970.",
    "endingTimestamp": "Instead of endingOffsets: messages before that time.",
    "maxOffsetsPerTrigger": "The most messages of a micro-batch, over all partitions.",
    "maxBytesPerTrigger": "The most bytes of a micro-batch, over all partitions, as 500000, 64k, 256m or 2g. About: "
    "how large messages are is seen from some where the batch begins and where it would end. Each batch has a message "
    "at least.",
    "minOffsetsPerTrigger": "A micro-batch waits for so many messages, or for maxTriggerDelay.",
    "maxTriggerDelay": "How long it waits at most, as 30s or 15m. Default: 15m.",
    "minPartitions": "The least number of Spark partitions: large partitions of a stream are split.",
    "failOnDataLoss": "true (the default): a query fails if messages that it was to read are gone, or if its stream "
    "was deleted and made again. false: it says so in the log and goes on, also without messages that are damaged on "
    "the broker's disk, which the log of an executor names.",
    "quarantine": "A folder, the same for all executors, as a whole path: messages that are damaged on the broker's "
    "disk are noted there, and the query goes on without them. Default: none, and a query that meets one fails and "
    "names it, unless failOnDataLoss is false.",
    "pausedPartitions": "fail (the default): a query of a paused partition fails and says how to resume it. resume: it "
    "is resumed. skip: a batch reads nothing of it, but fails if startingOffsets and endingOffsets both name offsets "
    "of it; a stream goes on with it when it has been resumed: where it was, or where the query was told to begin if "
    "it was paused from the start.",
    "readFromReplicas": "true: executors read from followers that are in sync, and from the leader only what these do "
    "not have yet. Compacted streams are read from the leader all the same: replicas compact by themselves, so that a "
    "task that is run again could read something else. Default: false.",
    "cursor": "The id of a cursor that follows a stream, so that `bascule` and clients see how far it is: set to what "
    "committed batches have read. Default: none.",
    "includeHeaders": "true: with the column headers, beside those of columns, too. Default: false.",
    "columns": "The columns to read, separated by commas; others are not decoded. Default: all but headers.",
    **TLS_OPTIONS,
}
"""Every option with what it means: docs/spark.md shows them."""

STREAM_ONLY = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "cursor")
BATCH_ONLY = ("endingOffsets", "endingTimestamp")

EARLIEST, LATEST = -2, -1
DEFAULT_TRIGGER_DELAY_S = 900.0
_DELAY = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"([1-9]\d*)\s*(k|m|g)?b?")
_BYTES = {None: 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
Paused = Literal["fail", "resume", "skip"]


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends, of each partition."""

    kind: Literal["earliest", "latest", "offsets", "timestamp"]
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    timestamp: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    servers: tuple[str, ...]
    streams: tuple[str, ...]
    pattern: str
    start: Bound | None
    end: Bound | None
    max_offsets: int | None
    max_bytes: int | None
    min_offsets: int | None
    max_delay_s: float
    min_partitions: int
    fail_on_loss: bool
    quarantine: str
    paused: Paused
    from_replicas: bool
    cursor: str
    headers: bool
    columns: tuple[str, ...]
    tls: Tls | None


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """InvalidArgument names the option, and what would be right."""
    options = known_options(given, OPTIONS)
    streams, pattern = list_of(options, "streams"), options.get("streamPattern", "")
    if bool(streams) == bool(pattern):
        raise InvalidArgument('give either the option "streams" or "streamPattern": .option("streams", "orders")')
    _check_pattern(pattern)
    least, most = count_of(options, "minOffsetsPerTrigger"), count_of(options, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise InvalidArgument(f'the option "minOffsetsPerTrigger" is {least}, more than "maxOffsetsPerTrigger", {most}')
    if least is None and "maxTriggerDelay" in options:
        raise InvalidArgument('the option "maxTriggerDelay" is for "minOffsetsPerTrigger": give both')
    start = _bound(options, "startingOffsets", "startingTimestamp")
    end = _bound(options, "endingOffsets", "endingTimestamp")
    _check_bounds(start, end, streams)
    return ReadOptions(
        servers=required(options, "servers", "localhost:9292"),
        streams=streams,
        pattern=pattern,
        start=start,
        end=end,
        max_offsets=most,
        max_bytes=_size(options, "maxBytesPerTrigger"),
        min_offsets=least,
        max_delay_s=_delay(options, "maxTriggerDelay"),
        min_partitions=count_of(options, "minPartitions") or 1,
        fail_on_loss=flag_of(options, "failOnDataLoss", True),
        quarantine=_folder(options, "quarantine"),
        paused=_paused(options),
        from_replicas=flag_of(options, "readFromReplicas", False),
        cursor=options.get("cursor", "").strip(),
        headers=flag_of(options, "includeHeaders", False),
        columns=list_of(options, "columns"),
        tls=tls_of(options),
    )


def check_use(given: Mapping[str, str], stream: bool) -> None:
    """InvalidArgument for an option that this query, a stream or a batch, would not look at."""
    options = known_options(given, OPTIONS)
    for name in BATCH_ONLY if stream else STREAM_ONLY:
        if name in options:
            what = "batches: a stream has no end" if stream else "streams: a batch reads all that it is told to"
            raise InvalidArgument(f'the option "{name}" is for {what}')


def _check_bounds(start: Bound | None, end: Bound | None, streams: tuple[str, ...]) -> None:
    for name, bound in (("startingOffsets", start), ("endingOffsets", end)):
        for stream in bound.offsets if bound is not None and streams else ():
            if stream not in streams:
                raise InvalidArgument(f'the option "{name}" names stream {stream}, which "streams" does not')
    if start is None or end is None:
        return
    if start.timestamp is not None and end.timestamp is not None and start.timestamp > end.timestamp:
        raise InvalidArgument('the option "startingTimestamp" is after "endingTimestamp"')
    for stream, partitions in start.offsets.items():
        for partition, offset in partitions.items():
            if offset > (last := end.offsets.get(stream, {}).get(partition, offset)) >= 0:
                raise InvalidArgument(
                    f'the option "startingOffsets" names offset {offset} of {stream}/{partition}, and "endingOffsets" '
                    f"{last}, which is before it"
                )


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidArgument(f'the option "streamPattern" is no regular expression: {pattern!r}: {error}') from None


def _delay(options: Mapping[str, str], name: str) -> float:
    text = options.get(name)
    if text is None:
        return DEFAULT_TRIGGER_DELAY_S
    found = _DELAY.fullmatch(text.strip().lower())
    if found is None:
        raise InvalidArgument(f'the option "{name}" is a time such as 30s or 15m, not {text!r}')
    return float(found[1]) * _SECONDS[found[2]]


def _size(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None:
        raise InvalidArgument(f'the option "{name}" is a number of bytes such as 500000, 64k, 256m or 2g, not {text!r}')
    return int(found[1]) * _BYTES[found[2]]


def _folder(options: Mapping[str, str], name: str) -> str:
    """Of a disk: executors have other working folders than the driver."""
    text = options.get(name, "").strip()
    path = text.removeprefix("file://")
    if path and not path.startswith("/"):
        raise InvalidArgument(
            f'the option "{name}" is a whole path, such as /shared/quarantine, of a disk that all executors have, not '
            f"{text!r}"
        )
    return path


def _paused(options: Mapping[str, str]) -> Paused:
    match options.get("pausedPartitions", "fail").strip().lower():
        case "fail":
            return "fail"
        case "resume":
            return "resume"
        case "skip":
            return "skip"
    raise InvalidArgument(f'the option "pausedPartitions" is fail, resume or skip, not {options["pausedPartitions"]!r}')


def _bound(options: Mapping[str, str], offsets: str, timestamp: str) -> Bound | None:
    if offsets in options and timestamp in options:
        raise InvalidArgument(f'give either the option "{offsets}" or "{timestamp}"')
    if timestamp in options:
        return Bound("timestamp", timestamp=_moment(timestamp, options[timestamp].strip()))
    if offsets not in options:
        return None
    text = options[offsets].strip()
    match text.lower():
        case "earliest":
            return Bound("earliest")
        case "latest":
            return Bound("latest")
    return Bound("offsets", offsets=_offsets(offsets, text))


def _moment(name: str, text: str) -> datetime:
    try:
        if text.isdecimal():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError, OSError):
        raise InvalidArgument(
            f'the option "{name}" is a time such as 2026-01-31T12:00:00Z, or milliseconds since 1970, not {text!r}'
        ) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _offsets(name: str, text: str) -> dict[str, dict[int, int]]:
    wrong = InvalidArgument(
        f'the option "{name}" is earliest, latest, or JSON such as {{"orders": {{"0": 17, "1": -2}}}} with offsets '
        f"from 0 on, {EARLIEST} for the earliest and {LATEST} for the latest, not {text!r}"
    )
    try:
        found = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict):
        raise wrong
    offsets: dict[str, dict[int, int]] = {}
    for stream, partitions in found.items():
        if not isinstance(partitions, dict):
            raise wrong
        for partition, offset in partitions.items():
            valid = isinstance(offset, int) and not isinstance(offset, bool) and offset >= EARLIEST
            if not partition.isdecimal() or not valid:
                raise wrong
            offsets.setdefault(stream, {})[int(partition)] = offset
    return offsets
