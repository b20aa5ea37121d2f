"""Expiry: the front of a log goes, in whole segments.

Records below `SegmentList.floor` are not served. Their files go later: the start is stored first, with what would be
unknown without them (`start`), then the files are removed, oldest first, each index before its segment. A power loss
may bring some of them back and not others: whatever is below the stored start is removed when the log is opened. The
newest segment stays, also if all its records have expired: it is the one that grows. Expired records are deleted and
not moved to quarantine, where they would push out what a human has to look at.
"""

import asyncio
import logging
from functools import partial

from bascule.limits import EXPIRED_AT_ONCE, EXPIRY_PAUSE_S
from bascule.log.appender import Appender
from bascule.log.endrecord import EndRecord
from bascule.log.manifest import remove_lasting
from bascule.log.segment import Segment
from bascule.log.segments import SegmentList
from bascule.log.start import LogStart, lower_end, write_start
from bascule.ports import Disk

_log = logging.getLogger("bascule.log")


class Expiry:
    """Its callers hold `SegmentList.changing`."""

    def __init__(self, segments: SegmentList, appender: Appender) -> None:
        self._segments = segments
        self._appender = appender
        self._dropped: list[Segment] = []
        """Segments that are out of the list, and whose files are not removed yet: the disk failed, or is at it."""

    def is_due(self) -> bool:
        """Whether a segment can go, or files of one are left."""
        segments = self._segments
        return bool(self._dropped) or (len(segments) > 1 and segments[1].base <= segments.floor)

    async def remove(self, end: int | None = None) -> None:
        """Every segment below the floor, or below `end` if that is less. Raises OSError: how far it has come by then is
        where the log begins."""
        segments = self._segments
        assert segments.changing.locked(), "somebody else may change these files"
        start, removed = segments.stored.start, await self._remove_dropped()
        while self.is_due():
            # It may be raised meanwhile: nothing goes before it is stored.
            start = segments.floor if end is None else min(end, segments.floor)
            if segments[1].base > start:
                break
            await self._store(LogStart(start, *self._last(), self._first_timestamp()), new_folder=False)
            removed += await self._remove_below(start)
        if removed:
            await segments.disk.sync_folder(segments.folder)
            _log.info("%s: %d segments below offset %d are removed", segments.folder, removed, start)

    async def _remove_below(self, start: int) -> int:
        segments = self._segments
        removed = 0
        while len(segments) > 1 and segments[1].base <= start:
            while len(segments) > 1 and segments[1].base <= start and len(self._dropped) < EXPIRED_AT_ONCE:
                await self._appender.seal(segments[0])  # its index may be on its way to the disk
                self._dropped.append(segments[0])
                segments.drop_first()
            many = len(self._dropped) == EXPIRED_AT_ONCE
            removed += await self._remove_dropped()
            # Thousands may go: the disk has other work meanwhile.
            await asyncio.sleep(EXPIRY_PAUSE_S if many else 0)
        return removed

    async def _remove_dropped(self) -> int:
        """Until it succeeds they stay dropped: nobody else knows of their files before the next start of the broker."""
        number = len(self._dropped)
        if number:
            await self._segments.disk.together(partial(_remove, expired=self._dropped))
            self._dropped.clear()
        return number

    async def begin_at(self, start: int, record: EndRecord) -> None:
        """All of it has expired, and is removed; the log begins and ends there. Raises OSError."""
        segments = self._segments
        assert segments.changing.locked(), "somebody else may change these files"
        await record.lower(0)
        segments.stored = await lower_end(segments.disk, segments.folder, segments.stored, 0)
        while segments:
            segment = segments[-1]
            await self._appender.seal(segment)
            await _remove(segments.disk, [segment])
            segments.drop_last()
        await self._store(LogStart(start, start, 0, 0, self._first_timestamp()), not segments.has_folder)
        segments.floor, segments.has_folder = start, True
        self._appender.begin_at(start)
        record.truncated()

    def _last(self) -> tuple[int, int, int]:
        return self._segments.promised_end, self._appender.last_epoch, self._appender.last_timestamp

    def _first_timestamp(self) -> int:
        segments = self._segments
        return segments.stored.first_timestamp or (max(segments[0].first_timestamp, 0) if segments else 0)

    async def _store(self, start: LogStart, new_folder: bool) -> None:
        await write_start(self._segments.disk, self._segments.folder, start, new_folder)
        self._segments.stored = start


async def _remove(disk: Disk, expired: list[Segment]) -> None:
    """In one turn of a thread that does not write."""
    for segment in expired:
        if segment.holes:
            await remove_lasting(disk, segment.folder, segment.base)
        await disk.remove(segment.index_path)
        await disk.remove(segment.path)
