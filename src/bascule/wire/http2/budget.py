"""Budgets: how many frames that cost us work, but move no data, a peer may send.

A budget is a token bucket with `burst` tokens that refills at `rate` a second. An honest peer never empties it; a
flood empties it within a read or two, and the connection ends with ENHANCE_YOUR_CALM.
"""

from bascule.errors import Http2Error
from bascule.wire.http2.frames import ErrorCode


class Budget:
    __slots__ = ("burst", "level", "name", "rate", "refilled_at")

    def __init__(self, name: str, rate: float, burst: float) -> None:
        self.name = name
        self.rate = rate
        self.burst = burst
        self.level = burst
        self.refilled_at: float | None = None

    def spend(self, now: float) -> None:
        """One more, at this moment; Http2Error if that is one too many."""
        if self.refilled_at is None:
            self.refilled_at = now
        self.level -= 1
        if self.level >= 0:
            return
        self.level = min(self.burst - 1, self.level + (now - self.refilled_at) * self.rate)
        self.refilled_at = now
        if self.level < 0:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"too many {self.name} on one connection: more than {self.rate:.0f} a second",
            )
