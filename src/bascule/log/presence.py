"""Whether the files of a log are still where they were put.

Theory of operation: a file that was removed or moved can be written, synced and read as long as it is open: no call
on it fails, acks go on, and its records are missing at the next start. Only its path shows it. So from time to time,
outside the commit path, the paths of the log's folder and of its newest segment are checked: is it there, is it the
file that is open under that name, is it at least as long as was promised? If the entries of the folder have changed
since all segments were found, these are checked too, some at a time.

If a file is gone or replaced, the log takes no writes (`Appender.lose`). A file that is too short is damage. A failed
check is repeated while nothing changes the log's files: the log itself replaces and removes some.
"""

import logging
from typing import NamedTuple

from bascule import limits
from bascule.errors import LogError
from bascule.log.appender import Appender
from bascule.log.scan import scan_segment
from bascule.log.segment import Segment
from bascule.log.segments import SegmentList
from bascule.ports import Seen

_log = logging.getLogger("bascule.log")


class FileCheck(NamedTuple):
    """The paths to check each time, and how long the file at the second one must be."""

    paths: list[str]
    size: int


class Presence:
    __slots__ = ("_appender", "_identity", "_next_base", "_segments", "_sweep_version", "_version")

    def __init__(self, segments: SegmentList, appender: Appender) -> None:
        self._segments = segments
        self._appender = appender
        self._identity: tuple[int, int] | None = None  # of the folder
        self._version = 0  # of its entries, when every segment was found
        self._sweep_version = 0  # when the search that is under way began
        self._next_base = 0  # where it goes on

    @property
    def busy(self) -> bool:
        """Its files are being changed, which may take as long as other brokers take to answer: check again later."""
        return self._is_due() and self._segments.changing.locked()

    def file_check(self, folder_only: bool = False) -> FileCheck | None:
        """None if there is nothing to check now."""
        segments = self._segments
        if not self._is_due() or segments.changing.locked():
            return None
        newest = next((segment for segment in reversed(segments) if _has_file(segment)), None)
        if newest is None or folder_only:
            return FileCheck([segments.folder], 0)
        return FileCheck([segments.folder, newest.path], newest.promised.size)

    def _is_due(self) -> bool:
        """It has files, and has not failed, nor was it closed or deleted."""
        segments = self._segments
        return segments.has_folder and self._appender.failed is None and segments.waiters.ended is None

    def unchanged(self, file_check: FileCheck, seen: list[Seen | None]) -> bool:
        """Whether nothing has changed. If something has, the log itself may have changed it: `verify` checks that."""
        folder = seen[0]
        if folder is not None and self._identity is None:
            # The first time after the log was opened: all its files were found then.
            self._identity, self._version = folder.identity, folder.version
        if folder is None or folder.identity != self._identity or folder.version != self._version or not self._version:
            return False
        newest = seen[1] if len(seen) > 1 else None
        return len(seen) == 1 or (newest is not None and newest.same and newest.size >= file_check.size)

    async def verify(self) -> None:
        """Look at the folder and at some of the segments, the newest among them. Raises OSError."""
        segments = self._segments
        async with segments.changing:
            if not self._is_due():
                return
            some, to_the_end = self._some()
            sizes = [segment.promised.size for segment in some]
            folder, *files = await segments.disk.look([segments.folder, *(segment.path for segment in some)])
            if not self._is_due():
                return
            if folder is None or self._identity not in (None, folder.identity):
                self._appender.lose(segments.folder)
                return
            self._identity = folder.identity
            gone = [each for each, seen in zip(some, files, strict=True) if seen is None or not seen.same]
            if gone:
                self._appender.lose(gone[0].path)
                return
            short = [
                segment
                for segment, size, seen in zip(some, sizes, files, strict=True)
                if seen is not None and seen.size < size and segment not in segments.damaged
            ]
            for segment in short:
                await self._note_short(segment)
            self._go_on(None if to_the_end else some[-2].base + 1, folder.version)
        for segment in short:
            if segments.on_damage is not None:
                await segments.on_damage(segment, False)

    def _some(self) -> tuple[list[Segment], bool]:
        """The next segments of the search, the newest as the last; and whether none between them is left out."""
        there = [segment for segment in self._segments if _has_file(segment)]
        some = [segment for segment in there if segment.base >= self._next_base][: limits.SEGMENTS_LOOKED_AT]
        to_the_end = not there or not some or some[-1] is there[-1]
        return (some if to_the_end else [*some, there[-1]]), to_the_end

    def _go_on(self, next_base: int | None, version: int) -> None:
        """The search goes on there next time; None: it is over."""
        if self._next_base == 0:
            self._sweep_version = version
        if next_base is None:
            self._next_base = 0
            # A change during the search may be in a segment that was checked before it.
            self._version = version if version == self._sweep_version else 0
        else:
            self._next_base = next_base

    async def find_again(self, heals: bool) -> None:
        """Before a failed log is opened again, with `changing` held: are its files there? Missing files are damage if
        other replicas have their records (`heals`); else LogError. Raises OSError too."""
        segments = self._segments
        there = [segment for segment in segments if _has_file(segment)]
        folder, *files = await segments.disk.look(
            [segments.folder if segments.has_folder else "", *(each.path for each in there)]
        )
        missing = [segment for segment, seen in zip(there, files, strict=True) if seen is None]
        if (missing or (folder is None and segments.has_folder)) and not heals:
            raise LogError(str(self._appender.failed))
        if not all(seen is None or seen.same for seen in files) or missing:
            await segments.disk.forget(segments.folder)  # the open files are not those at these paths
        for segment in missing:
            segment.missing = True
            segment.damage = {0: segment.promised.size}
            segments.note_damage(segment)
        for segment, seen in zip(there, files, strict=True):
            if seen is not None and seen.size < segment.promised.size and segment not in segments.damaged:
                await self._note_short(segment)
        if missing:
            _log.error(
                "%s: %d of its files are gone, with records from offset %d on; they are fetched from other replicas",
                segments.folder,
                len(missing),
                missing[0].base,
            )
        segments.has_folder = segments.has_folder and folder is not None
        self._identity = folder.identity if folder is not None and segments.has_folder else None
        self._version = self._next_base = 0

    async def _note_short(self, segment: Segment) -> None:
        """Its file is too short: the missing bytes are damage, and nothing more is written to this file."""
        scan = await scan_segment(self._segments.disk, segment.path, segment.base, segment.promised.size)
        if not scan.bad or segment.retired:
            return
        segment.damage = {**segment.damage, **dict(scan.bad)}
        self._segments.note_damage(segment)
        self._appender.write_elsewhere(segment)
        start, end = scan.bad[-1]
        _log.error(
            "%s: the file has become shorter, %d bytes at position %d are missing; another replica may have them",
            segment.path,
            end - start,
            start,
        )


def _has_file(segment: Segment) -> bool:
    return segment.exists and not segment.missing
