"""The ports: interfaces to disk, clock, random numbers and NATS. `log` and `node` use nothing else to reach them, so
that the simulator can implement them too. Threads exist only inside the real Disk.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    def time_ns(self) -> int:
        """Wall clock, nanoseconds since 1970. It may jump."""

    def monotonic_ns(self) -> int:
        """For measuring; never jumps."""


class Random(Protocol):
    def token(self, length: int = 22) -> str:
        """A fresh identifier of ASCII letters and digits."""

    def uniform(self, low: float, high: float) -> float: ...


class Ends(Protocol):
    """A file of numbers, one for each log, that is written and never synced."""

    def set(self, number: int, end: int) -> None: ...

    def write(self, first: int, last: int) -> "Write":
        """The current ends of all logs with these numbers, as a write."""

    def write_failed(self, error: OSError) -> None: ...


class Promise(NamedTuple):
    """What may be promised once a write is durable."""

    ends: Ends
    number: int
    end: int


@dataclass(slots=True)
class Write:
    """One file's part of a group commit: these buffers, back to back, at this position."""

    path: str
    position: int
    buffers: Sequence[bytes | memoryview]
    create: bool = False
    """The file must not exist yet. Its folder is made if missing, and synced before the commit returns, even by a
    commit that does not sync the data."""
    new_folder: bool = True
    """With `create`: its folder may be missing. If false, the folder existed before, and is not made again silently."""
    promise: Promise | None = None
    """Written to the `Ends` without a sync, once this write is durable and before the commit returns."""


class Seen(NamedTuple):
    """What is at a path."""

    identity: tuple[int, int]
    """Of a folder: the same as long as it is the same folder."""
    size: int
    version: int
    """Of a folder's entries: it differs after an entry was made, renamed or removed; 0 if that is not known yet."""
    same: bool
    """Of a file: it is the one that is open under this path, if one is."""


class Disk(Protocol):
    """Files by path, relative to the data folder. Open handles are the disk's own business (a bounded LRU).

    Every method raises OSError as the system gave it. No method of an event loop's thread waits for the device,
    except that `read_cached` copies from the page cache.
    """

    @property
    def os_boot(self) -> str:
        """The boot id of the operating system: while it is the same, everything that was written is there, synced or
        not. Empty if it is not known."""

    async def commit(self, writes: Sequence[Write], sync: bool) -> list[OSError | None]:
        """Write everything, then make it durable (if `sync`): one thread hop for all partitions.

        The result has one entry per write. After a failed or short write the file is truncated to `position`, or
        removed if the write was to create it. A failed sync fails every write it covered, and is never retried here:
        the page may be marked clean already.
        """

    def read_cached(self, path: str, position: int, length: int) -> bytes | None:
        """The bytes if the page cache has them now, else None. Short only at the end of the file."""

    async def read(self, path: str, position: int, length: int, fresh: bool = False) -> bytes:
        """Short only at the end of the file. `fresh`: read from the device and not from the page cache, except for
        pages that are not written yet. Not for bytes whose sync failed: only the page cache may have them."""

    async def evict(self, path: str) -> None:
        """Sync the file, then drop it from the page cache: what is read after this is on the device. A process calls
        it at its start, because a sync may have failed in an earlier process: the page cache then has bytes that the
        device never got, and the next sync does not write them. A missing file is fine.
        """

    async def together(self, work: Callable[["Disk"], Coroutine[object, object, T]]) -> T:
        """The result of `work`, which awaits nothing but the disk it is given: all its calls run in one thread hop.
        `work` must not store that disk."""

    async def size(self, path: str) -> int | None:
        """None if there is no such file."""

    async def look(self, paths: Sequence[str]) -> "list[Seen | None]":
        """What is at each of these paths now, whatever is open under them; None for nothing. All in one thread hop.
        ESTALE if the data folder itself ("") is gone, or another one in its place."""

    async def room(self) -> int | None:
        """How many bytes are free on the device; None if that is not known."""

    async def reserve(self, path: str, size: int) -> None:
        """Reserve disk space: this file can grow to this size even on a full disk, if the file system supports that.
        Never an error."""

    async def forget(self, path: str) -> None:
        """Close what is open under this path, or below it: the next read opens what is there then."""

    async def list(self, folder: str) -> list[str]:
        """Names in it, sorted; empty if there is no such folder."""

    async def make_folder(self, folder: str) -> None:
        """With its parents, each made durable."""

    async def truncate(self, path: str, size: int) -> None:
        """Truncate and sync."""

    async def rename(self, source: str, target: str) -> None:
        """Atomic; replaces the target. Durable only after `sync_folder` of the target's folder."""

    async def remove(self, path: str) -> None:
        """A file or a whole folder; missing is fine. Durable only after `sync_folder` of its parent."""

    async def sync_folder(self, folder: str) -> None: ...


class Subscription(Protocol):
    def unsubscribe(self) -> None:
        """No batch arrives after this returns."""


OnBatch = Callable[[bytes, int], None]
"""Takes a packed batch (see `wire.kernels`) and how many messages it holds."""


class Bus(Protocol):
    """One connection to NATS, or what stands for it in the simulator."""

    @property
    def connected(self) -> bool: ...

    @property
    def max_payload(self) -> int:
        """What the server takes in one message."""

    @property
    def unavailable_reason(self) -> str:
        """Why `connected` is false, for people."""

    def subscribe(self, subject: bytes, on_batch: OnBatch, queue: bytes = b"") -> Subscription:
        """Survives reconnects. Confirmed by the server once a later `flush` returns."""

    def send(self, commands: bytes) -> None:
        """PUB commands, encoded and checked already. Raises BusUnavailable while disconnected, and when the
        server takes so little that the bound on pending bytes is reached."""

    def send_now(self, commands: bytes) -> None:
        """As `send`, for the last commands of a turn of the event loop: they leave at once, with those that wait."""

    def push(self) -> None:
        """Write what was sent in this turn of the event loop now, and not at its end."""

    def pause_reading(self, paused: bool) -> None:
        """While paused, read no messages. Not for long: NATS buffers some, and then disconnects a slow consumer."""

    def drained(self) -> Awaitable[None]:
        """Done when the pending bytes are below the low-water mark (at once, mostly), or the connection is lost."""

    async def flush(self) -> None:
        """Everything sent before has been processed by the server (PING/PONG). Raises BusUnavailable."""


class Call(Protocol):
    """One gRPC call as a handler sees it: `net.call` over a socket, `testing.call` in memory."""

    @property
    def peer(self) -> str:
        """The other end of the connection."""

    @property
    def peer_common_name(self) -> str | None:
        """Of the client's certificate, which was verified; None without one."""

    @property
    def ended(self) -> bool: ...

    @property
    def queued_bytes(self) -> int:
        """Written and not yet taken by the client's side."""

    def time_remaining(self) -> float | None:
        """Seconds until the client's deadline; None if it set none."""

    async def receive(self) -> bytes | None:
        """The next request message; None at the client's half-close."""

    async def receive_frames(self) -> bytes | None:
        """All framed requests that have arrived, perhaps ending in the middle of one; None at the half-close. The
        client gets window for them at the next call of this."""

    def send_headers(self) -> None: ...

    def write(self, frames: bytes) -> None:
        """Queue framed messages; the caller bounds what it writes."""

    async def send(self, frames: bytes) -> None:
        """Write, and wait until the client's side has taken everything."""

    async def drained(self) -> None: ...
