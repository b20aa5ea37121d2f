"""The real disk: files below one data folder, reached by threads so that the event loop never waits for the
device.

Theory of operation: a group commit is one hop to a thread, which writes every partition's bytes and then
makes them durable: `fdatasync` for each of a few dirty files, one `syncfs` for many (a journalling file
system commits its journal for every fdatasync; a hundred of them are ten times slower than one syncfs). A single
file is written durably in one call (RWF_DSYNC), unless it may hold older bytes that are not durable yet: between a
write and an fdatasync the thread would wait for the interpreter, while the event loop is busy. A new
file's folder is synced in the same hop, whether or not the data is: a lost folder entry would lose synced
bytes later. A failed sync is reported for everything it covered and never tried again, because the
kernel may have marked the pages clean.

Reads come from the page cache on the caller's thread (`preadv` with RWF_NOWAIT never waits) or else from a
thread.

Only the locked folder is written to: if it, or a folder right below it, was removed or moved, it is not created
again.

Known to be imperfect: `syncfs` also writes what other programs left dirty on the same file system.
"""

import asyncio
import ctypes
import errno
import fcntl
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Coroutine, Sequence
from threading import Lock

from bascule import limits
from bascule.errors import StartError
from bascule.log.cachedends import promised_by
from bascule.log.files import OpenFile, OpenFiles
from bascule.log.syncfs import FileSystemSync
from bascule.log.threads import Threads
from bascule.ports import Disk, Seen, T, Write

_IOV_MAX = 1024
_LIBC = ctypes.CDLL(None, use_errno=True)
_KEEP_SIZE = 1
_fallocate = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)(
    ("fallocate64" if hasattr(_LIBC, "fallocate64") else "fallocate", _LIBC)
)
_log = logging.getLogger("bascule.log")
_RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class FileDisk:
    """`ports.Disk` on a real folder. `lock` it before use, `close` it after."""

    def __init__(self, root: str | os.PathLike[str], max_open_files: int = limits.MAX_OPEN_FILES) -> None:
        self._root = os.path.abspath(os.fspath(root))
        self._files = OpenFiles(self._root, max_open_files)
        self._files_at_once = max(1, max_open_files // (2 * limits.SYNC_THREADS))
        self._writers: Threads | _Here = Threads("bascule-sync", limits.SYNC_THREADS)
        self._readers: Threads | _Here = Threads("bascule-read", limits.READ_THREADS)
        self._scratch = memoryview(bytearray(limits.READ_SCRATCH_BYTES))
        self._lock_descriptor = -1
        self._root_lock = Lock()
        self._root_found: os.stat_result | None = None
        self._tops: dict[str, None] = {}
        """Folders right below the root that were there: they are not made a second time."""
        self._file_system = FileSystemSync(self._root)
        self._folder_syncs: dict[str, asyncio.Task[None]] = {}
        self.os_boot = _os_boot()
        self._dsync = getattr(os, "RWF_DSYNC", 0)
        """0 once a file system was met that cannot do it."""

    # --- start and stop -----------------------------------------------------------------------------------

    def lock(self) -> None:
        """Make the data folder if need be and take it for this process alone. Raises StartError."""
        try:
            changed: list[str] = []
            _make_folders(self._root, changed)
            for each in changed:
                _sync_folder(each)
            path = os.path.join(self._root, "lock")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except (NotADirectoryError, FileExistsError):
            raise StartError(f"data folder {self._root}: not a folder; name another one (data.dir)") from None
        except OSError as error:
            raise StartError(
                f"data folder {self._root}: cannot be written ({error.strerror}); "
                "give this user the right to write there, or name another folder (data.dir)"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise StartError(
                f"data folder {self._root}: another broker (process {owner}) uses it; "
                "stop that one, or give this one its own folder (data.dir)"
            ) from None
        _sign(descriptor)
        self._lock_descriptor = descriptor
        self._root_found = os.stat(self._root)
        self._tops = {each.name: None for each in os.scandir(self._root) if each.is_dir()}
        if not self._file_system.usable:
            _log.warning(
                "Linux %s does not report write errors of syncfs (5.8 and newer do): each file is synced singly, "
                "which is slower where many partitions are written at once",
                self._file_system.release,
            )

    def _check_root(self) -> None:
        """ESTALE if the data folder was removed or replaced, or another process has locked it."""
        try:
            found = os.stat(self._root)
        except (FileNotFoundError, NotADirectoryError):
            raise OSError(errno.ESTALE, "removed or moved", self._root) from None
        if self._root_found is None:
            self._root_found = found
        if not os.path.samestat(found, self._root_found):
            raise OSError(errno.ESTALE, "replaced by another one", self._root)
        with self._root_lock:
            locked = self._lock_descriptor < 0 or self._holds_lock()
        if not locked:
            raise OSError(errno.ESTALE, "taken over by another broker, for its lock file was removed", self._root)

    def _holds_lock(self) -> bool:
        """The lock is on a file. If that was removed, and nobody has made and locked another one, we do."""
        path = os.path.join(self._root, "lock")
        try:
            if os.path.samestat(os.stat(path), os.fstat(self._lock_descriptor)):
                return True
        except FileNotFoundError:
            pass
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        _sign(descriptor)
        os.close(self._lock_descriptor)
        self._lock_descriptor = descriptor
        _log.warning("%s was removed while the broker runs: made and locked again", path)
        return True

    def close(self) -> None:
        """Wait for the threads, close every file, let the folder go."""
        self._writers.close()
        self._readers.close()
        self._files.close_all()
        self._file_system.close()
        if self._lock_descriptor >= 0:
            os.close(self._lock_descriptor)
        self._lock_descriptor = -1

    # --- group commit -------------------------------------------------------------------------------------

    async def commit(self, writes: Sequence[Write], sync: bool) -> list[OSError | None]:
        return await self._writers.run(self._commit_all, writes, sync)

    def _commit_all(self, writes: Sequence[Write], sync: bool) -> list[OSError | None]:
        """In slices: the files of a commit are open until it is durable, and all threads share the descriptors."""
        errors: list[OSError | None] = []
        for start in range(0, len(writes), self._files_at_once):
            errors += self._commit(writes[start : start + self._files_at_once], sync)
        promised = promised_by(writes, errors)
        if promised is not None:
            ends, write = promised
            try:
                self._files.give_back(self._write(write, 0, {}, at_once=False))
            except OSError as error:
                ends.write_failed(error)
        return errors

    def _commit(self, writes: Sequence[Write], sync: bool) -> list[OSError | None]:
        errors: list[OSError | None] = [None] * len(writes)
        files: list[OpenFile | None] = [None] * len(writes)
        folders: dict[str, list[int]] = {}  # entries changed in here, by these writes
        at_once = sync and len(writes) == 1
        failures_before = self._file_system.failures
        try:
            for number, write in enumerate(writes):
                try:
                    files[number] = self._write(write, number, folders, at_once)
                except OSError as error:
                    errors[number] = error
            self._make_durable(files if sync else [], folders, errors, failures_before)
        finally:
            for file in files:
                if file is not None:
                    self._files.give_back(file)
        return errors

    def _write(self, write: Write, number: int, folders: dict[str, list[int]], at_once: bool) -> OpenFile:
        """If `at_once`, and if nothing older in the file may be on its way, the bytes are durable when this returns."""
        file = self._open(write, number, folders)
        if write.buffers:
            flags = self._dsync if at_once and file.synced and len(write.buffers) <= _IOV_MAX else 0
            file.synced = False
            try:
                if not file.writable:
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS), write.path)
                self._write_all(file.descriptor, write.buffers, write.position, flags)
                file.synced = bool(flags & self._dsync)
            except OSError:
                try:
                    os.ftruncate(file.descriptor, write.position)
                except OSError:
                    pass  # the first error is reported; recovery truncates the rest
                self._files.give_back(file)
                if write.create:
                    self._remove(write.path)  # or the next attempt to create it would find it there
                raise
        return file

    def _write_all(self, descriptor: int, buffers: Sequence[bytes | memoryview], position: int, flags: int) -> None:
        try:
            _write_all(descriptor, buffers, position, flags)
        except OSError as error:
            if not flags or error.errno != errno.EOPNOTSUPP:
                raise
            self._dsync = 0
            _write_all(descriptor, buffers, position, 0)

    def _open(self, write: Write, number: int, folders: dict[str, list[int]]) -> OpenFile:
        if not write.create:
            return self._files.borrow(write.path)
        folder = os.path.dirname(self._files.absolute(write.path))
        changed = [folder]
        try:
            file = self._files.create(write.path)
        except FileNotFoundError:
            if not write.new_folder:
                raise
            self._make_folders(folder, changed)
            file = self._files.create(write.path)
        for path in changed:
            folders.setdefault(path, []).append(number)
        return file

    def _make_folders(self, folder: str, changed: list[str]) -> None:
        """In the folder that was locked, and not in place of one that was there."""
        self._check_root()
        top = os.path.relpath(folder, self._root).split("/")[0]
        if top in self._tops and not os.path.isdir(os.path.join(self._root, top)):
            raise FileNotFoundError(errno.ENOENT, "removed or moved while the broker runs", top)
        _make_folders(folder, changed)
        self._tops[top] = None

    def _make_durable(
        self,
        files: Sequence[OpenFile | None],
        folders: dict[str, list[int]],
        errors: list[OSError | None],
        failures_before: int,
    ) -> None:
        dirty: dict[OpenFile, list[int]] = {}
        for number, file in enumerate(files):
            if file is not None and not file.synced:
                dirty.setdefault(file, []).append(number)
        if len(dirty) + len(folders) >= limits.SYNCFS_FROM_FILES and self._file_system.usable:
            covered = [number for numbers in (*dirty.values(), *folders.values()) for number in numbers]
            _try_sync(lambda: self._file_system.run(failures_before), covered, errors)
            return
        for file, numbers in dirty.items():
            _try_sync(file.sync, numbers, errors)
        for folder, numbers in folders.items():
            _try_sync(lambda folder=folder: _sync_folder(folder), numbers, errors)  # type: ignore[misc]

    # --- reading ------------------------------------------------------------------------------------------

    def read_cached(self, path: str, position: int, length: int) -> bytes | None:
        file = self._files.peek(path)
        if file is None:
            return None
        try:
            buffer = self._scratch if length <= len(self._scratch) else memoryview(bytearray(length))
            count = os.preadv(file.descriptor, [buffer[:length]], position, _RWF_NOWAIT)
            if count < length and position + count < os.fstat(file.descriptor).st_size:
                return None  # a part of it is not in the page cache
            return bytes(buffer[:count])
        except OSError:  # EAGAIN: not cached; EOPNOTSUPP: this file system cannot tell
            return None
        finally:
            self._files.give_back(file)

    async def read(self, path: str, position: int, length: int, fresh: bool = False) -> bytes:
        return await self._readers.run(self._read, path, position, length, fresh)

    def _read(self, path: str, position: int, length: int, fresh: bool) -> bytes:
        file = self._files.borrow(path)
        try:
            if fresh and length:  # 0 would mean the whole file
                os.posix_fadvise(file.descriptor, position, length, os.POSIX_FADV_DONTNEED)
            data = os.pread(file.descriptor, length, position)
            while len(data) < length:
                more = os.pread(file.descriptor, length - len(data), position + len(data))
                if not more:
                    break
                data += more
            return data
        finally:
            self._files.give_back(file)

    async def look(self, paths: Sequence[str]) -> "list[Seen | None]":
        return await self._readers.run(self._look, paths)

    def _look(self, paths: Sequence[str]) -> "list[Seen | None]":
        self._check_root()
        unchanged_since_ns = time.time_ns() - limits.RECENT_CHANGE_NS
        return [self._seen(path, unchanged_since_ns) for path in paths]

    def _seen(self, path: str, unchanged_since_ns: int) -> Seen | None:
        try:
            found = os.stat(f"{self._root}/{path}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        identity, changed_ns = (found.st_dev, found.st_ino), found.st_mtime_ns
        same = stat.S_ISDIR(found.st_mode) or self._files.is_at(path, found)
        return Seen(identity, found.st_size, changed_ns if changed_ns < unchanged_since_ns else 0, same)

    async def room(self) -> int | None:
        found = await self._readers.run(os.statvfs, self._root)
        return found.f_bavail * found.f_frsize

    async def reserve(self, path: str, size: int) -> None:
        await self._writers.run(self._reserve, path, size)

    def _reserve(self, path: str, size: int) -> None:
        try:
            file = self._files.borrow(path)
        except OSError:
            return
        try:
            _fallocate(file.descriptor, _KEEP_SIZE, 0, size)
        finally:
            self._files.give_back(file)

    async def forget(self, path: str) -> None:
        await self._readers.run(self._files.forget, path)

    async def size(self, path: str) -> int | None:
        return await self._readers.run(_size, self._files.absolute(path))

    async def list(self, folder: str) -> list[str]:
        return await self._readers.run(_list, self._files.absolute(folder))

    # --- changing the tree --------------------------------------------------------------------------------

    async def make_folder(self, folder: str) -> None:
        await self._writers.run(self._make_folder, self._files.absolute(folder))

    def _make_folder(self, folder: str) -> None:
        changed: list[str] = []
        self._make_folders(folder, changed)
        for path in changed:
            _sync_folder(path)

    async def together(self, work: Callable[[Disk], Coroutine[object, object, T]]) -> T:
        return await self._readers.run(lambda: _drive(work(_DiskHere(self))))

    async def evict(self, path: str) -> None:
        await self._writers.run(self._evict, path)

    def _evict(self, path: str) -> None:
        try:
            file = self._files.borrow(path)
        except FileNotFoundError:
            return
        try:
            os.fsync(file.descriptor)
            os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            self._files.give_back(file)

    async def truncate(self, path: str, size: int) -> None:
        await self._writers.run(self._truncate, path, size)

    def _truncate(self, path: str, size: int) -> None:
        file = self._files.borrow(path)
        try:
            os.ftruncate(file.descriptor, size)
            os.fsync(file.descriptor)
        finally:
            self._files.give_back(file)

    async def rename(self, source: str, target: str) -> None:
        await self._writers.run(self._rename, source, target)

    def _rename(self, source: str, target: str) -> None:
        os.rename(self._files.absolute(source), self._files.absolute(target))
        self._tops.pop(source, None)
        self._files.forget(source)
        self._files.forget(target)

    async def remove(self, path: str) -> None:
        await self._writers.run(self._remove, path)

    def _remove(self, path: str) -> None:
        absolute = self._files.absolute(path)
        try:
            os.unlink(absolute)
            self._files.forget(path, is_file=True)
            return
        except FileNotFoundError:
            pass
        except (IsADirectoryError, PermissionError):
            if not os.path.isdir(absolute):
                raise
            shutil.rmtree(absolute)
            self._tops.pop(path, None)
        self._files.forget(path)

    async def sync_folder(self, folder: str) -> None:
        """Calls for the same folder share a sync that has not begun yet, as when partitions are opened at a start."""
        waiting = self._folder_syncs.get(folder)
        if waiting is None or waiting.done():
            work = self._writers.run(self._sync_folder, folder)
            waiting = self._folder_syncs[folder] = asyncio.get_running_loop().create_task(work)
        await asyncio.shield(waiting)

    def _sync_folder(self, folder: str) -> None:
        self._folder_syncs.pop(folder, None)  # calls from here on need a sync of their own
        _sync_folder(self._files.absolute(folder))


class _Here:
    """Stands for `Threads` where we are in one already."""

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        return work(*arguments)

    def close(self) -> None:
        pass


class _DiskHere(FileDisk):
    """The same disk, for one piece of work in one of its threads: every call is carried out on the spot."""

    def __init__(self, disk: FileDisk) -> None:
        self._disk = disk
        self._files = disk._files
        self._files_at_once = disk._files_at_once
        self._dsync = disk._dsync
        self.os_boot = disk.os_boot
        self._root = disk._root
        self._tops = disk._tops
        self._file_system = disk._file_system
        self._writers = self._readers = _Here()

    def read_cached(self, path: str, position: int, length: int) -> bytes | None:
        return None  # the buffer for it is the event loop's

    async def sync_folder(self, folder: str) -> None:
        _sync_folder(self._files.absolute(folder))

    def _check_root(self) -> None:
        self._disk._check_root()


def _drive(work: Coroutine[object, object, T]) -> T:
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("work on the disk waited for something else than the disk")


def _write_all(descriptor: int, buffers: Sequence[bytes | memoryview], position: int, flags: int) -> None:
    waiting: list[bytes | memoryview] = list(buffers)
    first = 0
    while first < len(waiting):
        part = waiting[first : first + _IOV_MAX]
        written = os.pwritev(descriptor, part, position, flags)
        if written == 0 and any(part):
            raise OSError(errno.EIO, "the device takes no more bytes and gives no reason")
        position += written
        while first < len(waiting) and written >= len(waiting[first]):
            written -= len(waiting[first])
            first += 1
        if written:
            waiting[first] = memoryview(waiting[first])[written:]


def _try_sync(sync: Callable[[], None], covered: Sequence[int], errors: list[OSError | None]) -> None:
    try:
        sync()
    except OSError as error:
        for number in covered:
            errors[number] = errors[number] or error


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folders(folder: str, changed: list[str]) -> None:
    """Make `folder` and its parents; name in `changed` the folders that got a new entry, outermost last."""
    try:
        os.mkdir(folder, 0o755)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
        return
    except FileNotFoundError:
        parent = os.path.dirname(folder)
        if os.path.isdir(parent):
            raise  # a file system that makes no folders
        _make_folders(parent, changed)
        os.mkdir(folder, 0o755)
    changed.append(os.path.dirname(folder))


def _sign(descriptor: int) -> None:
    """Write the process id into the lock file; a full disk is no error."""
    try:
        os.pwrite(descriptor, f"{os.getpid()}\n".ljust(16).encode(), 0)
    except OSError as error:
        _log.debug("the process id could not be written to the lock file: %s", error)


def _os_boot() -> str:
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read(48).strip()
    except (OSError, ValueError):
        return ""


def _size(path: str) -> int | None:
    try:
        return None if os.path.isdir(path) else os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def _list(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
