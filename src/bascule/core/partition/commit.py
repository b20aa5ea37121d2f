"""How far the in-sync set has come: the high watermark of one partition.

A replica's *promised* end is what it guarantees to still have after a crash: its synced end under `group`, its written
end under the relaxed modes. The high watermark is the smallest promised end over the in-sync set, if that set is at
least min ISR large, and it only goes up.
"""

from collections.abc import Iterable


class Commit:
    def __init__(self, self_id: str, isr: Iterable[str], min_isr: int, hw_end: int) -> None:
        self.hw_end = hw_end
        self._self_id = self_id
        self._min_isr = max(1, min_isr)
        self._promised_end = dict.fromkeys(isr, 0)
        assert self_id in self._promised_end, "a leader is a member of its own in-sync set"

    @property
    def isr(self) -> tuple[str, ...]:
        return tuple(self._promised_end)

    @property
    def below_min_isr(self) -> bool:
        return len(self._promised_end) < self._min_isr

    def promised(self, replica: str, end: int) -> bool:
        """This replica has promised everything below `end`. True if the high watermark rose."""
        if replica not in self._promised_end:
            return False
        self._promised_end[replica] = max(end, self._promised_end[replica])
        return self._advance()

    def _advance(self) -> bool:
        if self.below_min_isr:
            return False
        reached = min(self._promised_end.values())
        if reached <= self.hw_end:
            return False
        self.hw_end = reached
        return True
