"""The columns of `client.columns` as Spark has them."""

from __future__ import annotations

from collections.abc import Sequence

from bascule.client.columns import COLUMNS
from bascule.errors import InvalidArgument


def spark_schema(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}` {COLUMNS[name].spark}" for name in names)


def chosen(names: Sequence[str], headers: bool) -> tuple[str, ...]:
    """The columns of the options `columns` and `includeHeaders`."""
    for name in names:
        if name not in COLUMNS:
            raise InvalidArgument(f'the option "columns" names "{name}", and there are {", ".join(COLUMNS)}')
    if not names:
        return tuple(name for name in COLUMNS if headers or name != "headers")
    return (*names, "headers") if headers and "headers" not in names else tuple(names)
