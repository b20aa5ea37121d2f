"""Readers: byte ranges of a log, as subscribers receive them.

Theory of operation: a reader has a position in a segment. `read` takes the next stretch of the file, one
kernel call verifies it, and the bytes go out as they are: no record becomes a Python object. Offsets may have
gaps (holes left by damage, compaction), which a reader skips. Damage met on the way is logged once,
skipped and never served. At the visible end `read` gives None, and `wait` sleeps until there is more.

Where other replicas exist (`on_damage` is set) a reader that meets damage waits while the records are fetched
from them. Damage is never skipped while an unreachable replica may have the records: a consumer gets an error after a
while, because it would take skipped records for ones that were never stored. A reader that feeds a replica does not
wait at all, because other replicas are fed by the same task.
"""

import asyncio
from typing import Literal

from bascule import limits
from bascule.errors import Unavailable
from bascule.log.chunk import Chunk
from bascule.log.healing import Healing
from bascule.log.index import OFFSET, POSITION
from bascule.log.lookup import floor_position, read_verified, seek
from bascule.log.segment import Segment
from bascule.log.segments import SegmentList
from bascule.wire import kernels

Wake = Literal["data", "closed", "deleted"]
_POLL_S = 0.1


async def heal(segments: SegmentList, segment: Segment, wait: bool = True) -> Healing:
    """HEALED exactly if the segment is retired: otherwise a reader that tries again would loop for ever."""
    segments.note_damage(segment)
    healing = Healing.LOST if segments.on_damage is None else await segments.on_damage(segment, wait)
    if segment.retired:
        return Healing.HEALED
    return Healing.UNKNOWN if healing is Healing.HEALED else healing


async def healed_or_lost(segments: SegmentList, segment: Segment) -> Healing:
    """For consumers: the outcome, once that is known. Unavailable if it takes too long."""
    loop = asyncio.get_running_loop()
    until = loop.time() + limits.DAMAGE_PATIENCE_S
    while (healing := await heal(segments, segment)) is Healing.UNKNOWN:
        if loop.time() >= until or segments.waiters.ended is not None:
            raise Unavailable(
                f"{segment.path}: records are damaged on this broker, and another replica that may have them cannot be "
                "asked now: try again, start its broker, or remove that from the cluster if it is lost for good"
            )
        await asyncio.sleep(_POLL_S)
    return healing


def _lacks_its_end(segment: Segment) -> bool:
    """Whether records are missing between its last one and the next segment (`recovery`)."""
    return segment.promised.size in segment.damage


class Reader:
    """From an offset up. `next_offset` is its position; `count` is how many records the last read gave, and
    `given_end` the offset after the last of them: lower than `next_offset` before a hole.

    With `uncommitted` it sees everything that was appended, promised and committed or not: replicas are fed from that.
    Without `heals` it skips damage at once; `skipped` says whether records from its position on may be lost there.
    `damaged` are the offsets that the last read went past because records of them are damaged: where compaction has
    been it may have removed some of these before.
    """

    def __init__(self, segments: SegmentList, start: int, uncommitted: bool = False, heals: bool = True) -> None:
        self._uncommitted = uncommitted
        self._heals = heals
        self.crosses = False
        """Whether it goes on past damage that may still be healed; for callers that do not pass the records on."""
        self.skipped = False
        self.damaged = range(0)
        self.next_offset = self.given_end = start
        self.count = 0
        self._segments = segments
        self._segment: Segment | None = None
        self._position = 0

    async def read(self, max_bytes: int | None = None, stop_end: int | None = None) -> bytes | None:
        """The next whole records, about `max_bytes` (SUBSCRIBER_BUFFER_BYTES if it is not given) and at least one; None
        if there is none to see now.

        Never gives a record with offset `stop_end` or above; once `next_offset` has reached it, it never will.
        """
        max_bytes = limits.SUBSCRIBER_BUFFER_BYTES if max_bytes is None else max_bytes
        self.damaged = range(0)
        while True:
            limit = self._limit(stop_end)
            self.next_offset = max(self.next_offset, self._segments.floor)  # what is below has expired
            if self.next_offset >= limit:
                return None
            segment = await self._place()
            if segment is None:
                return None
            size = segment.appended.size if self._uncommitted else segment.promised.size
            chunk = await read_verified(segment, self._position, max_bytes, size)
            if segment.retired or segment.appended.size < size:
                continue  # its end is another one now, and so is ours
            if (chunk.position if chunk else size) > self._position or (chunk is None and _lacks_its_end(segment)):
                # A reader that begins in the middle of a segment may meet damage before its offset, and misses nothing.
                misses = chunk is None or chunk.first_offset > self.next_offset
                healing = await self._healing(segment, misses)
                if healing is Healing.HEALED:
                    continue
                self.skipped = self.skipped or misses
                if healing is Healing.UNKNOWN and not self.crosses:
                    return None
                if misses:
                    self.damaged = self._passed(segment, chunk, limit)
            if chunk is not None:
                self._position = chunk.end
                data = self._fit(chunk, limit)
                if data:
                    return data
            elif not self._next_segment(segment):
                self.next_offset = limit
                return None
            await asyncio.sleep(0)

    def _passed(self, segment: Segment, chunk: Chunk | None, limit: int) -> range:
        """The offsets between its position and the next whole record, or the next segment. The position stays where it
        is until a read gives something, so that there is one such stretch at most."""
        following = self._segments.after(segment)
        end = chunk.first_offset if chunk is not None else limit if following is None else following.base
        return range(self.next_offset, min(end, limit))

    async def _healing(self, segment: Segment, misses: bool) -> Healing:
        if self._heals and not misses:
            await heal(self._segments, segment, wait=False)
        if not self._heals or not misses:
            return Healing.LOST
        if self.crosses or self._uncommitted:
            return await heal(self._segments, segment, self.crosses)
        return await healed_or_lost(self._segments, segment)

    def _limit(self, stop_end: int | None) -> int:
        segments = self._segments
        limit = segments.end if self._uncommitted else min(segments.visible_end, segments.promised_end)
        return limit if stop_end is None else min(limit, stop_end)

    async def _place(self) -> Segment | None:
        """The segment to read in, with `_position` set."""
        if self._segment is None or self._segment.retired:
            segment = self._segments.at(self.next_offset)
            if segment is not None:
                self._position = await floor_position(self._segments, segment, OFFSET, self.next_offset)
            self._segment = segment
        return self._segment

    def _next_segment(self, segment: Segment) -> bool:
        following = self._segments.after(segment)
        if following is None:
            return False
        self._segment, self._position = following, 0
        return True

    def _fit(self, chunk: Chunk, limit: int) -> bytes | None:
        """What of the chunk lies between `next_offset` and `limit`; moves on past it."""
        fitting = chunk.since(self.next_offset)
        if fitting is not None and fitting.next_offset > limit:
            inside = fitting.before(limit)
            self._position = fitting.position if inside is None else inside.end
            self.next_offset = limit
            fitting = inside
        if fitting is None:
            return None
        self.next_offset = max(self.next_offset, fitting.next_offset)
        self.given_end = fitting.next_offset
        self.count = fitting.count
        return fitting.data

    async def wait(self) -> Wake:
        """Until it is worth reading again, or the log is closed or deleted. It may wake up too early: "data" is a
        hint."""
        waiters = self._segments.waiters
        if waiters.ended is None and self.next_offset >= self._limit(None):
            await waiters.wait()
        else:
            await asyncio.sleep(0)  # a caller that loops must let other tasks run
        return waiters.ended or "data"


class ReverseReader:
    """From an offset down to `oldest`, or the oldest record there is. `next_offset` is the newest one not
    given yet. Records that are lost to damage, here and on other replicas, had offsets below `lost_end`, and not below
    `next_offset`; 0 if none was met.
    """

    def __init__(self, segments: SegmentList, start: int, oldest: int = 0) -> None:
        self._oldest = max(oldest, 0)
        self.next_offset = min(start, segments.visible_end - 1, segments.promised_end - 1)
        self.lost_end = 0
        self.count = 0
        self._segments = segments
        self._segment: Segment | None = None
        self._position = 0  # the records before this one in the segment have not been given

    async def read(self, max_bytes: int | None = None) -> bytes | None:
        """Whole records, newest first, about `max_bytes` of them; None when the oldest was given."""
        max_bytes = limits.SUBSCRIBER_BUFFER_BYTES if max_bytes is None else max_bytes
        while self.next_offset >= max(self._oldest, self._segments.floor):
            segment = await self._place()
            if segment is None:
                break
            position, start = self._position, 0
            if self.next_offset >= segment.appended.end and _lacks_its_end(segment):
                await healed_or_lost(self._segments, segment)
                if segment.retired:
                    continue
                self.lost_end = max(self.lost_end, self.next_offset + 1)
            if position > max_bytes:
                start = await floor_position(self._segments, segment, POSITION, position - max_bytes)
            chunks = await self._collect(segment, start, position)
            if segment.retired:
                continue
            self._position = start
            if chunks:
                self.next_offset = chunks[0].first_offset - 1
                self.count = sum(chunk.count for chunk in chunks)
                data = b"".join(chunk.data for chunk in chunks)
                return kernels.reverse_records(data, 0, len(data))
            await asyncio.sleep(0)
        self.next_offset = -1
        self.count = 0
        return None

    async def _place(self) -> Segment | None:
        """The segment to read in, with something before `_position` in it."""
        segments = self._segments
        while self._segment is None or self._segment.retired:  # also if it is replaced while it is searched
            segment = segments.at(self.next_offset)
            if segment is None:
                return None
            found = await seek(segments, segment, OFFSET, self.next_offset + 1)
            self._segment = segment
            self._position = segment.promised.size if found is None else found.position
        while self._segment is not None and self._position == 0:
            self._segment = segments.before(self._segment)
            self._position = 0 if self._segment is None else self._segment.promised.size
        return self._segment

    async def _collect(self, segment: Segment, start: int, end: int) -> list[Chunk]:
        chunks = []
        while start < end:
            chunk = await read_verified(segment, start, end - start, end)
            damaged = (chunk.position if chunk else end) > start
            if damaged:
                await healed_or_lost(self._segments, segment)
            if segment.retired:
                break
            if damaged:
                self.lost_end = max(self.lost_end, chunk.first_offset if chunk else self.next_offset + 1)
            if chunk is None:
                break
            start = chunk.end
            wanted = chunk.since(max(self._oldest, self._segments.floor))
            if wanted is not None:
                chunks.append(wanted)
            await asyncio.sleep(0)
        return chunks
