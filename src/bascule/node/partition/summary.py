"""What is told about a log: where it begins and ends, its size, and when its messages came.

Of a paused partition nothing is open. Its summary is kept from the moment that its log was closed, for nothing changes
it until the partition is resumed.
"""

from bisect import bisect_right
from typing import NamedTuple


class LogSummary(NamedTuple):
    hw_end: int
    end: int
    last_epoch: int
    start: int
    first_timestamp: int
    """Of the oldest record."""
    last_timestamp: int
    first_received: int
    """When the first message came, however long ago it expired; 0 if that is not known."""
    latest_received: int
    bases: tuple[int, ...]
    """Of its segments."""
    sizes: tuple[int, ...]
    verified: bool
    """Its log had everything that it promised."""

    def bytes_from(self, offset: int) -> int:
        """How many bytes the segments have that hold this offset, or later ones."""
        return sum(self.sizes[max(bisect_right(self.bases, offset) - 1, 0) :])
