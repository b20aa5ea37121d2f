"""The idempotent producers of a partition on this broker: which of their sequences its log has (`ProducerTable`).

A leader's kernel takes in what it encodes, a follower observes what it appends. A table that may have more than the log
(it was truncated, or a write failed) is not used until the log was read again, from what is stored on: until then the
leader answers producers that the outcome is unknown, and they send their messages again. All other messages are taken
meanwhile.

What is stored is committed: it is never truncated, unless an administrator accepts that. It is stored for every so many
bytes of records, when the replica is closed, and before the files of records that are not in it yet are removed, for
these have expired. If records are damaged the table may lack some of them: it is not
stored then, and made again when they are healed.

Known to be imperfect: a replica that is fed from where earlier records have expired does not know the producers whose
records are all among those. A leader with damage that is not healed yet may not know those in it.
"""

import asyncio
import logging
import struct

from bascule.errors import LogError
from bascule.limits import (
    MAX_PARTITION_PRODUCERS,
    PRODUCER_CHECKPOINT_BYTES,
    PRODUCER_CLOSE_BYTES,
    PRODUCER_REBUILD_BYTES,
)
from bascule.log.checkpoint import read_checkpoint, write_checkpoint
from bascule.log.commitlog import CommitLog
from bascule.log.recovery import PRODUCERS_FILE
from bascule.node.partition.derived import Spawn
from bascule.ports import Disk
from bascule.wire.kernels import ProducerTable, observe_producers

logger = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Between two attempts to read the log again."""
_HEAD = struct.Struct("<BQ")  # version, the offset up to which it is derived
_VERSION = 1
SNAPSHOT_SHARE = 16
"""Stored at most every so many times its own size of records."""


class StoredProducers:
    """A `DerivedState`."""

    __slots__ = (
        "_disk",
        "_lacks",
        "_log",
        "_path",
        "_reading",
        "_rebuilding",
        "_scope",
        "_since",
        "_snapshot",
        "_snapshot_bytes",
        "_spawn",
        "_stored_end",
        "_truncations",
        "table",
    )
    what = "producers"

    def __init__(
        self, disk: Disk, log: CommitLog, creation: int, partition: int, spawn: Spawn, reading: asyncio.Semaphore
    ) -> None:
        """`reading`: how many logs are read again at a time."""
        self._scope = (creation, partition)
        self.table = self._empty()
        self._disk = disk
        self._log = log
        self._spawn = spawn
        self._reading = reading
        self._path = f"{log.folder}/{PRODUCERS_FILE}"
        self._since = 0
        """Bytes of records since the table was last to be stored."""
        self._snapshot: tuple[int, bytes] | None = None
        """Taken, and to be stored when everything below its offset is committed."""
        self._snapshot_bytes = 0
        self._stored_end = 0
        """Up to where what is stored is derived."""
        self._truncations = 0
        self._rebuilding = False
        self._lacks = False
        """Damaged records were left out."""

    async def load(self) -> None:
        log = self._log
        stored = await self._stored() if log.segments.has_folder else None
        if stored is not None and stored.end > log.end:
            await self.forget()  # the log has lost records that it is derived from
            stored = None
        if stored is not None:
            self._stored_end = stored.end
        if log.end > log.start and (stored is None or stored.end < log.end):
            self._rebuild()
            return
        if stored is not None:
            self.table.take(stored)
        self.table.end = log.end

    async def _stored(self) -> ProducerTable | None:
        data = await self._disk.together(lambda here: read_checkpoint(here, self._path))
        if data is None or len(data) < _HEAD.size:
            return None
        version, end = _HEAD.unpack_from(data)
        table = self._empty()
        try:
            if version != _VERSION:
                return None
            table.restore(data[_HEAD.size :])
        except ValueError as error:
            logger.error("%s: %s; they are read from the log", self._path, error)
            return None
        table.end = end
        return table

    def _empty(self) -> ProducerTable:
        return ProducerTable(*self._scope, MAX_PARTITION_PRODUCERS)

    # --- with the log ----------------------------------------------------------------------------------------

    def observe(self, records: bytes, start: int, end: int) -> None:
        self._since += len(records)
        table = self.table
        if not table.ready:
            return  # they are read with the others
        if table.end < end:
            observe_producers(table, records, 0, len(records))
        enough = max(PRODUCER_CHECKPOINT_BYTES, SNAPSHOT_SHARE * self._snapshot_bytes)
        if self._since >= enough and self._snapshot is None and not self._lacks:
            self._take_snapshot()

    def _take_snapshot(self) -> None:
        self.table.expire(self._log.last_timestamp)
        self._snapshot = (self.table.end, self.table.snapshot())
        self._snapshot_bytes = len(self._snapshot[1])
        self._since = 0

    def truncate(self, end: int) -> None:
        if self._snapshot is not None and self._snapshot[0] > end:
            self._snapshot = None
        if self._rebuilding or self.table.end > end:
            self.table.ready = False
            self._rebuild()

    def raise_start(self, start: int) -> None:
        """What producers have stored stays known, also if it has expired."""

    async def expiring(self, start: int) -> bool:
        if self._stored_end >= start or self._lacks:
            return True
        if not self.table.ready:
            return False  # these records may be about to be read
        if not len(self.table):
            return True
        if self._snapshot is None:
            self._take_snapshot()
        if self.due(self._log.promised_end):
            await self.store()
        return self._stored_end >= start

    def healed(self) -> None:
        if self._lacks or self._rebuilding:
            self._rebuild()

    # --- reading the log again -------------------------------------------------------------------------------

    def _rebuild(self) -> None:
        """A table that lacks something is used meanwhile, one that has too much is not."""
        self._truncations += 1
        if not self._rebuilding:
            self._rebuilding = True
            if not self._lacks:
                self.table.ready = False
            self._spawn(self._read_again())

    async def _read_again(self) -> None:
        try:
            async with self._reading:
                while not await self._try_to_read():
                    await asyncio.sleep(AGAIN_S)
        finally:
            self._rebuilding = False

    async def _try_to_read(self) -> bool:
        """True if the table has what the log has. Between its last look at the end of the log and that nothing is
        appended."""
        truncations, log = self._truncations, self._log
        try:
            table = await self._stored()
            if table is None or table.end > log.end:
                table = self._empty()
                table.end = log.start
            reader = log.reader(table.end, uncommitted=True, heals=False)
            while truncations == self._truncations:
                records = await reader.read(PRODUCER_REBUILD_BYTES)
                if records:
                    observe_producers(table, records, 0, len(records))
                    await asyncio.sleep(0)
                elif reader.next_offset >= log.end:
                    break
                else:
                    await asyncio.sleep(AGAIN_S)  # the file is about to be replaced
        except (OSError, LogError) as error:
            logger.warning("%s: what producers have stored is not known: %s; it is read again", log.folder, error)
            return False
        if truncations != self._truncations:
            return await self._try_to_read()
        table.end = log.end
        self.table.take(table)
        self.table.ready = True
        self._lacks = reader.skipped
        return True

    # --- storing ---------------------------------------------------------------------------------------------

    def due(self, promised_end: int) -> bool:
        return self._snapshot is not None and self._snapshot[0] <= self._log.visible_end

    async def store(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            end, data = snapshot
            await write_checkpoint(self._disk, self._path, _HEAD.pack(_VERSION, end) + data, new_folder=False)
            self._stored_end = end

    async def store_at_end(self) -> None:
        whole = self.table.ready and not self._lacks and self._log.failed is None
        enough = self._since >= PRODUCER_CLOSE_BYTES or (self._stored_end < self._log.start and len(self.table))
        if whole and enough and self.table.end <= self._log.visible_end:
            self._take_snapshot()
            await self.store()

    async def forget(self) -> None:
        """Called before the log is truncated: otherwise a later start could trust what was derived from records that
        are gone."""
        self._snapshot, self._stored_end = None, 0
        removed = False
        for name in await self._disk.list(self._log.folder):
            if name.startswith(PRODUCERS_FILE):
                removed = True
                await self._disk.remove(f"{self._log.folder}/{name}")
        if removed:
            await self._disk.sync_folder(self._log.folder)
