"""The options of `format("liftbridge")` for reading, checked before anything is read.

A name that is unknown or a value that cannot be used is an error that names the option, and what would be right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Literal

from bascule.errors import InvalidArgument

OPTIONS: dict[str, str] = {
    "servers": "Addresses of brokers, separated by commas; one is enough. Required.",
    "streams": "Names of streams, separated by commas. This or streamPattern is required.",
    "streamPattern": "A regular expression: all streams whose whole name matches. Looked up at the start, and for each "
    "micro-batch again.",
    "startingOffsets": 'Where a query begins: "earliest", "latest", or JSON such as {"orders": {"0": 17, "1": -2}}, '
    "where -2 is the earliest and -1 the latest; partitions that are not named begin at the earliest. Default: "
    "earliest for a batch, latest for a stream. A stream that continues from a checkpoint ignores it.",
    "endingOffsets": "Where a batch ends, as startingOffsets, exclusive. Default: latest.",
    "startingTimestamp": "Instead of startingOffsets: the first message at or after that time, as 2026-01-31T12:00:00Z "
    "or in milliseconds since 1970.",
    "endingTimestamp": "Instead of endingOffsets: messages before that time.",
    "maxOffsetsPerTrigger": "The most messages of a micro-batch, over all partitions.",
    "minOffsetsPerTrigger": "A micro-batch waits for so many messages, or for maxTriggerDelay.",
    "maxTriggerDelay": "How long it waits at most, as 30s or 15m. Default: 15m.",
    "minPartitions": "The least number of Spark partitions: large partitions of a stream are split.",
    "failOnDataLoss": "true (the default): a query fails if messages that it was to read are gone, or if its stream "
    "was deleted and made again. false: it says so in the log and goes on.",
    "includeHeaders": "true: with the column headers. Default: false.",
    "columns": "The columns to read, separated by commas; others are not decoded. Default: all.",
    "tlsCa": "A file with the certificates to trust; the brokers are reached over TLS then.",
    "tlsCert": "A file with the certificate of this client.",
    "tlsKey": "The file with its key.",
}
"""Every option with what it means: docs/spark.md shows them."""

EARLIEST, LATEST = -2, -1
DEFAULT_TRIGGER_DELAY_S = 900.0
_NAMES = {name.lower(): name for name in OPTIONS}
_DELAY = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends, of each partition."""

    kind: Literal["earliest", "latest", "offsets", "timestamp"]
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    timestamp: datetime | None = None


@dataclass(frozen=True, slots=True)
class Tls:
    ca: str
    cert: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    servers: tuple[str, ...]
    streams: tuple[str, ...]
    pattern: str
    start: Bound | None
    end: Bound | None
    max_offsets: int | None
    min_offsets: int | None
    max_delay_s: float
    min_partitions: int
    fail_on_loss: bool
    headers: bool
    columns: tuple[str, ...]
    tls: Tls | None


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """InvalidArgument names the option, and what would be right."""
    options = {_known(name): value for name, value in given.items()}
    streams, pattern = _list(options, "streams"), options.get("streamPattern", "")
    if bool(streams) == bool(pattern):
        raise InvalidArgument('give either the option "streams" or "streamPattern": .option("streams", "orders")')
    _check_pattern(pattern)
    return ReadOptions(
        servers=_required(options, "servers", "localhost:9292"),
        streams=streams,
        pattern=pattern,
        start=_bound(options, "startingOffsets", "startingTimestamp"),
        end=_bound(options, "endingOffsets", "endingTimestamp"),
        max_offsets=_count(options, "maxOffsetsPerTrigger"),
        min_offsets=_count(options, "minOffsetsPerTrigger"),
        max_delay_s=_delay(options, "maxTriggerDelay"),
        min_partitions=_count(options, "minPartitions") or 1,
        fail_on_loss=_flag(options, "failOnDataLoss", True),
        headers=_flag(options, "includeHeaders", False),
        columns=_list(options, "columns"),
        tls=_tls(options),
    )


def _known(name: str) -> str:
    known = _NAMES.get(name.lower())
    if known is None:
        near = get_close_matches(name.lower(), _NAMES, 1, 0.5)
        hint = f"did you mean {_NAMES[near[0]]}?" if near else f"there are {', '.join(OPTIONS)}"
        raise InvalidArgument(f'format("liftbridge") has no option "{name}": {hint}')
    return known


def _list(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    items = [item.strip() for item in options.get(name, "").split(",")]
    return tuple(dict.fromkeys(item for item in items if item))


def _required(options: Mapping[str, str], name: str, example: str) -> tuple[str, ...]:
    items = _list(options, name)
    if not items:
        raise InvalidArgument(f'the option "{name}" is missing: .option("{name}", "{example}")')
    return items


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidArgument(f'the option "streamPattern" is no regular expression: {pattern!r}: {error}') from None


def _count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) == 0:
        raise InvalidArgument(f'the option "{name}" is a number from 1 on, not {text!r}')
    return int(text)


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise InvalidArgument(f'the option "{name}" is true or false, not {text!r}')
    return text == "true"


def _delay(options: Mapping[str, str], name: str) -> float:
    text = options.get(name)
    if text is None:
        return DEFAULT_TRIGGER_DELAY_S
    found = _DELAY.fullmatch(text.strip().lower())
    if found is None:
        raise InvalidArgument(f'the option "{name}" is a time such as 30s or 15m, not {text!r}')
    return float(found[1]) * _SECONDS[found[2]]


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


def _tls(options: Mapping[str, str]) -> Tls | None:
    ca, cert, key = (options.get(name, "").strip() for name in ("tlsCa", "tlsCert", "tlsKey"))
    if bool(cert) != bool(key):
        raise InvalidArgument('give both options "tlsCert" and "tlsKey", or neither')
    if cert and not ca:
        raise InvalidArgument('the option "tlsCert" needs "tlsCa", the certificates to trust')
    return Tls(ca, cert, key) if ca else None
