"""Answers of the administration as text and as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import click
from google.protobuf.message import Message


def as_dict(message: Message) -> dict[str, Any]:
    """Every field, set or not, under its name in lower case with underscores."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            value = [as_dict(each) if isinstance(each, Message) else each for each in value]
        elif isinstance(value, Message):
            value = as_dict(value)
        found[re.sub(r"(?<!^)([A-Z])", r"_\1", field.name).lower()] = value
    return found


def print_json(value: Message | dict[str, Any] | list[dict[str, Any]]) -> None:
    click.echo(json.dumps(as_dict(value) if isinstance(value, Message) else value))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as they need to be; nothing else, so that `awk` can read it too."""
    table = [list(heads), *([str(cell) if cell != "" else "-" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
