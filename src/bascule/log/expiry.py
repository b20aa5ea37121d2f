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
from bascule.log.segment import Segment
from bascule.log.segments import SegmentList
from bascule.log.start import LogStart, write_start
from bascule.ports import Disk

_log = logging.getLogger("bascule.log")


class Expiry:
    """Its callers hold `SegmentList.changing`."""

    def __init__(self, segments: SegmentList, appender: Appender) -> None:
        self._segments = segments
        self._appender = appender

    def is_due(self) -> bool:
        """Whether a segment can go."""
        segments = self._segments
        return len(segments) > 1 and segments[1].base <= segments.floor

    async def remove(self) -> None:
        """Every segment below the floor. Raises OSError: how far it has come by then is where the log begins."""
        segments = self._segments
        assert segments.changing.locked(), "somebody else may change these files"
        if not self.is_due():
            return
        await self._store(LogStart(segments.floor, *self._last(), self._first_timestamp()), new_folder=False)
        removed = 0
        while self.is_due():
            expired: list[Segment] = []
            while self.is_due() and len(expired) < EXPIRED_AT_ONCE:
                expired.append(segments[0])
                await self._appender.seal(segments[0])  # its index may be on its way to the disk
                segments.drop_first()
            await segments.disk.together(partial(_remove, expired=expired))
            removed += len(expired)
            # Thousands may go: the disk has other work meanwhile.
            await asyncio.sleep(EXPIRY_PAUSE_S if len(expired) == EXPIRED_AT_ONCE else 0)
        await segments.disk.sync_folder(segments.folder)
        _log.info("%s: %d segments below offset %d are removed", segments.folder, removed, segments.floor)

    async def begin_at(self, start: int, record: EndRecord) -> None:
        """All of it has expired, and is removed; the log begins and ends there. Raises OSError."""
        segments = self._segments
        assert segments.changing.locked(), "somebody else may change these files"
        await record.lower(0)
        while segments:
            segment = segments[-1]
            await self._appender.seal(segment)
            await segments.disk.remove(segment.index_path)
            await segments.disk.remove(segment.path)
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
        await disk.remove(segment.index_path)
        await disk.remove(segment.path)
