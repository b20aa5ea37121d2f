"""How far one follower has come in one partition that we lead, and which new records are buffered for it.

Rules:
- `end` is where the follower stands once everything sent has arrived. It rises when something is sent, and a follower
  that stands anywhere else than between its last report and `end` did not get there by what we sent: its progress
  begins anew.
- New records are buffered as long as they go on where the buffer ends and the bounds of the partition and of the
  follower allow it. What is not buffered is read from the log.
"""

from bascule.limits import FEED_BUFFERED_BYTES, FEED_PARTITION_BYTES
from bascule.wire.replication import Position


class BufferUse:
    """What is buffered for one follower, over all partitions."""

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
        """What its last report said."""
        self.use = use
        self.told_hw = -1
        self.cursor: object = None
        """What the driver reads on with; nothing is known of it here."""
        self.read_end = -1
        """Where that stands: past `end` if nothing in between can be read."""
        self.buffered_bytes = 0
        self.set_end(position.end, position.last_epoch)

    def set_end(self, end: int, last_epoch: int) -> None:
        """It stands here when everything sent has arrived. The buffer is empty then."""
        self.end, self.last_epoch = end, last_epoch
        self.use.nbytes -= self.buffered_bytes
        assert self.use.nbytes >= 0, "what is dropped was buffered"
        self.buffered: list[bytes] = []
        self.buffered_bytes, self.buffered_end = 0, end

    def drop_buffer(self) -> None:
        self.set_end(self.end, self.last_epoch)

    def buffer(self, records: bytes, first_offset: int, next_offset: int) -> None:
        """If they go on where the buffer ends, and there is room."""
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
        """What is buffered is sent, all of it of this epoch."""
        records = self.buffered[0] if len(self.buffered) == 1 else b"".join(self.buffered)
        self.set_end(self.buffered_end, epoch)
        return records

    def continues(self, position: Position) -> bool:
        """Whether the follower got there by what we sent."""
        return position.leader_epoch == self.position.leader_epoch and self.position.end <= position.end <= self.end
