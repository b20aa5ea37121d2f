"""The leader epoch history of a log, used to find where two logs differ.

Each record has its leader's epoch. The history has where each epoch begins, so that the leader can answer a follower
that wrote under older leaders how far its log agrees (Kafka's KIP-101, with the repeated requests of KIP-279). It is
derived from the log: if a stored copy is missing or does not fit, it is made again from the records.
"""

from bisect import bisect_right
from collections.abc import Iterable


class EpochHistory:
    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries:
            self.begin(epoch, start)

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def last_epoch(self) -> int:
        return self._epochs[-1] if self._epochs else 0

    def begin(self, epoch: int, start: int) -> bool:
        """Records from `start` on are of `epoch`. True if that is news."""
        if self._epochs and epoch <= self._epochs[-1]:
            assert epoch == self._epochs[-1], f"epoch {epoch} after {self._epochs[-1]}"
            return False
        while self._starts and self._starts[-1] >= start:  # an epoch that never wrote a record
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(epoch)
        self._starts.append(start)
        return True

    def end_of(self, asked: int, log_end: int) -> tuple[int, int]:
        """The largest epoch up to `asked`, and where it ends. (0, the first start) if all are larger."""
        number = bisect_right(self._epochs, asked)
        end = self._starts[number] if number < len(self._starts) else log_end
        return (self._epochs[number - 1] if number else 0), end

    def run_at(self, offset: int, log_end: int) -> tuple[int, int]:
        """The epoch of the record at `offset`, and where it ends."""
        number = bisect_right(self._starts, offset)
        end = self._starts[number] if number < len(self._starts) else log_end
        return (self._epochs[number - 1] if number else 0), end

    def raise_start(self, start: int) -> None:
        """Records below have expired. The epoch of the last of them stays: a log may end exactly there."""
        number = max(bisect_right(self._starts, start - 1) - 1, 0)
        del self._epochs[:number], self._starts[:number]

    def truncate(self, end: int) -> None:
        """The log now ends there."""
        while self._starts and self._starts[-1] >= end:
            self._epochs.pop()
            self._starts.pop()
