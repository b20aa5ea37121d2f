"""How long this broker may take messages after its last contact with the controller.

A stream may be deleted while a broker that leads one of its partitions is partitioned from the cluster. Messages that
this broker still takes are lost when it learns of the deletion. So it sends the controller a request from time to
time. When its last answered request is LEASE_S old it takes no messages, and acks none as stored. DeleteStream waits
as long for leaders that do not confirm the deletion (`controller.leases`), as PauseStream and SetStreamReadonly do.

Rules:
- A contact is a request that the controller answered after a majority confirmed that it still is the controller, and
  whose answer has been applied here: then this broker knows everything that was committed before the request.
- The lease runs from the moment the request was *sent*, by a monotonic clock. An answer that was slow, or that waited
  while this process was stopped, does not make it longer; nor does a late timer, for every batch and every ack checks
  the clock itself.
- The only voter needs no contact: nothing can be committed without it.

Known to be imperfect: a machine that is suspended as a whole, with its clocks, does not know how long that took.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from bascule.errors import BasculeError
from bascule.ports import Clock

logger = logging.getLogger(__name__)

LEASE_S = 5.0
LEASE_WAIT_S = LEASE_S * 1.1
"""How long others wait for the end of a lease: two clocks do not run at the same rate."""
ASK_EVERY_S = 1.0
ASK_TIMEOUT_S = 1.5
ASK_AGAIN_S = 0.2
OVERDUE_S = 2.5
"""The last contact is overdue: if the stream turns out to be deleted, messages taken since then go to quarantine."""
NS = 1_000_000_000
NO_CONTACT = (
    f"this broker has had no contact with the controller for {LEASE_S:g} s; it may be partitioned from the cluster, "
    "which may have deleted the stream or elected another leader. This ends by itself when a majority of the voters "
    "can be reached again"
)


class Lease:
    def __init__(self, clock: Clock, alone: Callable[[], bool]) -> None:
        """`alone` says whether this broker is the only voter."""
        self.asked = 0
        """Requests so far."""
        self.answered = 0
        """The newest request that was answered."""
        self._alone = alone
        self._clock = clock
        self._was_over = False
        """What `keep` saw last."""
        self._contact_ns = self._until_ns = clock.monotonic_ns()

    def over(self) -> bool:
        """Whether the lease has ended: nothing may be taken or acked now. Called once per batch."""
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
        """Send one request. `current` returns when everything committed before the call is applied here. True if it
        was answered."""
        if self._alone():
            self._extend(self._clock.monotonic_ns())  # so that the lease has not ended when other brokers join
            return True
        self.asked += 1
        number, began_ns = self.asked, self._clock.monotonic_ns()
        try:
            await current(ASK_TIMEOUT_S)
        except BasculeError as error:
            logger.debug("no contact with the controller: %s", error)
            return False
        self.answered = max(self.answered, number)
        self._extend(began_ns)
        return True

    async def keep(self, current: Callable[[float], Awaitable[None]], on_changed: Callable[[], None]) -> None:
        """A job: renew the lease forever. `on_changed` is called, perhaps late, when it has ended or begun again."""
        while True:
            answered = await self.ask(current)
            if self.over() != self._was_over:
                self._was_over = not self._was_over
                if self._was_over:
                    logger.error("this broker refuses writes, reads go on: %s", NO_CONTACT)
                else:
                    logger.warning("the controller answers again: this broker takes writes")
                on_changed()
            await asyncio.sleep(ASK_EVERY_S if answered else ASK_AGAIN_S)
