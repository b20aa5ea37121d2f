"""The promised ends as they are now, in the page cache: exact after the end of a process, of no use after a power loss.

Theory of operation: `promised-ends` is synced, and so it is behind, by 0.15 s and a write or two. This file beside it
is never synced.
It has the name of each log, as a hash, and its end, which the thread of a group commit sets as soon as the records are
durable, before the promise is reported. The page cache survives a killed process, but not a power loss. So the file
has the boot of the operating system it was written under, and the generation of `promised-ends` it belongs to. Under
another boot the file is ignored, and a log whose last promises may be missing is compared with others.

The ends are in one array that the event loop and the disk's threads set, one element at a time, and every write takes
them from there when it happens; so an end in the file never goes back. The loop sets an end only while no commit of
that log is under way. Each end has a checksum: a flipped bit must not look like a promise.
"""

import logging
import struct
from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from bascule import limits
from bascule.log.filecopy import commit_one
from bascule.ports import Disk, Ends, Promise, Write

FILE = "promised-ends.cached"
_HEADER = struct.Struct("<8s48sq")  # magic, boot of the operating system, generation
_MAGIC = b"BSPECACH"
_SIZE = 16  # name, end
_log = logging.getLogger("bascule.log")


class CachedEnds:
    def __init__(self, disk: Disk) -> None:
        self.failed: OSError | None = None
        """Set by a thread that could not write: ends in the file are too low."""
        self._disk = disk
        self._ends = array("q", bytes(_SIZE * limits.CACHED_ENDS))
        self._noted: dict[int, None] = {}
        self._usable = False

    async def read(self, generation: int) -> dict[int, int]:
        """The ends by the name of the log, as the last boot left them; empty if that is not known."""
        if not self._disk.os_boot:
            return {}
        try:
            size = await self._disk.size(FILE) or 0
            content = await self._disk.read(FILE, 0, size) if size >= _HEADER.size else b""
        except OSError as error:
            _log.warning("%s: cannot be read (%s); replicas compare their logs before they lead",
                         FILE, error)  # fmt: skip
            return {}
        if content[: _HEADER.size] != self._header(generation):
            return {}
        count = (len(content) - _HEADER.size) // _SIZE
        slots = struct.unpack_from(f"<{2 * count}q", content, _HEADER.size)
        both = zip(slots[::2], slots[1::2], strict=True)
        return {
            name: slot >> 16 for number, (name, slot) in enumerate(both) if name and slot == _slot(number, slot >> 16)
        }

    async def begin(self, generation: int, ends: Mapping[int, tuple[int, int]]) -> None:
        """From here on the file is this boot's. If it cannot be written less is known after a crash."""
        for number, (name, end) in ends.items():
            self.name(number, name)
            self.set(number, end)
        count = min(limits.CACHED_ENDS, limits.CACHED_ENDS_ROOM + 2 * max(ends, default=0))
        try:
            await self._disk.remove(FILE)
            content = [self._header(generation), self._ends[: 2 * count].tobytes()]
            # Synced once, so that its blocks are allocated: the next start on a full disk needs no more than these.
            await commit_one(self._disk, Write(FILE, 0, content, create=True), sync=True)
            self._usable = bool(self._disk.os_boot)
        except OSError as error:
            _log.warning("%s: cannot be written (%s); after a crash less is known about the logs", FILE, error)

    def set(self, number: int, end: int) -> None:
        """In memory; in the file with the next write of this number."""
        if number < limits.CACHED_ENDS:
            self._ends[2 * number + 1] = _slot(number, end)

    def name(self, number: int, name: int) -> None:
        """In the file with the first promise of this log."""
        if number < limits.CACHED_ENDS:
            self._ends[2 * number] = name

    def note(self, number: int, end: int) -> None:
        """By the event loop, of a log that has nothing on its way to the disk; in the file after `store`."""
        self.set(number, end)
        self._noted[number] = None

    def drop(self, number: int) -> None:
        """This log is gone; in the file after `store`."""
        self.name(number, 0)
        self.note(number, 0)

    def promise(self, number: int, end: int) -> Promise | None:
        """For a write: when it is durable this log has promised everything below `end`."""
        return Promise(self, number, end) if self._usable and number < limits.CACHED_ENDS else None

    def write(self, first: int, last: int) -> Write:
        """What stands there now, for all logs of these numbers."""
        present = memoryview(self._ends)[2 * first : 2 * last + 2].cast("B")
        return Write(FILE, _HEADER.size + _SIZE * first, [present])

    def write_failed(self, error: OSError) -> None:
        self.failed = error

    async def store(self) -> None:
        """What was noted is in the file on return."""
        numbers = [number for number in self._noted if number < limits.CACHED_ENDS]
        self._noted = {}
        if self._usable and numbers:
            (error,) = await self._disk.commit([self.write(min(numbers), max(numbers))], sync=False)
            self.failed = self.failed or error

    def give_up(self) -> None:
        """The file cannot be written. The caller makes the next start ignore it (a new generation)."""
        _log.warning("%s: cannot be written (%s); after a crash less is known about the logs", FILE, self.failed)
        self._usable, self.failed = False, None

    def _header(self, generation: int) -> bytes:
        return _HEADER.pack(_MAGIC, self._disk.os_boot.encode(), generation)


def name_of(folder: str) -> int:
    return int.from_bytes(blake2b(folder.encode(), digest_size=8).digest(), "little", signed=True)


def _slot(number: int, end: int) -> int:
    """With a checksum that finds every flipped bit (no power of two is a multiple of a prime), and zeros."""
    return end << 16 | (end % 65521 ^ number)


def promised_by(writes: Sequence[Write], errors: Sequence[OSError | None]) -> tuple[Ends, Write] | None:
    """For a disk that has made these writes durable: the write of the cached ends, without a sync, and whom to inform
    if it fails."""
    ends: Ends | None = None
    failed: dict[int, None] = {}
    first, last = limits.CACHED_ENDS, 0
    for write, error in zip(writes, errors, strict=True):
        promise = write.promise
        if promise is None:
            continue
        number = promise.number
        if error is not None:
            failed[number] = None  # later writes of this log are not promised either
        elif number not in failed:
            ends = promise.ends
            ends.set(number, promise.end)
            first, last = min(first, number), max(last, number)
    return None if ends is None else (ends, ends.write(first, last))
