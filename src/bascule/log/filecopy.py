"""A file that is replaced by a changed copy of itself: written beside it, synced, and renamed over it.

A crash leaves the file as it was, perhaps with an unfinished copy beside it, which recovery removes.
"""

import asyncio
import errno
from collections.abc import Callable, Coroutine

from bascule import limits
from bascule.log.reread import agreed
from bascule.ports import Disk, Write

TEMPORARY_SUFFIX = ".tmp"


async def rewrite(disk: Disk, path: str, ranges: list[tuple[int, int]], durable: bool) -> None:
    """Put a synced copy of these ranges of the file in its place, atomically. If they are not known to be `durable`
    they may be in the page cache only."""
    copy = Copy(disk, path)
    await copy.begin()
    for start, end in ranges:
        await copy.take(start, end, durable)
    await copy.sync()
    await copy.replace()


class Copy:
    """A copy of a file that grows piece by piece and then takes the file's place."""

    def __init__(self, disk: Disk, path: str, suffix: str = TEMPORARY_SUFFIX) -> None:
        """`suffix`: two copies of one file have different ones; recovery knows them by their end."""
        assert suffix.endswith(TEMPORARY_SUFFIX), "a copy that is not finished is removed by the next start"
        self._disk = disk
        self._source = path
        self.path = path + suffix
        self.size = 0

    async def begin(self, new_folder: bool = False) -> None:
        await self._disk.remove(self.path)
        await commit_one(self._disk, Write(self.path, 0, [], create=True, new_folder=new_folder), sync=False)

    async def take(self, start: int, end: int, durable: bool) -> None:
        """Add these bytes of the file, once two reads agree on them: a wrong read would become damage in the copy.
        Raises OSError if some are missing: the bytes after them would be in the wrong place."""

        async def read(position: int, length: int, fresh: bool = False) -> bytes:
            return await self._disk.read(self._source, position, length, fresh and durable)

        for position in range(start, end, limits.RECOVERY_READ_BYTES):
            length = min(limits.RECOVERY_READ_BYTES, end - position)
            data = await agreed(read, position, length)
            if len(data) < length:
                raise OSError(errno.EIO, "the file has become shorter", self._source)
            await self.add(data)

    async def add(self, data: bytes) -> None:
        await commit_one(self._disk, Write(self.path, self.size, [data]), sync=False)
        self.size += len(data)

    async def sync(self) -> None:
        await commit_one(self._disk, Write(self.path, self.size, []), sync=True)

    async def replace(self, replaced: Callable[[], None] = lambda: None) -> None:
        """Of a copy that is synced. `replaced` is called when it has taken the file's place, before that is durable: if
        this raises an error then, the file is another one all the same."""
        await self._disk.rename(self.path, self._source)
        replaced()
        await self._disk.sync_folder(self._source.rpartition("/")[0])

    async def give_up(self) -> None:
        await self._disk.remove(self.path)


async def commit_one(disk: Disk, write: Write, sync: bool) -> None:
    (error,) = await disk.commit([write], sync)
    if error is not None:
        raise error


async def to_the_end(work: Coroutine[object, object, None]) -> None:
    """Finish the work even if the caller is cancelled; the CancelledError is raised after that."""
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
