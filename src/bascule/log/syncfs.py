"""One sync for everything that is dirty on the file system of the data folder.

The kernel has one counter of write-back errors for the file system, and reports a change to each descriptor once. All
commits share one descriptor, so the first call gets the error, whichever commit lost its bytes: a commit that wrote
before a sync that failed, and syncs after it, has failed too.

Before Linux 5.8 `syncfs` reports no write-back errors at all. There it is not used: each file is synced singly.
"""

import ctypes
import errno
import os
import re
from threading import Lock

_LIBC = ctypes.CDLL(None, use_errno=True)
_REPORTS_ERRORS_FROM = (5, 8)


def reports_errors(release: str) -> bool:
    """Whether `syncfs` reports write-back errors, by the kernel's release."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) >= _REPORTS_ERRORS_FROM


class FileSystemSync:
    def __init__(self, root: str, release: str | None = None) -> None:
        self.release = os.uname().release if release is None else release
        self.usable = reports_errors(self.release)
        self.failures = 0
        """How often it failed. To be noted before the first write that a sync is to cover."""
        self._root = root
        self._descriptor = -1
        """One as long as the disk is open: an error before it was opened is not reported to it."""
        self._lock = Lock()

    def run(self, failures_before: int) -> None:
        """Raises OSError if this sync failed, or any since then."""
        with self._lock:
            if self._descriptor < 0:
                self._descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._sync()
            except OSError:
                self.failures += 1
                raise
            if self.failures != failures_before:
                text = "a sync of the whole file system failed meanwhile, and may have lost these bytes"
                raise OSError(errno.EIO, text, self._root)

    def _sync(self) -> None:
        if _LIBC.syncfs(self._descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), self._root)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
