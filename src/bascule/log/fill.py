"""One damaged stretch, filled with the records of a peer.

The stretch lies between two offsets. A peer that has the same record after the stretch has the same log up to there
(leaders only append, and an epoch and an offset name one record), so its records between the two offsets are the
missing ones. The peer is asked for that record before and after the stretch itself. Where nothing follows, the records
must have the epoch of our last one, and end where our log ends: all of them or none, because the next start would take
a part of them, with nothing valid after it, for a torn tail. A peer with other records there, or fewer, may still have
the missing ones: that is known once a record follows, and until then nothing is given up.

Compaction may have removed that record there. Then the first later one that both logs still have shows it; and what the
peer has removed of the stretch a later record has superseded, which both have or had.

A peer whose log ends before that record is not known to have the same log, but may have the missing records. A record
with the epoch of the one after the stretch is, at its offset, the same in every log: one leader wrote it, after the
same log. So the peer's records up to its last one of that epoch are the missing ones, of whatever epochs they are.

A peer may be damaged too, elsewhere or at the same place. Then any later record that both have shows that the logs are
the same, and the peer's records of a stretch are taken piece by piece. Missing pieces are marked by a filler, which has
the form of a record and does not verify, so that every scan finds the records on both sides of it; other peers are
asked for them next. So replicas with different holes repair each other.
"""

import logging
from collections.abc import Awaitable, Callable

from bascule import limits
from bascule.errors import PeerError, PeerLacks
from bascule.log.chunk import TRAILER_TAG, Chunk
from bascule.log.filecopy import Copy
from bascule.log.index import OFFSET
from bascule.log.lookup import seek
from bascule.log.quarantine import Quarantine
from bascule.log.segment import Segment
from bascule.log.segments import SegmentList
from bascule.log.stretch import Stretch, first_after
from bascule.wire import kernels
from bascule.wire.record import FRAME_PREFIX_BYTES

_log = logging.getLogger("bascule.log")

Fetch = Callable[[int, int], Awaitable[bytes]]
"""(first offset, end offset) -> the first of a peer's records in between, as many as come at once; b"" if none.
Raises PeerLacks if the peer's log is damaged there."""
PROOFS = 64
"""Records of ours that a damaged peer is asked for, until it has one."""
REFUSALS = 256
"""How often a damaged peer is asked for smaller pieces of one stretch; the next attempt asks for the rest."""
_WHOLE = 0
_FILLER_BODY = bytes(limits.MIN_RECORD_PAYLOAD_BYTES - limits.RECORD_TRAILER_BYTES) + TRAILER_TAG.ljust(
    limits.RECORD_TRAILER_BYTES, b"\0"
)
FILLER = b"\xff" + len(_FILLER_BODY).to_bytes(FRAME_PREFIX_BYTES - 1, "big") + _FILLER_BODY
"""Has a valid length and trailer, and never verifies."""


class Fill:
    """One stretch, as a peer has it."""

    def __init__(
        self,
        segments: SegmentList,
        quarantine: Quarantine,
        segment: Segment,
        stretch: Stretch,
        copy: Copy,
        fetch: Fetch,
    ) -> None:
        self._segments = segments
        self._quarantine = quarantine
        self._segment = segment
        self._stretch = stretch
        self._copy = copy
        self._fetch = fetch
        self._refusals = REFUSALS
        self._last_epoch = 0
        self._end = stretch.first_offset
        self._records = 0
        self._holes = 0
        self._in_hole = False
        self._copied = False
        self._by_epoch = False
        """Its records are known by their epoch: a missing one does not show that there was none."""
        self.lacking = ""
        """What the peer reported as missing in its log too."""

    @property
    def whole(self) -> bool:
        return not self._holes

    @property
    def helped(self) -> bool:
        return self.whole or self._records > 0

    async def run(self) -> bool:
        """False if the segment cannot be rebuilt from this: nothing marks the end of the log, or the peer's log has
        changed meanwhile."""
        stretch = self._stretch
        if stretch.follows is None:
            await self._take(stretch.first_offset, stretch.end_offset)
            same_epoch = self._last_epoch == self._segment.promised.last_epoch
            usable = self.whole and self._end == stretch.end_offset and same_epoch
            if self._records and not usable:
                raise PeerError(
                    f"its records from offset {stretch.first_offset} on are not known to be the missing ones yet"
                )
            return usable
        proof = await self._proof()
        if proof is not None:
            await self._take(stretch.first_offset, stretch.end_offset)
            return await self._has(proof)
        if not await self._has_some():
            await self._keep()
            return True
        proven = await self._has_last()
        self._by_epoch = not proven
        await self._take(stretch.first_offset, stretch.end_offset)
        return not proven or await self._has_last()

    async def set_aside(self) -> None:
        """Before its bytes leave the log."""
        stretch = self._stretch
        if self._copied or self._segment.missing or await self._is_filler():
            aside = None
        else:
            aside = await self._quarantine.keep(self._segment.path, stretch.start, stretch.end)
        if self.helped:
            if not self._records:
                healed = "name nothing in another replica's log, which is the same one, and are left out here too"
            else:
                healed = f"are back from another replica{'' if self.whole else ', as far as it has them'}"
            _log.warning(
                "%s: offsets %d to %d %s; %s",
                self._segment.path,
                stretch.first_offset,
                stretch.end_offset - 1,
                healed,
                f"the damaged bytes are in {aside}" if aside else "no damaged bytes were left",
            )

    async def _is_filler(self) -> bool:
        start, end = self._stretch.start, self._stretch.end
        if end - start != len(FILLER):
            return False
        return await self._segment.read(start, len(FILLER)) == FILLER

    async def _proof(self) -> Chunk | None:
        """A record of ours behind the stretch that the peer has too; None if its log is another one, or shorter, or
        too much of it is damaged."""
        segment: Segment | None = self._segment
        position, left = self._stretch.end, PROOFS
        while segment is not None and left > 0:
            record = await first_after(segment, position)
            if record is None:
                segment, position = self._segments.after(segment), 0
                continue
            left -= 1
            try:
                theirs = await self._at_or_after(record)
            except PeerLacks as error:
                self.lacking = str(error)
                position = record.end
                continue
            if theirs is None or theirs.first_offset == record.first_offset:
                return record if theirs is not None and theirs.data == record.data else None
            segment = self._segments.at(theirs.first_offset)
            found = None if segment is None else await seek(self._segments, segment, OFFSET, theirs.first_offset)
            if segment is not None:
                position = segment.appended.size if found is None else found.position
        return None

    async def _at_or_after(self, record: Chunk) -> Chunk | None:
        """The peer's record at the offset of this one, or else its first one after that; None if there is none."""
        records = await self._fetch(record.first_offset, record.next_offset)
        if not records:
            records = await self._fetch(record.next_offset, self._segments.end)
        position, count, first, end, timestamp, epoch, _ = kernels.scan_records(records, 0, len(records), 0)
        if not count:
            return None
        return Chunk(0, records[:position], count, first, end, timestamp, epoch).first_record()

    async def _has_some(self) -> bool:
        """Whether a peer that cannot be compared has a record that is missing here."""
        stretch = self._stretch
        try:
            records = await self._fetch(stretch.first_offset, stretch.end_offset)
        except PeerLacks as error:
            self.lacking = str(error)
            return stretch.epoch > 0
        return bool(records) and stretch.epoch > 0

    async def _has_last(self) -> bool:
        """Whether the peer's record right before the one after the stretch is of the same epoch as that."""
        end = self._stretch.end_offset
        try:
            return _last_epoch(await self._fetch(end - 1, end)) == self._stretch.epoch
        except PeerLacks:
            return False

    async def _has(self, record: Chunk) -> bool:
        """Whether the peer has this very record."""
        return await self._fetch(record.first_offset, record.next_offset) == record.data

    async def _take(self, start: int, end: int) -> None:
        while start < end:
            try:
                records = await self._fetch(start, end)
            except PeerLacks as error:
                self.lacking = str(error)
                self._refusals -= 1
                if end - start == 1 or self._refusals <= 0:
                    await self._leave_out()
                    return
                middle = (start + end) // 2
                await self._take(start, middle)
                start = middle
                continue
            if self._by_epoch and _last_epoch(records) != self._stretch.epoch:
                await self._leave_out()
                return
            if not records:
                return  # there never were any, or they were given up
            start = await self._add(records, start, end)

    async def _add(self, records: bytes, start: int, end: int) -> int:
        position, count, first, added_end, _, epoch, status = kernels.scan_records(records, 0, len(records), start)
        if status != _WHOLE or position != len(records) or not count or first < start or added_end > end:
            raise PeerError(f"what a peer sent for offsets from {start} on does not verify")
        await self._copy.add(records)
        self._records += count
        self._last_epoch, self._end, self._in_hole = epoch, added_end, False
        return added_end

    async def _keep(self) -> None:
        """Copy the stretch as it is: the next scan finds the damage again."""
        start, end = self._stretch.start, self._stretch.end
        length = 0 if self._segment.missing else await self._segment.file_size()
        if start < end <= length:
            await self._copy.take(start, end, durable=end <= self._segment.synced.size)
            self._holes, self._copied = 1, True
        else:
            await self._leave_out()

    async def _leave_out(self) -> None:
        if not self._in_hole:
            self._holes += 1
            self._in_hole = True
            await self._copy.add(FILLER)


def _last_epoch(records: bytes) -> int:
    """Of the last record; 0 if there is none, or they do not verify."""
    _, count, _, _, _, epoch, status = kernels.scan_records(records, 0, len(records), 0)
    return epoch if count and status == _WHOLE else 0
