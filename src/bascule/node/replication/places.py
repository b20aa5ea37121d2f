"""Where one follower stands in each partition that we lead, and which new records are kept at hand for it."""

from bascule.limits import FEED_AT_HAND_BYTES, FEED_PARTITION_BYTES
from bascule.log.reader import Reader
from bascule.wire.replication import Position


class Room:
    """What all places of one follower have at hand."""

    __slots__ = ("used_bytes",)

    def __init__(self) -> None:
        self.used_bytes = 0


class Place:
    """One partition at one follower."""

    __slots__ = (
        "at_hand",
        "at_hand_bytes",
        "at_hand_end",
        "end",
        "last_epoch",
        "position",
        "reader",
        "room",
        "told_hw",
    )

    def __init__(self, position: Position, room: Room) -> None:
        self.position = position
        self.room = room
        self.told_hw = -1
        self.reader: Reader | None = None
        self.at_hand_bytes = 0
        self.set_end(position.end, position.last_epoch)

    def set_end(self, end: int, last_epoch: int) -> None:
        """Where it will stand when everything sent has arrived; nothing behind that is at hand."""
        self.end, self.last_epoch = end, last_epoch
        self.room.used_bytes -= self.at_hand_bytes
        self.at_hand: list[bytes] = []
        self.at_hand_bytes, self.at_hand_end = 0, end

    def keep(self, records: bytes, first_offset: int, next_offset: int) -> None:
        """Have them at hand, if they go on where the others end and there is room."""
        size = len(records)
        if (
            first_offset == self.at_hand_end
            and self.at_hand_bytes + size <= FEED_PARTITION_BYTES
            and self.room.used_bytes + size <= FEED_AT_HAND_BYTES
        ):
            self.at_hand.append(records)
            self.at_hand_bytes += size
            self.at_hand_end = next_offset
            self.room.used_bytes += size

    def continues(self, position: Position) -> bool:
        """Whether it got there by what we sent."""
        return position.leader_epoch == self.position.leader_epoch and self.position.end <= position.end <= self.end
