"""Settings of the memory allocator and the garbage collector, for a broker that allocates and frees batches.

A batch is tens of kilobytes and passes through several buffers. By default glibc returns memory of that size to the
system as soon as it is free and requests it again for the next batch, one page fault for every 4 KiB: with 400 messages
a batch 40 faults on the leader and 65 on a follower, about 6 % of a broker's processor time. Here glibc keeps freed
memory, up to a bound.

A full garbage collection visits every object, and stops the broker for 5 ms and more: while a thousand partitions are
opened there would be several, of up to 40 ms. Objects that exist when the broker starts to serve are long-lived, so the
collector is off until then, and these are frozen: it skips them. So are the objects of partitions that are opened
later: a thousand of them would make every full collection 60 ms longer.
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


def collect_later() -> None:
    """No garbage is collected until `freeze_objects`."""
    gc.disable()


def freeze_objects() -> None:
    """Freeze all present objects: the collector, which is on from now on, skips them. Cyclic garbage among them is
    never freed: what a start leaves is little, and to look for it would take longer than anything else may."""
    gc.enable()
    gc.freeze()


def freeze_grown() -> None:
    """Freeze the objects of many new partitions. Garbage is collected first, for it would never be freed; that visits
    only what came since the last time. Nor are frozen objects ever freed that refer to each other in a circle, as those
    of a partition do: so this may be called when a broker has more of them than ever before, and not more often. While
    a broker starts it does nothing: all objects are frozen at the end of that."""
    if gc.isenabled():
        gc.collect()
        gc.freeze()
