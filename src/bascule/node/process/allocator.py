"""How the process keeps its memory: set once at the start, for a broker that allocates a batch and frees it again.

A batch is tens of kilobytes and passes through several buffers. By default glibc gives memory of that size back to the
system as soon as it is free and takes it again for the next batch, one page fault for every 4 KiB: with 400 messages a
batch 40 faults on the leader and 65 on a follower, about 6 % of a broker's processor time. Here it keeps what it has,
up to a bound.

A full garbage collection looks at every object there is, and stops the broker for 5 ms and more. What is there when the
broker starts to serve stays for good, so the collector is told to leave it alone. So do partitions that come later: a
thousand of them would make every full collection 60 ms longer.
"""

import ctypes
import gc

from bascule.limits import MALLOC_MMAP_BYTES, MALLOC_TRIM_BYTES

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> None:
    """No effect where the C library is another one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, MALLOC_TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, MALLOC_MMAP_BYTES)


def freeze_objects() -> None:
    """Everything alive now is out of the collector's sight."""
    gc.collect()
    gc.freeze()


def freeze_grown() -> None:
    """The same, without a full collection first: for when much has come that stays. What is garbage at this moment, and
    not found by the collector yet, stays too."""
    gc.freeze()
