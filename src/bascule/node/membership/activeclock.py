"""A clock that stops while the event loop of this broker is blocked. Timeouts of other brokers are measured by it.

A broker that sends no heartbeat for a session is dead, and one that does not fetch for a while is out of sync. But if
this broker's own process is stopped (SIGSTOP, a machine without a free processor), or a handler blocks its event loop,
the messages of the others wait in its sockets. So timeouts of others run on a clock that stops with the loop. A timer
shows that the loop runs; when it fires late, the time by which it is late is not counted. Brokers that died meanwhile
are found when the rest of their session has passed.

The lease of this broker is never measured by it: others do not wait for a lease that was stopped.
"""

from bascule.ports import Clock

TURN_S = 0.25
"""Between two turns of the timer, which also sends the heartbeats."""
_MOST_NS = int(1.5 * TURN_S * 1e9)
"""The most that counts between two turns: a timer that is a little late is not a pause."""


class ActiveClock:
    """A `ports.Clock` whose monotonic time stops with the event loop. Until the first turn it is the plain clock."""

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
        """The timer fired: the loop runs, and reads what has arrived."""
        now = self._clock.monotonic_ns()
        self._missed_ns = now - self.monotonic_ns()
        self._turned_at = now
