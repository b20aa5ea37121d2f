"""Cursors that follow a stream query, so that its lag is visible outside Spark.

Spark reports a batch as committed when it plans the next one. So the last batch before a query is stopped is not
reported to the source: the driver sets the cursor when the query has ended (`commit_cursors`).
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

from bascule import limits
from bascule.errors import BasculeError, FailedPrecondition, InvalidArgument
from bascule.spark.connecting import connect
from bascule.spark.options import ReadOptions, read_options
from bascule.spark.position import Position, from_json

if TYPE_CHECKING:
    from bascule.client import Client

logger = logging.getLogger(__name__)


class Cursor:
    """Of one run of a query. Without the option it does nothing."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._known: dict[tuple[str, int], int] = {}

    def follow(self, position: Position) -> None:
        """Everything below is committed. A cluster that cannot take it now does not stop the query: the next batch sets
        it again."""
        moved = self._moved(position) if self._options.cursor else {}
        if not moved:
            return
        try:
            asyncio.run(self._set(moved))
        except (FailedPrecondition, InvalidArgument):  # a cluster without cursors, an id that is none
            raise
        except BasculeError as error:
            logger.warning("cursor %s stays behind the query for now: %s", self._options.cursor, error)

    def _moved(self, position: Position) -> dict[tuple[str, int], int]:
        return {
            (stream, number): offset
            for stream, (_, offsets) in position.items()
            for number, offset in offsets.items()
            if offset and self._known.get((stream, number)) != offset
        }

    async def _set(self, moved: dict[tuple[str, int], int]) -> None:
        turns = asyncio.Semaphore(limits.CLI_LAGS_AT_ONCE)

        async def one(client: Client, part: tuple[str, int], offset: int) -> None:
            async with turns:
                await client.set_cursor(self._options.cursor, *part, offset - 1)
            self._known[part] = offset

        async with await connect(self._options) as client:
            await asyncio.gather(*(one(client, part, offset) for part, offset in moved.items()))


def commit_cursors(query: Any, **options: str) -> None:
    """Set the cursor of a query that has ended to its last committed batch: `query.stop()` does not tell the source of
    it. The options are those of the query: `servers`, `cursor`, and what is needed to connect."""
    if not options.get("cursor"):
        raise InvalidArgument('name the cursor as the query does: commit_cursors(query, servers=..., cursor="lake")')
    if query.isActive:
        raise InvalidArgument(
            "the query runs, and its cursor follows by itself: commit_cursors is for one that has ended"
        )
    progress = query.lastProgress
    for source in progress.sources if progress is not None else ():
        position = _position_in(source.endOffset)
        if position is not None:
            wanted = {"streams": ",".join(position) or "-", **options}
            Cursor(read_options(wanted)).follow(position)


def _position_in(text: str | None) -> Position | None:
    """None: of another source."""
    try:
        return from_json(json.loads(text or ""))
    except (ValueError, TypeError, AttributeError, KeyError, BasculeError):
        return None
