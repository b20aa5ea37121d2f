"""Flow control (RFC 9113 section 5.2): how much may still come in, how much may still go out.

A receive window gives credit back in portions of a quarter of its size: rarely enough to cost nothing, early
enough that the peer never runs dry while we keep up.
"""

from bascule.errors import Http2Error
from bascule.wire.http2 import frames
from bascule.wire.http2.frames import ErrorCode


class ReceiveWindow:
    """What the peer may still send us, on one stream or on the whole connection."""

    __slots__ = ("left", "pending", "portion")

    def __init__(self, size: int) -> None:
        self.left = size
        self.pending = 0
        self.portion = size // 4

    def take(self, flow: int) -> bool:
        """Count what arrived; False if the peer sent more than it was allowed."""
        self.left -= flow
        return self.left >= 0

    def grant(self, flow: int) -> int:
        """Note that `flow` bytes were dealt with. The increment to announce now, 0 to wait for more."""
        self.pending += flow
        if self.pending < self.portion:
            return 0
        increment, self.pending = self.pending, 0
        self.left += increment
        return increment


def widen(window: int, increment: int, where: str) -> int:
    """A send window after WINDOW_UPDATE or a new INITIAL_WINDOW_SIZE (which may make it negative)."""
    window += increment
    if window > frames.MAX_WINDOW:
        raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"the window of {where} was widened past 2^31-1")
    return window
