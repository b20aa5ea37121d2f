"""Truncation: the end of a log is removed, because it differs from the leader's log, or because a write failed.

The removed bytes go to quarantine first. The promised end on record is lowered before anything is truncated, so that a
crash in between is not taken for damage; an index is removed before its records (`removal`).
"""

from bascule.log.appender import Appender
from bascule.log.endrecord import EndRecord
from bascule.log.filecopy import commit_one, rewrite
from bascule.log.index import OFFSET
from bascule.log.lookup import seek
from bascule.log.manifest import remove_lasting
from bascule.log.quarantine import Quarantine
from bascule.log.recovery import ANEW_FILE
from bascule.log.removal import remove_files, remove_index, set_aside
from bascule.log.scan import scan_segment
from bascule.log.segment import Segment
from bascule.log.segments import SegmentList
from bascule.log.start import lower_end
from bascule.log.stretch import end_before
from bascule.log.swap import Swap
from bascule.ports import Write


class Truncation:
    """Its callers hold `SegmentList.changing`."""

    def __init__(
        self, segments: SegmentList, appender: Appender, record: EndRecord, quarantine: Quarantine, swap: Swap
    ) -> None:
        self._segments = segments
        self._appender = appender
        self._record = record
        self._quarantine = quarantine
        self._swap = swap
        self._disk = segments.disk

    async def run(self, end: int) -> None:
        """Remove every record from offset `end` on. Raises OSError: the log then ends where the truncation got to."""
        assert self._segments.changing.locked(), "somebody else may change these files"
        await self._swap.remove_left()
        await self._appender.flushed()
        await self._lower_record(end)
        await self._truncate_segments(end)
        self._record.truncated()

    async def everything(self) -> None:
        """Remove every record. What is left if this is interrupted goes when the log is opened, or this is tried again;
        that holds until `everything_is_removed`."""
        segments = self._segments
        path = f"{segments.folder}/{ANEW_FILE}"
        await self._disk.remove(path)
        await commit_one(self._disk, Write(path, 0, [], create=True, new_folder=False), sync=True)
        await self._disk.sync_folder(segments.folder)
        await self.run(0)

    async def everything_is_removed(self) -> None:
        await self._disk.remove(f"{self._segments.folder}/{ANEW_FILE}")
        await self._disk.sync_folder(self._segments.folder)

    async def _lower_record(self, end: int) -> None:
        """The record of the log's end is durable on return, before anything is truncated."""
        if await _takes_promised(self._segments, end):
            self._record.mark_suspect()
            await self._record.found(0, suspect=True)
        least = _least_end(self._segments, end)
        await self._record.lower(least)
        segments = self._segments
        segments.stored = await lower_end(segments.disk, segments.folder, segments.stored, least)

    async def _truncate_segments(self, end: int) -> None:
        segments = self._segments
        shorter = end < segments.end
        while segments and (segments[-1].begins_at_or_after(end) or (shorter and segments[-1].first_offset < 0)):
            segment = segments[-1]  # one without a readable record goes too: its offsets are not known
            await self._appender.seal(segment)
            await set_aside(self._disk, self._quarantine, segment, 0)
            await self._remove_lasting(segment)
            await remove_index(self._disk, segment)
            await self._disk.remove(segment.path)
            segments.drop_last()
            # Now: if the disk fails before the rest, the log ends there already.
            self._appender.truncated(segment.base)
            await remove_files(self._disk, segment)
        if segments and segments[-1].appended.end > end:
            await self._truncate_within(segments[-1], end)
        # There may be a hole before it; a leader that has its records sends them again.
        self._appender.truncated(min(end, segments[-1].appended.end if segments else segments.floor))

    async def _truncate_within(self, segment: Segment, end: int) -> None:
        position = await _truncation_position(self._segments, segment, end)
        if position is None and segment.records_end is None:
            return
        if (
            position is None
        ):  # in the hole at its end: it ends with its last record, for the next one goes to a new file
            position = segment.appended.size
        await self._appender.seal(segment)  # an index written later would have the removed records
        await set_aside(self._disk, self._quarantine, segment, position)
        await self._remove_lasting(segment)
        await remove_index(self._disk, segment)
        await self._disk.truncate(segment.path, position)
        scan = await scan_segment(self._disk, segment.path, segment.base, position)
        self._segments.drop_last()
        self._segments.add(scan.segment(self._disk, self._segments.folder))
        self._segments.note_damage(self._segments[-1])

    async def _remove_lasting(self, segment: Segment) -> None:
        if segment.holes:
            await remove_lasting(self._disk, segment.folder, segment.base)

    async def drop_unpromised(self) -> None:
        """After a failed write: remove whatever it may have left in the files. Raises OSError."""
        assert self._segments.changing.locked(), "somebody else may change these files"
        segments = self._segments
        while segments and segments[-1].promised.size == 0 and not _marks_damage(segments, segments[-1]):
            await set_aside(self._disk, self._quarantine, segments[-1], 0)
            await remove_files(self._disk, segments[-1])
            segments.drop_last()
        for segment in segments:
            if segment.synced.size < segment.promised.size and not segment.missing:
                # Relaxed: promised, but the pages may be lost. A file that is too short is noted as damage by now.
                size = min(segment.promised.size, await segment.file_size())
                await rewrite(self._disk, segment.path, [(0, size)], durable=False)
                segment.synced = segment.promised
        self._appender.forget_unsynced()
        if segments:
            segment = segments[-1]
            if await set_aside(self._disk, self._quarantine, segment, segment.promised.size):
                await self._disk.truncate(segment.path, segment.promised.size)


async def _takes_promised(segments: SegmentList, end: int) -> bool:
    """Whether a truncation to `end` removes damage that may have held records below `end`."""
    if not segments or end >= segments[-1].appended.end or not any(segment.damage for segment in segments):
        return False
    last = _last_before(segments, end)
    if last is None or last.appended.end <= end:
        return end > (segments.floor if last is None else last.appended.end)
    position = await _truncation_position(segments, last, end)
    return position in last.damage and await end_before(last, position) < end


def _least_end(segments: SegmentList, end: int) -> int:
    """The least end of the log after a truncation to `end`: there may be a hole before it."""
    last = _last_before(segments, end)
    if last is None:
        return segments.floor
    return last.appended.end if last.appended.end <= end else last.base


def _last_before(segments: SegmentList, end: int) -> Segment | None:
    """The last segment that keeps records after a truncation to `end`."""
    return next(
        (each for each in reversed(segments) if each.first_offset >= 0 and not each.begins_at_or_after(end)), None
    )


def _marks_damage(segments: SegmentList, segment: Segment) -> bool:
    """Whether an empty segment shows, by its damage or its name, that records are missing."""
    before = segments.before(segment)
    end = segments.floor if before is None else before.appended.end
    return bool(segment.damage) or end < segment.base <= segments.end


async def _truncation_position(segments: SegmentList, segment: Segment, end: int) -> int | None:
    """Where in its file the records from offset `end` on begin, with a damaged stretch right before them: at the end of
    a log its offsets would not be known. None if there is no such record."""
    found = await seek(segments, segment, OFFSET, end)
    if found is None:
        return None
    return next((start for start, after in segment.damage.items() if after == found.position), found.position)
