"""Where bytes go that the log cannot use and must not destroy: `quarantine/` in the data folder.

Each piece is a file named by the time, the partition, the segment and the position in it. The whole folder is
bounded; when it is full the oldest pieces are removed, and that is logged. If a piece cannot be copied (the disk
is full, say) that is an error: bytes that might be the only copy are not truncated before a copy of them is
durable.
"""

import logging
from datetime import UTC, datetime

from bascule import limits
from bascule.log.filecopy import commit_one
from bascule.log.reread import agreed
from bascule.ports import Clock, Disk, Write

FOLDER = "quarantine"
_SUFFIX = ".bytes"
_log = logging.getLogger("bascule.log")


class Quarantine:
    def __init__(self, disk: Disk, clock: Clock, limit_bytes: int | None = None) -> None:
        """`limit_bytes`: how much all pieces together may have; QUARANTINE_BYTES if it is not given."""
        self._disk = disk
        self._clock = clock
        self._limit_bytes = limits.QUARANTINE_BYTES if limit_bytes is None else limit_bytes

    async def keep(self, source: str, start: int, end: int) -> str | None:
        """Copy these bytes of a file to quarantine, durably. Gives the copy's path; None if they are all zero or
        none.
        """

        async def read(position: int, length: int, fresh: bool = False) -> bytes:
            return await self._disk.read(source, position, length)  # they may be in the page cache only

        pieces = [
            await agreed(read, position, min(limits.RECOVERY_READ_BYTES, end - position))
            for position in range(start, min(end, start + self._limit_bytes), limits.RECOVERY_READ_BYTES)
        ]
        if not any(piece.strip(b"\0") for piece in pieces):
            return None
        await self._make_room(sum(map(len, pieces)))
        path = await self._free_path(source, start)
        await commit_one(self._disk, Write(path, 0, pieces, create=True), sync=True)
        return path

    async def _free_path(self, source: str, start: int) -> str:
        when = datetime.fromtimestamp(self._clock.time_ns() / 1e9, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        stem = f"{FOLDER}/{when}-{source.replace('/', '_')[-160:]}-{start}"
        path, number = stem + _SUFFIX, 1
        while await self._disk.size(path) is not None:
            path, number = f"{stem}-{number}{_SUFFIX}", number + 1
        return path

    async def _make_room(self, count: int) -> None:
        names = [name for name in await self._disk.list(FOLDER) if name.endswith(_SUFFIX)]
        sizes = {name: await self._disk.size(f"{FOLDER}/{name}") or 0 for name in names}
        total = sum(sizes.values()) + count
        for name in names:  # sorted by name, so by date
            if total <= self._limit_bytes:
                return
            _log.warning("%s is full (%d bytes): removing its oldest piece, %s", FOLDER, self._limit_bytes, name)
            await self._disk.remove(f"{FOLDER}/{name}")
            total -= sizes[name]
