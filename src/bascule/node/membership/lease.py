"""How long this broker may take messages without having heard from the cluster.

A stream may be deleted while a broker that leads a partition of it is cut off, and what that broker goes on taking is
lost when it hears of the deletion. So it asks the controller from time to time, and takes nothing, and confirms
nothing as stored, when its last question that was answered is LEASE_S old. DeleteStream waits as long for leaders that
do not say that they know (`deletion`).

Rules:
- A contact is a question that the controller answered after a majority confirmed that it still is the controller, and
  whose answer has been applied here: then this broker knows all that was decided before it asked.
- It counts from the moment of the *asking*, by a clock that never steps. An answer that travelled for long, or waited
  while this process stood still, extends nothing; nor does a timer that comes late, for whoever takes a batch, or sends
  acks, looks at the clock itself.
- Who is the only voter needs nobody: nothing can be decided without it.

Known to be imperfect: a machine that is suspended as a whole, its clocks with it, does not know how long it was away.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from bascule.errors import BasculeError
from bascule.ports import Clock

logger = logging.getLogger(__name__)

LEASE_S = 5.0
LEASE_WAIT_S = LEASE_S * 1.1
"""How long others wait for a lease to be over: two clocks do not run alike."""
ASK_EVERY_S = 1.0
ASK_TIMEOUT_S = 1.5
ASK_AGAIN_S = 0.2
OVERDUE_S = 2.5
"""A contact this old has been missed: what was taken since is kept if the stream turns out to be deleted."""
NS = 1_000_000_000
CUT_OFF = (
    f"this broker has heard of no controller for {LEASE_S:g} s and may be cut off from the cluster, which may have "
    "deleted the stream or let another broker lead it; this ends by itself when a majority of the voters is heard again"
)


class Lease:
    def __init__(self, clock: Clock, alone: Callable[[], bool]) -> None:
        """`alone` says whether this broker is the only voter."""
        self.asked = 0
        """Questions so far."""
        self.heard = 0
        """The newest of them that was answered."""
        self._alone = alone
        self._clock = clock
        self._was_over = False
        """What `keep` knew last."""
        self._contact_ns = self._until_ns = clock.monotonic_ns()

    def over(self) -> bool:
        """Whether nothing may be taken or confirmed right now. Asked once per batch."""
        now = self._clock.monotonic_ns()
        if now < self._until_ns:
            return False
        if self._alone():
            self._extend(now)
            return False
        return True

    @property
    def overdue(self) -> bool:
        return not self._alone() and self._clock.monotonic_ns() - self._contact_ns > int(OVERDUE_S * NS)

    def _extend(self, contact_ns: int) -> None:
        self._contact_ns = max(contact_ns, self._contact_ns)
        self._until_ns = self._contact_ns + int(LEASE_S * NS)

    async def ask(self, current: Callable[[float], Awaitable[None]]) -> bool:
        """`current` returns when this broker knows all that was decided before the call. True if it did."""
        if self._alone():
            self._extend(self._clock.monotonic_ns())  # so that it is not over at once when others come
            return True
        self.asked += 1
        number, began_ns = self.asked, self._clock.monotonic_ns()
        try:
            await current(ASK_TIMEOUT_S)
        except BasculeError as error:
            logger.debug("no contact with the controller: %s", error)
            return False
        self.heard = max(self.heard, number)
        self._extend(began_ns)
        return True

    async def keep(self, current: Callable[[float], Awaitable[None]], on_changed: Callable[[], None]) -> None:
        """A job: ask for ever. `on_changed` is called when writes begin or cease to be refused; that may be late."""
        while True:
            answered = await self.ask(current)
            if self.over() != self._was_over:
                self._was_over = not self._was_over
                if self._was_over:
                    logger.error("no writes are taken here, reads go on: %s", CUT_OFF)
                else:
                    logger.warning("the controller is heard again: writes are taken")
                on_changed()
            await asyncio.sleep(ASK_EVERY_S if answered else ASK_AGAIN_S)
