"""Settings of the memory allocator and the garbage collector, for a broker that allocates and frees batches.

A batch is tens of kilobytes and passes through several buffers. By default glibc returns memory of that size to the
system as soon as it is free and requests it again for the next batch, one page fault for every 4 KiB: with 400 messages
a batch 40 faults on the leader and 65 on a follower, about 6 % of a broker's processor time. Here glibc keeps freed
memory, up to a bound.

A full garbage collection visits every object, and stops the broker for 5 ms and more. Objects that exist when the
broker starts to serve are long-lived, so they are frozen: the collector skips them. So are the objects of partitions
that are opened later: a thousand of them would make every full collection 60 ms longer.
"""

import ctypes
import gc

from bascule.limits import MALLOC_MMAP_BYTES, MALLOC_TRIM_BYTES

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> None:
    """No effect with another C library than glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, MALLOC_TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, MALLOC_MMAP_BYTES)


def freeze_objects() -> None:
    """Freeze all present objects: the collector skips them."""
    gc.collect()
    gc.freeze()


def freeze_grown() -> None:
    """The same without a full collection first, for many new long-lived objects. Garbage that is not collected at this
    moment is never freed."""
    gc.freeze()
