"""Checkpoints: small files that are replaced whole, and are never seen half written.

Theory of operation: the new content goes to a temporary file, which is synced; the present file becomes the
previous generation, the temporary one the present; then the folder is synced. At every point of that one of
the two names holds what the last finished write wrote. A present file that is torn, empty or changed fails
its CRC: it is renamed, and the previous generation is read. The caller gets the bytes, or None if there is no valid
generation.

Known to be imperfect: after damage the result may be one generation old; that is logged.
"""

import logging
import struct

from bascule import limits
from bascule.log.filecopy import commit_one
from bascule.log.reread import read_verified
from bascule.ports import Disk, Write
from bascule.wire import kernels

_HEADER = struct.Struct("<4sII")  # magic, length, CRC of what follows
_MAGIC = b"BSCP"
_TEMPORARY, _PREVIOUS, _DAMAGED = ".tmp", ".previous", ".damaged"
_log = logging.getLogger("bascule.log")


async def read_checkpoint(disk: Disk, path: str) -> bytes | None:
    """What was written last; None if there is no whole generation."""
    data = await _read_valid(disk, path)
    if data is not None:
        return data
    present = await disk.size(path) is not None
    previous = await _read_valid(disk, path + _PREVIOUS)
    if present:
        _log.error(
            "%s: torn or damaged; %s",
            path,
            "going on with the generation before it" if previous is not None else "there is no earlier generation",
        )
    return previous


async def is_damaged(disk: Disk, path: str) -> bool:
    """Whether the newest generation is there and damaged: for callers that cannot use an older one."""
    return await disk.size(path) is not None and await _read_valid(disk, path) is None


async def write_checkpoint(disk: Disk, path: str, data: bytes, new_folder: bool = True) -> None:
    """Durable when it returns. One write of a path at a time. Without `new_folder` its folder must be there."""
    if len(data) > limits.MAX_CHECKPOINT_BYTES:
        raise ValueError(f"{path}: {len(data)} bytes are too many for a checkpoint")
    temporary = path + _TEMPORARY
    await disk.remove(temporary)
    header = _HEADER.pack(_MAGIC, len(data), _crc(data))
    await commit_one(disk, Write(temporary, 0, [header, data], True, new_folder), sync=True)
    if await disk.size(path) is not None:
        valid = await _read_valid(disk, path) is not None
        await disk.rename(path, path + (_PREVIOUS if valid else _DAMAGED))
    await disk.rename(temporary, path)
    await disk.sync_folder(path.rpartition("/")[0])


async def _read_valid(disk: Disk, path: str) -> bytes | None:
    size = await disk.size(path)
    if size is None or not _HEADER.size <= size <= _HEADER.size + limits.MAX_CHECKPOINT_BYTES:
        return None
    return await read_verified(disk, path, 0, size, _valid)


def _valid(content: bytes) -> bytes | None:
    if len(content) < _HEADER.size:
        return None
    magic, length, crc = _HEADER.unpack_from(content)
    data = content[_HEADER.size :]
    return data if magic == _MAGIC and length == len(data) and crc == _crc(data) else None


def _crc(data: bytes) -> int:
    """The CRC of no bytes would be 0, and a header whose fields were overwritten with zeros would be valid."""
    return kernels.crc32c(data or _MAGIC)
