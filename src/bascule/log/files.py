"""Open files of the real disk: a bounded cache of descriptors, least recently used out first.

Theory of operation: many threads borrow descriptors at the same time, and a broker has more segments than a
process may have open files. A borrowed file is never closed under its user: eviction and `forget` only mark
it, and the last user to give it back closes it. A file opened by one thread while another renames or removes
its path would be cached under a name that no longer means it; `_changes` counts renames and removals, and an
open that saw one starts again.

The event loop's thread only ever calls `peek` and `give_back`: opening may wait for the device.
"""

import errno
import os
from collections import OrderedDict
from threading import Lock

from bascule import limits

_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


class OpenFile:
    """A descriptor with the number of its present users. `synced` says that the device has all that is in the file, as
    far as we know: not of a file that was there before."""

    __slots__ = ("cached", "descriptor", "synced", "users", "writable")

    def __init__(self, descriptor: int, writable: bool) -> None:
        self.descriptor = descriptor
        self.writable = writable
        self.synced = False
        self.users = 0
        self.cached = False

    def sync(self) -> None:
        os.fdatasync(self.descriptor)
        self.synced = True


class OpenFiles:
    def __init__(self, root: str, limit: int = limits.MAX_OPEN_FILES) -> None:
        self._root = root
        self._limit = limit
        self._lock = Lock()
        self._files: OrderedDict[str, OpenFile] = OrderedDict()
        self._changes = 0

    def __len__(self) -> int:
        return len(self._files)

    def absolute(self, path: str) -> str:
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"{path!r} is not a path inside the data folder")
        return os.path.join(self._root, path)

    def peek(self, path: str) -> OpenFile | None:
        """Borrow the file if it is open already; never touches the device."""
        with self._lock:
            file = self._files.get(path)
            if file is not None:
                self._files.move_to_end(path)
                file.users += 1
            return file

    def borrow(self, path: str) -> OpenFile:
        """Borrow the file, opening it if need be. Raises FileNotFoundError if there is none."""
        while True:
            file = self.peek(path)
            if file is not None:
                return file
            changes = self._changes
            file = _open_existing(self.absolute(path))
            if self._keep(path, file, changes):
                return file

    def create(self, path: str) -> OpenFile:
        """Borrow a file that must not exist yet."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = OpenFile(os.open(self.absolute(path), flags, 0o644), writable=True)
        file.synced = True
        if not self._keep(path, file, self._changes):  # someone else opened it in between: ours works as well
            file.descriptor = os.open(self.absolute(path), os.O_RDWR | os.O_CLOEXEC)
            file.users = 1
        return file

    def give_back(self, file: OpenFile) -> None:
        with self._lock:
            file.users -= 1
            unused = file.users == 0 and not file.cached
        if unused:
            os.close(file.descriptor)

    def forget(self, path: str, is_file: bool = False) -> None:
        """`path`, a file or a folder, was renamed or removed: no handle answers to that name any more."""
        below = path + "/"
        with self._lock:
            self._changes += 1
            if is_file:  # nothing is below it: thousands of files may be removed in a row
                names = [path] if path in self._files else []
            else:
                names = [name for name in self._files if name == path or name.startswith(below)]
            unused = [descriptor for descriptor in map(self._drop, names) if descriptor is not None]
        for descriptor in unused:
            os.close(descriptor)

    def is_at(self, path: str, found: os.stat_result) -> bool:
        """Whether the file that is open under this path, if one is, is the one that was found there."""
        with self._lock:
            file = self._files.get(path)
            held = None if file is None else os.fstat(file.descriptor)
        return held is None or os.path.samestat(held, found)

    def close_all(self) -> None:
        with self._lock:
            unused = [descriptor for descriptor in map(self._drop, list(self._files)) if descriptor is not None]
        for descriptor in unused:
            os.close(descriptor)

    def _keep(self, path: str, file: OpenFile, changes: int) -> bool:
        """Cache a fresh file, borrowed once. False (and the file closed) if another one took its place
        meanwhile.
        """
        stale: list[int] = []
        with self._lock:
            cached = changes == self._changes and path not in self._files
            if cached:
                self._files[path] = file
                file.cached = True
                file.users = 1
                stale = self._evict()
        if not cached:
            os.close(file.descriptor)
        for descriptor in stale:
            os.close(descriptor)
        return cached

    def _evict(self) -> list[int]:
        descriptors = []
        while len(self._files) > self._limit:
            descriptor = self._drop(next(iter(self._files)))
            if descriptor is not None:
                descriptors.append(descriptor)
        return descriptors

    def _drop(self, name: str) -> int | None:
        """Take a file out of the cache. Gives its descriptor if nobody uses it: the caller closes it."""
        file = self._files.pop(name)
        file.cached = False
        return file.descriptor if file.users == 0 else None


def _open_existing(path: str) -> OpenFile:
    try:
        return OpenFile(os.open(path, os.O_RDWR | os.O_CLOEXEC), writable=True)
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
    return OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), writable=False)
