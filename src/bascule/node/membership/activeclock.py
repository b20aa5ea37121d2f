"""Time as far as this broker listened: what a peer is judged by.

Who is silent for a session is dead, and who does not fetch for a while is out of sync. But a broker that did not listen
itself, because its process stood still (SIGSTOP, a machine without a free processor) or a handler held its event loop,
has no say in that: what the others said meanwhile waits in its sockets. So the silence of others is measured on a clock
that stands still while this broker's loop does. A timer shows that the loop goes round; when it comes late, what is
beyond the time it had is not counted. Those who died meanwhile are found when the rest of their session is over.

What this broker itself may do for a while, a lease, is never measured here: others do not wait for a late one.
"""

from bascule.ports import Clock

TURN_S = 0.25
"""How often the loop shows that it goes round; with every heartbeat."""
_MOST_NS = int(1.5 * TURN_S * 1e9)
"""That counts between two turns. A timer is a little late now and then, and that is no pause."""


class ActiveClock:
    """A `ports.Clock` whose monotonic time stands still with the event loop. Until the first turn it is the plain
    one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turned_at: int | None = None
        self._missed_ns = 0

    def time_ns(self) -> int:
        return self._clock.time_ns()

    def monotonic_ns(self) -> int:
        now = self._clock.monotonic_ns()
        if self._turned_at is not None and now - self._turned_at > _MOST_NS:
            now = self._turned_at + _MOST_NS
        return now - self._missed_ns

    def turned(self) -> None:
        """The loop went round: what was there to read will be read now."""
        now = self._clock.monotonic_ns()
        self._missed_ns = now - self.monotonic_ns()
        self._turned_at = now
