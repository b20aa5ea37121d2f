"""How far the log of one replica is cleared of what tombstones delete, towards the other replicas.

`core.metadata.tombstones` has the rules, `log/compaction.py` stores the end. Here is what a replica does about them:

- It tells the end that is on its disk, whenever that has risen and there are tombstones.
- A replica that is neither in sync nor eligible, and is not cleared to where tombstones may go, or was there before
  these began again, begins anew with nothing when it hears of its leader: not before, for its records may be all that
  is left. With nothing in it, a log is cleared to any end. It follows when the metadata has that end of it: until then
  a late copy of an earlier request could say that it is cleared further, and tombstones could go that delete what it
  is fed.
- One that is in sync has what its leaders had, of which each was cleared to there. It goes on, if only the record of
  that is gone.
- The end is lowered, for a repair with records of a log that is cleared less, only after the metadata has it.
"""

import logging
from typing import Protocol

from bascule.core.metadata.commands import ClearedEnd
from bascule.core.metadata.streams import Partition
from bascule.core.metadata.tombstones import is_used, told
from bascule.errors import BasculeError
from bascule.log.compaction import NO_TOMBSTONES
from bascule.node.partition.ports import PartitionBroker, PartitionReplica
from bascule.wire.repair import Cleared

logger = logging.getLogger(__name__)


class ClearedReplica(PartitionReplica, Protocol):
    @property
    def replicated(self) -> bool:
        """Other brokers have replicas too."""

    async def begin_anew(self) -> None:
        """Its log has no record on return. Raises LogError or OSError."""


class ClearedLog:
    def __init__(self, own: str, broker: PartitionBroker, replica: ClearedReplica) -> None:
        self._own = own
        self._broker = broker
        self._replica = replica
        self._compaction = replica.log.compaction

    @property
    def said(self) -> Cleared:
        """To a replica that repairs its log with records of this one, and by one that does."""
        progress = self._compaction.progress
        return Cleared(0, 0) if progress is None else Cleared(progress.epoch, progress.cleared_end)

    @property
    def needed(self) -> Cleared | None:
        """What a log must be cleared to whose records may come into this one. The metadata may have more of this one
        than its disk, which has lost the record of that. None: any log will do."""
        progress, partition = self._compaction.progress, self._replica.partition
        known = told(partition, self._own)
        end = max(self.said.end, known.end if known is not None else 0)
        return Cleared(progress.epoch, end) if progress is not None and end else None

    @property
    def _is_complete(self) -> bool:
        return self._own in self._replica.partition.complete

    # --- beginning anew --------------------------------------------------------------------------------------

    @property
    def must_begin_anew(self) -> bool:
        """What its leader sends is not taken before."""
        partition = self._replica.partition
        if not partition.cleared and not is_used(partition):
            return False
        if partition.leader in ("", self._own) or self._is_complete:
            return False
        progress = self._compaction.progress
        assert progress is not None, "how far a log is compacted is read when it is opened"
        known = told(partition, self._own)
        needed = max(partition.tombstones_end, known.end if known is not None else 0)
        return progress.epoch != partition.tombstones_epoch or progress.cleared_end < needed

    async def begin_anew(self) -> bool:
        """With nothing, cleared to where tombstones may go. False if the metadata does not have that yet: to be tried
        again. Raises LogError or OSError."""
        if not self.must_begin_anew:
            return True
        replica, partition = self._replica, self._replica.partition
        progress, segments = self._compaction.progress, replica.log.segments
        if segments or not segments.has_folder or progress is None or progress.epoch != partition.tombstones_epoch:
            logger.warning(
                "%s: its log may have records of keys whose tombstones are gone; it begins anew, and all %d offsets "
                "from its start on go into quarantine/",
                replica.name,
                replica.log.end - replica.log.start,
            )
            await replica.begin_anew()
            await self._compaction.begin_again(0, partition.tombstones_epoch)
        end = partition.tombstones_end
        if await self._tell(end) is None:
            return False
        await self._compaction.begin_again(end, partition.tombstones_epoch)
        return not self.must_begin_anew

    # --- telling -----------------------------------------------------------------------------------------------

    def untold(self) -> ClearedEnd | None:
        """What the others do not know yet. Only what is on the disk, and only where it may help tombstones to go or
        this replica to be in sync."""
        replica, partition, progress = self._replica, self._replica.partition, self._compaction.progress
        if not replica.replicated or progress is None or progress.epoch != partition.tombstones_epoch:
            return None
        known, used = told(partition, self._own), is_used(partition)
        if not used and (progress.alone_until == NO_TOMBSTONES or not (known or progress.cleared_end)):
            return None
        if (known is not None and known.end == progress.cleared_end) or self.must_begin_anew:
            return None
        return self._next(progress.cleared_end)

    async def count_from_now(self) -> None:
        """A replica that is in sync, or eligible, is of the new history. Raises OSError."""
        progress, partition = self._compaction.progress, self._replica.partition
        if progress is None or progress.epoch == partition.tombstones_epoch or not self._is_complete:
            return
        if self._replica.log.segments.has_folder:
            await self._compaction.begin_again(0, partition.tombstones_epoch)

    async def lower(self) -> bool:
        """To where all are cleared to. False if the metadata does not have that, or it is no lower. Raises OSError."""
        partition, end = self._replica.partition, self._replica.partition.tombstones_end
        progress, needed = await self._compaction.load(), self.needed
        if progress.epoch == partition.tombstones_epoch and (needed is None or needed.end <= end):
            return False
        if partition.cleared or is_used(partition) or progress.alone_until != NO_TOMBSTONES:
            now = await self._tell(end)
            if now is None or now.tombstones_epoch != partition.tombstones_epoch:
                return False
            end = max(end, now.tombstones_end)
        await self._compaction.begin_again(end, partition.tombstones_epoch)
        return True

    async def _tell(self, end: int) -> Partition | None:
        """The partition as the metadata has it then; None if this end is not in there."""
        wanted = self._next(end)
        try:
            now = await self._broker.tell_cleared(self._replica, wanted)
        except BasculeError as error:
            logger.debug("%s: how far its log is cleared is not told: %s", self._replica.name, error)
            return None
        known = told(now, self._own) if now is not None else None
        return now if known is not None and known.end == end and known.at > wanted.since else None

    def _next(self, end: int) -> ClearedEnd:
        stream, partition = self._replica.stream, self._replica.partition
        known = told(partition, self._own)
        since = known.at if known is not None else 0
        return ClearedEnd(stream.name, stream.creation_index, partition.id, partition.epoch, since, end)
