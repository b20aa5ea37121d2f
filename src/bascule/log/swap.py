"""The swap: one new file takes the place of adjacent segments, and a crash at any moment leaves the old ones or it.

Theory of operation: the new file is a synced copy beside the first of the old ones. Its manifest is synced, then the
copy is renamed over that first one, and the folder is synced. Only then are the other old files removed, and the
manifest after them: removed, or made to last if offsets are missing in the new file (`manifest`). A start that finds a
manifest reads the whole file that it names: if that is the new one the others are removed, otherwise nothing had been
removed yet. So records are never in two segments, nor in none.

Readers in an old segment find it retired and look up their position again.

If the disk fails after the rename, the new file is in place and old ones may still be there: these are `left`, and the
next swap removes them. A truncation does so first, because a start would take them for records after the new end.
"""

import asyncio
from functools import partial

from bascule.limits import EXPIRY_PAUSE_S, MERGE_READ_FILES
from bascule.log.appender import Appender
from bascule.log.filecopy import Copy, to_the_end
from bascule.log.manifest import Manifest, make_lasting, remove_lasting, remove_manifest, write_manifest
from bascule.log.segment import Segment
from bascule.log.segments import SegmentList
from bascule.ports import Disk


class Swap:
    """Its callers hold `SegmentList.changing`."""

    def __init__(self, segments: SegmentList, appender: Appender) -> None:
        self._segments = segments
        self._appender = appender
        self.left: list[tuple[Segment, list[Segment]]] = []
        """New segments, and the old ones whose files are not known to be gone."""

    async def run(self, old: list[Segment], fresh: Segment, copy: Copy, manifest: Manifest) -> None:
        """Put the synced `copy`, which `fresh` describes, in the place of these segments. Raises OSError: then they are
        in place if `fresh` is not one of the log's segments."""
        segments = self._segments
        assert segments.changing.locked(), "somebody else may change these files"
        assert (fresh.base, manifest.base, manifest.end) == (old[0].base, old[0].base, old[-1].appended.end)
        try:
            await write_manifest(segments.disk, segments.folder, manifest)
        except BaseException:
            await remove_manifest(segments.disk, segments.folder, manifest.base)
            raise
        await to_the_end(self._replace(old, fresh, copy))

    async def _replace(self, old: list[Segment], fresh: Segment, copy: Copy) -> None:
        segments = self._segments
        try:
            await segments.disk.rename(copy.path, fresh.path)
        except OSError:
            await remove_manifest(segments.disk, segments.folder, fresh.base)
            raise
        segments.join(old, fresh)
        self.left.append((fresh, old))
        await self.remove_left()

    async def remove_left(self) -> None:
        """The files of the old segments, now that the new ones are in place. Durable on return. Raises OSError."""
        segments = self._segments
        assert segments.changing.locked(), "somebody else may change these files"
        while self.left:
            fresh, old = self.left[0]
            await segments.disk.sync_folder(segments.folder)
            for segment in old:
                await self._appender.seal(segment)  # its index may be on its way to the disk
            for first in range(0, len(old), MERGE_READ_FILES):
                gone = old[first : first + MERGE_READ_FILES]
                await segments.disk.together(partial(_remove, gone=gone, new_path=fresh.path))
                await asyncio.sleep(EXPIRY_PAUSE_S)
            await segments.disk.sync_folder(segments.folder)
            if fresh.holes:
                await make_lasting(segments.disk, segments.folder, fresh.base)
            else:
                await remove_manifest(segments.disk, segments.folder, fresh.base)
            self.left.pop(0)
            self._appender.store_index(fresh)


async def _remove(disk: Disk, gone: list[Segment], new_path: str) -> None:
    """In one turn of a thread that does not write. The index of the first one goes too: it is not the new file's."""
    for segment in gone:
        await disk.remove(segment.index_path)
        if segment.path != new_path:
            if segment.holes:
                await remove_lasting(disk, segment.folder, segment.base)
            await disk.remove(segment.path)
