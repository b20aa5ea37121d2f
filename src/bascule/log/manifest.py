"""A manifest: what the file of a segment holds that is about to take the place of others (`swap`).

It is a small file beside the segments, synced before the first of them is touched. A start that finds it knows by the
checksum whether the new file is in place: then what is left of the old ones is removed; otherwise they are all there,
and count.

When the last of the old ones is gone the manifest is removed, unless offsets are missing in the new file: then it is
made to last, under another name, and stays as long as that file. It is what makes these holes legal: a segment without
one ends with its last record, so that a start takes a hole between it and the next one for damage.
"""

import errno
import hashlib
import struct
from typing import NamedTuple

from bascule import limits
from bascule.log.filecopy import TEMPORARY_SUFFIX, commit_one
from bascule.log.reread import read_verified
from bascule.log.segment import NAME_DIGITS, segment_path
from bascule.ports import Disk, Write
from bascule.wire import kernels

MANIFEST_SUFFIX = ".manifest"
LASTING_SUFFIX = ".compacted"
_FORMAT = struct.Struct("<8sqqqqQI")  # magic, a Manifest, CRC of all before it
_MAGIC = b"BSCMANI2"
_CRC = struct.Struct("<I")


class Manifest(NamedTuple):
    base: int
    end: int
    """The file has the place of every segment from `base` up to here."""
    records: int
    size: int
    checksum: int
    """Of the whole file (`FileChecksum`)."""

    @property
    def holes(self) -> int:
        """How many offsets are missing."""
        return self.end - self.base - self.records


class FileChecksum:
    """Tells files apart that hold whole records. A CRC-32C cannot: each record ends with its own, and so the CRC-32C of
    the file depends on nothing but the lengths of the records."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)

    def add(self, data: bytes) -> None:
        self._hash.update(data)

    @property
    def value(self) -> int:
        return int.from_bytes(self._hash.digest(), "little")


def manifest_path(folder: str, base: int, suffix: str = MANIFEST_SUFFIX) -> str:
    return f"{folder}/{base:0{NAME_DIGITS}}{suffix}"


async def write_manifest(disk: Disk, folder: str, manifest: Manifest, suffix: str = MANIFEST_SUFFIX) -> None:
    """Durable on return. Raises OSError: then it may be there or not."""
    path = manifest_path(folder, manifest.base, suffix)
    packed = _FORMAT.pack(_MAGIC, *manifest, 0)[: -_CRC.size]
    await disk.remove(path + TEMPORARY_SUFFIX)
    write = Write(
        path + TEMPORARY_SUFFIX, 0, [packed, _CRC.pack(kernels.crc32c(packed))], create=True, new_folder=False
    )
    await commit_one(disk, write, sync=True)
    await disk.rename(path + TEMPORARY_SUFFIX, path)
    await disk.sync_folder(folder)


async def remove_manifest(disk: Disk, folder: str, base: int) -> None:
    """Whole or not. Not durable: one that comes back is found to be void by the next start."""
    path = manifest_path(folder, base)
    await disk.remove(path)
    await disk.remove(path + TEMPORARY_SUFFIX)


async def make_lasting(disk: Disk, folder: str, base: int) -> None:
    """The swap is over. Durable on return, also if the manifest was made to last before."""
    path = manifest_path(folder, base)
    if await disk.size(path) is not None:
        await disk.rename(path, manifest_path(folder, base, LASTING_SUFFIX))
    await disk.sync_folder(folder)


async def remove_lasting(disk: Disk, folder: str, base: int) -> None:
    """Before the file that it describes is changed or removed."""
    await disk.remove(manifest_path(folder, base, LASTING_SUFFIX))


async def read_manifest(disk: Disk, folder: str, base: int, suffix: str = MANIFEST_SUFFIX) -> Manifest | None:
    """None if there is none, or it is damaged."""
    path = manifest_path(folder, base, suffix)
    if await disk.size(path) != _FORMAT.size:
        return None
    manifest = await read_verified(disk, path, 0, _FORMAT.size, _decode)
    return manifest if manifest is not None and manifest.base == base else None


def _decode(packed: bytes) -> Manifest | None:
    if len(packed) != _FORMAT.size:
        return None
    magic, *fields, crc = _FORMAT.unpack(packed)
    return Manifest(*fields) if magic == _MAGIC and crc == kernels.crc32c(packed[: -_CRC.size]) else None


async def is_in_place(disk: Disk, folder: str, manifest: Manifest) -> bool:
    """Whether the segment has the file that the manifest describes. Reads all of it, from the device."""
    path = segment_path(folder, manifest.base)
    if await disk.size(path) != manifest.size:
        return False
    await disk.evict(path)
    seen: list[int] = []
    for _ in range(limits.READ_TRIES):
        found = await file_checksum(disk, path, manifest.size, fresh=bool(seen))
        if found == manifest.checksum or found in seen:
            return found == manifest.checksum
        seen.append(found)
    raise OSError(errno.EIO, "every read gives other bytes", path)


async def file_checksum(disk: Disk, path: str, size: int, fresh: bool) -> int:
    checksum = FileChecksum()
    for position in range(0, size, limits.RECOVERY_READ_BYTES):
        length = min(limits.RECOVERY_READ_BYTES, size - position)
        checksum.add(await disk.read(path, position, length, fresh))
    return checksum.value
