"""Refilling: a damaged stretch of a segment gets the records back that another replica has.

Theory of operation: the stretch stands between two offsets. A peer whose log has the very record that follows it in
ours has the same log up to there (leaders only append, and an epoch and an offset name one record), so what it has
between the two offsets is what was here. The peer is asked for that record before and after the stretch itself. Where
nothing follows, the records must be of the epoch our last one had, and end where our log ends.

The good bytes before the stretch, the peer's records and the good bytes after it make a new file, synced, which takes
the segment's place atomically; the bad bytes are set aside first. So the cost of one bad record is one segment copied,
however long the log is, and nothing but bad bytes ever leaves the log. Readers look up their place again.

A segment is filled only with offsets from its own base up to the next one's: each stretch of a log belongs to one file.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from bascule import limits
from bascule.errors import LogError, PeerError
from bascule.log.chunk import Chunk, read_chunk, read_record
from bascule.log.lookup import yielding
from bascule.log.recovery import Copy, scan_segment
from bascule.log.segment import Segment
from bascule.wire import kernels

if TYPE_CHECKING:
    from bascule.log.commitlog import CommitLog

_log = logging.getLogger("bascule.log")

Fetch = Callable[[int, int], Awaitable[bytes]]
"""(first offset, end offset) -> the first of a peer's records in between, as many as come at once; b"" if none."""
_WHOLE = 0


class Stretch(NamedTuple):
    """A damaged part of a segment, in bytes, and the offsets its records can have had."""

    start: int
    end: int
    first_offset: int
    end_offset: int
    follows: Chunk | None
    """The first good record after it, wherever that is; None if it is the last of the log."""


@dataclass(slots=True)
class Found:
    segment: Segment
    """The one that has the file now, whatever interrupts a refill."""


async def refill(log: "CommitLog", segment: Segment, fetch: Fetch) -> bool:
    """Heal everything known to be damaged in this segment with a peer's records. False if the peer is no help: it has
    another log, or not all of it. Raises PeerError if it cannot be asked, LogError for trouble of our own."""
    try:
        async with log.changing:
            if segment.retired or not segment.damage:
                return True
            await log.seal(segment)
            found = Found(segment)
            try:
                await _heal(log, segment, fetch, found)
            finally:
                log.put_back(segment, found.segment)
            return found.segment is not segment
    except OSError as error:
        raise LogError(
            f"{segment.path}: cannot be refilled: {error.strerror or error}; it is tried again; check the disk"
        ) from error


async def _heal(log: "CommitLog", segment: Segment, fetch: Fetch, found: Found) -> None:
    """Puts another segment, whole, in its place, if the peer can help."""
    if not segment.missing and await segment.file_size() < segment.promised.size:
        # All that is missing at its end is one stretch, wherever readers met it.
        scan = await scan_segment(log.disk, segment.path, segment.base, segment.promised.size)
        segment.damage = {**segment.damage, **dict(scan.bad)}
    stretches = [await _stretch(log, segment, *edges) for edges in _joined(segment.damage)]
    copy = Copy(log.disk, segment.path)
    await copy.begin(new_folder=not log.has_folder)  # a folder that was taken away is not made again unnoticed
    try:
        if not await _copied(copy, stretches, segment, fetch):
            await copy.give_up()
            return
        scan = await scan_segment(log.disk, copy.path, segment.base, copy.size)
        for stretch in stretches:
            aside = await log.set_aside(segment, stretch.start, stretch.end)
            _log.warning(
                "%s: offsets %d to %d are back from another replica; %s",
                segment.path,
                stretch.first_offset,
                stretch.end_offset - 1,
                f"the damaged bytes are set aside as {aside}" if aside else "nothing of them was left",
            )
        await log.disk.remove(segment.index_path)
    except BaseException:
        await copy.give_up()
        raise

    def replaced() -> None:
        found.segment = scan.segment(log.disk, log.folder)

    await to_the_end(copy.replace(replaced))


async def _copied(copy: Copy, stretches: list[Stretch], segment: Segment, fetch: Fetch) -> bool:
    """Everything that belongs there is in the copy, synced. False if the peer does not have it all."""
    position = 0
    for stretch in stretches:
        await copy.take(position, stretch.start)
        if not await _fill(copy, stretch, segment, fetch):
            return False
        position = stretch.end
    await copy.take(position, segment.promised.size)
    if copy.size > limits.MAX_SEGMENT_BYTES:
        raise LogError(f"{segment.path}: would be too large with what it lacks")
    await copy.sync()
    return True


async def to_the_end(work: Coroutine[object, object, None]) -> None:
    """Whoever waits for this may be cancelled, and the work is done all the same before that shows."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
        except Exception:
            break
    task.result()
    if cancelled:
        raise asyncio.CancelledError


def _joined(damage: dict[int, int]) -> list[tuple[int, int]]:
    """Stretches that touch or overlap are one: readers that came from different places noted them."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(damage.items()):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


async def _fill(copy: Copy, stretch: Stretch, segment: Segment, fetch: Fetch) -> bool:
    if stretch.follows is not None and not await _has(fetch, stretch.follows):
        return False
    offset, epoch = stretch.first_offset, 0
    while offset < stretch.end_offset and (records := await fetch(offset, stretch.end_offset)):
        position, count, first, end, _, epoch, status = kernels.scan_records(records, 0, len(records), offset)
        if status != _WHOLE or position != len(records) or not count or first < offset or end > stretch.end_offset:
            raise PeerError(f"what a peer sent for offsets from {offset} on does not verify")
        await copy.add(records)
        offset = end
    if stretch.follows is None:
        return offset == stretch.end_offset and epoch == segment.promised.last_epoch
    return await _has(fetch, stretch.follows)


async def _has(fetch: Fetch, record: Chunk) -> bool:
    """Whether the peer has this very record."""
    return await fetch(record.first_offset, record.next_offset) == record.data


async def _stretch(log: "CommitLog", segment: Segment, start: int, end: int) -> Stretch:
    first = await _end_before(segment, start)
    following = log.segment_after(segment)
    follows = await _first_after(segment, end)
    if follows is not None:
        return Stretch(start, end, first, follows.first_offset, follows)
    if following is None:
        return Stretch(start, end, first, segment.promised.end, None)
    limit = following.base
    while following is not None and follows is None:
        follows = await _first_after(following, 0)
        following = log.segment_after(following)
    return Stretch(start, end, first, limit, follows)


async def _end_before(segment: Segment, limit: int) -> int:
    """The offset after the last good record before this position."""
    position, offset = 0, segment.base
    read = yielding(segment.read)
    while position < limit:
        chunk = await read_chunk(read, position, limits.RECOVERY_READ_BYTES, limit, segment.base, {})
        if chunk is None:
            break
        position, offset = chunk.end, chunk.next_offset
    return offset


async def _first_after(segment: Segment, position: int) -> Chunk | None:
    """The first good record at or after this position."""
    size = segment.appended.size
    chunk = await read_chunk(yielding(segment.read), position, 1, size, segment.base, {})
    return None if chunk is None else await read_record(segment.read, chunk.position, size)
