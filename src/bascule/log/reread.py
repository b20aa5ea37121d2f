"""Reads that are repeated: bytes that do not verify are damage only if the disk gives them twice.

A cable, a controller or memory may flip a bit on the way, once, while the device has the right bytes. If that were
taken for damage, valid records would be truncated or replaced. So bytes that do not verify are read again, past the
page cache, until they verify or two reads agree; bytes that are copied without verification are read until two reads
agree. If no two reads do, the stored bytes are not known: that is an error of the disk (EIO), tried again like any
other, and never damage.
"""

import errno
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from bascule import limits
from bascule.ports import Disk

T = TypeVar("T")
_log = logging.getLogger("bascule.log")


class Read(Protocol):
    def __call__(self, position: int, length: int, fresh: bool = False) -> Awaitable[bytes]:
        """Perhaps fewer bytes than asked, none only where the file ends, which may be too early. `fresh`: not from the
        page cache, where its bytes are known to be on the device."""


async def agreed(read: Read, position: int, length: int, data: bytes | None = None) -> bytes:
    """The bytes that two reads agree on; `data` is from an earlier read. OSError if no two of them do."""
    seen = [] if data is None else [data]
    for _ in range(limits.READ_TRIES):
        again = await read(position, length, fresh=bool(seen))
        if again in seen:
            if len(seen) > 1:
                _say(f"{length} bytes at position {position}")
            return again
        seen.append(again)
    raise OSError(errno.EIO, f"every read of the {length} bytes at position {position} gives other bytes")


def steady(read: Read) -> Read:
    """The same, for decisions that depend on bytes that do not verify."""

    async def read_twice(position: int, length: int, fresh: bool = False) -> bytes:
        return await agreed(read, position, length)

    return read_twice


async def read_verified(disk: Disk, path: str, position: int, length: int, verify: Callable[[bytes], T]) -> T | None:
    """The result of `verify` for these bytes of the file; None if two reads agree and do not verify. Raises OSError."""
    seen: list[bytes] = []
    for _ in range(limits.READ_TRIES):
        data = await disk.read(path, position, length, fresh=bool(seen))
        found = verify(data)
        if found is not None or data in seen:
            if len(seen) > (found is None):
                _say(path)
            return found
        seen.append(data)
    raise OSError(errno.EIO, "every read gives other bytes", path)


def _say(what: str) -> None:
    _log.warning("%s: a read gave wrong bytes, and the right ones when it was repeated; check the disk", what)
