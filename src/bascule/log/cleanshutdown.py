"""The clean shutdown: a file that a broker leaves when it has stopped in good order, with everything synced and closed.

It has the end of every log, data and metadata. The next start reads these ends: a log that ends before its own is
damaged, and not torn by a crash. The file is removed, durably, before anything is written again, but not before its
ends are in the file of promised ends (`promised`), so that an interrupted start loses none of them.

A file that is not whole is ignored: the start is then one after a crash, which knows a little less.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple

from bascule.log.filecopy import commit_one
from bascule.log.reread import read_verified
from bascule.log.tail import CleanEnd
from bascule.ports import Disk, Write
from bascule.wire import kernels

FILE = "clean-shutdown"
_HEADER = struct.Struct("<8sBI")  # magic, whether all data was synced, number of logs
_MAGIC = b"BSCLEAN1"
_LOG = struct.Struct("<HqqqqI")  # length of the name, then a CleanEnd
_CRC = struct.Struct("<I")


class CleanShutdown(NamedTuple):
    everything: bool
    """All that was promised is synced: not so under `os`, or if a log had failed."""
    ends: dict[str, CleanEnd]
    """By the folders of the logs; only of those whose end is sure."""


async def read(disk: Disk) -> CleanShutdown | None:
    size = await disk.size(FILE)
    return await read_verified(disk, FILE, 0, size, _decode) if size else None


async def remove(disk: Disk) -> None:
    """Durable on return."""
    if await disk.size(FILE) is not None:
        await disk.remove(FILE)
        await disk.sync_folder("")


async def leave(disk: Disk, everything: bool, ends: Mapping[str, CleanEnd]) -> None:
    """Everything is closed, and nothing will be written any more. Durable on return."""
    pieces = [_HEADER.pack(_MAGIC, everything, len(ends))]
    for folder, end in ends.items():
        name = folder.encode()
        pieces += [_LOG.pack(len(name), *end), name]
    body = b"".join(pieces)
    await disk.remove(FILE)
    write = Write(FILE, 0, [body, _CRC.pack(kernels.crc32c(body))], create=True)
    await commit_one(disk, write, sync=True)
    await disk.sync_folder("")


def _decode(content: bytes) -> CleanShutdown | None:
    body, crc = content[: -_CRC.size], content[-_CRC.size :]
    if len(body) < _HEADER.size or crc != _CRC.pack(kernels.crc32c(body)) or not body.startswith(_MAGIC):
        return None
    _, everything, count = _HEADER.unpack_from(body)
    ends = {}
    position = _HEADER.size
    for _ in range(count):
        length, *fields = _LOG.unpack_from(body, position)
        position += _LOG.size
        ends[body[position : position + length].decode()] = CleanEnd(*fields)
        position += length
    return CleanShutdown(bool(everything), ends)
