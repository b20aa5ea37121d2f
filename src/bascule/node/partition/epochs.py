"""The stored copy of a partition's leader epoch history. It saves a scan of the log; if it does not match the log it is
built anew. It has only epochs with a promised record, so it also shows whether a log ends before its promised end."""

import asyncio
import logging
import struct

from bascule.core.partition.epochs import EpochHistory
from bascule.log.checkpoint import read_checkpoint, write_checkpoint
from bascule.log.commitlog import CommitLog
from bascule.log.recovery import EPOCHS_FILE
from bascule.ports import Disk

logger = logging.getLogger(__name__)

_ENTRY = struct.Struct("<QQ")
_TRAILER = struct.Struct("<QI")
_READ_BYTES = 256 * 1024


class StoredEpochs:
    """A `DerivedState`."""

    __slots__ = ("_disk", "_log", "_stored", "history")
    what = "leader epochs"

    def __init__(self, disk: Disk, log: CommitLog) -> None:
        self.history = EpochHistory()
        self._disk = disk
        self._log = log
        self._stored = 0

    async def load(self) -> None:
        self.history = await load(self._disk, self._log)
        self._stored = self.history.last_epoch

    def observe(self, records: bytes, start: int, end: int) -> None:
        epoch, _ = _TRAILER.unpack_from(records, len(records) - _TRAILER.size)
        self.history.begin(epoch, start)

    def truncate(self, end: int) -> None:
        self.history.truncate(end)

    def raise_start(self, start: int) -> None:
        self.history.raise_start(start)

    async def expiring(self, start: int) -> bool:
        """The start of the log has the epoch of what has expired."""
        return True

    def healed(self) -> None:
        """A healed record has the epoch of those around it."""

    def due(self, promised_end: int) -> bool:
        if self.history.last_epoch == self._stored:
            return False
        epoch, _ = self.history.run_at(promised_end - 1, promised_end)
        if epoch == self._stored:
            return False
        self._stored = epoch
        return True

    async def store(self) -> None:
        await save(self._disk, self._log, self.history)

    async def store_at_end(self) -> None:
        """They are stored as soon as there is a new one."""

    async def forget(self) -> None:
        self._stored = 0
        await forget(self._disk, self._log.folder)


def _path(folder: str) -> str:
    return f"{folder}/{EPOCHS_FILE}"


async def load(disk: Disk, log: CommitLog) -> EpochHistory:
    if log.end == log.start:
        expired = log.segments.stored
        known = expired.last_epoch if expired.end == log.end else 0
        return EpochHistory([(known, log.end - 1)] if known else ())
    stored = await disk.together(lambda here: read_checkpoint(here, _path(log.folder)))
    if stored is not None and len(stored) % _ENTRY.size == 0:
        history = EpochHistory(_ENTRY.iter_unpack(stored))
        starts = [start for _, start in history.entries]
        if starts and starts[-1] >= log.end:
            log.set_committed_end(starts[-1] + 1)
            await log.record.fell_short(starts[-1] + 1)
        if history.last_epoch == log.last_epoch:
            return history
    return await _read_from(log)


async def save(disk: Disk, log: CommitLog, history: EpochHistory) -> None:
    data = b"".join(_ENTRY.pack(*entry) for entry in history.entries if entry[1] < log.promised_end)
    await write_checkpoint(disk, _path(log.folder), data, new_folder=False)


async def forget(disk: Disk, folder: str) -> None:
    """Called before the log is truncated: otherwise a later start could trust epochs whose records are gone."""
    for name in await disk.list(folder):
        if name.startswith(EPOCHS_FILE):
            await disk.remove(f"{folder}/{name}")
    try:
        await disk.sync_folder(folder)
    except FileNotFoundError:
        pass  # the folder was removed, with all files in it


async def _read_from(log: CommitLog) -> EpochHistory:
    logger.debug("%s: reading all records to rebuild the leader epoch history", log.folder)
    history = EpochHistory()
    end = log.start
    reader = log.reader(log.start, uncommitted=True)
    while (records := await reader.read(_READ_BYTES)) is not None:
        position = 0
        while position < len(records):
            following = position + 5 + int.from_bytes(records[position + 1 : position + 5], "big")
            epoch, _ = _TRAILER.unpack_from(records, following - _TRAILER.size)
            offset = _offset(records, position + 6)
            if epoch > history.last_epoch:
                # An epoch begins where the one before it ended, also if its leader skipped offsets that had been
                # exposed; but not where records are damaged: those may be of either epoch.
                history.begin(epoch, offset if log.damaged else end)
            position, end = following, offset + 1
        await asyncio.sleep(0)
    return history


def _offset(records: bytes, position: int) -> int:
    """The varint after the first tag: the record's offset."""
    value = shift = 0
    while True:
        byte = records[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
        position += 1
