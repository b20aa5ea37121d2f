"""Answers of the administration as text and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click
from google.protobuf.message import Message

from bascule.cli.output import harmless, one_line


def as_dict(message: Message) -> dict[str, Any]:
    """Every field under its name in lower case with underscores; one that may be missing, and is, as None."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            value = [as_dict(each) if isinstance(each, Message) else each for each in value]
        elif isinstance(value, Message):
            value = as_dict(value)
        elif field.has_presence and not message.HasField(field.name):
            value = None
        found[re.sub(r"(?<!^)([A-Z])", r"_\1", field.name).lower()] = value
    return found


def print_json(value: Message | dict[str, Any] | list[dict[str, Any]]) -> None:
    click.echo(json.dumps(as_dict(value) if isinstance(value, Message) else value))


def size(count: int) -> str:
    """Bytes, short enough for a table."""
    if count < 1024:
        return str(count)
    steps = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**steps:.1f}{('KiB', 'MiB', 'GiB', 'TiB')[steps - 1]}"


def age(seconds: int) -> str:
    """In the largest unit that fits."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def moment(timestamp: int) -> str:
    """Nanoseconds since 1970 as local time; nothing if there is none."""
    return datetime.fromtimestamp(timestamp // 1_000_000_000).astimezone().isoformat() if timestamp else ""


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as they need to be; nothing else, so that `awk` can read it too."""
    table = [list(heads), *([_cell(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    """Names that clients chose may have anything in them."""
    return harmless(one_line(str(value)).encode()) or "-"
