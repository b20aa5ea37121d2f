"""A disk in memory, with a page cache that a power loss empties: `ports.Disk` in tests.

Theory of operation: every file has the bytes that reads see and the bytes that are durable; a sync brings the
second up to the first. A failed sync forgets what it covered, as Linux does: later syncs succeed and these
bytes are still not durable. Folder entries are durable once their folder is synced; an entry whose parents
are not durable goes with them.

`crash()` is a power loss: only what is durable stays. With a random source it is harsher and more like a
device: of each write since the last sync any sectors may have arrived, the first ones, all but some in the
middle, none, or only the new length of the file with zeros in it; and so may changes of folders. `kill()` is the end of
the process alone: the page cache stays, but writes under way may be torn.

Faults: every step that could fail is counted in `steps`; `fail_at` says which of them do, or `injected_error` is asked
at each. `capacity_bytes` bounds the device, and what is `unremovable` stays. `sync_delay_s` makes syncs slow, in the
event loop's time, and `latency_s` everything; `hanging` makes commits wait until they are released. `flip` changes a
bit of a file at rest, `shorten` truncates it.
"""

import asyncio
import errno
import os
import random
import zlib
from collections.abc import Callable, Coroutine, Sequence

from bascule.log.cachedends import promised_by
from bascule.ports import Disk, Seen, T, Write

SECTOR_BYTES = 512
_Work = Callable[[Write], None]


class StoredFile:
    """`version` counts the changes other than growth: a reader that has some of its bytes must read them again."""

    __slots__ = ("data", "durable", "unsynced", "version")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.unsynced: list[tuple[int, bytes | None]] = []  # (position, bytes), or (size, None) for a truncation
        self.version = 0

    def change(self, position: int, piece: bytes | None) -> None:
        if position < len(self.data):
            self.version += 1
        _apply(self.data, position, piece)
        self.unsynced.append((position, piece))

    def sync(self) -> None:
        for position, piece in self.unsynced:
            self._harden(position, piece)
        self.unsynced = []

    def _harden(self, position: int, piece: bytes | None) -> None:
        if position < len(self.durable):
            self.version += 1
        _apply(self.durable, position, piece)

    def crash(self, chance: random.Random | None) -> None:
        if chance is not None:
            for position, piece in self.unsynced:
                for start, part in _survivors(position, piece, chance):
                    self._harden(start, part)
        self.go_back()

    def go_back(self) -> None:
        """Reads see what is durable, and nothing else."""
        if len(self.data) != len(self.durable):
            self.version += 1
        self.data = bytearray(self.durable)
        self.unsynced = []


def _survivors(position: int, piece: bytes | None, chance: random.Random) -> list[tuple[int, bytes | None]]:
    """What of a write that nobody synced is on the device."""
    fate = chance.random()
    if piece and _sectors(position, piece) > 1 and chance.random() < 0.5:
        return _out_of_order(position, piece, chance)
    if fate < 0.3:
        return [(position, piece)]
    if fate < 0.5 or not piece:
        return []
    if fate < 0.7:
        return [(position, piece[: chance.randrange(len(piece))])]
    if fate < 0.75:
        return [(position, bytes(len(piece)))]
    return [(start, part) for start, part in _by_sector(position, piece) if chance.random() < 0.5]


def _out_of_order(position: int, piece: bytes, chance: random.Random) -> list[tuple[int, bytes | None]]:
    """The device had written later sectors when an earlier one had its turn: that one, or a few, is missing."""
    sectors = _by_sector(position, piece)
    first = chance.randrange(len(sectors) // 2)
    last = min(first + chance.choice((1, 1, 1, 2, 4)), len(sectors) - 1)
    return [*sectors[:first], *sectors[last:]]


def _sectors(position: int, piece: bytes) -> int:
    return (position + len(piece) - 1) // SECTOR_BYTES - position // SECTOR_BYTES + 1


def _by_sector(position: int, piece: bytes) -> list[tuple[int, bytes | None]]:
    parts: list[tuple[int, bytes | None]] = []
    end = position + len(piece)
    for sector in range(position // SECTOR_BYTES * SECTOR_BYTES, end, SECTOR_BYTES):
        start = max(sector, position)
        parts.append((start, piece[start - position : min(sector + SECTOR_BYTES, end) - position]))
    return parts


class MemoryDisk:
    """`ports.Disk` for tests and the simulator."""

    def __init__(self) -> None:
        self.steps = 0
        self.capacity_bytes: int | None = None
        self.sync_delay_s = 0.0
        self.hanging: asyncio.Event | None = None
        """Commits wait until this is set."""
        self.cached = True
        """Whether `read_cached` finds anything."""
        self.latency_s: Callable[[], float] | None = None
        """Asked before every operation that may take time."""
        self.injected_error: Callable[[str], int | None] | None = None
        """Asked at every step, with the path: the number of an error, or None."""
        self.unremovable: Callable[[str], bool] | None = None
        """Asked when a file is to be removed: whether that fails."""
        self.misread: Callable[[str, bytes], bytes] | None = None
        """Asked at every read, with the path and the bytes: what is read instead."""
        self._faults: dict[int, int] = {}
        self._files: dict[str, dict[str, StoredFile]] = {}
        """By folder, then by path."""
        self._durable_files: dict[str, dict[str, StoredFile]] = {}
        self._folders: dict[str, None] = {"": None}
        self._durable_folders: dict[str, None] = {"": None}
        self._folders_version = 0
        self._synced_folders: dict[str, int] = {}
        """With the version of `_folders` that each one's entries were synced at."""
        self._crashes = 0
        self._power_losses = 0
        self._under_way: dict[int, list[Write]] = {}
        self._commits = 0
        self.gone = False
        """The whole data folder was removed: open files can be written and read, and no path is found."""
        self._open: dict[str, StoredFile] = {}
        """Files removed by `vanish` that are still open."""
        self._numbers: dict[str, int] = {}
        """Of folders that were looked at."""
        self._last_number = 0
        self._reserved: dict[str, int] = {}

    # --- what tests do to it ------------------------------------------------------------------------------

    def fail_at(self, step: int, error_number: int = errno.EIO, times: int = 1) -> None:
        """The step with this number (counted from the disk's making, the first is 1) fails, and `times` - 1
        more.
        """
        self._faults.update(dict.fromkeys(range(step, step + times), error_number))

    def heal(self) -> None:
        """No more injected faults."""
        self._faults = {}
        self.injected_error = self.misread = self.unremovable = None
        self.capacity_bytes = None

    def kill(self, chance: random.Random | None = None) -> None:
        """The process ends in the middle of what it does: of a write under way any first part may be done, or all."""
        if chance is not None:
            self._tear(chance)
        self._under_way, self._open, self.gone = {}, {}, False
        self._crashes += 1

    def _tear(self, chance: random.Random) -> None:
        for writes in self._under_way.values():
            for write in writes:
                file = self._find(write.path)
                length = sum(map(len, write.buffers))
                if file is not None and length and len(file.data) == write.position + length and chance.random() < 0.5:
                    file.change(write.position + chance.randrange(length), None)

    def flip(self, path: str, position: int, bit: int) -> None:
        """One bit of a file at rest is not what it was."""
        file = self._file(path)
        file.data[position] ^= 1 << bit
        file.durable[position] ^= 1 << bit
        file.version += 1

    def shorten(self, path: str, size: int) -> None:
        """Truncate a file at rest durably, as if it had never been longer."""
        file = self._file(path)
        del file.data[size:], file.durable[size:]
        file.unsynced = []
        file.version += 1

    def vanish(self, path: str) -> Callable[[], None]:
        """A file or folder is removed by another program. Its files can be written and read as long as the process
        runs, as if they were open, and then are gone. The result puts it back."""
        taken: dict[str, StoredFile] = {}
        for files in (*self._files.values(), *self._durable_files.values()):
            for name in [name for name in files if _inside(name, path)]:
                taken[name] = files.pop(name)
        folders = [folder for folder in self._folders if _inside(folder, path)]
        for folder in folders:
            del self._folders[folder]
            self._durable_folders.pop(folder, None)
        numbers = {folder: self._numbers.pop(folder) for folder in folders if folder in self._numbers}
        self._folders_version += 1
        self._open.update(taken)

        def put_back() -> None:
            self._folders.update(dict.fromkeys(folders))
            self._numbers.update(numbers)
            self._folders_version += 1
            for name, file in taken.items():
                self._open.pop(name, None)
                self._files.setdefault(_parent(name), {})[name] = file
            for folder in [*folders, *_parents(path)]:
                self._make_durable(folder)

        return put_back

    def durable(self, path: str) -> bytes:
        """What of the file is surely on the device."""
        return bytes(self._file(path).durable)

    def stored(self, folder: str, durable: bool) -> dict[str, StoredFile]:
        """The files of a folder that are surely on the device, or all that are there; by path."""
        if not durable:
            return self._files.get(folder, {})
        return self._durable_files.get(folder, {}) if self._reachable(folder) else {}

    def folders(self) -> list[str]:
        """Those that hold files."""
        return sorted(self._files)

    def torn_by_power_loss(self, folder: str) -> list[bytes]:
        """Writes over several sectors to files below this folder that nobody has synced yet: of these a power loss may
        keep any part."""
        return [
            piece
            for name, files in self._files.items()
            if _inside(name, folder)
            for file in files.values()
            for position, piece in file.unsynced
            if piece and _sectors(position, piece) > 1
        ]

    @property
    def used_bytes(self) -> int:
        return sum(self._room(path, file) for files in self._files.values() for path, file in files.items())

    def crash(self, chance: random.Random | None = None) -> None:
        """Lose power: keep what is durable, and by chance more."""
        self._crashes += 1
        self._power_losses += 1
        self._under_way, self._open, self.gone = {}, {}, False
        if chance is not None:
            for folder in list(self._folders):
                if chance.random() < 0.5:
                    self._make_durable(folder)
        for files in self._files.values():
            for file in files.values():
                file.crash(chance)
        for files in self._durable_files.values():
            for file in files.values():
                file.crash(None)
        self._durable_folders = {path: None for path in self._durable_folders if self._reachable(path)}
        self._durable_files = {path: files for path, files in self._durable_files.items() if self._reachable(path)}
        self._files = {path: dict(files) for path, files in self._durable_files.items()}
        self._folders = dict(self._durable_folders)
        self._folders_version += 1

    def copy(self) -> "MemoryDisk":
        """Another disk that holds the same, all of it durable."""
        other = MemoryDisk()
        for path in self.paths():
            other.put(path, bytes(self._file(path).data))
        return other

    def put(self, path: str, data: bytes) -> None:
        """A durable file, whatever was there before."""
        self._make_folders(_parent(path))
        file = StoredFile()
        file.change(0, data)
        file.sync()
        self._files.setdefault(_parent(path), {})[path] = file
        for folder in _parents(path):
            self._make_durable(folder)

    def content(self, path: str) -> bytes:
        return bytes(self._file(path).data)

    def paths(self) -> list[str]:
        return sorted(path for files in self._files.values() for path in files)

    # --- the port -----------------------------------------------------------------------------------------

    @property
    def os_boot(self) -> str:
        return f"boot {self._power_losses}"

    async def commit(self, writes: Sequence[Write], sync: bool) -> list[OSError | None]:
        crashes = self._crashes
        await self._take_time()
        errors = [self._caught(self._write, write) for write in writes]
        self._commits += 1
        number = self._commits
        self._under_way[number] = list(writes)
        await self._take_time()
        await asyncio.sleep(self.sync_delay_s if sync else 0)
        if self.hanging is not None:
            await self.hanging.wait()
        self._under_way.pop(number, None)
        if crashes != self._crashes:
            return [OSError(errno.EIO, "the power was lost")] * len(writes)
        synced: dict[str, OSError | None] = {}
        for number, write in enumerate(writes):
            if errors[number] is None and write.create:
                errors[number] = self._caught(self._sync_parents, write)
            if sync and errors[number] is None:
                if write.path not in synced:
                    synced[write.path] = self._caught(self._sync, write)
                errors[number] = synced[write.path]
        promised = promised_by(writes, errors)
        if promised is not None:
            ends, write = promised
            error = self._caught(self._write, write)
            if error is not None:
                ends.write_failed(error)
        return errors

    def read_cached(self, path: str, position: int, length: int) -> bytes | None:
        file = self._find(path)
        if not self.cached or file is None:
            return None
        return self._give(path, bytes(file.data[position : position + length]))

    async def read(self, path: str, position: int, length: int, fresh: bool = False) -> bytes:
        await asyncio.sleep(0)
        await self._take_time()
        self._step(path)
        return self._give(path, bytes(self._file(path).data[position : position + length]))

    def _give(self, path: str, data: bytes) -> bytes:
        return data if self.misread is None else self.misread(path, data)

    async def together(self, work: Callable[[Disk], Coroutine[object, object, T]]) -> T:
        return await work(self)

    async def evict(self, path: str) -> None:
        await self._take_time()
        self._step(path)
        file = self._find(path)
        if file is not None:
            file.sync()
            file.go_back()

    async def size(self, path: str) -> int | None:
        file = self._named(path)
        return None if file is None else len(file.data)

    async def look(self, paths: Sequence[str]) -> "list[Seen | None]":
        await asyncio.sleep(0)
        if self.gone:
            raise OSError(errno.ESTALE, "removed or moved")
        return [self._seen(path) for path in paths]

    def _seen(self, path: str) -> Seen | None:
        file = self._named(path)
        if file is not None:
            return Seen((0, 0), len(file.data), 0, path not in self._open)
        if path not in self._folders:
            return None
        if path not in self._numbers:
            self._last_number += 1
            self._numbers[path] = self._last_number
        entries = [*self._files.get(path, {}), *(each for each in self._folders if each and _parent(each) == path)]
        return Seen((1, self._numbers[path]), 0, 1 + zlib.crc32("\n".join(sorted(entries)).encode()), True)

    async def room(self) -> int | None:
        await asyncio.sleep(0)
        return None if self.capacity_bytes is None else max(self.capacity_bytes - self.used_bytes, 0)

    async def reserve(self, path: str, size: int) -> None:
        await asyncio.sleep(0)
        file = self._named(path)
        more = size - self._room(path, file) if file is not None else 0
        if more > 0 and (self.capacity_bytes is None or self.used_bytes + more <= self.capacity_bytes):
            self._reserved[path] = size

    def _room(self, path: str, file: StoredFile) -> int:
        """What the file takes, or keeps for itself."""
        return max(len(file.data), self._reserved.get(path, 0))

    async def forget(self, path: str) -> None:
        await asyncio.sleep(0)
        self._open = {name: file for name, file in self._open.items() if not _inside(name, path)}

    async def list(self, folder: str) -> list[str]:
        await self._take_time()
        self._step(folder)
        folders = (path for path in self._folders if path and _parent(path) == folder)
        return sorted(_name(path) for path in (*self._files.get(folder, {}), *folders))

    async def make_folder(self, folder: str) -> None:
        await self._take_time()
        self._step(folder)
        self._make_folders(folder)
        for parent in _parents(folder):
            self._make_durable(parent)

    async def truncate(self, path: str, size: int) -> None:
        await self._take_time()
        self._step(path)
        file = self._file(path)
        file.change(size, None)
        file.sync()

    async def rename(self, source: str, target: str) -> None:
        await self._take_time()
        self._step(source)
        if source in self._folders:
            self._folders_version += 1
            for path in [path for path in self._folders if _inside(path, source)]:
                del self._folders[path]
                self._numbers.pop(path, None)
                self._folders[target + path[len(source) :]] = None
            for folder in [path for path in self._files if _inside(path, source)]:
                moved = self._files.pop(folder)
                self._files[target + folder[len(source) :]] = {
                    target + path[len(source) :]: file for path, file in moved.items()
                }
        else:
            file = self._named(source)
            if file is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
            del self._files[_parent(source)][source]
            self._open.pop(target, None)
            self._files.setdefault(_parent(target), {})[target] = file

    async def remove(self, path: str) -> None:
        await self._take_time()
        self._step(path)
        if self.unremovable is not None and self.unremovable(path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        self._files.get(_parent(path), {}).pop(path, None)
        self._reserved.pop(path, None)
        self._open = {name: file for name, file in self._open.items() if not _inside(name, path)}
        self._numbers = {name: number for name, number in self._numbers.items() if not _inside(name, path)}
        if path in self._folders:
            self._folders_version += 1
            self._files = {name: files for name, files in self._files.items() if not _inside(name, path)}
            self._folders = {name: None for name in self._folders if not _inside(name, path)}

    async def sync_folder(self, folder: str) -> None:
        await self._take_time()
        self._step(folder)
        if folder not in self._folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
        self._make_durable(folder)

    # --- inside -------------------------------------------------------------------------------------------

    async def _take_time(self) -> None:
        if self.latency_s is not None:
            await asyncio.sleep(self.latency_s())

    def _step(self, path: str) -> None:
        self.steps += 1
        number = self._faults.get(self.steps)
        if number is None and self.injected_error is not None:
            number = self.injected_error(path)
        if number is not None:
            raise OSError(number, os.strerror(number), path)

    @staticmethod
    def _caught(work: _Work, write: Write) -> OSError | None:
        try:
            work(write)
        except OSError as error:
            return error
        return None

    def _write(self, write: Write) -> None:
        missing = _parent(write.path) not in self._folders and not write.new_folder
        if write.create and (self.gone or missing):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), write.path)
        if write.create and self._named(write.path) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), write.path)
        if not write.create:
            self._file(write.path)
        self._step(write.path)
        if write.create:
            self._make_folders(_parent(write.path))
            self._open.pop(write.path, None)
            self._files.setdefault(_parent(write.path), {})[write.path] = StoredFile()
        file = self._file(write.path)
        data = b"".join(write.buffers)
        more = max(write.position + len(data) - self._room(write.path, file), 0)
        if self.capacity_bytes is not None and self.used_bytes + more > self.capacity_bytes:
            if write.create:
                del self._files[_parent(write.path)][write.path]
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), write.path)
        if data:
            file.change(write.position, data)

    def _sync(self, write: Write) -> None:
        file = self._file(write.path)
        try:
            self._step(write.path)
        except OSError:
            file.unsynced = []
            raise
        file.sync()

    def _sync_parents(self, write: Write) -> None:
        self._step(_parent(write.path))
        for folder in _parents(write.path):
            self._make_durable(folder)

    def _named(self, path: str) -> StoredFile | None:
        """What the path leads to."""
        return None if self.gone else self._files.get(_parent(path), {}).get(path)

    def _find(self, path: str) -> StoredFile | None:
        """That, or what is open under this path."""
        return self._open.get(path) or self._files.get(_parent(path), {}).get(path)

    def _file(self, path: str) -> StoredFile:
        file = self._find(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return file

    def _make_folders(self, folder: str) -> None:
        if folder not in self._folders:
            self._folders_version += 1
            for path in (*reversed(_parents(folder)), folder):
                self._folders[path] = None

    def _make_durable(self, folder: str) -> None:
        """The entries of this folder are on the device as they are now."""
        if self._synced_folders.get(folder) != self._folders_version:
            self._synced_folders[folder] = self._folders_version
            self._make_folders_durable(folder)
        self._durable_files[folder] = dict(self._files.get(folder, {}))

    def _make_folders_durable(self, folder: str) -> None:
        gone = [
            path for path in self._durable_folders if path and _parent(path) == folder and path not in self._folders
        ]
        if gone:
            self._durable_folders = {
                path: None for path in self._durable_folders if not any(_inside(path, one) for one in gone)
            }
            self._durable_files = {
                path: files
                for path, files in self._durable_files.items()
                if not any(_inside(path, one) for one in gone)
            }
        self._durable_folders.update({path: None for path in self._folders if path and _parent(path) == folder})

    def _reachable(self, folder: str) -> bool:
        return all(path in self._durable_folders for path in (folder, *_parents(folder)))


def _apply(data: bytearray, position: int, piece: bytes | None) -> None:
    if piece is None:
        del data[position:]
        return
    if len(data) < position:
        data.extend(bytes(position - len(data)))
    data[position : position + len(piece)] = piece


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _parents(path: str) -> list[str]:
    """Its folder, that one's folder, and so on to the root."""
    found = []
    while path:
        path = _parent(path)
        found.append(path)
    return found


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")
