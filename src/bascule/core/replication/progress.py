"""The position of one follower in one partition that we lead, and the new records that are buffered for it.

Rules:
- `end` is the follower's end once everything sent has arrived. It rises when records are sent. If the follower reports
  a position that is not between its last report and `end`, it did not get there by what we sent: its progress starts
  again.
- New records are buffered if they continue at the end of the buffer and the bounds of the partition and of the follower
  allow it. Records that are not buffered are read from the log.
"""

from bascule.core.partition.epochs import EpochHistory
from bascule.limits import FEED_BUFFERED_BYTES, FEED_PARTITION_BYTES
from bascule.wire.replication import Position


class BufferUse:
    """The bytes buffered for one follower, over all partitions."""

    __slots__ = ("nbytes",)

    def __init__(self) -> None:
        self.nbytes = 0


class Progress:
    __slots__ = (
        "buffered",
        "buffered_bytes",
        "buffered_end",
        "cursor",
        "end",
        "last_epoch",
        "position",
        "read_end",
        "told_hw",
        "use",
    )

    def __init__(self, position: Position, use: BufferUse) -> None:
        self.position = position
        """Of its last report."""
        self.use = use
        self.told_hw = -1
        self.cursor: object = None
        """For the driver, to go on reading; opaque here."""
        self.read_end = -1
        """Its position: past `end` if nothing in between can be read."""
        self.buffered_bytes = 0
        self.set_end(position.end, position.last_epoch)

    def set_end(self, end: int, last_epoch: int) -> None:
        """The follower's end once everything sent has arrived. Clears the buffer."""
        self.end, self.last_epoch = end, last_epoch
        self.use.nbytes -= self.buffered_bytes
        assert self.use.nbytes >= 0, "what is dropped was buffered"
        self.buffered: list[bytes] = []
        self.buffered_bytes, self.buffered_end = 0, end

    def drop_buffer(self) -> None:
        self.set_end(self.end, self.last_epoch)

    def buffer(self, records: bytes, first_offset: int, next_offset: int) -> None:
        """If they continue at the end of the buffer, and there is room."""
        size = len(records)
        if (
            first_offset == self.buffered_end
            and self.buffered_bytes + size <= FEED_PARTITION_BYTES
            and self.use.nbytes + size <= FEED_BUFFERED_BYTES
        ):
            self.buffered.append(records)
            self.buffered_bytes += size
            self.buffered_end = next_offset
            self.use.nbytes += size

    def take_buffer(self, epoch: int) -> bytes:
        """The buffered records, all of this epoch, which are sent now."""
        records = self.buffered[0] if len(self.buffered) == 1 else b"".join(self.buffered)
        self.set_end(self.buffered_end, epoch)
        return records

    def continues(self, position: Position) -> bool:
        """Whether the follower got there by what we sent."""
        return position.leader_epoch == self.position.leader_epoch and self.position.end <= position.end <= self.end


def divergence(position: Position, epochs: EpochHistory, log_start: int, log_end: int) -> tuple[int, int] | None:
    """None if a follower at that position has a prefix of our log; else the (epoch, end) that it is to truncate to."""
    if position.end == 0 or (position.end == log_start and not position.last_epoch):
        return None  # it has no record at all
    epoch, end = epochs.end_of(position.last_epoch, log_end)
    if epoch == position.last_epoch and position.end <= end:
        return None
    return epoch, end
